"""What agents and benchmarks write: tau-bench's and tau2-bench's results, SWE-agent's and mini-SWE-agent's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .messages import is_chat
from .records import Step, Trace, found, text_message
from .registry import Record, register_trace_format


def _of_tau(record: Record) -> bool:
    return "simulations" in record or (is_chat(record.get("traj")) and "task_id" in record) or "reward_info" in record


def _simulations(records: Sequence[Record]) -> list[Record]:
    """tau2-bench keeps all simulations of a run in one record."""
    spread: list[Record] = []
    for record in records:
        spread += record["simulations"] if isinstance(record, Mapping) and "simulations" in record else [record]
    return spread


def _agents_own(message: Mapping[str, Any]) -> bool:
    """Whether the agent saw it: the user's own calls of tools, and their answers, stay with the user."""
    if message.get("role") == "tool":
        return message.get("requestor", "assistant") == "assistant"
    return message.get("role") != "user" or bool(message.get("content")) or not message.get("tool_calls")


@register_trace_format("tau", fits=_of_tau, expand=_simulations)
def read_tau(record: Record) -> Trace:
    """tau-bench ``{"task_id", "reward", "traj": [..]}`` or a simulation of tau2-bench, ``{"task_id", "messages",
    "reward_info": {"reward"}, "termination_reason"}``."""
    reward = record.get("reward")
    if reward is None and isinstance(record.get("reward_info"), Mapping):
        reward = record["reward_info"].get("reward")
    messages = [m for m in record.get("traj") or record.get("messages") or () if _agents_own(m)]
    messages = [{**m, "tool_call_id": m["id"]} if m["role"] == "tool" and "id" in m else m for m in messages]
    return Trace(record, messages, reward=reward, cut=record.get("termination_reason") == "max_steps")


def _of_swe_agent(record: Record) -> bool:
    steps = record.get("trajectory")
    if isinstance(record.get("trajectory_format"), str):
        return record["trajectory_format"].startswith("mini-swe-agent")
    return (
        isinstance(steps, Sequence)
        and bool(steps)
        and "action" in steps[0]
        and ("history" in record or "info" in record)
    )


@register_trace_format("swe_agent", fits=_of_swe_agent)
def read_swe_agent(record: Record) -> Trace:
    """SWE-agent's ``.traj``: steps with the ``query`` that each was asked, or else its ``history``, in which
    ``is_demo`` marks demonstrations; or mini-SWE-agent's ``messages``. Neither holds a reward unless ``info`` was given
    one."""
    info = record.get("info") or {}
    resolved = found(info, ("reward", "resolved"))
    cut = str(info.get("exit_status", "")) in ("exit_cost", "exit_context", "LimitsExceeded")
    given: dict[str, Any] = {"reward": resolved, "cut": cut, "task": record.get("instance_id")}
    if "trajectory" not in record:
        return Trace(record, [m for m in record["messages"] if m.get("role") != "exit"], **given)
    asked = [step for step in record["trajectory"] if step.get("response")]  # others were made by the harness
    if asked and all(step.get("query") for step in asked):
        return Trace(record, steps=[_swe_step(step) for step in asked], **given)
    return Trace(record, record.get("history") or (), **given)


def _swe_step(step: Mapping[str, Any]) -> Step:
    message = {**text_message("assistant", step["response"]), "tool_calls": step.get("tool_calls")}
    action = step.get("action")
    return Step(step["query"], message, action=action.strip() if isinstance(action, str) else None)
