"""TRL's GRPOTrainer with turn credit, against the installed TRL: what its loss received, and what it trained."""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.processes import finish, start
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import COLOURS
from torch import Tensor

from turncredit.credit import CreditInputs, get_credit
from turncredit.credit.sequences import sequence_credit
from turncredit.rollout import with_privileged_context
from turncredit.trainers.adapters import RolloutBatch, TurnCredit
from turncredit.trainers.adapters.privileged import privileged_logprobs
from turncredit.trainers.adapters.refusals import VERSION, installed_version
from turncredit.trainers.adapters.trl import _returns

if importlib.util.find_spec("trl") is None:
    pytest.skip(f"TRL is not installed: pip install trl=={VERSION}", allow_module_level=True)
if installed_version() != VERSION:
    pytest.skip(f"TRL must be {VERSION}, {installed_version()} is installed", allow_module_level=True)

from helpers.trl_runs import Doors, make_trainer, playing_tokenizer, recording_trainer, reward, rows, settings_of

Batch = dict[str, Tensor]
SCRIPT = Path(__file__).parents[1] / "helpers" / "run_trl.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_agent_credit.py"
PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(<!-- trl -->\n)?```python\n(.*?)```", PAGE, re.S)


def scores(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """Log-probs of a completion's tokens, one row at a time and without padding."""
    logits = model(torch.tensor([prompt + completion])).logits[0]
    at = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return logits[at].log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]


def unpadded(batch: Batch, row: int) -> tuple[list[int], list[int], list[int]]:
    """Prompt, completion and tool mask of a row."""
    prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
    kept = batch["completion_mask"][row].bool()
    return prompt, batch["completion_ids"][row][kept].tolist(), batch["tool_mask"][row][kept].tolist()


def informed(prompt: list[int]) -> list[int]:
    """The prompt with the hint of its room ahead of the user's words."""
    names = tiny_tokenizer().get_vocab()
    assert prompt[:2] == [names["<user>"], names["room"]]
    return [prompt[0], names["say"], prompt[2], *prompt[1:]]


def by_hand(model: Any, batch: Batch, credit: str, rewards: list[float]) -> list[list[float]]:
    """Advantages of each row's completion tokens, turns cut out one by one."""
    student, teacher, owners, turns, places = [], [], [], [], []
    for row in range(len(rewards)):
        prompt, completion, tool = unpadded(batch, row)
        with torch.no_grad():
            own, better = scores(model, prompt, completion), scores(model, informed(prompt), completion)
        place, turn = 0, 0
        while place < len(tool):
            end = place
            while end < len(tool) and tool[end]:
                end += 1
            if end > place:
                student.append(own[place:end])
                teacher.append(better[place:end])
                owners.append(row)
                turns.append(turn)
                places.append(place)
                turn += 1
            place = max(end, place + 1)
    pad = lambda parts: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)  # noqa: E731
    reads = {"teacher_logprobs": pad(teacher)} if "teacher_logprobs" in get_credit(credit).requires else {}
    inputs = CreditInputs(
        response_mask=pad([torch.ones(len(part), dtype=torch.bool) for part in student]),
        trajectory_ids=torch.tensor(owners),
        turn_ids=torch.tensor(turns),
        group_ids=torch.arange(len(rewards)) // 4,
        rewards=torch.tensor(rewards),
        successes=torch.tensor(rewards),
        student_logprobs=pad(student),
        **reads,
    )
    found = get_credit(credit)(inputs).advantages
    out = [[0.0] * len(unpadded(batch, row)[1]) for row in range(len(rewards))]
    for line, (row, place) in enumerate(zip(owners, places, strict=True)):
        for token in range(len(student[line])):
            out[row][place + token] = float(found[line, token])
    return out


def assert_like(batch: Batch, expected: list[list[float]]) -> None:
    width = batch["completion_ids"].shape[1]
    padded = torch.tensor([row + [0.0] * (width - len(row)) for row in expected])
    torch.testing.assert_close(batch["advantages"], padded, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two updates of agent_opsd; the rewards of each batch are kept."""
    trainer = make_trainer(tmp_path_factory.mktemp("run"), TurnCredit(privileged="hint"))
    trainer.rewards, scored = [], trainer._calculate_rewards

    def keep(*arguments: Any) -> Tensor:
        trainer.rewards.append(scored(*arguments))
        return trainer.rewards[-1]

    trainer._calculate_rewards = keep
    trainer.train()
    return trainer


def test_two_steps_are_those_of_a_loop_made_by_hand(run: Any) -> None:
    """Scores, credit, loss, clipping and AdamW written out; the batches' tokens are all that is taken from TRL."""
    model, optimizer = tiny_model().train(), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    assert len(run.batches) == 2
    for batch, rewards, logged in zip(run.batches, run.rewards, run.state.log_history, strict=False):
        expected = by_hand(model, batch, "agent_opsd", rewards[:, 0].tolist())
        assert_like(batch, expected)
        losses = []
        for row, advantages in enumerate(expected):
            prompt, completion, tool = unpadded(batch, row)
            logprobs = scores(model, prompt, completion)
            gain = (logprobs - logprobs.detach()).exp() * torch.tensor(advantages)
            losses.append(-(gain * torch.tensor(tool)).sum() / sum(tool))
        loss = torch.stack(losses).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() == pytest.approx(logged["loss"], abs=1e-5)
        assert float(norm) == pytest.approx(logged["grad_norm"], rel=1e-3)
    start = tiny_model().state_dict()
    for name, value in run.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert any(not value.equal(start[name]) for name, value in run.model.state_dict().items())


def test_the_loss_received_what_the_credit_gave(run: Any) -> None:
    """TRL shuffles completions before its loss: every row keeps its own advantages."""
    assert len(run.received) == 2
    for batch, received in zip(run.batches, run.received, strict=True):
        given = {tuple(ids.tolist()): row for row, ids in enumerate(batch["completion_ids"])}
        assert received["advantages"].shape == received["completion_ids"].shape
        order = torch.tensor([given[tuple(ids.tolist())] for ids in received["completion_ids"]])
        same = [batch["advantages"][row] for row in order]
        assert len(given) == 8, "completions must differ for this test"
        assert torch.stack(same).equal(received["advantages"])
        credited = (received["advantages"] != 0).long()
        assert credited.equal(received["completion_mask"] * received["tool_mask"])


def test_padding_that_trl_marks_as_the_model_s_is_no_turn(run: Any) -> None:
    batch = run.batches[0]
    padding = batch["completion_mask"] == 0
    assert (batch["tool_mask"][padding] == 1).all()
    assert padding.any()
    assert (batch["advantages"][padding] == 0).all()


def test_what_is_logged(run: Any) -> None:
    for line, rewards in zip(run.state.log_history, run.rewards, strict=False):
        assert line["credit/turns"] == 3
        assert line["credit/unscored"] == 0
        assert line["credit/informed"] == 1
        assert line["credit/evidence_std"] > 0
        assert line["reward"] == pytest.approx(float(rewards.mean()))
    batch = run.batches[1]
    mask = batch["completion_mask"] * batch["tool_mask"]
    assert list(run._logs["advantages"]) == pytest.approx((batch["advantages"].sum(1) / mask.sum(1)).tolist())


@pytest.mark.parametrize(("credit", "scale"), [("grpo", "group"), ("dr_grpo", "none")])
def test_grpo_s_credit_is_trl_s_own_advantage(tmp_path: Any, credit: str, scale: str) -> None:
    trainer = make_trainer(tmp_path, TurnCredit(credit), options={"scale_rewards": scale, "max_steps": 1})
    trainer.train()
    batch, theirs = trainer.batches[0], trainer.theirs[0]
    mask = batch["completion_mask"] * batch["tool_mask"]
    assert (theirs != 0).any()
    torch.testing.assert_close(batch["advantages"], theirs[:, None] * mask)


def test_a_teacher_and_signals_of_one_s_own(tmp_path: Any) -> None:
    """Anchors by what was said last, rewards that fade, several optimiser steps of one batch of rollouts."""
    seen: list[RolloutBatch] = []

    def anchors(batch: RolloutBatch) -> Tensor:
        seen.append(batch)
        return batch.turns.turn_ids % 2

    plan = TurnCredit("gigpo", {"step_weight": 0.5}, signals={"anchor_ids": anchors})
    options = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 4}
    trainer = make_trainer(tmp_path, plan, options=options)
    trainer.train()
    assert len(seen) == len(trainer.batches) == 1
    assert len(trainer.received) == 4
    assert all(received["advantages"].shape[0] == 4 for received in trainer.received)
    batch, given = seen[0], trainer.batches[0]
    assert batch.student_logprobs is not None
    assert batch.student_logprobs.equal(given["old_per_token_logps"])
    assert [env.said for env in batch.environments or []] == [env.said for env in trainer.environments]
    assert [row["colour"] for row in batch.rows] == [
        c for c in dict.fromkeys(r["colour"] for r in batch.rows) for _ in "1234"
    ]
    assert {row["colour"] for row in batch.rows} <= set(COLOURS)
    assert batch.prompts[0][0]["content"].startswith("room ")
    assert batch.completions[0][0]["role"] == "assistant"
    turns = given["advantages"][batch.turns.sequence_ids, batch.turns.starts]
    assert len(set(turns[:3].tolist())) > 1


def test_a_completion_that_nobody_scored_moves_nothing(tmp_path: Any) -> None:
    def partly(environments: list[Doors], **columns: Any) -> list[float | None]:
        return [None, *reward(environments)[1:]]

    trainer = make_trainer(tmp_path, TurnCredit("grpo"), options={"max_steps": 1}, reward=partly)
    trainer.train()
    batch = trainer.batches[0]
    assert (batch["advantages"][0] == 0).all()
    torch.testing.assert_close(
        batch["advantages"].sum(1) / (batch["advantages"] != 0).sum(1).clamp(min=1), trainer.theirs[0]
    )
    assert trainer.state.log_history[0]["credit/unscored"] == 1 / 8


def test_successes_of_scaled_rewards_and_several_functions(tmp_path: Any) -> None:
    def tens(environments: list[Doors], **columns: Any) -> list[float]:
        return [10 * value for value in reward(environments)]

    with pytest.raises(ValueError, match="successes must be given where rewards are not all 0 or 1"):
        make_trainer(tmp_path, TurnCredit(privileged="hint"), options={"max_steps": 1}, reward=tens).train()
    plan = TurnCredit(privileged="hint", successes=lambda rewards: rewards[:, 0] / 10)
    trainer = make_trainer(tmp_path, plan, options={"max_steps": 1}, reward=tens)
    trainer.train()
    prior = trainer.batches[0]
    assert (prior["advantages"] != 0).any()
    wrong = TurnCredit("grpo", successes=lambda rewards: rewards)
    with pytest.raises(ValueError, match=r"successes must give a tensor \[N\] = \[8\], got \[8, 1\]"):
        make_trainer(tmp_path, wrong, options={"max_steps": 1}, reward=tens).train()


def test_evaluation_keeps_trl_s_advantages(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path, TurnCredit("grpo"), eval_dataset=rows(), options={"per_device_eval_batch_size": 8})
    trainer.evaluate()
    assert trainer.batches[0]["advantages"].ndim == 1


def test_completions_of_one_turn_are_said_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def flat(completions: list[Any], **columns: Any) -> list[float]:
        return [float(len(str(said)) % 2) for said in completions]

    options = {"max_tool_calling_iterations": None}
    trainer = make_trainer(
        tmp_path, TurnCredit(privileged="hint"), environment_factory=None, reward=flat, options=options
    )
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert caplog.text.count("every completion of a batch is one turn") == 1
    assert "tool_mask" not in trainer.batches[0]


def test_what_a_made_trainer_refuses(tmp_path: Any) -> None:
    hint = TurnCredit(privileged="hnt")
    text = "privileged must name a column of the dataset, got 'hnt' and prompt, colour, hint"
    with pytest.raises(ValueError, match=text):
        make_trainer(tmp_path, hint)
    with pytest.raises(ValueError, match="importance_sampling_level must be 'token', got 'sequence'"):
        make_trainer(tmp_path, TurnCredit("grpo"), options={"importance_sampling_level": "sequence"})


def one_step(folder: Any, plan: TurnCredit, **changes: Any) -> None:
    trainer = make_trainer(folder, plan, options={"max_steps": 1})
    vars(trainer).update(changes)
    trainer.train()


def test_what_a_plan_s_functions_may_not_give(tmp_path: Any) -> None:
    with pytest.raises(TypeError, match="privileged must give text or None, got int"):
        one_step(tmp_path, TurnCredit(privileged=lambda row: 3))  # type: ignore[arg-type,return-value]
    for wrong in (torch.zeros(8, 3), 3.0):
        plan = TurnCredit("gigpo", signals={"anchor_ids": lambda batch, wrong=wrong: wrong})  # type: ignore[misc]
        with pytest.raises(ValueError, match=r"signals\['anchor_ids'\] must give a tensor \[24\] or \[8, \d+\], got"):
            one_step(tmp_path, plan)
    lost = rows().remove_columns("hint")
    with pytest.raises(KeyError, match="privileged must name a column of the dataset, got 'hint' and a row with"):
        one_step(tmp_path, TurnCredit(privileged="hint"), train_dataset=lost)


def test_a_prompt_that_trl_did_not_render_is_refused(tmp_path: Any) -> None:
    """As with a rollout_func: what was played is not what TRL makes of the messages."""
    trainer = make_trainer(tmp_path, TurnCredit(privileged="hint"), options={"max_steps": 1})
    generate = trainer._generate

    def otherwise(prompts: Any) -> Any:
        ids, *rest = generate(prompts)
        return [own[1:] for own in ids], *rest

    trainer._generate = otherwise
    with pytest.raises(ValueError, match="privileged must stand in a prompt that TRL renders as it was played"):
        trainer.train()


def test_a_row_without_a_hint_has_the_student_for_a_teacher(tmp_path: Any) -> None:
    plan = TurnCredit("rlsd", privileged=lambda row: None if row["colour"] in COLOURS[:2] else "  ")
    trainer = make_trainer(tmp_path, plan, options={"max_steps": 1})
    trainer.train()
    mask = trainer.batches[0]["completion_mask"] * trainer.batches[0]["tool_mask"]
    torch.testing.assert_close(trainer.batches[0]["advantages"], trainer.theirs[0][:, None] * mask)
    assert trainer.state.log_history[0]["credit/informed"] == 0


def test_hints_of_different_lengths_are_scored_as_each_alone(tmp_path: Any) -> None:
    """Shorter prompts are padded, and nobody looks at the padding."""
    found: list[tuple[Tensor, Tensor]] = []

    def text(row: Any) -> str:
        return " ".join(["say", *[row["colour"]] * (1 + 3 * COLOURS.index(row["colour"]))])

    def score(batch: Any) -> Tensor:
        made = privileged_logprobs(trainer, batch, text)
        prompts = [
            with_privileged_context(prompt, text(data)) for prompt, data in zip(batch.prompts, batch.rows, strict=True)
        ]
        for row, told in enumerate(trainer._tokenize_prompts(prompts)[0]):
            said = batch.completion_ids[row][batch.completion_mask[row].bool()].tolist()
            with torch.no_grad():
                found.append((made[row, : len(said)], scores(trainer.model, list(told), said)))
        return made

    plan = TurnCredit("rlsd", signals={"teacher_logprobs": score})
    trainer = make_trainer(tmp_path, plan, options={"max_steps": 1})
    trainer.train()
    assert len(found) == 8
    for made, alone in found:
        torch.testing.assert_close(made, alone, rtol=1e-4, atol=1e-5)


def test_a_reward_function_that_leaves_a_completion_out_leaves_the_others_rewards() -> None:
    trainer = SimpleNamespace(reward_weights=torch.tensor([2.0, 0.5]))
    rewards = torch.tensor([[1.0, 4.0], [torch.nan, 4.0], [1.0, torch.nan], [torch.nan, torch.nan]])
    found = _returns(trainer, rewards)
    assert found[:3].tolist() == [4.0, 2.0, 2.0]
    assert bool(found[3].isnan())


def test_a_template_that_drops_the_hint_is_refused(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path, TurnCredit(privileged="hint"), options={"max_steps": 1})
    trainer.processing_class.chat_template = trainer.processing_class.chat_template.replace(
        "<user> {{ m['content'] }}", "<user> {{ (m['content'] | string)[-10:] }}"
    )
    with pytest.raises(ValueError, match="privileged must reach the model, but the chat template drops 'say"):
        trainer.train()


def test_a_class_of_another_order_takes_no_turn_credit(tmp_path: Any) -> None:
    from trl import GRPOTrainer

    from turncredit.trainers.adapters import TurnCreditMixin

    class Wrong(GRPOTrainer, TurnCreditMixin):
        pass

    with pytest.raises(TypeError, match="turn_credit"):
        make_trainer(tmp_path, TurnCredit("grpo"), kind=Wrong)
    assert recording_trainer().__mro__[1] is TurnCreditMixin


def test_a_rollout_function_says_which_tokens_are_the_policy_s(tmp_path: Any) -> None:
    """Two turns around a token of the environment; the teacher is a function of the batch."""

    def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        said = [[4 + index % 3, 9, 5, 1] for index in range(len(prompts))]
        lists = {"prompt_ids": [[3, 9]] * len(prompts), "completion_ids": said, "logprobs": None}
        return {**lists, "env_mask": [[1, 0, 1, 1]] * len(prompts)}

    def teacher(batch: RolloutBatch) -> Tensor:
        assert batch.environments is None
        return batch.student_logprobs + torch.tensor([0.5, 9.0, -0.25, -0.25])

    def odd(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [float(index % 2) for index in range(len(completion_ids))]

    plan = TurnCredit("agent_opsd", {"lam": 1.0}, signals={"teacher_logprobs": teacher})
    options = {"max_steps": 1, "max_tool_calling_iterations": None}
    trainer = make_trainer(tmp_path, plan, environment_factory=None, reward=odd, options=options, rollout_func=play)
    trainer.train()
    got = trainer.batches[0]["advantages"]
    student = torch.zeros(8, 4)
    gaps = torch.tensor([0.5, 9.0, -0.25, -0.25]).expand(8, 4)
    mask = torch.tensor([1, 0, 1, 1]).bool().expand(8, 4)
    rewards = torch.arange(8.0) % 2
    method = get_credit("agent_opsd", lam=1.0)
    expected, _ = sequence_credit(method, mask, rewards, torch.arange(8) // 4, student, teacher_logprobs=gaps)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_page_s_trainer_trains(tmp_path: Any) -> None:
    (block,) = [code for mark, code in BLOCKS if mark]
    names: dict[str, Any] = {"__name__": "trainers_page"}
    exec(compile(block, "trainers.md", "exec"), names)
    options = settings_of(tmp_path, max_steps=1)
    trainer = names["make"](tiny_model(), playing_tokenizer(), rows(), reward, Doors, options)
    trainer.train()
    assert trainer.state.log_history[0]["credit/turns"] == 3


@pytest.mark.slow
def test_the_example_trains(tmp_path: Any) -> None:
    command = [sys.executable, str(EXAMPLE), "--updates", "2", "--imitation", "5", "--output-dir", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr[-3000:]
    assert re.search(
        r"^agent_opsd: opened \d\.\d\d over the first 1 updates, \d\.\d\d over the last 1$", said.stdout, re.M
    )


@pytest.mark.slow
def test_a_group_on_two_processes_is_one_group(tmp_path: Any) -> None:
    for code, output in finish(start(SCRIPT, str(tmp_path), ACCELERATE_USE_CPU="true"), timeout=200):
        assert code == 0, output[-4000:]
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    widths = [part["completion_ids"].shape[1] for part in parts]
    assert widths[0] != widths[1]
    wide = lambda value: torch.nn.functional.pad(value, (0, max(widths) - value.shape[1]))  # noqa: E731
    whole = {name: torch.cat([wide(part[name]) for part in parts]) for name in ("student", "teacher", "advantages")}
    mask = torch.cat([wide(part["completion_mask"] * part["tool_mask"]).bool() for part in parts])
    rewards = parts[0]["rewards"][:, 0]
    assert rewards.equal(parts[1]["rewards"][:, 0])
    method = get_credit("agent_opsd", evidence_centering="group")
    groups = torch.zeros(4, dtype=torch.long)
    expected, _ = sequence_credit(method, mask, rewards, groups, whole["student"], teacher_logprobs=whole["teacher"])
    assert (expected != 0).any()
    torch.testing.assert_close(whole["advantages"], expected)
