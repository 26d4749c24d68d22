"""Heads, gold answers and the reward model in training: what is read where, exact gradients, clear refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from helpers.gradient_cases import config as gradient_config
from helpers.gradient_cases import make_rows
from helpers.processes import finish, start
from helpers.run_distributed import lines
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from helpers.update_cases import SUITE, config, play, score

from turncredit.envs.search_qa import SearchQASuite
from turncredit.rollout import PolicyScorer
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer, get_method
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.methods import learned, reward_model
from turncredit.trainers.methods.learned import ProgressTerm, TurnHead, ValueTerm, answer_logprobs
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.terms import TokenBatch

TEMPERATURE = 0.7
SCRIPT = Path(__file__).parents[1] / "helpers" / "run_learned.py"


@pytest.fixture(scope="module")
def batch():
    return make_batch(usable(play(tiny_model(), SUITE.tasks("train")[:4], seed=5)))


def trainer(folder, method, suite=SUITE, **changes):
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config(folder, credit=method, **changes))


def tokens(**signals):
    n = len(next(iter(signals.values())))
    zeros = torch.zeros(n)
    return TokenBatch(zeros, zeros, zeros, None, {k: torch.tensor(v) for k, v in signals.items()}, {})


# ---- heads


def test_the_values_loss_by_hand():
    signals = {"turn_returns": [1.0, 1.0, 0.0], "old_values": [0.0, 0.0, 0.0], "value_tokens": [2.0, 0.0, 1.0]}
    value = torch.tensor([0.8, 5.0, -0.3], requires_grad=True)
    batch = replace(tokens(**signals), outputs={"value": value})
    # at 0.8 the clipped value 0.5 is further from 1: 0.25 and no gradient; at -0.3 nothing is clipped
    loss = ValueTerm(value_clip=0.5).per_token(batch)
    assert loss.tolist() == pytest.approx([0.5 * 0.25 * 2, 0.0, 0.5 * 0.09])
    loss.sum().backward()
    assert value.grad.tolist() == pytest.approx([0.0, 0.0, -0.3])
    assert ValueTerm(value_clip=None).per_token(batch)[0].item() == pytest.approx(0.5 * 0.04 * 2)


def test_a_head_says_nothing_at_first_and_keeps_its_gradient_if_told():
    for detach in (True, False):
        head, hidden = TurnHead(4, 3.0, detach), torch.randn(5, 4, requires_grad=True)
        assert head.lr_scale == 3.0
        assert not head(hidden).any()
        torch.nn.init.ones_(head.read.weight)
        head(hidden).sum().backward()
        assert (hidden.grad is None) == detach
        assert head(hidden).shape == (5,)


@pytest.mark.parametrize("rows_per_batch", [1, 4])
def test_progress_has_the_gradient_of_the_squared_sum(rows_per_batch):
    """Rows in micro-batches of one; against autograd over the sum of each trajectory's shares."""
    rows, _ = make_rows()
    rows = rows.select((rows.slot_ids < 10).nonzero().flatten())

    def scorer():
        head = TurnHead(32, 1.0, False)
        torch.manual_seed(1)
        torch.nn.init.normal_(head.read.weight)
        return PolicyScorer(tiny_model(), {"progress": head})

    reference = scorer()
    shares = []
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        hidden = reference.model.model(ids).last_hidden_state[0, len(prompt) + len(response) - 2]
        shares.append(reference.attached["progress"](hidden[None])[0])
    returns = torch.randn(10, generator=torch.Generator().manual_seed(2))
    sums = torch.stack(
        [sum(s for s, t in zip(shares, rows.slot_ids.tolist(), strict=True) if t == i) for i in range(10)]
    )
    loss = (sums - returns).square().mean()
    loss.backward()
    wanted = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}

    told = torch.stack(shares).detach()
    ends, lengths = torch.zeros(rows.response_mask.shape), rows.response_mask.sum(1)
    counts = torch.zeros(10).index_add(0, rows.slot_ids, lengths.float())
    ends[torch.arange(len(ends)), lengths - 1] = counts[rows.slot_ids]
    signals = {
        "progress_rest": told - (sums.detach() - returns)[rows.slot_ids],
        "progress_tokens": ends,
        "progress_turns": torch.bincount(rows.slot_ids)[rows.slot_ids].float(),
    }
    settings = gradient_config(per_device_train_batch_size=rows_per_batch)
    trained, given = scorer(), replace(rows, signals=signals)
    metrics = accumulate_gradients(
        Accelerator(cpu=True), trained, given, settings, pad_token_id=0, terms=[ProgressTerm()]
    )
    assert metrics["progress_loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, parameter in trained.named_parameters():
        if name in wanted:
            error = (parameter.grad - wanted[name]).norm() / wanted[name].norm().clamp(min=1e-9)
            assert error < 1e-4, name


@pytest.mark.parametrize(("method", "module", "place"), [("turn_ppo", "value", 0), ("spa_rl", "progress", -1)])
def test_a_head_is_read_at_its_place_and_learns_at_its_own_rate(tmp_path, batch, method, module, place):
    with trainer(tmp_path, method, num_iterations=1, num_minibatches=1, max_grad_norm=1e9) as run:
        torch.nn.init.normal_(run.scorer.attached[module].read.weight)
        before = {name: value.clone() for name, value in run.policy.model.state_dict().items()}
        run.run.begin(batch, 0)
        told = run.run.signal({"value": "values"}.get(module, module))
        for row, turn in enumerate(batch.turns[:7]):
            ids = torch.tensor([[*turn.prompt_ids, *turn.response_ids]])
            at = len(turn.prompt_ids) - 1 if place == 0 else ids.shape[1] - 2
            hidden = run.model.model(ids).last_hidden_state[0, at]
            assert float(run.scorer.attached[module](hidden[None]).detach()) == pytest.approx(
                float(told[row]), abs=1e-5
            )
        run.rollout = lambda tasks: list(batch.trajectories)
        metrics = run.train_step()
        rates = [group["lr"] for group in run.optimizer.param_groups]
        assert rates[1] == pytest.approx(10 * rates[0])
        assert "modules" in run.parts
        assert any(not torch.equal(before[name], value) for name, value in run.policy.model.state_dict().items())
    assert metrics[f"train/{module}_loss"] > 0


# ---- the gold answer


class Opened(ToySuite):
    answer_opening = "<think> </think> <action>"

    def gold_answer(self, task):
        return f"{super().gold_answer(task)} door one"


@pytest.mark.parametrize("kind", [ToySuite, Opened])
def test_a_gold_answer_is_scored_behind_every_prompt(tmp_path, batch, kind):
    model, tokenizer = tiny_model(), tiny_tokenizer()
    suite = kind(num_tasks=8)
    with trainer(tmp_path, "igpo", suite) as run:
        run.run.start()
        run.run.begin(batch, 0)
        found = answer_logprobs(batch, run.run)
        with mock.patch.object(type(run.run), "longest", return_value=7):
            short = answer_logprobs(batch, run.run)
    assert run.run.metrics["method/answers_too_long"] > 0
    for row, turn in enumerate(batch.turns):
        gold = suite.gold_answer(run.run.tasks[batch.trajectories[int(batch.trajectory_ids[row])].task_id])
        opening = tokenizer(getattr(suite, "answer_opening", ""), add_special_tokens=False).input_ids
        answer = tokenizer(gold, add_special_tokens=False).input_ids
        with torch.no_grad():
            own, _ = score(model, (*turn.prompt_ids, *opening), answer, TEMPERATURE)
        assert float(found[row]) == pytest.approx(float(own.mean()), abs=1e-5)
        if len(turn.prompt_ids) + len(opening) + len(answer) > 7:
            assert float(short[row]) == (float(short[row - 1]) if batch.turn_ids[row] else learned._UNLIKELY)
        else:
            assert float(short[row]) == pytest.approx(float(found[row]), abs=1e-5)


class Long(ToySuite):
    def gold_answer(self, task):
        return "red " * 9


class Silent(ToySuite):
    gold_answer = None


class Unknown(ToySuite):
    def gold_answer(self, task):
        return None if task.id.startswith("blue") else "red"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Long, "a gold answer must have between 1 and 8 tokens, .* got 9 for 'red-train0'; raise it"),
        (Unknown, r"name every training task's gold answer by gold_answer\(task\), got None for 'blue-train2'"),
        (Silent, r"got no such method from .*; write that method, or choose a method that reads no answers"),
    ],
)
def test_a_suite_without_gold_answers_is_refused_before_anything_is_played(tmp_path, kind, message):
    with trainer(tmp_path, "igpo", kind(num_tasks=8)) as run:
        run.rollout = mock.Mock(side_effect=AssertionError("played"))
        with pytest.raises(ValueError, match=f"igpo: .*{message}"):
            run.train()


def test_search_qa_knows_its_answers():
    suite = SearchQASuite()
    task = suite.tasks("train")[0]
    gold = suite.gold_answer(task)
    assert gold == suite.question(task).answers[0]
    parsed = suite.parse(f"{suite.answer_opening}{gold}</answer>")
    assert (parsed.action, parsed.valid) == (f"<answer>{gold}</answer>", True)


# ---- the reward model


def bound(run, batch):
    run.run.begin(batch, 0)
    model = run.method.state["reward_model"]
    model.bind(run.run)
    return model


def test_the_reward_models_gradient_is_dpos(tmp_path, batch):
    """Against autograd through every trajectory's summed log-prob, all pairs of its group."""
    with trainer(tmp_path, "istar", credit_options={"beta": 0.3}, per_device_train_batch_size=3) as run:
        model = bound(run, batch)
        with torch.no_grad():
            for _, parameter in model._named():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        twin = tiny_model()
        twin.load_state_dict(model.scorer.model.state_dict())
        caught = {}

        def capture(accelerator, scorer, optimizer, lr, max_grad_norm):
            caught.update({n: p.grad.clone() for n, p in scorer.model.named_parameters()})
            return 1.0

        with mock.patch.object(reward_model, "apply_gradients", capture):
            logprobs = run.run.signal("reward_model_logprobs")
        metrics = run.run.metrics
    sums = [torch.zeros(()) for _ in batch.trajectories]
    for row, turn in enumerate(batch.turns):
        own, _ = score(twin, turn.prompt_ids, turn.response_ids, TEMPERATURE)
        torch.testing.assert_close(logprobs[row, : len(own)], own.detach(), rtol=1e-4, atol=1e-5)
        i = int(batch.trajectory_ids[row])
        sums[i] = sums[i] + (own - torch.tensor(turn.logprobs)).sum()
    loss, pairs, right = torch.zeros(()), 0, 0
    for i, first in enumerate(batch.trajectories):
        for j, second in enumerate(batch.trajectories):
            if first.group_id == second.group_id and first.reward > second.reward:
                loss = loss - torch.nn.functional.logsigmoid(0.3 * (sums[i] - sums[j]))
                pairs, right = pairs + 1, right + int(sums[i] > sums[j])
    (loss / pairs).backward()
    assert metrics["reward_model/pairs"] == pairs > 5
    assert metrics["reward_model/loss"] == pytest.approx(float(loss.detach()) / pairs, rel=1e-4)
    assert metrics["reward_model/accuracy"] == pytest.approx(right / pairs)
    for name, parameter in twin.named_parameters():
        error = (caught[name] - parameter.grad).norm() / parameter.grad.norm().clamp(min=1e-9)
        assert error < 1e-3, name


def test_it_scores_first_and_learns_then_and_its_state_comes_back(tmp_path, batch):
    made = (trainer(tmp_path / name, "istar", warmup_steps=0) for name in "ab")
    with next(made) as run, next(made) as other:
        model = bound(run, batch)
        assert model.state_dict().keys() == {f"weights.{name}" for name, _ in model._named()}
        before = model.score(run.run)
        assert torch.equal(run.run.signal("reward_model_logprobs"), before)
        after = model.score(run.run)
        assert not torch.equal(after, before)
        assert model.ahead
        assert run.torn
        copied = other.method.state["reward_model"]
        copied.load_state_dict(model.state_dict())
        assert copied.state_dict().keys() == model.state_dict().keys()
        bound(other, batch)
        assert torch.equal(copied.score(other.run), after)
        again = {name: value.clone() for name, value in copied.state_dict().items()}
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.items())
        for each in (run, other):
            each.run.begin(batch, 1)
            each.run.signal("reward_model_logprobs")
        moved = copied.state_dict()
        assert all(torch.equal(value, moved[name]) for name, value in model.state_dict().items())
        assert not all(torch.equal(value, moved[name]) for name, value in again.items())
        own = [parameter.detach().clone() for parameter in run.model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(own, tiny_model().parameters(), strict=True))
        model.load_state_dict({})
        assert model.state_dict() == {}
        assert not model.ahead


def test_without_a_pair_it_learns_nothing(tmp_path, batch):
    alike = replace(batch, trajectories=tuple(replace(t, reward=1.0) for t in batch.trajectories))
    with trainer(tmp_path, "istar") as run:
        model = bound(run, alike)
        before = model.state_dict()
        run.run.signal("reward_model_logprobs")
        assert not model.ahead
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert "reward_model/grad_norm" not in run.run.metrics


class Fails(GRPOCallback):
    """In the second update, before or after the reward model has learned."""

    def __init__(self, hook):
        self.hook = hook

    def on_rollout(self, trainer, trajectories):
        if trainer.step == 1 and self.hook == "on_rollout":
            raise RuntimeError("mine")

    def on_credit(self, trainer, inputs, credit):
        if trainer.step == 1 and self.hook == "on_credit":
            raise RuntimeError("mine")


@pytest.mark.parametrize(("hook", "saved"), [("on_rollout", True), ("on_credit", False)])
def test_no_checkpoint_of_a_reward_model_that_is_ahead(tmp_path, caplog, hook, saved):
    settings = config(tmp_path, credit="istar", preflight=False, eval_steps=0, num_eval_tasks=1)
    suite = ToySuite(num_tasks=8, needed=1, lenient=True)
    run = GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, settings, callbacks=[Fails(hook)])
    with run, pytest.raises(RuntimeError, match="mine"):
        run.train()
    assert (tmp_path / "checkpoints").exists() == saved
    assert ("update 1 is in no checkpoint" in caplog.text) != saved


def test_what_it_cannot_do_is_said_before_the_first_rollout(tmp_path):
    with trainer(tmp_path / "a", "istar") as run, mock.patch.object(reward_model, "zero_stage", return_value=2):
        run.rollout = mock.Mock(side_effect=AssertionError("played"))
        with pytest.raises(ValueError, match="istar: accelerator must not use DeepSpeed, got ZeRO-2"):
            run.train()
    options = {"credit_options": {"reference": "initial"}, "beta": 0.0}
    with trainer(tmp_path / "b", "istar", **options) as run, pytest.raises(ValueError, match="set beta above 0"):
        run.train()
    lone = SimpleNamespace(method=SimpleNamespace(name="mine", state={}))
    with pytest.raises(ValueError, match=r"mine: state must hold a RewardModel as 'reward_model'.*got \[\]"):
        reward_model._of(lone)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("turn_ppo", {"lr_scale": 0.0}, "lr_scale must be a number above 0"),
        ("turn_ppo", {"detach": "no"}, "detach must be True or False"),
        ("turn_ppo", {"value_clip": -1.0}, "value_clip must be a number above 0, or None never to clip"),
        ("turn_ppo", {"value_coef": -1.0}, "coef must be a number of at least 0"),
        ("spa_rl", {"lr_scale": -1.0}, "lr_scale must be a number above 0"),
        ("spa_rl", {"progress_coef": "x"}, "coef must be a number"),
        ("istar", {"reward_lr_scale": 0.0}, "reward_lr_scale must be a number above 0"),
        ("istar", {"reference": "mine"}, "reference must be one of 'rollout', 'initial'"),
    ],
)
def test_bad_options_are_named_when_the_method_is_made(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        get_method(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("turn_ppo", {"trace": 2.0}),
        ("empg", {"bonus": -1.0}),
        ("igpo", {"discount": 3.0}),
        ("spa_rl", {"discount": -1.0}),
        ("istar", {"beta": 0.0}),
    ],
)
def test_bad_options_of_the_credit_are_named_when_the_trainer_is_made(tmp_path, name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        trainer(tmp_path, name, credit_options=options)


# ---- several processes


def run_pair(stage, folder, **environment):
    for code, output in finish(start(SCRIPT, str(stage), str(folder), **environment), timeout=300):
        assert code == 0, output[-4000:]
        assert "finished" in output


@pytest.mark.slow
@pytest.mark.parametrize("stage", [-1, 3])
def test_two_processes_train_like_one_and_resume(tmp_path, stage):
    from helpers.run_learned import names, settings

    if stage > 0:
        pytest.importorskip("deepspeed")
    environment = {"ACCELERATE_USE_CPU": "true"} if stage < 0 else {"DS_ACCELERATOR": "cpu"}
    run_pair(stage, tmp_path, **environment)
    for name in names(stage):
        with GRPOTrainer(
            tiny_model(),
            tiny_tokenizer(),
            ToySuite(num_tasks=8, lenient=True),
            GRPOConfig(**settings(tmp_path / "one", name)),
        ) as run:
            run.train()
        ours, theirs = lines(tmp_path / name / "whole"), lines(tmp_path / "one" / name)
        for mine, other in zip(ours, theirs, strict=True):
            for key in mine.keys() - {
                k for k in mine if k.startswith(("time/", "rollout/w", "train/f")) or "_share" in k
            }:
                assert mine[key] == pytest.approx(other[key], rel=2e-3, abs=2e-5), (name, key, mine["step"])
