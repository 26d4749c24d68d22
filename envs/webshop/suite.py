"""WebShop as a task suite: which goals, how they are asked, how answers are read, and what the teacher may know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..base import Environment, HistoryEntry, Message, Observation, Task
from ..kit import BaseSuite, SuiteOptions
from .env import Anchor, RewardKind, WebShopEnv
from .goals import SPLIT_NAMES, Goal
from .hints import Hint, goal_hint, wanted_values
from .pages import PAGE_SIZE
from .prompts import STOP_STRINGS, parse_response, webshop_messages
from .shop import Shop, ShopConfig, load_shop
from .skills import skills_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NO_BRACKETS = str.maketrans("[]", "  ")


class WebShopSuite(BaseSuite):
    """The goals of one shop, in the splits "train", "eval" and "test"; see `split_ranges`.

    Contexts: ``"skills"`` of the task's department, and a ``"hint"`` with the goal's product, attributes and options;
    ``privileged="both"`` is the hint, then the skills. A limit takes the first so many tasks.

    Args:
        config: where the data comes from; None takes ``WEBSHOP_DATA``, else the generated shop.
        page_limit: characters of a page shown in the prompt; 0 shows all.
        anchor, reward: see `WebShopEnv`.
        options: ``privileged`` ("skills"), ``history_length`` (2), ``max_turns`` (15), ``limits``, ``build_messages``
            and ``parse``, see `turncredit.envs.kit.SuiteOptions`.

    Raises:
        FileNotFoundError, ImportError: see `load_shop`.
        TypeError, ValueError: see `BaseSuite`.
    """

    name = "webshop"
    splits = SPLIT_NAMES
    max_turns = 15
    stop_strings = STOP_STRINGS
    parser = parse_response
    privileged = "skills"
    context_names = ("skills", "hint")
    both = "hint+skills"
    limit_by_type = False

    def __init__(
        self,
        config: ShopConfig | None = None,
        *,
        page_limit: int = 6000,
        anchor: Anchor = "observation",
        reward: RewardKind = "score",
        **options: Unpack[SuiteOptions],
    ) -> None:
        super().__init__(counts={"page_limit": (page_limit, 0, 6000)}, **options)
        self.config = config or ShopConfig()
        self.page_limit = page_limit
        self.anchor: Anchor = anchor
        self.reward: RewardKind = reward

    @property
    def shop(self) -> Shop:
        """The shop, loaded on first use."""
        return load_shop(self.config)

    def check_split(self, split: str) -> None:
        """Raise a ValueError unless the shop has such a split."""
        self.shop.split(split)

    def load(self, split: str) -> list[Task]:
        """The tasks of a split in the fixed order of the goals; a task's type is its product's department."""
        return [Task(goal.id, goal.category, split) for goal in self.shop.split(split)]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `WebShopEnv`."""
        return partial(WebShopEnv, self.config, anchor=self.anchor, reward=self.reward)

    def prompt(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        wish = observation.info.get("task") or self.goal(task).instruction
        limits = {"history_length": self.history_length, "page_limit": self.page_limit}
        return webshop_messages(wish, history, observation, **limits)

    def context(self, task: Task, name: str) -> str:
        """Skills of the task's department, or the hint."""
        if name == "skills":
            return f"Useful skills:\n{skills_text(task.type, self.goal(task).instruction)}"
        return f"Hint for this task: {self.hint(task).text}."

    @staticmethod
    def same_target(first: str, second: str) -> bool:
        """Whether two actions have the same verb and, for a click, the same target (AlignOPSD's action filter)."""
        verbs, targets = zip(
            *(action.strip().rstrip("]").partition("[")[::2] for action in (first, second)), strict=True
        )
        return verbs[0] == verbs[1] and (
            verbs[0] != "click" or targets[0].strip().lower() == targets[1].strip().lower()
        )

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
