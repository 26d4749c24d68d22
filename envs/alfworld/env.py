"""One ALFWorld episode at a time on the TextWorld engine."""

from __future__ import annotations

import os
from typing import Any, Literal

from ..base import Observation, StepResult
from .data import TASK_TYPES, data_root, game_path
from .old_traces import modern_action

NOTHING_HAPPENS = "Nothing happens."
_HIDDEN = frozenset({"help"})


class AlfWorldEnv:
    """ALFWorld as text: find things in a house, change them, put them somewhere.

    The engine is made at the first reset and reused for every later game; it is TextWorld's own with its pure
    functions remembered (see `engine`). Admissible actions leave out ``help``. A command that is not among them, or is
    no text at all, answers "Nothing happens.", costs the turn and is invalid. The reward is 1 on success, else 0.

    Args:
        data: folder of games, see `data_root`; None reads ``ALFWORLD_DATA``.
        anchor: what GiGPO compares to find the same state again: ``"observation"`` is the observation's text alone, as
            in the published code; ``"situation"`` adds the admissible actions, which tells more states apart.
        translate_old_actions: also take commands as they were before ALFWorld 0.4.0, ``put X in/on Y``; what the agent
            reads stays in present words.

    Raises:
        FileNotFoundError: there is no such folder.
        ImportError: at the first reset, when the engine is not installed.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        anchor: Literal["observation", "situation"] = "observation",
        translate_old_actions: bool = False,
    ) -> None:
        if anchor not in ("observation", "situation"):
            raise ValueError(
                f'AlfWorldEnv: anchor must be "observation" or "situation", got {anchor!r}; '
                'leave it out for "observation"'
            )
        self.root = data_root(data)
        self._anchor = anchor
        self._translate = translate_old_actions
        self._engine: Any = None
        self._observation: Observation | None = None
        self._done = False

    def reset(self, task_id: str) -> Observation:
        """Start the game `task_id`.

        Raises:
            KeyError: there is no such game.
        """
        self._observation = None
        path = game_path(self.root, task_id)
        if self._engine is None:
            self._engine = _make_engine()
        self._engine.load(str(path))
        state = self._engine.reset()
        task_type = path.parent.parent.name.partition("-")[0]
        self._info = {"task_type": TASK_TYPES.get(task_type, task_type), "task": task_text(state.feedback)}
        self._done = False
        self._observation = self._observe(state.feedback, state["admissible_commands"])
        return self._observation

    def step(self, action: str) -> StepResult:
        """Play one command; see the class for what a malformed one does.

        Raises:
            ValueError: the episode is over, or none was started.
        """
        if self._observation is None or self._done:
            state = "no episode" if self._observation is None else "an episode that is over"
            raise ValueError(f"step: an episode must be running, got {state}; call reset(task_id) first")
        if self._translate and isinstance(action, str):
            action = modern_action(action)
        if not isinstance(action, str) or action not in self._observation.admissible_actions:
            self._observation = self._observe(NOTHING_HAPPENS, self._observation.admissible_actions)
            return StepResult(self._observation, valid=False)
        state, _, self._done = self._engine.step(action)
        self._observation = self._observe(state.feedback, state["admissible_commands"])
        won = bool(state["won"])
        return StepResult(self._observation, reward=float(won), done=bool(self._done), success=won)

    def close(self) -> None:
        """Forget the episode and the engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._observation = None

    def _observe(self, text: str, commands: Any) -> Observation:
        actions = tuple(command for command in commands if command not in _HIDDEN)
        anchor = text if self._anchor == "observation" else "\n".join((text, *actions))
        return Observation(text, actions, anchor, dict(self._info))


def task_text(observation: str) -> str:
    """The task in the first observation: what follows "Your task is to: ", without the full stop.

    >>> task_text("You are in the middle of a room. ..\\n\\nYour task is to: put a mug in shelf.")
    'put a mug in shelf'
    """
    return observation.rpartition("Your task is to: ")[2].strip().rstrip(".").strip()


def _make_engine() -> Any:
    try:
        from .engine import FastPddlEnv
    except ImportError as error:
        raise ImportError(
            "AlfWorldEnv: the TextWorld engine must be installed, got an ImportError "
            f'({error}); run: pip install "turncredit[alfworld]"'
        ) from error
    return FastPddlEnv()
