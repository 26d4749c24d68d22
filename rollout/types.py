"""The records of a rollout: one frozen `Turn` per observation-action exchange, one frozen `Trajectory` per episode."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


class StopReason(str, enum.Enum):
    """Why a response or an episode ended."""

    STOP_STRING = "stop_string"  # turn: the closing action tag was sampled
    EOS = "eos"  # turn: an end-of-sequence id was sampled
    LENGTH = "length"  # turn: the response budget was spent
    SUCCESS = "success"  # episode: the task was solved
    DONE = "done"  # episode: the environment ended it unsolved
    MAX_TURNS = "max_turns"  # episode: the turn limit was reached
    PROMPT_BUDGET = "prompt_budget"  # episode: the next prompt would not fit max_prompt_length
    TOKEN_BUDGET = "token_budget"  # episode: the trajectory's response budget was spent
    ENV_FAILURE = "env_failure"  # episode: the environment or the suite failed; see Trajectory.failure


@dataclass(frozen=True)
class Turn:
    """One exchange: the prompt the policy read, the tokens it sampled, what the environment answered.

    Args:
        prompt_ids: token ids of the student prompt, generation prompt included.
        response_ids: the sampled token ids, exactly those that are trained; end-of-sequence id included if sampled.
        logprobs: log-prob of each response id under the sampling policy (temperature applied), nats, float32 values.
        messages: the chat messages the prompt was rendered from (student context, no privileged text).
        response: the decoded response text.
        thinking: text of the think block, "" if none.
        action: the action handed to the environment, "" if none could be parsed.
        observation: the observation the action was chosen on (anchor state of GiGPO).
        admissible_actions: actions accepted at that observation; empty where unlisted.
        reward: the environment's reward for this turn, its units.
        valid: whether the response was well-formed and the action admissible.
        stop_reason: why generation stopped.
        thinking_tokens, action_tokens: half-open ``(start, end)`` ranges in ``response_ids``, or None.
        anchor: the string by which two visits count as the same state; "" means ``observation``.
        message: of an imported turn, what the assistant said as a chat message, its tool calls included; such a turn
            may come without any ids (`tokenized` is False) until `turncredit.rollout.score_traces` has made them.
        teacher_logprobs: log-prob of each response id under a privileged context, nats, or None.

    Raises:
        ValueError: lengths differ, a response is empty, a log-prob or the reward is not finite.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    messages: tuple[Message, ...]
    response: str
    thinking: str = ""
    action: str = ""
    observation: str = ""
    admissible_actions: tuple[str, ...] = ()
    reward: float = 0.0
    valid: bool = True
    stop_reason: StopReason = StopReason.EOS
    thinking_tokens: tuple[int, int] | None = None
    action_tokens: tuple[int, int] | None = None
    anchor: str = ""
    message: Message | None = None
    teacher_logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "response_ids", "logprobs", "messages", "admissible_actions"):
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))
        if len(self.logprobs) != len(self.response_ids):
            raise ValueError(
                f"Turn: logprobs must have one value per response id, got {len(self.logprobs)} for "
                f"{len(self.response_ids)} ids; pass the ids that were sampled, not text encoded again"
            )
        untold = self.message is not None and not (self.prompt_ids or self.response_ids)
        if not self.response_ids and not untold:
            raise ValueError("Turn: response_ids must not be empty; drop turns that sampled nothing")
        if not self.prompt_ids and not untold:
            raise ValueError("Turn: prompt_ids must not be empty; a policy needs at least one prompt token")
        if not all(math.isfinite(x) for x in self.logprobs):
            raise ValueError("Turn: logprobs must be finite, got nan or inf; check the sampling policy's logits")
        if not math.isfinite(self.reward):
            raise ValueError(f"Turn: reward must be finite, got {self.reward}; a missing reward ends the rollout")
        self._check_teacher()
        for name in ("thinking_tokens", "action_tokens"):
            span = getattr(self, name)
            if span is not None:
                object.__setattr__(self, name, tuple(span))
                if not 0 <= span[0] <= span[1] <= len(self.response_ids):
                    raise ValueError(
                        f"Turn: {name} must lie inside the response of {len(self.response_ids)} tokens, got {span}"
                    )

    def _check_teacher(self) -> None:
        given = self.teacher_logprobs
        if given is None:
            return
        object.__setattr__(self, "teacher_logprobs", tuple(given))
        if len(given) != len(self.response_ids) or not all(math.isfinite(x) for x in given):
            raise ValueError(
                f"Turn: teacher_logprobs must have one finite value per response id, got {len(given)} for "
                f"{len(self.response_ids)} ids; score the same ids under the privileged context"
            )

    @property
    def tokenized(self) -> bool:
        """Whether it has ids; an imported turn has none before it was scored."""
        return bool(self.response_ids)


@dataclass(frozen=True)
class Trajectory:
    """One episode, finished or failed.

    Args:
        task_id, task_type: the task.
        group_id: the group whose siblings it is compared with: one per (task, update), never one per trajectory.
        rollout_index: 0 .. num_generations - 1 inside the group.
        turns: the turns in order; may be empty only when the episode failed.
        reward: return of the episode (sum of turn rewards), environment's units.
        success: in [0, 1]; a fraction of success, never a scaled reward.
        stop_reason: why the episode ended.
        failure: cause of an environment failure, or None. Failed trajectories stay out of baselines and losses.
        policy_version: optimiser steps the sampling policy had seen.
        info: numbers the environment reported with the last step (a score, say).
        replayed: how many of the first turns are those of another trajectory, replayed from its record; they were not
            sampled here and are not trained.

    Raises:
        ValueError: success outside [0, 1], a reward that is not finite, no turns without a failure, or more turns
            replayed than there are.
    """

    task_id: str
    task_type: str
    group_id: int
    rollout_index: int
    turns: tuple[Turn, ...]
    reward: float
    success: float
    stop_reason: StopReason
    failure: str | None = None
    policy_version: int = 0
    info: dict[str, float] = field(default_factory=dict)
    replayed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.turns, tuple):
            object.__setattr__(self, "turns", tuple(self.turns))
        object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))
        if not math.isfinite(self.reward):
            raise ValueError(
                f"Trajectory: reward must be finite, got {self.reward} for task {self.task_id!r}; record a missing "
                "reward as a failure, it is not 0"
            )
        if not 0.0 <= self.success <= 1.0:
            raise ValueError(
                f"Trajectory: success must lie in [0, 1], got {self.success} for task {self.task_id!r}; "
                "pass a fraction of success, not a scaled reward"
            )
        if not self.turns and self.failure is None:
            raise ValueError(f"Trajectory: turns must not be empty for task {self.task_id!r} unless failure says why")
        if not 0 <= self.replayed <= len(self.turns):
            raise ValueError(
                f"Trajectory: replayed must lie in 0..{len(self.turns)}, its turns, got {self.replayed} for task "
                f"{self.task_id!r}; count the turns that were taken over from a record"
            )

    @property
    def num_tokens(self) -> int:
        """Number of sampled response tokens over all turns."""
        return sum(len(turn.response_ids) for turn in self.turns)
