import json

import pytest

from turncredit.rollout import StopReason, Trajectory, Turn
from turncredit.trainers.loggers import MetricsLogger, readable
from turncredit.trainers.metrics import rollout_metrics


def turn(valid=True, tokens=2):
    return Turn(
        (1, 2, 3),
        (4,) * tokens,
        (-0.5,) * tokens,
        ({"role": "user", "content": "x"},),
        "<action> go </action>",
        observation="a room",
        valid=valid,
        stop_reason=StopReason.STOP_STRING,
    )


def trajectory(success, turns, task_type="Pick", failure=None, info=None):
    return Trajectory("t", task_type, 0, 0, tuple(turns), success, success, StopReason.DONE, failure, info=info or {})


def test_metrics_by_hand():
    metrics = rollout_metrics(
        [
            trajectory(1.0, [turn(), turn(valid=False)], info={"score": 80.0}),
            trajectory(0.0, [turn(tokens=4)] * 4, "Heat", info={"score": 20.0}),
            trajectory(0.0, [turn()], failure="worker_died"),
        ]
    )
    assert metrics["rollout/episodes"] == 3
    assert metrics["rollout/failed"] == 1
    assert metrics["rollout/success"] == 0.5
    assert metrics["rollout/success/Pick"] == 1.0
    assert metrics["rollout/success/Heat"] == 0.0
    assert metrics["rollout/turns"] == 3.0
    assert metrics["rollout/info/score"] == 50.0
    assert metrics["rollout/invalid_turns"] == pytest.approx(1 / 6)
    assert metrics["rollout/response_tokens"] == pytest.approx((2 * 2 + 4 * 4) / 6)
    assert rollout_metrics([], "eval") == {"eval/episodes": 0.0, "eval/failed": 0.0}


def test_lines_are_json_and_the_step_only_grows(tmp_path):
    log = MetricsLogger(tmp_path, (), {})
    log.log(0, {"a": 1.0})
    log.log(2, {"a": 2.0})
    with pytest.raises(ValueError, match="step must not go back, got 1 after 2"):
        log.log(1, {})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "a": 1.0}, {"step": 2, "a": 2.0}]


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(tmp_path, caplog):
    log = MetricsLogger(tmp_path, (), {})

    def broken(step, metrics):
        raise ConnectionError("network away")

    seen = []
    log._trackers += [broken, lambda step, metrics: seen.append(step)]
    log.log(1, {"a": 1.0})
    log.log(2, {"a": 1.0})
    assert seen == [1, 2]
    assert caplog.text.count("network away") == 1


def test_an_unknown_tracker_package_is_left_out(tmp_path, monkeypatch, caplog):
    import builtins

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError("no wandb here")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    log = MetricsLogger(tmp_path, ("wandb",), {})
    log.log(0, {"a": 1.0})
    assert "wandb is not available" in caplog.text


def test_a_full_disk_costs_a_line_and_not_the_run(tmp_path, monkeypatch, caplog):
    log = MetricsLogger(tmp_path, (), {})
    log.path = tmp_path / "missing" / "metrics.jsonl"
    log.log(1, {"a": 1.0})
    assert "could not be written" in caplog.text


def test_a_trajectory_reads_well():
    text = readable(trajectory(1.0, [turn(), turn(valid=False)]), [0.5, -0.25])
    assert "success 1" in text
    assert "--- turn 1  INVALID  advantage -0.250" in text
    assert "observation: a room" in text
    assert "response: <action> go </action>" in text


def test_numbers_that_are_not_finite_are_null_in_the_file(tmp_path):
    MetricsLogger(tmp_path, (), None).log(1, {"a": float("nan"), "b": float("inf"), "c": 1.5})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": null, "b": null, "c": 1.5}\n'
