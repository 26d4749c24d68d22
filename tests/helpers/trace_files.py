"""Traces as other tools write them, made up for tests: two attempts at one task each, of two turns and more."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SYSTEM = {"role": "system", "content": "You open doors. Example:\nuser: go\nassistant: open red"}
GO = {"role": "user", "content": "open the door"}


def said(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def call(name: str, arguments: str, identity: str = "c1") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


LOOK = call("look", '{"at": "door"}')
SEEN = {"role": "tool", "tool_call_id": "c1", "content": "it is red"}
TOOLS = [SYSTEM, GO, said(None, LOOK), SEEN, said("open red")]

OPENAI = [
    {"messages": TOOLS, "reward": 1.0, "task_id": "door"},
    {"messages": [*TOOLS[:4], said("open blue"), {"role": "user", "content": "no"}, said("sorry")], "reward": 0.0,
     "task_id": "door"},
]  # fmt: skip

SHAREGPT = [
    {
        "id": f"talk {number}",
        "system": "You open doors.",
        "conversations": [
            {"from": "human", "value": "open the door"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {}}'},
            {"from": "observation", "value": "it is red"},
            {"from": "gpt", "value": answer},
        ],
        "score": score,
    }
    for number, (answer, score) in enumerate([("open red", 1), ("open blue", 0)])
]

STEPS = [
    {
        "task_id": 7,
        "steps": [
            {"prompt": "a door, red", "response": "<think>red</think><action>look</action>", "reward": 0.25},
            {"prompt": [GO], "response": said("open red"), "reward": 0.5, "valid": False, "observation": "red"},
        ],
    }
]

SWE = {
    "environment": "door_repo",
    "trajectory": [
        {"query": [SYSTEM, GO], "response": "I look.\nls -F", "thought": "I look.", "action": "ls -F\n",
         "observation": "door.py", "state": "{}"},
        {"query": [SYSTEM, GO, said("I look.\nls -F"), {"role": "user", "content": "door.py"}], "response": "submit",
         "thought": "", "action": "submit", "observation": "", "state": "{}"},
        {"response": "", "action": "", "observation": "Exited", "state": "{}"},
    ],
    "history": [],
    "info": {"exit_status": "submitted", "submission": "diff"},
}  # fmt: skip
SWE_HISTORY = {
    "trajectory": [{"action": "ls", "observation": "door.py", "response": "ls", "thought": ""}],
    "history": [
        SYSTEM,
        {"role": "user", "content": "a demonstration", "is_demo": True},
        {**said("demonstrated"), "is_demo": True},
        GO,
        said("ls"),
        {"role": "user", "content": "door.py"},
        said("submit"),
    ],
    "info": {"exit_status": "exit_cost", "resolved": False},
}
MINI_SWE = {
    "trajectory_format": "mini-swe-agent-1.1",
    "info": {"exit_status": "Submitted", "submission": "diff"},
    "messages": [SYSTEM, GO, said("```bash\nls\n```"), {"role": "user", "content": "door.py"}, said("submit"),
                 {"role": "exit", "content": "diff"}],
}  # fmt: skip

TAU = [
    {"task_id": 3, "trial": trial, "reward": reward, "info": {}, "traj": TOOLS}
    for trial, reward in enumerate([1.0, 0.0])
]
TAU2 = {
    "info": {"num_trials": 2},
    "tasks": [{"id": "t"}],
    "simulations": [
        {
            "id": f"s{trial}",
            "task_id": "t",
            "trial": trial,
            "termination_reason": ended,
            "reward_info": {"reward": reward},
            "messages": [
                {"role": "assistant", "content": "Hi! How can I help?", "tool_calls": None},
                {"role": "user", "content": "my phone is slow", "tool_calls": None},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "name": "look", "arguments": {"at": 1}}],
                },
                {"role": "tool", "id": "c1", "content": "slow", "requestor": "assistant"},
                {"role": "assistant", "content": "restart it", "tool_calls": None},
                {"role": "user", "content": None, "tool_calls": [{"id": "u1", "name": "restart", "arguments": {}}]},
                {"role": "tool", "id": "u1", "content": "restarted", "requestor": "user"},
                {"role": "user", "content": "it works", "tool_calls": None},
                {"role": "assistant", "content": "great", "tool_calls": None},
            ],
        }
        for trial, (reward, ended) in enumerate([(1.0, "user_stop"), (0.0, "max_steps")])
    ],
}

VERL_INPUT = "system\nYou open doors.\nuser\nopen the door\nassistant\n"
VERL = [
    {"input": VERL_INPUT, "output": output, "gts": "red", "score": score, "step": step, "acc": score}
    for output, score, step in [
        ("<tool_call>look</tool_call>\nuser\n<tool_response>red</tool_response>\nassistant\nopen red", 1.0, 5),
        ("open blue", 0.0, 5),
        ("open red", 1.0, 6),
    ]
]
VERL_MARKED = [
    {
        "input": "<|im_start|>user\nopen<|im_end|>\n<|im_start|>assistant\n",
        "output": "look<|im_end|>\n<|im_start|>tool\nred<|im_end|>\n<|im_start|>assistant\nopen red<|im_end|>",
        "score": 1.0,
        "step": 1,
    }
]

TRL = [
    {"step": 2, "prompt": [SYSTEM, GO], "completion": [said(None, LOOK), SEEN, said("open red")], "door_reward": 1.0,
     "advantage": 0.7},
    {"step": 2, "prompt": [SYSTEM, GO], "completion": [said("open blue")], "door_reward": 0.0, "advantage": -0.7},
]  # fmt: skip

LANGFUSE = {
    "id": "trace-1",
    "name": "door agent",
    "metadata": {"task_id": "door"},
    "scores": [{"name": "helpful", "value": 0.3}, {"name": "reward", "value": 1.0}],
    "observations": [
        {"type": "GENERATION", "startTime": "2026-01-01T00:00:02Z", "input": {"messages": [GO, said("look"), SEEN]},
         "output": {"role": "assistant", "content": "open red"}},
        {"type": "SPAN", "startTime": "2026-01-01T00:00:01Z", "input": {}, "output": {}},
        {"type": "GENERATION", "startTime": "2026-01-01T00:00:00Z", "input": [GO], "output": "look"},
    ],
}  # fmt: skip
LANGFUSE_ROWS = [
    {"trace_id": f"t{trace}", "type": "GENERATION", "start_time": f"2026-01-01 00:00:0{turn}",
     "input": json.dumps([GO, *([said("look"), SEEN] if turn else [])]), "output": json.dumps(said(f"turn {turn}")),
     "metadata": json.dumps({"reward": float(trace), "task_id": "door"})}
    for turn in (1, 0) for trace in (0, 1)
]  # fmt: skip

LANGGRAPH = {
    "values": {
        "messages": [
            {"type": "system", "content": "You open doors."},
            {"type": "human", "content": "open the door", "id": "1"},
            {"type": "ai", "content": "", "tool_calls": [{"name": "look", "args": {"at": "door"}, "id": "c1"}]},
            {"type": "tool", "content": "it is red", "tool_call_id": "c1", "name": "look"},
            {"type": "ai", "content": [{"type": "text", "text": "open red"}], "tool_calls": []},
        ]
    },
    "metadata": {"reward": 1.0, "task_id": "door"},
}

REACT = """Solve the task with thoughts and actions.
Question: What colour is grass?
Thought 1: I know.
Action 1: Finish[green]
Observation 1: right

Question: What colour is the door?
Thought 1: I should look.
Action 1: Search[door]
Observation 1: The door is red.
It is old.
Thought 2: So it is red.
Action 2: Finish[red]
"""
REACT_STEPS = {
    "input": "What colour is the door?",
    "intermediate_steps": [
        [{"tool": "search", "tool_input": "door", "log": "Thought: look\nAction: search\nAction Input: door"}, "red"],
    ],
    "output": "red",
    "reward": 1.0,
}  # fmt: skip


def json_lines(records: list[Any], path: Path) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def json_file(record: Any, path: Path) -> Path:
    path.write_text(json.dumps(record))
    return path


def parquet(records: list[dict[str, Any]], path: Path) -> Path:
    import pandas

    pandas.DataFrame(records).to_parquet(path)
    return path


def as_version_1(records: list[Any], *without: str) -> str:
    """Trajectories as this library wrote them first: a header, a trajectory a line, a footer with their digest."""
    later = {"message", "teacher_logprobs"}
    lines = []
    for record in records:
        turns = [{name: value for name, value in vars(turn).items() if name not in later} for turn in record.turns]
        plain = {name: value for name, value in {**vars(record), "turns": turns}.items() if name not in without}
        lines.append(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    header = {"format": "turncredit.trajectories", "version": 1, "count": len(lines)}
    return "\n".join([json.dumps(header), *lines, json.dumps({"end": len(lines), "sha256": digest})]) + "\n"
