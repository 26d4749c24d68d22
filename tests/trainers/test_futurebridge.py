"""FutureBridge in training: where the teacher plays, what is kept and learned; and runs that end by their budget."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.distill_runs import make
from helpers.tiny import tiny_model

from turncredit.rollout import StopReason
from turncredit.trainers import GRPOCallback, get_method
from turncredit.trainers.budget import restore_steps
from turncredit.trainers.methods import futurebridge


def another():
    return tiny_model(3, hidden_size=48)


def recorded(run):
    """Every call of `Run.rollout`: weights, starts, trajectories."""
    plays, rollout = [], run.run.rollout

    def play(starts, *, weights="policy"):
        plays.append((weights, list(starts), rollout(starts, weights=weights)))
        return plays[-1][2]

    run.run.rollout = play
    return plays


@pytest.mark.parametrize("model", [False, True])
def test_what_an_update_does(tmp_path, model):
    options = {"curriculum": False, "failed_only": False, "horizon": 2, "bridge": 0.5, "coef": 2.0}
    with make(tmp_path, "futurebridge", another() if model else None, **options) as run:
        plays = recorded(run)
        metrics = run.train_step()
        batch = run.run.batch
        (who, taught, bridges), (_, starts, played) = plays
        assert who == "teacher"
        assert metrics["method/bridges"] == len(taught) > 0
        for start, bridge in zip(taught, bridges, strict=True):
            assert len(bridge.turns) == len(start.prefix) + 1
            owner = next(
                t for t in batch.trajectories if (t.task_id, t.rollout_index) == (bridge.task_id, bridge.rollout_index)
            )
            assert len(start.prefix) < len(owner.turns) - 1  # not the last turn
        going = [one for one in bridges if one.stop_reason == StopReason.MAX_TURNS]
        assert [len(start.prefix) for start in starts] == [len(one.turns) for one in going]
        assert all(len(one.turns) - one.replayed <= 2 for one in played)
        rows, (term,) = run.run.extra[0]
        assert len(rows.prompts) == round(
            metrics["method/bridges_kept"] * (len(taught) - metrics["method/failed_bridges"])
        )
        said = {one.turns[-1].response_ids for one in bridges}
        assert set(map(tuple, rows.responses)) <= said
        assert set(map(tuple, rows.prompts)) <= set(batch.prompts)
        tokens = sum(map(len, rows.responses))
        assert term.coef == pytest.approx(2.0 * 0.5 * tokens / int(batch.response_mask.sum()))
        steps = (
            sum(len(t.turns) for t in batch.trajectories) + len(taught) + sum(len(t.turns) - t.replayed for t in played)
        )
        assert metrics["rollout/environment_steps"] == metrics["rollout/environment_steps_total"] == steps


def test_only_what_makes_it_better_is_kept(tmp_path):
    """Where the teacher likes every token behind its turns, all are kept that were not perfect before; else none is."""
    for liked in (True, False):
        with make(tmp_path / str(liked), "futurebridge", another(), curriculum=False, failed_only=False) as run:
            score = run.run.score

            def judged(*given, weights="policy", score=score, liked=liked, **named):
                scores = score(*given, weights=weights, **named)
                return (
                    replace(scores, logprobs=scores.mask * (0.0 if liked else -99.0))
                    if weights == "teacher"
                    else scores
                )

            run.run.score = judged
            metrics = run.train_step()
            assert (metrics["method/bridges_kept"] > 0.9) is liked


def test_episodes_that_succeeded_need_no_bridge(tmp_path):
    with make(tmp_path, "futurebridge", another(), curriculum=False) as run:
        plays = recorded(run)
        metrics = run.train_step()
        lost = sum(t.success < 1 for t in run.run.batch.trajectories)
        assert 0 < metrics["method/bridges"] <= lost < len(run.run.batch.trajectories)
        assert len(plays[0][1]) <= lost
        owners = {(start.task.id, start.rollout_index) for start in plays[0][1]}
        failed = {(t.task_id, t.rollout_index) for t in run.run.batch.trajectories if t.success < 1}
        assert owners <= failed
        solved = tuple(replace(t, success=1.0) for t in run.run.batch.trajectories)
        run.run.extra = []
        futurebridge._bridge(
            replace(run.run.batch, trajectories=solved), run.run, weight=1.0, horizon=2, failed_only=True
        )
        assert run.run.metrics["method/bridges"] == 0


def test_followers_are_the_turns_behind_the_replaced_one():
    batch = SimpleNamespace(
        turns=[None] * 7,
        trajectory_ids=torch.tensor([0, 0, 0, 0, 1, 1, 0]),
        turn_ids=torch.tensor([0, 1, 2, 3, 0, 1, 4]),
    )
    bridges = [futurebridge.Bridge(1, None), futurebridge.Bridge(4, None)]
    assert futurebridge._followers(batch, bridges, 2).tolist() == [-1, -1, 0, 0, -1, 1, -1]


def test_without_a_bridge_it_is_its_base_bit_for_bit(tmp_path):
    trained = []
    for name, options in (("opd", {}), ("futurebridge", {"curriculum": False, "bridge": 0.0})):
        with make(tmp_path / name, name, another(), **options) as run:
            run.train_step()
            trained.append({name: value.clone() for name, value in run.model.state_dict().items()})
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_it_begins_behind_the_teachers_turns(tmp_path):
    with make(tmp_path, "futurebridge", another(), attempts=3, failed_only=False) as run:
        metrics = [run.train_step() for _ in range(2)]
        assert any(one["method/teacher_turns"] > 0 for one in metrics)
        assert metrics[0]["method/depth"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon"),
        ({"bridge": -1.0}, "bridge"),
        ({"failed_only": 1}, "failed_only"),
        ({"eta": 0}, "eta"),
    ],
)
def test_refusals(options, message):
    with pytest.raises((ValueError, TypeError), match=f"futurebridge: {message}"):
        get_method("futurebridge", **options)


class Watch(GRPOCallback):
    def __init__(self):
        self.lines = []

    def on_step_end(self, trainer, metrics):
        self.lines.append(dict(metrics))


def test_a_run_ends_behind_the_update_that_spends_its_budget(tmp_path):
    def begun(folder, limit):
        watch = Watch()
        run = make(folder, "grpo", config={"max_environment_steps": limit, "max_steps": 9})
        run.callbacks.append(watch)
        return run, watch

    run, watch = begun(tmp_path / "whole", 100)
    with run:
        evaluation = run.train()
        totals = [line["rollout/environment_steps_total"] for line in watch.lines if line]
        assert len(totals) == run.step < 9
        assert totals[-1] >= 100 > totals[-2]
        assert evaluation["eval/success"] == watch.lines[-1]["eval/success"]
        whole = {name: value.clone() for name, value in run.model.state_dict().items()}
    run, watch = begun(tmp_path / "parts", int(totals[0]))
    with run:
        run.train()
        assert run.step == 1
    run, watch = begun(tmp_path / "parts", 100)
    with run:
        run.train(resume_from=True)
        again = [line["rollout/environment_steps_total"] for line in watch.lines if line]
        assert again[-1] == totals[-1]
        assert all(torch.equal(whole[name], value) for name, value in run.model.state_dict().items())


def test_a_checkpoint_that_did_not_count_turns_is_said(caplog):
    limited = SimpleNamespace(config=SimpleNamespace(max_environment_steps=50), environment_steps=7)
    restore_steps(limited, {"step": 3, "environment_steps": 41})
    assert limited.environment_steps == 41
    assert caplog.text == ""
    restore_steps(SimpleNamespace(config=SimpleNamespace(max_environment_steps=None)), {"step": 3})
    assert caplog.text == ""
    restore_steps(limited, {"step": 3})
    assert limited.environment_steps == 0
    assert "max_environment_steps = 50 counts from update 3 on" in caplog.text
