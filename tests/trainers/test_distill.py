"""On-policy distillation in training: towards a hinted self and towards another model, and what is refused."""

from __future__ import annotations

import pytest
import torch
from helpers.distill_runs import make
from helpers.tiny import tiny_model

from turncredit.trainers import get_method
from turncredit.trainers.methods.distill import sampled_kl_loss


@pytest.mark.parametrize("estimator", ["full", "sampled"])
def test_a_policy_comes_nearer_to_another_model(tmp_path, estimator):
    with make(tmp_path, "opd", tiny_model(3, hidden_size=48), estimator=estimator) as run:
        kls = [run.train_step()["train/opd_loss"] for _ in range(4)]
    assert kls[-1] < 0.9 * kls[0]


def test_the_first_loss_is_the_mean_over_tokens(tmp_path):
    with make(tmp_path, "opd") as run:
        phase, kept = run.phase, []
        run.phase = lambda *a: kept.append(phase(*a)) or kept[-1]
        metrics = run.train_step()
        (result,) = kept
    student, expected, count = tiny_model(), 0.0, 0
    rows, texts = run.run.batch, run.run.teacher_prompts()
    for prompt, told, response in zip(rows.prompts, texts, rows.responses, strict=True):
        with torch.no_grad():
            logs = [
                student(torch.tensor([[*start, *response]])).logits[0, len(start) - 1 : -1].log_softmax(-1)
                for start in (prompt, told)
            ]
        expected += float((logs[0].exp() * (logs[0] - logs[1])).sum())
        count += len(response)
    assert metrics["train/opd_loss"] == pytest.approx(expected / count, rel=1e-3)
    assert bool((result.rows.advantages == 0).all())


def test_depth_grows_and_ends_episodes(tmp_path):
    with make(tmp_path, "tcod_f2b", k_start=1, eta=1) as run:
        turns = []
        for step in range(3):
            metrics = run.train_step()
            turns.append(max(len(t.turns) for t in run.run.batch.trajectories))
            assert metrics["method/depth"] == step + 1
    assert turns == [1, 2, 3]


def test_depth_waits_eta_updates(tmp_path):
    with make(tmp_path, "tcod_f2b", k_start=2, eta=2) as run:
        assert [run.train_step()["method/depth"] for _ in range(3)] == [2, 2, 3]


@pytest.mark.parametrize("model", [False, True])
def test_the_teacher_plays_all_but_the_last_turns(tmp_path, model):
    """Episodes go on where a success of the teacher's was k turns from its end; without one they last k turns."""
    with make(tmp_path, "tcod_b2f", tiny_model(3, hidden_size=48) if model else None, eta=1, attempts=3) as run:
        plays, rollout, longest = [], run.run.rollout, 0
        run.run.rollout = lambda starts, **how: (
            plays.append((list(starts), how, rollout(starts, **how))) or plays[-1][-1]
        )
        for step in range(3):
            plays.clear()
            metrics = run.train_step()
            depth, shown = step + 1, {}
            assert metrics["method/depth"] == depth
            *rounds, (starts, _, played) = plays
            assert [one[1] for one in plays] == [{"weights": "teacher"}] * 3 + [{}]
            for number, (asked, _, found) in enumerate(rounds):
                assert {start.seed for start in asked} <= {("teacher", number)}
                assert {start.group_id for start in asked} == set(range(4)) - set(shown)
                assert all(start.context == f"hint say {start.task.id.split('-')[0]}" for start in asked)
                shown |= {one.group_id: one for one in found if one.success == 1.0}
            assert metrics["method/teacher_success"] == len(shown) / 4
            for start, one in zip(starts, played, strict=True):
                led = shown.get(start.group_id)
                turns = () if led is None else led.turns[: max(len(led.turns) - depth, 0)]
                assert start.prefix == turns
                assert one.failure is None
                assert one.replayed == len(turns)
                assert start.context is None
                assert start.max_turns == (depth if led is None else None)
            led = [len(start.prefix) for start in starts[::4]]
            longest = max(longest, *led)
            assert metrics["method/teacher_turns"] == sum(led) / 4
            rows = run.run.batch
            assert len(rows.turns) == sum(len(one.turns) - one.replayed for one in played)
        assert longest > 0


def test_sampled_estimator_by_hand():
    # rho e^0.1, gap -0.5 - -1: value and, through rho, gradient
    logp = torch.tensor([-0.5], requires_grad=True)
    loss = sampled_kl_loss(logp, torch.tensor([-1.0]), torch.tensor([-0.6]))
    assert loss.item() == pytest.approx(0.5 * 2.718281828**0.1)
    loss.backward()
    assert logp.grad.item() == pytest.approx(loss.item())


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match=r"opd: estimator must be one of \('full', 'sampled'\), got 'top'"):
        get_method("opd", estimator="top")
    with pytest.raises(ValueError, match="tcod_f2b: eta must be a whole number of at least 1, got 0"):
        get_method("tcod_f2b", eta=0)
    with pytest.raises(ValueError, match="tcod_b2f: attempts must be a whole number of at least 1, got 0"):
        get_method("tcod_b2f", attempts=0)
    with (
        make(tmp_path / "hindsight", "tcod_b2f", teacher_context="hindsight") as run,
        pytest.raises(ValueError, match=r"tcod_b2f: teacher_context must be one of the suite's, .*, got 'hindsight'"),
    ):
        run.train()
    with (
        make(tmp_path, "opd", teacher="stale") as run,
        pytest.raises(ValueError, match="opd: teacher must be the policy as it is, or another model"),
    ):
        run.train()
