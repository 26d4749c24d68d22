import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.trace_files import as_version_1
from hypothesis import given
from hypothesis import strategies as st

from turncredit.rollout import StopReason, Trajectory, Turn, load_trajectories, save_trajectories

floats = st.floats(-1e30, 0, allow_nan=False)
text = st.text(max_size=12)


@st.composite
def turns(draw):
    length = draw(st.integers(1, 5))
    return Turn(
        prompt_ids=tuple(draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=5))),
        response_ids=tuple(draw(st.lists(st.integers(0, 2**31), min_size=length, max_size=length))),
        logprobs=tuple(draw(st.lists(floats, min_size=length, max_size=length))),
        messages=({"role": "user", "content": draw(text)},),
        response=draw(text),
        thinking=draw(text),
        action=draw(text),
        observation=draw(text),
        admissible_actions=tuple(draw(st.lists(text, max_size=3))),
        reward=draw(st.floats(-10, 10)),
        valid=draw(st.booleans()),
        stop_reason=draw(st.sampled_from([StopReason.EOS, StopReason.LENGTH, StopReason.STOP_STRING])),
        action_tokens=draw(st.sampled_from([None, (0, 1)])),
        anchor=draw(text),
    )


trajectories = st.builds(
    Trajectory,
    task_id=text,
    task_type=text,
    group_id=st.integers(-5, 5),
    rollout_index=st.integers(0, 7),
    turns=st.lists(turns(), min_size=1, max_size=3).map(tuple),
    reward=st.floats(-10, 10),
    success=st.floats(0, 1),
    stop_reason=st.sampled_from(list(StopReason)),
    failure=st.none() | text,
    policy_version=st.integers(0, 1000),
    info=st.dictionaries(text, st.floats(-1, 1), max_size=2),
)


@given(st.lists(trajectories, max_size=4), st.sampled_from(["a.jsonl", "a.jsonl.gz"]))
def test_what_is_saved_comes_back_identically(records, name):
    with tempfile.TemporaryDirectory() as folder:
        path = save_trajectories(records, Path(folder) / "deep" / name)
        assert load_trajectories(path) == records
        assert os.listdir(path.parent) == [name]


def record(number: int) -> Trajectory:
    one = Turn((1,), (2, 3), (-0.1, -1 / 3), ({"role": "user", "content": "x"},), f"answer {number}")
    return Trajectory(f"task {number}", "pick", 0, number, (one,), 0.0, 0.0, StopReason.DONE)


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_truncated_file_is_refused(tmp_path, keep, name):
    path = save_trajectories([record(i) for i in range(5)], tmp_path / name)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ValueError, match=r"load_trajectories: .*(truncated|header|damaged)"):
        load_trajectories(path)


def test_an_altered_value_is_noticed(tmp_path):
    path = save_trajectories([record(0)], tmp_path / "t.jsonl")
    path.write_text(path.read_text().replace("-0.1", "-0.2"))
    with pytest.raises(ValueError, match="altered"):
        load_trajectories(path)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"hello\n", b"\xff\xfe\x00", b"[1, 2]\n", b"\x1f\x8bnonsense"])
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"load_trajectories: .*foreign must"):
        load_trajectories(path)


def test_a_newer_version_is_refused(tmp_path):
    path = save_trajectories([], tmp_path / "t.jsonl")
    path = save_trajectories([record(0)], path)
    path.write_text(path.read_text().replace('"version":2', '"version":99'))
    with pytest.raises(ValueError, match="version 2 or less, got 99"):
        load_trajectories(path)


def test_files_of_version_1_are_still_read(tmp_path):
    path = tmp_path / "old.jsonl"
    text = as_version_1([record(0), record(1)])
    path.write_text(text)
    assert load_trajectories(path) == [record(0), record(1)]
    path.write_text(text.replace("-0.1", "-0.2"))
    with pytest.raises(ValueError, match="altered"):
        load_trajectories(path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(
        ValueError, match=r"must hold 2 trajectories and their end, got . lines; the file was truncated"
    ):
        load_trajectories(path)


@pytest.mark.parametrize("change", ["swapped", "twice", "out of another file", "left out"])
def test_lines_that_do_not_belong_are_noticed(tmp_path, change):
    path = save_trajectories([record(i) for i in range(3)], tmp_path / "t.jsonl")
    other = save_trajectories([record(i + 5) for i in range(3)], tmp_path / "o.jsonl").read_text().splitlines()
    a, b, c = path.read_text().splitlines()
    lines = {"swapped": [b, a, c], "twice": [a, a, c], "out of another file": [a, other[1], c], "left out": [a, c]}
    path.write_text("\n".join(lines[change]) + "\n")
    with pytest.raises(ValueError, match="altered"):
        load_trajectories(path)


def test_other_readers_find_the_episodes_and_nothing_else(tmp_path):
    """A line is an episode: no header, no footer."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    records = [replace(record(i), info={"score": i / 2}, reward=0.1 * i, success=float(i == 2)) for i in range(3)]
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = save_trajectories(records, tmp_path / name)
        frame = pandas.read_json(path, lines=True)
        assert list(frame.columns) == ["turncredit", *vars(records[0])]
        assert frame["task_id"].tolist() == [t.task_id for t in records]
        assert frame["reward"].tolist() == [t.reward for t in records]
        assert [turns[0]["response"] for turns in frame["turns"]] == [t.turns[0].response for t in records]
        found = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
        assert found["task_id"] == [t.task_id for t in records]
        assert [turns[0]["logprobs"] for turns in found["turns"]] == [list(t.turns[0].logprobs) for t in records]


def test_no_episode_is_a_file_of_no_episode(tmp_path):
    path = save_trajectories([], tmp_path / "t.jsonl")
    assert path.read_bytes() == b"\n"
    assert load_trajectories(path) == []


def test_fields_of_imported_and_scored_turns_are_written_where_there_are_any(tmp_path):
    told = replace(record(0).turns[0], teacher_logprobs=(-0.5, -0.25), message={"role": "assistant", "content": "x"})
    bare = Turn((), (), (), ({"role": "user", "content": "x"},), "hi", message={"role": "assistant", "content": "hi"})
    records = [record(1), replace(record(0), turns=(told, bare))]
    path = save_trajectories(records, tmp_path / "t.jsonl")
    assert load_trajectories(path) == records
    first, second = map(json.loads, path.read_text().splitlines())
    assert {"message", "teacher_logprobs"}.isdisjoint(first["turns"][0])
    assert set(second["turns"][0]) - set(first["turns"][0]) == {"message", "teacher_logprobs"}


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = save_trajectories([record(0)], tmp_path / "t.jsonl")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_trajectories([record(1), record(2)], path)
    assert load_trajectories(path) == [record(0)]
    assert os.listdir(tmp_path) == ["t.jsonl"]
