"""Traces of every format out of files: turns, prompts, rewards, groups; and what is wrong with one is said."""

from __future__ import annotations

import gzip
import json
import logging
import math

import pytest
from helpers import trace_files as files

from turncredit.rollout import StopReason, load_traces, trajectories_from
from turncredit.rollout.traces import Trace, TraceError, register_trace_format, registry

# format, how it is written, name of the file, options -> per trajectory: task, group, rewards of turns, actions
CASES = {
    "chat": (files.json_lines, files.OPENAI, "a.jsonl", {}, [
        ("door", 0, [0, 1], ['look({"at": "door"})', "open red"]),
        ("door", 0, [0, 0, 0], ['look({"at": "door"})', "open blue", "sorry"]),
    ]),
    "chat in one JSON": (files.json_file, files.OPENAI[:1], "a.json", {}, [
        ("door", 0, [0, 1], ['look({"at": "door"})', "open red"]),
    ]),
    "chat, ShareGPT": (files.json_file, files.SHAREGPT, "a.json", {}, [
        ("task 0", 0, [0, 1], ['{"name": "look", "arguments": {}}', "open red"]),
        ("task 0", 0, [0, 0], ['{"name": "look", "arguments": {}}', "open blue"]),
    ]),
    "chat, parquet": (files.parquet, files.OPENAI, "a.parquet", {}, [
        ("door", 0, [0, 1], ['look({"at": "door"})', "open red"]),
        ("door", 0, [0, 0, 0], ['look({"at": "door"})', "open blue", "sorry"]),
    ]),
    "steps": (files.json_lines, files.STEPS, "a.jsonl", {}, [("7", 0, [0.25, 0.5], ["look", "open red"])]),
    "swe_agent": (files.json_file, files.SWE, "repo__door-1.traj", {"reward": {"repo__door-1": 1}}, [
        ("repo__door-1", 0, [0, 1], ["ls -F", "submit"]),
    ]),
    "swe_agent, history": (files.json_file, files.SWE_HISTORY, "repo__door-1.traj", {}, [
        ("repo__door-1", 0, [0, 0], ["ls", "submit"]),
    ]),
    "swe_agent, mini": (files.json_file, files.MINI_SWE, "door-2.traj.json", {"reward": {"door-2": 0.0}}, [
        ("door-2", 0, [0, 0], ["```bash\nls\n```", "submit"]),
    ]),
    "tau": (files.json_file, files.TAU, "a.json", {}, [
        ("3", 0, [0, 1], ['look({"at": "door"})', "open red"]), ("3", 0, [0, 0], ['look({"at": "door"})', "open red"]),
    ]),
    "tau, second": (files.json_file, files.TAU2, "a.json", {}, [
        ("t", 0, [0, 0, 1], ['look({"at": 1})', "restart it", "great"]),
        ("t", 0, [0, 0, 0], ['look({"at": 1})', "restart it", "great"]),
    ]),
    "verl": (files.json_lines, files.VERL, "5.jsonl", {}, [
        ("task 0", 0, [0, 1], ["look", "open red"]), ("task 0", 0, [0], ["open blue"]),
        ("task 1", 1, [1], ["open red"]),
    ]),
    "verl, marked": (files.json_lines, files.VERL_MARKED, "1.jsonl", {}, [("task 0", 0, [0, 1], ["look", "open red"])]),
    "trl": (files.parquet, files.TRL, "completions_00002.parquet", {}, [
        ("task 0", 0, [0, 1], ['look({"at": "door"})', "open red"]), ("task 0", 0, [0], ["open blue"]),
    ]),
    "langfuse": (files.json_file, files.LANGFUSE, "trace-1.json", {}, [("door", 0, [0, 1], ["look", "open red"])]),
    "langfuse, rows": (files.json_lines, files.LANGFUSE_ROWS, "a.jsonl", {}, [
        ("door", 0, [0, 0], ["turn 0", "turn 1"]), ("door", 0, [0, 1], ["turn 0", "turn 1"]),
    ]),
    "langgraph": (files.json_file, files.LANGGRAPH, "a.json", {}, [
        ("door", 0, [0, 1], ['look({"at": "door"})', "open red"]),
    ]),
    "react": (lambda text, path: path.write_text(text) and path, files.REACT, "a.txt", {"reward": lambda record: 1}, [
        ("task 0", 0, [0, 1], ["Search[door]", "Finish[red]"]),
    ]),
    "react, steps": (files.json_file, files.REACT_STEPS, "a.json", {}, [
        ("task 0", 0, [0, 1], ["search[door]", "Final Answer: red"]),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_every_kind_becomes_trajectories(case, tmp_path):
    write, content, name, options, expected = CASES[case]
    path = write(content, tmp_path / name)
    found = load_traces(path, **options)
    assert [
        (t.task_id, t.group_id, [u.reward for u in t.turns], [u.action for u in t.turns]) for t in found
    ] == expected
    assert [t.reward for t in found] == [sum(rewards) for _, _, rewards, _ in expected]
    assert [t.success for t in found] == [float(t.reward >= 1) for t in found]
    assert found.skipped == ()
    assert not any(turn.tokenized for t in found for turn in t.turns)
    assert load_traces(path, case.split(",")[0].split()[0], **options) == found


def roles(turn):
    return [message["role"] for message in turn.messages]


def test_prompts_hold_what_was_said_before_and_examples_are_no_turns(tmp_path):
    chat = trajectories_from(files.OPENAI)[1]
    assert list(map(roles, chat.turns)) == [
        ["system", "user"],
        ["system", "user", "assistant", "tool"],
        ["system", "user", "assistant", "tool", "assistant", "user"],
    ]
    assert [turn.observation for turn in chat.turns] == ["open the door", "it is red", "no"]
    swe = trajectories_from(files.SWE_HISTORY)[0]
    assert roles(swe.turns[0]) == ["system", "user", "assistant", "user"]
    tau = trajectories_from(files.TAU2)
    assert roles(tau[0].turns[0]) == ["assistant", "user"]
    assert [turn.observation for turn in tau[0].turns] == ["my phone is slow", "slow", "it works"]
    assert [t.stop_reason for t in tau] == [StopReason.SUCCESS, StopReason.MAX_TURNS]
    react = trajectories_from({"text": files.REACT, "reward": 1})[0]
    assert "grass" in react.turns[0].messages[0]["content"]
    assert react.turns[1].observation == "Observation 1: The door is red.\nIt is old."
    trl = trajectories_from(files.TRL)[0]
    assert roles(trl.turns[1]) == ["system", "user", "assistant", "tool"]
    assert trl.policy_version == 2
    shown = [*files.TOOLS[1:], files.GO]
    few = trajectories_from({**files.TRL[1], "prompt": shown})[0]
    assert list(map(roles, few.turns)) == [["user", "assistant", "tool", "assistant", "user"]]
    verl = trajectories_from(files.VERL)
    assert list(map(roles, verl[0].turns)) == [["system", "user"], ["system", "user", "assistant", "user"]]
    assert [t.policy_version for t in verl] == [5, 5, 6]
    assert list(map(roles, trajectories_from(files.VERL_MARKED)[0].turns)) == [["user"], ["user", "assistant", "tool"]]
    steps = trajectories_from(files.STEPS)[0]
    assert [(turn.thinking, turn.valid, turn.observation) for turn in steps.turns] == [
        ("red", True, "a door, red"),
        ("", False, "red"),
    ]
    marked = [files.GO, files.said("first"), files.GO, files.said("second")]
    for mark in ({"weight": 0}, {"name": "example_assistant"}, {"is_demo": True}, {"train": False}):
        one = trajectories_from({"messages": [marked[0], {**marked[1], **mark}, *marked[2:]], "reward": 1})[0]
        assert [turn.response for turn in one.turns] == ["second"], mark
    greeting = trajectories_from({"messages": [files.said("hello"), *marked], "reward": 1})[0]
    assert [turn.response for turn in greeting.turns] == ["first", "second"]


def test_dialects_of_messages_become_one():
    message = {"type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": "hi"}}
    person = {"type": "human", "data": {"content": "open"}}
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"},
             {"type": "tool_use", "name": "look", "input": {"at": 1}, "id": "c"}]  # fmt: skip
    chat = [person, message, {"role": "user", "content": [{"type": "tool_result", "content": "red"}]},
            {"role": "assistant", "content": parts},
            {"role": "function", "name": "look", "content": {"colour": "red"}},
            {"role": "assistant", "function_call": {"name": "open", "arguments": ""}}]  # fmt: skip
    turns = trajectories_from({"messages": chat, "reward": 1})[0].turns
    assert [turn.action for turn in turns] == ["hi", 'look({"at": 1})', "open({})"]
    assert turns[1].thinking == "hm"
    assert turns[1].message == {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}],
    }
    assert turns[2].observation == '{"colour": "red"}'


def one(**changes):
    return {"messages": [files.GO, files.said("open red")], "reward": 1.0, **changes}


WRONG = {
    "two in a row": (one(messages=[files.GO, files.said("a"), files.said("b")]), "in a row at 1 and 2; pass join"),
    "an empty one": (one(messages=[files.GO, files.said(" ")]), "got an empty message at 1"),
    "no reward": ({"messages": one()["messages"], "id": "x"}, r"reward must be known, got none.*keys \['id', 'mess"),
    "NaN": (one(reward=math.nan), "reward must be a finite number, got nan"),
    "a text": (one(reward="good"), "reward must be a finite number, got 'good'"),
    "a success": (one(success=3), r"success must lie in \[0, 1\], got 3; pass a fraction"),
    "no assistant": (one(messages=[files.GO]), r"must hold an assistant message .* got roles \['user'\]"),
    "a role": (one(messages=[files.GO, {"role": "wizard", "content": "x"}]), "with a role of .*'wizard' at 1"),
    "a picture": (
        one(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "got a part of type 'image_url'",
    ),
    "rewards of turns": (one(reward=[1.0, 2.0]), "one per turn, got 2 for 1 turns"),
    "arguments": (one(messages=[files.GO, files.said(None, files.call("look", "{"))]), "arguments in JSON, got '{'"),
    "another record": ({"something": 1}, "the record must be of format 'chat'|must hold an assistant message"),
    "no record": (5, "named fields, got int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_an_error_or_a_counted_skip(case, caplog):
    record, message = WRONG[case]
    with pytest.raises(ValueError, match=rf"trajectories_from: objects: trace 1: .*({message})"):
        trajectories_from([one(), record])
    with caplog.at_level(logging.WARNING):
        kept = trajectories_from([one(), record, one()], on_error="skip")
    assert len(kept) == 2
    assert [skip.place for skip in kept.skipped] == [1]
    assert "1 of 3 traces were left out: trace 1:" in caplog.text
    with pytest.raises(
        ValueError, match=r"must hold a trace, got none out of 1 records|records of named fields|known format"
    ):
        trajectories_from([record], on_error="skip")


def test_several_assistant_messages_are_one_turn_where_that_is_asked_for():
    chat = [
        files.GO,
        {**files.said("I look"), "reasoning_content": "hm"},
        files.said(None, files.LOOK),
        files.SEEN,
        files.said("ok"),
    ]
    turns = trajectories_from(one(messages=chat), join_assistant=True)[0].turns
    assert [turn.response for turn in turns] == ["I look", "ok"]
    assert turns[0].action == 'look({"at": "door"})'
    assert turns[0].thinking == "hm"
    assert roles(turns[1]) == ["user", "assistant", "tool"]
    with pytest.raises(ValueError, match="got an empty message at 2"):
        trajectories_from(one(messages=[files.GO, files.said("a"), files.said("")]), join_assistant=True)


def test_rewards_and_successes_stand_where_one_says():
    records = [
        one(reward=None, info={"score": 0.5}, ok=1, task_id="a"),
        one(reward=None, info={"score": 2}, ok=0, task_id="b"),
    ]
    for reward in ("info.score", lambda record: record["info"]["score"], {"a": 0.5, "b": 2}):
        found = trajectories_from(records, reward=reward, success="ok")
        assert [(t.reward, t.success, t.stop_reason.value) for t in found] == [(0.5, 1, "success"), (2, 0, "done")]
    only = trajectories_from([one(reward=None, resolved=True), one(reward=None, metadata={"success": False})])
    assert [(t.reward, t.success) for t in only] == [(1, 1), (0, 0)]
    with pytest.raises(ValueError, match="reward must be known"):
        trajectories_from(records, reward="info.points")
    with pytest.raises(ValueError, match=r"reward must be a function of records, got KeyError\('info2'\)"):
        trajectories_from(records, reward=lambda record: record["info2"])
    many = [{**files.TRL[0], "format_reward": 0.5}]
    with pytest.raises(ValueError, match=r"one column, got numbers in \['door_reward', 'format_reward'\]"):
        trajectories_from(many)
    assert trajectories_from([one(reward=[0.5])])[0].reward == 0.5


def test_groups_are_those_of_tasks_or_of_what_one_says():
    other = [{"role": "user", "content": "close it"}, files.said("ok")]
    records = [one(task_id="a", seed=1), one(task_id="b", seed=1), one(task_id="a", seed=2, messages=other)]

    def groups(**options):
        return [(t.group_id, t.rollout_index) for t in trajectories_from(records, **options)]

    assert groups() == groups(group_by="task") == [(0, 0), (1, 0), (0, 1)]
    assert groups(group_by="prompt") == [(0, 0), (0, 1), (1, 0)]
    assert groups(group_by="seed") == groups(group_by=lambda record: record["seed"]) == [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(ValueError, match="group_by must give a value, got None from 'sead'"):
        groups(group_by="sead")
    with pytest.raises(ValueError, match='task must be named in the record, got none; group_by="prompt"'):
        trajectories_from(one(), group_by="task")


def test_objects_of_every_kind():
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    plain = trajectories_from(files.OPENAI)
    assert trajectories_from(iter(files.OPENAI)) == trajectories_from({"data": files.OPENAI}) == plain
    assert trajectories_from(pandas.DataFrame(files.OPENAI)) == plain
    assert trajectories_from(datasets.Dataset.from_list(files.OPENAI)) == plain
    apart = [one(messages=[files.GO, {**files.said(""), "tool_calls": [{"name": name, "arguments": {name: 1}}]}])
             for name in ("look", "open")]  # fmt: skip
    for table in (datasets.Dataset.from_list(apart), apart):
        assert [t.turns[0].action for t in trajectories_from(table)] == ['look({"look": 1})', 'open({"open": 1})']
    bare = trajectories_from([record["messages"] for record in files.OPENAI], reward=lambda record: 1.0)
    assert [len(t.turns) for t in bare] == [2, 3]
    assert len(trajectories_from(files.TOOLS, reward=lambda record: 0)) == 1
    gaps = pandas.DataFrame([one(task_id=3), one(task_id=None), one(task_id=3)])
    assert [(t.task_id, t.group_id) for t in trajectories_from(gaps)] == [("3", 0), ("task 1", 1), ("3", 0)]
    missing = pandas.DataFrame([one(), one(reward=None)])
    with pytest.raises(ValueError, match="trace 1: reward must be a finite number, got nan"):
        trajectories_from(missing)
    with pytest.raises(
        TypeError, match="objects must be records, a table or a list of them, got str; load_traces reads"
    ):
        trajectories_from("traces.jsonl")


def test_files_folders_and_what_cannot_be_read(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("b__1", "a__1"):
        files.json_file({**files.SWE, "info": {"resolved": True}}, folder / f"{name}.traj")
    assert [t.task_id for t in load_traces(folder)] == ["a__1", "b__1"]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n\n".join(map(json.dumps, files.OPENAI)).encode()))
    assert load_traces(path) == trajectories_from(files.OPENAI)
    lines = tmp_path / "a.json"  # JSON lines under another name, the last one cut
    lines.write_text(json.dumps(one()) + "\n" + json.dumps(one())[:-5])
    with pytest.raises(ValueError, match=r"a\.json: trace 1: line 2 must be JSON, got .*it was cut"):
        load_traces(lines)
    assert len(load_traces(lines, on_error="skip").skipped) == 1
    lines.write_text("[{")
    with pytest.raises(ValueError, match="the file must be JSON"):
        load_traces(lines)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="path must hold files of"):
        load_traces(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        load_traces(tmp_path / "nowhere.json")
    for content in ("[]", "{}"):
        lines.write_text(content)
        with pytest.raises(ValueError, match=r"got none out of 0 records|of a known format"):
            load_traces(lines)


def test_an_unknown_format_is_refused_with_what_was_seen():
    with pytest.raises(
        ValueError, match=r"known format, \['chat', .*got records with the keys \['answer', 'q'\]; name"
    ):
        trajectories_from([{"q": 1, "answer": 2}])
    with pytest.raises(ValueError, match=r"format must be one of .* got 'chats'; did you mean 'chat'"):
        trajectories_from([one()], "chats")
    with pytest.raises(ValueError, match='on_error must be "raise" or "skip", got \'drop\''):
        trajectories_from([one()], on_error="drop")
    with pytest.raises(ValueError, match=r"of format 'tau', got .*|must hold an assistant message"):
        trajectories_from([{"reward": 1}], "tau")


def test_a_format_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))

    @register_trace_format("duel", fits=lambda record: "duel" in record)
    def read(record):
        if record["duel"] is None:
            raise TraceError("duel must be fought, got none; leave it out")
        return Trace(record, [files.GO, files.said(record["duel"])], reward=2.0, task="d")

    found = trajectories_from([{"duel": "draw", "messages": files.TOOLS}, {"duel": None}], on_error="skip")
    assert [turn.response for turn in found[0].turns] == ["draw"]
    assert found.skipped[0].reason == "duel must be fought, got none; leave it out"
