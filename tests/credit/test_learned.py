"""Methods with one more signal: hand tables, plain loops, identities with siblings, and what must change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.credit_cases import hand_batch, random_batch, reorder_rows, reorder_trajectories, trajectories_of

from turncredit.credit import CreditInputs, get_credit, grpo
from turncredit.credit.gigpo import step_returns
from turncredit.credit.groups import group_relative_advantages, leave_one_out
from turncredit.credit.learned import (
    EntropyScale,
    empg,
    entropy_facts,
    entropy_scale,
    igpo,
    istar,
    preferences,
    spa_rl,
    turn_gae,
)
from turncredit.credit.metrics import join_metrics

NAMES = ("turn_ppo", "empg", "igpo", "spa_rl", "istar")
PER_TOKEN = ("entropies", "reward_model_logprobs", "ref_logprobs")
F64 = {"dtype": torch.float64}


def with_signals(inputs: CreditInputs, seed: int = 0) -> CreditInputs:
    """Every signal that these methods read, NaN outside the mask, and turn rewards that leave some of the return."""
    draw = torch.Generator().manual_seed(seed)
    m, shape = inputs.num_rows, inputs.response_mask.shape
    tokens = {name: torch.randn(shape, generator=draw, **F64) for name in PER_TOKEN}
    tokens["entropies"] = tokens["entropies"].abs()
    extras = {name: value.masked_fill(~inputs.response_mask, torch.nan) for name, value in tokens.items()}
    extras |= {name: torch.randn(m, generator=draw, **F64) for name in ("values", "progress")}
    extras["answer_logprobs"] = -torch.rand(m, generator=draw, **F64) * 3
    return replace(inputs, extras=extras, turn_rewards=torch.rand(m, generator=draw, **F64))


def of_rows(inputs: CreditInputs, order: torch.Tensor) -> CreditInputs:
    moved = reorder_rows(replace(inputs, extras={}), order)
    return replace(moved, extras={name: value[order] for name, value in inputs.extras.items()})


def hand(rows: dict[str, list[float]], counts: list[int], rewards: list[float]) -> CreditInputs:
    """One group of one-token turns with signals, one number a turn."""
    inputs = hand_batch([[0.0] * count for count in counts], [0.0] * len(counts))
    extras = {name: torch.tensor(values, **F64) for name, values in rows.items()}
    extras = {name: value[:, None] if name in PER_TOKEN else value for name, value in extras.items()}
    return replace(inputs, rewards=torch.tensor(rewards, **F64), extras=extras)


def close(got: torch.Tensor, expected: list[float] | torch.Tensor) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=1e-9, atol=1e-9)


def turns_of(inputs: CreditInputs, trajectory: int) -> list[int]:
    rows = (inputs.trajectory_ids == trajectory).nonzero().flatten().tolist()
    return sorted(rows, key=lambda row: int(inputs.turn_ids[row]))


def a_turn(inputs: CreditInputs, advantages: torch.Tensor) -> torch.Tensor:
    """``[M]`` the advantage of each turn, which all its tokens have and nothing else."""
    mask = inputs.response_mask
    first = advantages[torch.arange(len(mask)), mask.int().argmax(1)]
    close(advantages, torch.where(mask, first[:, None], 0.0))
    return first


# ---- Turn-PPO


def test_turn_gae_by_hand():
    inputs = hand({"values": [0.5, 0.2, 0.4]}, [3], [1.0])
    # deltas: 0.9 * 0.2 - 0.5 = -0.32;  0.9 * 0.4 - 0.2 = 0.16;  1 - 0.4 = 0.6; each later one counts 0.9 * 0.5 = 0.45
    credit = turn_gae(inputs, discount=0.9, trace=0.5)
    close(credit.advantages[:, 0], [-0.32 + 0.45 * (0.16 + 0.45 * 0.6), 0.16 + 0.45 * 0.6, 0.6])
    close(credit.details["turn_returns"], [-0.1265 + 0.5, 0.43 + 0.2, 0.6 + 0.4])
    close(credit.details["value_tokens"][:, 0], [1.0, 1.0, 1.0])  # 3 tokens over 3 turns
    assert credit.metrics["mean_value"] == pytest.approx(1.1 / 3)
    assert credit.metrics["mean_abs_value_error"] == pytest.approx((0.1265 + 0.43 + 0.6) / 3)


def test_a_cut_episode_keeps_its_terminal_reward():
    inputs = hand({"values": [0.0, 0.0, 0.0]}, [3], [1.0])
    for own in ([0.0, 0.0, 0.0], [0.25, 0.0, 0.0], [0.25, 0.0, 0.75]):
        given = replace(inputs, turn_rewards=torch.tensor(own, **F64))
        close(turn_gae(given, trace=1.0).advantages[:, 0], [1.0, 1.0 - own[0], 1.0 - own[0]])


@pytest.mark.parametrize("seed", range(3))
def test_turn_gae_against_a_loop(seed):
    inputs = with_signals(random_batch(seed), seed)
    expected = torch.zeros(inputs.num_rows, **F64)
    for i in range(inputs.num_trajectories):
        rows = turns_of(inputs, i)
        earned = [float(inputs.turn_rewards[row]) for row in rows]
        earned[-1] += float(inputs.rewards[i]) - sum(earned)
        later, value = 0.0, 0.0
        for row, reward in zip(reversed(rows), reversed(earned), strict=True):
            later = reward + 0.9 * value - float(inputs.values[row]) + 0.9 * 0.7 * later
            value, expected[row] = float(inputs.values[row]), later
    credit = turn_gae(inputs, discount=0.9, trace=0.7)
    close(a_turn(inputs, credit.advantages), expected)
    where = credit.details["value_tokens"]
    first = inputs.response_mask.int().argmax(1)
    assert torch.equal(where.argmax(1), first)
    for i in range(inputs.num_trajectories):
        rows = turns_of(inputs, i)
        tokens = int(inputs.response_mask[rows].sum())
        torch.testing.assert_close(where[rows].sum(1), torch.full((len(rows),), tokens / len(rows)))


def test_turn_gae_at_its_ends():
    inputs = with_signals(random_batch(4))
    flat = replace(inputs, extras={**inputs.extras, "values": torch.zeros(inputs.num_rows, **F64)}, turn_rewards=None)
    close(a_turn(inputs, turn_gae(flat, trace=1.0, discount=0.9).advantages), step_returns(flat, discount=0.9))
    whole = turn_gae(inputs, trace=1.0).details["turn_returns"]
    first = inputs.turn_ids == 0
    close(whole[first], inputs.rewards[inputs.trajectory_ids][first])
    last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    one, many = (turn_gae(inputs, trace=trace).advantages[last] for trace in (0.0, 0.9))
    close(one, many)


# ---- EMPG


def test_empg_by_hand():
    # two rollouts, A = +0.5 and -0.5; H = 1, 3 and 2: h = 0, 1, 0.5
    inputs = hand({"entropies": [1.0, 3.0, 2.0]}, [2, 1], [1.0, 0.0])
    gate = (1 + math.exp(-1) + math.exp(-0.5)) / 3
    raw = [0.5 / gate + 0.1 * math.exp(-2), 0.5 * math.exp(-1) / gate, -0.5 * math.exp(-0.5) / gate]
    credit = empg(inputs, future_sharpness=2.0, bonus=0.1, scale_rewards=False)
    close(credit.advantages[:, 0], [value - sum(raw) / 3 for value in raw])
    assert credit.metrics["turn_entropy_range"] == 2.0
    assert credit.metrics["mean_turn_entropy"] == 2.0


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_empg_against_a_loop(seed):
    inputs = with_signals(random_batch(seed, groups=4), seed)
    options = {"scale_rewards": True, "eps": 1e-4}
    base = group_relative_advantages(inputs.rewards, inputs.group_ids, **options).tolist()
    alive = {int(g) for g, a in zip(inputs.group_ids, base, strict=True) if a != 0}
    mean = [float(inputs.entropies[row][inputs.response_mask[row]].mean()) for row in range(inputs.num_rows)]
    heard = [row for row in range(inputs.num_rows) if int(inputs.group_ids[inputs.trajectory_ids[row]]) in alive]
    low, high = min(mean[row] for row in heard), max(mean[row] for row in heard)
    gate = sum(math.exp(-2 * (mean[row] - low) / (high - low)) for row in heard) / len(heard)
    raw = {}
    for i in range(inputs.num_trajectories):
        rows = turns_of(inputs, i)
        for place, row in enumerate(rows):
            if row in heard:
                raw[row] = base[i] * math.exp(-2 * (mean[row] - low) / (high - low)) / gate
                if place + 1 < len(rows):
                    raw[row] += 0.3 * math.exp(-0.5 * (mean[rows[place + 1]] - low) / (high - low))
    centre = sum(raw.values()) / len(raw)
    expected = [raw[row] - centre if row in raw else 0.0 for row in range(inputs.num_rows)]
    credit = empg(inputs, sharpness=2.0, future_sharpness=0.5, bonus=0.3)
    close(a_turn(inputs, credit.advantages), expected)


def test_empg_without_sharpness_and_bonus_is_grpo_less_the_mean():
    inputs = with_signals(random_batch(1))
    plain = a_turn(inputs, grpo(inputs).advantages)
    size = torch.zeros(100, **F64).index_add(0, inputs.group_ids[inputs.trajectory_ids] + 50, plain.abs())
    heard = size[inputs.group_ids[inputs.trajectory_ids] + 50] > 0
    expected = torch.where(heard, plain - plain[heard].mean(), 0.0)
    close(a_turn(inputs, empg(inputs, sharpness=0.0, bonus=0.0).advantages), expected)


def test_empg_in_parts_is_empg_of_the_whole():
    inputs = with_signals(random_batch(2, groups=5, rollouts=4))
    whole = a_turn(inputs, empg(inputs, bonus=0.3).advantages)
    names = torch.unique(inputs.group_ids)
    parts = []
    for own in (names[:2], names[2:]):
        keep = torch.isin(inputs.group_ids, own)
        rows = keep[inputs.trajectory_ids]
        part = trajectories_of(replace(inputs, extras={}), keep)
        parts.append((rows, replace(part, extras={name: value[rows] for name, value in inputs.extras.items()})))
    scale = entropy_scale([entropy_facts(part) for _, part in parts], bonus=0.3)
    for rows, part in parts:
        close(a_turn(part, get_credit("empg", bonus=0.3, scale=scale)(part).advantages), whole[rows])


def test_empg_where_all_entropies_are_equal_and_where_nobody_has_an_advantage():
    inputs = hand({"entropies": [2.0, 2.0, 2.0]}, [2, 1], [1.0, 0.0])
    raw = [0.5 + 0.05, 0.5, -0.5]  # every h is 0: the gate is 1, and so is f
    close(empg(inputs, scale_rewards=False).advantages[:, 0], [value - sum(raw) / 3 for value in raw])
    dead = replace(inputs, rewards=torch.ones(2, **F64))
    assert not empg(dead).advantages.any()
    facts = entropy_facts(dead)
    assert entropy_scale([facts]) == EntropyScale(0.0, 0.0, 1.0, 0.0)


# ---- IGPO and SPA-RL


def test_igpo_by_hand():
    p = [0.1, 0.4, 0.3, 0.2, 0.6]
    inputs = hand({"answer_logprobs": [math.log(value) for value in p]}, [3, 2], [1.0, 0.0])
    gains = [0.3, -0.1, 1.0, 0.4, 0.0]  # 0.4 - 0.1, 0.3 - 0.4, outcome; 0.6 - 0.2, outcome
    mean = sum(gains) / 5
    z = [gain - mean for gain in gains]
    credit = igpo(inputs, discount=0.5, scale_rewards=False)
    close(credit.details["turn_gains"], gains)
    expected = [z[0] + 0.5 * z[1] + 0.25 * z[2], z[1] + 0.5 * z[2], z[2], z[3] + 0.5 * z[4], z[4]]
    close(credit.advantages[:, 0], expected)
    assert credit.metrics["mean_gain"] == pytest.approx(0.2)
    assert credit.metrics["positive_gain_share"] == pytest.approx(2 / 3)
    assert credit.metrics["mean_answer_probability"] == pytest.approx(0.32)


def test_spa_rl_by_hand():
    inputs = hand({"progress": [0.2, 0.6, 0.1]}, [2, 1], [1.0, 0.0])
    credit = spa_rl(inputs, scale_rewards=False)
    close(credit.advantages[:, 0], [(0.2 - 0.3) + (0.6 - 0.3), 0.6 - 0.3, 0.1 - 0.3])
    close(credit.details["progress_rest"], [1 - 0.6, 1 - 0.2, 0.0])
    close(credit.details["progress_tokens"][:, 0], [2.0, 2.0, 1.0])
    assert credit.metrics["mean_abs_return_error"] == pytest.approx((0.2 + 0.1) / 2)
    faded = spa_rl(inputs, outcome_discount=0.5)
    close(faded.details["progress_rest"], [0.25 - 0.6, 0.25 - 0.2, 0.0])


@pytest.mark.parametrize(("method", "signal"), [(igpo, "answer_logprobs"), (spa_rl, "progress")])
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_standardised_rewards_against_a_loop(method, signal, seed):
    inputs = with_signals(random_batch(seed), seed)
    reward = {}
    for i in range(inputs.num_trajectories):
        rows = turns_of(inputs, i)
        for place, row in enumerate(rows):
            reward[row] = float(inputs.progress[row])
            if method is igpo:
                p = [math.exp(float(inputs.answer_logprobs[r])) for r in rows]
                outcome = 0.9 ** len(rows) * float(inputs.rewards[i])
                reward[row] = outcome if place + 1 == len(rows) else p[place + 1] - p[place]
    expected = torch.zeros(inputs.num_rows, **F64)
    for group in torch.unique(inputs.group_ids):
        members = (inputs.group_ids == group).nonzero().flatten().tolist()
        rows = [row for i in members for row in turns_of(inputs, i)]
        if len(members) == 1:
            continue
        values = torch.tensor([reward[row] for row in rows], **F64)
        z = dict(zip(rows, ((values - values.mean()) / (values.std() + 1e-4)).tolist(), strict=True))
        for i in members:
            later = 0.0
            for row in reversed(turns_of(inputs, i)):
                later = z[row] + 0.8 * later
                expected[row] = later
    credit = method(inputs, discount=0.8, **({"outcome_discount": 0.9} if method is igpo else {}))
    close(a_turn(inputs, credit.advantages), expected)


def test_where_the_heads_loss_stands_is_the_last_token():
    inputs = with_signals(random_batch(3))
    where, mask = spa_rl(inputs).details["progress_tokens"], inputs.response_mask
    for row in range(inputs.num_rows):
        tokens = sum(int(mask[r].sum()) for r in turns_of(inputs, int(inputs.trajectory_ids[row])))
        assert where[row].nonzero().flatten().tolist() == [int(mask[row].nonzero()[-1])]
        assert where[row].sum() == tokens


# ---- iStar


def test_istar_by_hand():
    rows = {"reward_model_logprobs": [-1.5, 0.0, -1.0, -3.0]}  # the student's are -1
    inputs = hand(rows, [2, 1, 1], [1.0, 0.0, 0.5])
    r = [0.1 * -0.5, 0.1 * 1.0, 0.0, 0.1 * -2.0]
    credit = istar(inputs, beta=0.1, step_weight=2.0)
    close(credit.details["implicit_rewards"], r)
    base = [(r[2] + r[3]) / 2] * 2 + [(r[0] + r[1] + r[3]) / 3, (r[0] + r[1] + r[2]) / 3]
    outcome = [1 - 0.25, 1 - 0.25, 0 - 0.75, 0.0]
    close(credit.advantages[:, 0], [a + 2 * (x - b) for a, x, b in zip(outcome, r, base, strict=True)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reference", ["rollout", "initial"])
def test_istar_against_a_loop(seed, reference):
    inputs = with_signals(random_batch(seed), seed)
    base = inputs.student_logprobs if reference == "rollout" else inputs.ref_logprobs
    gap = (inputs.reward_model_logprobs - base).masked_fill(~inputs.response_mask, 0.0)
    r = [0.2 * float(gap[row].sum()) for row in range(inputs.num_rows)]
    expected = torch.zeros(inputs.num_rows, **F64)
    for row in range(inputs.num_rows):
        own = int(inputs.trajectory_ids[row])
        others = [
            j for j in range(inputs.num_trajectories) if inputs.group_ids[j] == inputs.group_ids[own] and j != own
        ]
        if others:
            outcome = float(inputs.rewards[own]) - sum(float(inputs.rewards[j]) for j in others) / len(others)
            turns = [s for j in others for s in turns_of(inputs, j)]
            expected[row] = outcome + 0.5 * (r[row] - sum(r[s] for s in turns) / len(turns))
    credit = istar(inputs, beta=0.2, step_weight=0.5, reference=reference)
    close(a_turn(inputs, credit.advantages), expected)


def test_a_reward_model_that_is_the_policy_gives_rloo():
    inputs = with_signals(random_batch(2))
    noise = 1e-6 * torch.randn(inputs.student_logprobs.shape, generator=torch.Generator().manual_seed(0))
    extras = {"reward_model_logprobs": inputs.student_logprobs + noise}
    credit = istar(replace(inputs, extras=extras))
    sizes = torch.bincount(inputs.group_index)[inputs.group_index]
    mean = group_relative_advantages(inputs.rewards, inputs.group_ids, scale_rewards=False)
    close(a_turn(inputs, credit.advantages), (mean * sizes / (sizes - 1).clamp(min=1))[inputs.trajectory_ids])
    assert not credit.details["step_advantages"].any()


@pytest.mark.parametrize("seed", range(3))
def test_preferences_against_autograd(seed):
    draw = torch.Generator().manual_seed(seed)
    groups = torch.tensor([5, 5, 5, -1, -1, 8, 5, 9, 9])
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 2.0], **F64)
    s = torch.randn(9, generator=draw, **F64).requires_grad_()
    loss, pairs, right = torch.zeros((), **F64), 0, 0
    for i in range(9):
        for j in range(9):
            if groups[i] == groups[j] and rewards[i] > rewards[j]:
                loss = loss - torch.nn.functional.logsigmoid(0.3 * (s[i] - s[j]))
                pairs, right = pairs + 1, right + int(s[i] > s[j])
    loss.backward()
    found = preferences(s, rewards, groups, beta=0.3)
    close(found.gradient, s.grad)
    assert found.loss == pytest.approx(float(loss.detach()))
    assert (found.pairs, found.right) == (pairs, right) == (6, right)
    assert preferences(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.long)).right == 0.5
    none = preferences(s, torch.ones(9), groups)
    assert (none.pairs, none.loss) == (0, 0.0)
    assert not none.gradient.any()


def test_leave_one_out_counts_owners_and_ties():
    values, groups = torch.tensor([3.0, 1.0, 2.0, 7.0]), torch.tensor([4, 4, 4, 9])
    close(leave_one_out(values, groups), [1.5, -1.5, 0.0, 0.0])
    close(leave_one_out(values, groups, torch.tensor([0, 0, 1, 2])), [1.0, -1.0, 0.0, 0.0])
    assert not leave_one_out(torch.full((3,), 0.1) + torch.tensor([0, 1e-9, 0]), torch.zeros(3, dtype=torch.long)).any()
    assert not leave_one_out(values, torch.zeros(4, dtype=torch.long), tolerance=10.0).any()


# ---- what must change nothing


@pytest.mark.parametrize("name", NAMES)
def test_row_order_trajectory_order_padding_and_what_stands_outside_the_mask(name):
    inputs = with_signals(random_batch(5))
    draw = torch.Generator().manual_seed(1)
    credit = get_credit(name)(inputs)
    order = torch.randperm(inputs.num_rows, generator=draw)
    moved = get_credit(name)(of_rows(inputs, order))
    close(moved.advantages, credit.advantages[order])
    close(moved.turn_weights, credit.turn_weights[order])
    for key, value in credit.details.items():
        close(moved.details[key], value[order])
    order = torch.randperm(inputs.num_trajectories, generator=draw)
    close(get_credit(name)(reorder_trajectories(inputs, order)).advantages, credit.advantages)

    def padded(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([value, value.new_zeros(len(value), 3)], 1) if value.ndim == 2 else value

    wide = replace(
        inputs,
        **{
            key: padded(getattr(inputs, key))
            for key in ("response_mask", "student_logprobs", "teacher_logprobs", "span_mask")
        },
        extras={key: padded(value) for key, value in inputs.extras.items()},
    )
    again = get_credit(name)(wide)
    close(again.advantages[:, :-3], credit.advantages)
    assert not again.advantages[:, -3:].any()
    assert again.metrics == pytest.approx(credit.metrics)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_group_of_one_and_equal_signals_give_exactly_zero(name):
    inputs = with_signals(random_batch(6))
    sizes = torch.bincount(inputs.group_index)[inputs.group_index]
    alone = (sizes == 1)[inputs.trajectory_ids]
    assert alone.any()
    assert not get_credit(name)(inputs).advantages[alone].any()
    keep = torch.ones_like(inputs.rewards)
    flat = {key: torch.full_like(value, -0.5).abs() for key, value in inputs.extras.items()}
    flat["answer_logprobs"] = torch.zeros_like(inputs.values)
    flat["reward_model_logprobs"] = inputs.student_logprobs
    equal = replace(inputs, extras=flat, rewards=0 * keep, turn_rewards=None)
    assert not get_credit(name)(equal).advantages.any()


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_and_a_missing_signal(name):
    inputs = with_signals(random_batch(7))
    expected = get_credit(name)(inputs).advantages
    half = {key: value.float() for key, value in inputs.extras.items()}
    kept = ("rewards", "student_logprobs", "teacher_logprobs", "turn_rewards", "successes")
    small = replace(inputs, extras=half, **{key: getattr(inputs, key).float() for key in kept})
    got = get_credit(name)(small).advantages
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-5)
    needed = sorted(get_credit(name).requires)[0]
    without = replace(inputs, extras={key: value for key, value in inputs.extras.items() if key != needed})
    with pytest.raises(ValueError, match=rf"{name}: inputs.{needed} must be given, got None; "):
        get_credit(name)(without)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("turn_ppo", "discount", 0.0),
        ("turn_ppo", "trace", 1.5),
        ("empg", "sharpness", -1.0),
        ("empg", "bonus", "much"),
        ("igpo", "discount", 2.0),
        ("spa_rl", "discount", -0.1),
        ("istar", "beta", 0.0),
        ("istar", "step_weight", -1.0),
        ("istar", "reference", "someone"),
        ("igpo", "outcome_discount", 0.0),
        ("istar", "outcome_discount", 2.0),
        ("spa_rl", "eps", -1.0),
    ],
)
def test_options_out_of_range_are_named(name, option, value):
    with pytest.raises(ValueError, match=option):
        get_credit(name, **{option: value})(with_signals(random_batch(0)))


@pytest.mark.parametrize("name", NAMES)
def test_metrics_of_parts_join_into_those_of_the_whole(name):
    inputs = with_signals(random_batch(3, groups=5, rollouts=5))
    names = torch.unique(inputs.group_ids)
    parts = []
    for own in (names[:1], names[1:]):
        keep = torch.isin(inputs.group_ids, own)
        rows = keep[inputs.trajectory_ids]
        part = trajectories_of(replace(inputs, extras={}), keep)
        parts.append(replace(part, extras={key: value[rows] for key, value in inputs.extras.items()}))
    whole = get_credit(name)(inputs).metrics
    options = {}
    if name == "empg":
        options = {"scale": entropy_scale([entropy_facts(part) for part in parts])}
    found = [get_credit(name, **options)(part).metrics for part in parts]
    joined = join_metrics(found, [part.num_trajectories for part in parts])
    assert joined == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert get_credit(name).extras == get_credit(name).requires


def test_a_slip_of_letters_is_named_before_another_method():
    with pytest.raises(ValueError, match="did you mean 'grpo'"):
        get_credit("gpro")
    with pytest.raises(ValueError, match="did you mean 'igpo'"):
        get_credit("igop")
