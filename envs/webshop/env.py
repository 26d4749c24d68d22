"""One WebShop episode at a time: search, look, choose options, buy."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from ..base import Observation, StepResult
from .goals import Goal
from .pages import BACK, BUY, NEXT, PREVIOUS, SEARCH_PAGE, SUB_PAGES, Page, done_text
from .shop import Shop, ShopConfig, load_shop

Anchor = Literal["observation", "situation"]
RewardKind = Literal["score", "success"]

_ACTION = re.compile(r"(.+)\[(.+)\]")
_SUB_PAGES = {name.lower(): name for name in SUB_PAGES}


class WebShopEnv:
    """A web shop as text.

    Actions are ``search[words]``, accepted on every page, and ``click[text]`` for what the page shows as clickable. The
    argument is lower-cased, the verb is not; text after the closing bracket is ignored. Everything else repeats the
    page, costs the turn and is invalid. Options chosen on a product's page survive its sub-pages and are forgotten by
    a search and by going back. Buying ends the episode; its step carries the reward with all parts in
    ``info["reward_parts"]``, and success is a reward of exactly 1.

    Args:
        shop: the data: a loaded `Shop`, a `ShopConfig`, or None for the default configuration.
        anchor: what GiGPO compares to find the same state again: ``"observation"`` is the text alone, as in the
            published code; ``"situation"`` adds the chosen options, which the text does not show.
        reward: ``"score"`` is WebShop's reward in [0, 1]; ``"success"`` is 1 where that is exactly 1, else 0.

    Raises:
        ValueError: `anchor` or `reward` is unknown.
        FileNotFoundError, ImportError: see `load_shop`.
    """

    def __init__(
        self,
        shop: Shop | ShopConfig | None = None,
        *,
        anchor: Anchor = "observation",
        reward: RewardKind = "score",
    ) -> None:
        if anchor not in ("observation", "situation"):
            raise ValueError(
                f'WebShopEnv: anchor must be "observation" or "situation", got {anchor!r}; '
                'leave it out for "observation"'
            )
        if reward not in ("score", "success"):
            raise ValueError(
                f'WebShopEnv: reward must be "score" or "success", got {reward!r}; leave it out for "score"'
            )
        self.shop = shop if isinstance(shop, Shop) else load_shop(shop)
        self._anchor = anchor
        self._reward = reward
        self._goal: Goal | None = None
        self._done = False

    def reset(self, task_id: str) -> Observation:
        """Start the goal `task_id` on the search page.

        Raises:
            KeyError: there is no such goal.
        """
        self._goal = self.shop.goal(task_id)
        self._done = False
        self._open_search()
        return self._observe()

    def step(self, action: str) -> StepResult:
        """Take one action; see the class for what a malformed one does.

        Raises:
            ValueError: the episode is over, or none was started.
        """
        if self._goal is None or self._done:
            state = "no episode" if self._goal is None else "an episode that is over"
            raise ValueError(f"step: an episode must be running, got {state}; call reset(task_id) first")
        match = _ACTION.match(action) if isinstance(action, str) else None
        verb, argument = (match.group(1), match.group(2).lower()) if match else ("", "")
        if verb == "search":
            self._open_results(argument, 1)
        elif verb == "click" and argument in self._page.clickables and argument != "search":
            if argument == BUY.lower():
                return self._buy()
            self._click(argument)
        else:
            return StepResult(self._observe(), valid=False, info=self._facts())
        return StepResult(self._observe(), info=self._facts())

    def close(self) -> None:
        """Forget the episode; the shop stays loaded for the process."""
        self._goal = None

    def _click(self, target: str) -> None:
        if target == BACK.lower():
            self._open_search()
        elif target == NEXT.lower() and self._kind == "results":
            self._open_results(self._query, self._number + 1)
        elif target == PREVIOUS.lower() and self._kind != "item":
            self._go_back()
        elif target == PREVIOUS.lower():
            self._open_results(self._query, self._number)
        elif target in _SUB_PAGES:
            self._show("sub", self.shop.sub_page(self._asin, _SUB_PAGES[target]))
        elif self._page.options and target in self._page.options:
            self._chosen[self._page.options[target]] = target
        else:
            self._asin = target.upper()
            self._show("item", self.shop.item_page(self._asin))

    def _go_back(self) -> None:
        if self._kind == "results":
            self._open_results(self._query, self._number - 1)
        else:
            self._show("item", self.shop.item_page(self._asin))

    def _open_search(self) -> None:
        self._query, self._number, self._asin = "", 1, ""
        self._chosen: dict[str, str] = {}
        self._show("search", SEARCH_PAGE)

    def _open_results(self, query: str, number: int) -> None:
        self._query, self._number, self._asin = query, number, ""
        self._chosen = {}
        self._show("results", self.shop.results_page(query, number))

    def _show(self, kind: Literal["search", "results", "item", "sub"], page: Page) -> None:
        self._kind, self._page = kind, page

    def _buy(self) -> StepResult:
        assert self._goal is not None
        judged = self.shop.reward(self._asin, self._goal, self._chosen)
        self._done = True
        success = judged.value == 1.0
        info = {
            **self._facts(),
            "score": 100.0 * judged.value,
            "reward_parts": judged.parts(),
            "asin": self._asin,
            "options": dict(self._chosen),
        }
        text = done_text(self._asin, self._chosen, judged.value)
        reward = judged.value if self._reward == "score" else float(success)
        return StepResult(Observation(text, info=self._facts()), reward, done=True, success=success, info=info)

    def _observe(self) -> Observation:
        assert self._goal is not None
        page = self._page
        text = page.text(self._goal.instruction)
        anchor = f"{text}\n{json.dumps(self._chosen, sort_keys=True)}" if self._anchor == "situation" else text
        info = {**self._facts(), "has_search_bar": page.search_bar, "clickables": page.clickables}
        return Observation(text, page.actions, anchor, info)

    def _facts(self) -> dict[str, Any]:
        assert self._goal is not None
        return {"task_type": self._goal.category, "task": self._goal.instruction}


def replay(env: WebShopEnv, task_id: str, actions: Sequence[str]) -> StepResult:
    """Bring `env` to the state after `actions`: the result of the last of them, or of the start where there is none.

    Episodes depend on the goal and the actions alone, so this returns to any turn of a recorded trajectory.

    Raises:
        ValueError: the episode ends before the last action.
        KeyError: there is no such goal.
    """
    result = StepResult(env.reset(task_id))
    for turn, action in enumerate(actions):
        if result.done:
            raise ValueError(
                f"replay: actions must not go on after the purchase, got {len(actions)} actions and the end after "
                f"{turn}; replay a shorter prefix"
            )
        result = env.step(action)
    return result
