"""Trajectories as tables of turns, and back through parquet."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from turncredit.credit import Credit, CreditInputs, grpo
from turncredit.rollout import StopReason, Trajectory, Turn, to_dataset, to_pandas

pandas = pytest.importorskip("pandas")
SEEN = ({"role": "user", "content": "x"},)


def turn(*logprobs, teacher=None, **more):
    ids = tuple(range(len(logprobs)))
    return Turn((7,), ids, logprobs, SEEN, "say", action="a", observation="o", teacher_logprobs=teacher, **more)


def trajectories():
    first = (turn(-1.0, -2.0, teacher=(-0.5, -0.5), reward=1.0), turn(-1.0, teacher=(-3.0,), valid=False))
    second = (turn(-1.0, teacher=(-1.0,)), turn(-0.5, -0.5, -0.5, teacher=(-0.5, -0.5, -0.5)))
    return [
        Trajectory("t", "pick", 4, 0, first, 1.0, 1.0, StopReason.SUCCESS),
        Trajectory("t", "pick", 4, 1, second, 0.0, 0.0, StopReason.DONE, replayed=1),
    ]


def test_a_row_is_a_turn_with_its_credit():
    records = trajectories()
    credit = grpo(CreditInputs.from_trajectories(records))
    frame = to_pandas(records, credit)
    assert frame["trajectory"].tolist() == [0, 0, 1]
    assert frame["turn"].tolist() == [0, 1, 0]
    assert frame["response_ids"].tolist() == [[0, 1], [0], [0, 1, 2]]
    assert frame["logprob"].tolist() == [-3.0, -1.0, -1.5]
    assert frame["evidence"].tolist() == [2.0, -2.0, 0.0]
    assert frame["reward"].tolist() == [1.0, 0.0, 0.0]
    assert frame["return"].tolist() == [1.0, 1.0, 0.0]
    assert frame["valid"].tolist() == [True, False, True]
    assert frame["stop_reason"].tolist() == ["success", "success", "done"]
    assert frame["credit"].tolist() == pytest.approx([0.70701, 0.70701, -0.70701], abs=1e-4)
    assert frame["weight"].tolist() == [1.0, 1.0, 1.0]
    assert (frame["text"].iloc[0], frame["action"].iloc[0], frame["task_id"].iloc[0]) == ("say", "a", "t")


def test_credit_is_the_mean_over_a_turns_own_tokens():
    values = torch.tensor([[1.0, 3.0, 0.0], [5.0, 0.0, 0.0], [1.0, 2.0, 6.0]])
    frame = to_pandas(trajectories(), Credit(values, torch.tensor([0.5, 1.0, 2.0])))
    assert frame["credit"].tolist() == [2.0, 5.0, 3.0]
    assert frame["weight"].tolist() == [0.5, 1.0, 2.0]


def test_without_credit_or_teacher_or_ids_columns_are_missing_values():
    records = trajectories()
    bare = Turn((), (), (), SEEN, "hi", message={"role": "assistant", "content": "hi"})
    imported = replace(records[1], turns=(bare, replace(records[1].turns[1], teacher_logprobs=None)), replayed=0)
    frame = to_pandas([imported])
    assert frame[["credit", "weight", "evidence"]].isna().all().all()
    assert frame["logprob"].isna().tolist() == [True, False]
    assert len(to_pandas([]).columns) == len(frame.columns)


def test_credit_of_other_turns_is_refused():
    records = trajectories()
    credit = grpo(CreditInputs.from_trajectories(records))
    with pytest.raises(ValueError, match=r"credit must be of these turns, \[2, 2\], got \[3, 3\]"):
        to_pandas(records[:1], credit)


def test_a_dataset_holds_the_same_and_comes_back_through_parquet(tmp_path):
    datasets = pytest.importorskip("datasets")
    records = trajectories()
    credit = grpo(CreditInputs.from_trajectories(records))
    table, frame = to_dataset(records, credit), to_pandas(records, credit)
    assert table.column_names == list(frame.columns)
    table.to_parquet(tmp_path / "turns.parquet")
    back = pandas.read_parquet(tmp_path / "turns.parquet")
    for name in frame.columns:
        one, other = ([list(x) if hasattr(x, "__len__") else x for x in part[name]] for part in (frame, back))
        assert one == other or (name == "failure" and back[name].isna().all()), name
    assert table.features["failure"] == datasets.Value("string")
    with pytest.raises(ValueError, match="trajectories must have turns, got none"):
        to_dataset([])
