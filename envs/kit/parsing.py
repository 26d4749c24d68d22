"""A response whose thinking and action stand between tags, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..base import ParsedResponse

_TAG = re.compile(r"\w[\w-]*")


@dataclass(frozen=True)
class TaggedParser:
    """Reads ``<think>..</think><action>..</action>``; tags count in any case, malformed text never raises.

    The action is the stripped text of the first block of the first of `actions` that has one; the thinking is the first
    think block in front of it. A malformed response is invalid; its action, if there is one, is still handed on.

    Args:
        actions: names of the tags that an action stands in.
        think: name of the tag that the thinking stands in.
        lower: lower-case the action.
        require_think: a response without a think block in front of its action is invalid.
        keep_tags: the action is the whole block, its tags in lower case; tells several kinds of action apart.
        once: the text is cut behind the first end tag (of the first of `actions` that has one), and a response that
            opens any number of actions but one is invalid.

    Raises:
        TypeError: `actions` is not a tuple of names.
        ValueError: a tag is no name, or named twice.

    >>> TaggedParser(lower=True)("<think>the mug</think><action> Go to shelf 1</action>").action
    'go to shelf 1'
    """

    actions: tuple[str, ...] = ("action",)
    think: str = "think"
    lower: bool = False
    require_think: bool = True
    keep_tags: bool = False
    once: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.actions, str) or not self.actions:
            raise TypeError(f'TaggedParser: actions must be a tuple of tags, got {self.actions!r}; write ("action",)')
        tags = [*self.actions, self.think]
        if not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags) or len({*tags}) < len(tags):
            raise ValueError(
                f'TaggedParser: actions and think must be different names, got {tags}; write "action" for <action>'
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The end tags of the actions: with them as a suite's ``stop_strings`` a response ends behind its action."""
        return tuple(f"</{tag}>" for tag in self.actions)

    def __call__(self, response: str) -> ParsedResponse:
        text = response if isinstance(response, str) else ""
        end = self._end(text) if self.once else len(text)
        blocks = [(tag, _pattern(f"<{tag}>(.*?)</{tag}>").search(text, 0, end)) for tag in self.actions]
        tag, block = next((found for found in blocks if found[1]), blocks[0])
        think = _pattern(f"<{self.think}>(.*?)</{self.think}>").search(text, 0, block.start() if block else len(text))
        action = block[1].strip() if block else ""
        action = action.lower() if self.lower else action
        action = f"<{tag}>{action}</{tag}>" if self.keep_tags and block else action
        opened = sum(len(_pattern(f"<{tag}>").findall(text)) for tag in self.actions)
        return ParsedResponse(
            thinking=think[1].strip() if think else "",
            action=action,
            valid=bool(action) and (think is not None or not self.require_think) and (opened == 1 or not self.once),
            thinking_span=think.span(1) if think else None,
            action_span=block.span(1) if block else None,
        )

    def _end(self, text: str) -> int:
        ends = (_pattern(end).search(text) for end in self.stop_strings)
        return next((match.end() for match in ends if match), len(text))


@lru_cache(maxsize=64)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL | re.IGNORECASE)
