"""WebShop as a task suite: which goals, how they are asked, how answers are read, and what the teacher may know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from ..base import Environment, HistoryEntry, Message, Observation, ParsedResponse, Task
from .env import Anchor, RewardKind, WebShopEnv
from .goals import SPLIT_NAMES, Goal
from .hints import Hint, goal_hint, wanted_values
from .pages import PAGE_SIZE
from .prompts import STOP_STRINGS, parse_response, webshop_messages
from .shop import Shop, ShopConfig, load_shop
from .skills import skills_text

_NO_BRACKETS = str.maketrans("[]", "  ")

Privileged = Literal["skills", "hint", "both", "none"]
PromptBuilder = Callable[[Task, Sequence[HistoryEntry], Observation], list[Message]]


class WebShopSuite:
    """The goals of one shop, in the splits "train", "eval" and "test"; see `split_ranges`.

    Args:
        config: where the data comes from; None takes ``WEBSHOP_DATA``, else the generated shop.
        privileged: what the teacher reads: ``"skills"`` of the task's department, a ``"hint"`` with the goal's product,
            attributes and options, ``"both"`` (hint first), or ``"none"``.
        history_length: past turns shown in the prompt.
        max_turns: turns after which the collector ends an episode.
        limits: per split, only the first so many tasks.
        page_limit: characters of a page shown in the prompt; 0 shows all.
        build_messages: replaces the prompt: called as ``(task, history, observation) -> messages``.
        parse: replaces the parser of responses.
        anchor, reward: see `WebShopEnv`.

    Raises:
        ValueError: an argument is out of range.
        FileNotFoundError, ImportError: see `load_shop`.
    """

    name = "webshop"
    stop_strings: tuple[str, ...] = STOP_STRINGS

    def __init__(
        self,
        config: ShopConfig | None = None,
        *,
        privileged: Privileged = "skills",
        history_length: int = 2,
        max_turns: int = 15,
        limits: Mapping[str, int] | None = None,
        page_limit: int = 6000,
        build_messages: PromptBuilder | None = None,
        parse: Callable[[str], ParsedResponse] = parse_response,
        anchor: Anchor = "observation",
        reward: RewardKind = "score",
    ) -> None:
        if privileged not in ("skills", "hint", "both", "none"):
            raise ValueError(
                f'WebShopSuite: privileged must be "skills", "hint", "both" or "none", got {privileged!r}; '
                "choose one of them"
            )
        if history_length < 0 or max_turns < 1 or page_limit < 0:
            raise ValueError(
                "WebShopSuite: history_length and page_limit must be at least 0 and max_turns at least 1, "
                f"got {history_length}, {page_limit} and {max_turns}; 2, 6000 and 15 are the usual values"
            )
        for split, limit in (limits or {}).items():
            if split not in SPLIT_NAMES or limit < 1:
                raise ValueError(
                    f"WebShopSuite: limits must map a split of {list(SPLIT_NAMES)} to at least 1, "
                    f"got {split!r}: {limit}; leave a split out for all its goals"
                )
        self.config = config or ShopConfig()
        self.privileged = privileged
        self.history_length = history_length
        self.max_turns = max_turns
        self.page_limit = page_limit
        self.anchor: Anchor = anchor
        self.reward: RewardKind = reward
        self._limits = dict(limits or {})
        self._build_messages = build_messages
        self._parse = parse
        self._tasks: dict[str, tuple[Task, ...]] = {}

    @property
    def shop(self) -> Shop:
        """The shop, loaded on first use."""
        return load_shop(self.config)

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split in the fixed order of the goals; a task's type is its product's department."""
        if split not in self._tasks:
            goals = self.shop.split(split)[: self._limits.get(split)]
            self._tasks[split] = tuple(Task(goal.id, goal.category, split) for goal in goals)
        return self._tasks[split]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `WebShopEnv`."""
        return partial(WebShopEnv, self.config, anchor=self.anchor, reward=self.reward)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        if self._build_messages is not None:
            return self._build_messages(task, history, observation)
        words = observation.info.get("task") or self.goal(task).instruction
        return webshop_messages(
            words, history, observation, history_length=self.history_length, page_limit=self.page_limit
        )

    def parse(self, response: str) -> ParsedResponse:
        """Take a response apart; never raises."""
        return self._parse(response)

    @staticmethod
    def same_target(first: str, second: str) -> bool:
        """Whether two actions have the same verb and, for a click, the same target (AlignOPSD's action filter)."""
        verbs, targets = zip(
            *(action.strip().rstrip("]").partition("[")[::2] for action in (first, second)), strict=True
        )
        return verbs[0] == verbs[1] and (
            verbs[0] != "click" or targets[0].strip().lower() == targets[1].strip().lower()
        )

    def privileged_context(self, task: Task) -> str | None:
        """Skills, hint, both or nothing, as the suite was asked."""
        parts = []
        if self.privileged in ("hint", "both"):
            parts.append(f"Hint for this task: {self.hint(task).text}.")
        if self.privileged in ("skills", "both"):
            parts.append(f"Useful skills:\n{skills_text(task.type, self.goal(task).instruction)}")
        return "\n\n".join(parts) or None

    def goal(self, task: Task) -> Goal:
        """The goal behind a task."""
        return self.shop.goal(task.id)

    def hint(self, task: Task) -> Hint:
        """The facts that solve `task`."""
        return goal_hint(self.goal(task))

    def walkthrough(self, task: Task) -> list[str]:
        """Actions that buy the goal's own product with its options; the search is by its title.

        Square brackets are left out of the search: in an action the last opening one starts the argument.

        Raises:
            ValueError: the title does not bring the product up, or a wanted option is none of the product's.
        """
        goal = self.goal(task)
        title = goal.name.lower().translate(_NO_BRACKETS)
        hits = self.shop.hits(title)
        if goal.asin not in hits:
            raise ValueError(
                f"walkthrough: task must be found by its product's title, got {task.id!r}; take another task"
            )
        turning = ["click[next >]"] * (hits.index(goal.asin) // PAGE_SIZE)
        choosing = [f"click[{value}]" for value in wanted_values(goal, self.shop.products[goal.asin])]
        return [f"search[{title}]", *turning, f"click[{goal.asin.lower()}]", *choosing, "click[buy now]"]
