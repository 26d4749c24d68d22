"""Control tokens: which tokens structure a conversation, and text that must not become one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CUT = "\ufdd0"  # a noncharacter, so no text's own
OPENING = re.compile(
    r"[<\[]\|?(?!/|end|no_?)[\w:.-]*(?:think|thought|reason)[\w:.-]*\|?[>\]]", re.IGNORECASE
)  # <think>, <thinking>, <thought>, [THINK], <seed:think>, <|START_THINKING|>
_MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of rendered text, as one flat list whatever kind of batch the tokenizer returns."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    return list(ids[0]) if len(ids) and isinstance(ids[0], list | tuple) else list(ids)


def continued(tokenizer: Any, text: str) -> list[int]:
    """Ids of text that goes on where other text ended: without the blank that some tokenizers put in front."""
    for lead in ("\n", "."):
        before, both = encode(tokenizer, lead), encode(tokenizer, lead + text)
        if both[: len(before)] == before:
            return both[len(before) :]
    return encode(tokenizer, text)


def control_tokens(tokenizer: Any, frame: str) -> dict[str, int]:
    """Tokens that structure a conversation, with their ids: text must not become one.

    Those that mark beginning, end and padding; the other special tokens but pairs of tags (``<x>``, ``</x>``) that the
    template does not write around a message; whatever one token it does write there between angles or brackets. Tags of
    thinking and the unknown token never count.

    Args:
        tokenizer: a Hugging Face tokenizer.
        frame: a short message as the chat template renders it.
    """
    ends = {getattr(tokenizer, f"{name}_token", None) for name in ("bos", "eos", "sep", "cls", "mask")}
    unknown = {tokenizer.unk_token} - ends
    special = {*tokenizer.all_special_tokens}
    special |= {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    around = set(_MARKUP.findall(frame)) | {token for token in special if token in frame}
    found = {}
    for token in (special | around) - unknown:
        opening = re.sub(r"^([<\[])/", r"\1", token)
        pair = {opening, f"{opening[:1]}/{opening[1:]}"} <= special
        format_tag = OPENING.fullmatch(opening) or (pair and token not in around)
        index = tokenizer.convert_tokens_to_ids(token)
        known = index is not None and (index != tokenizer.unk_token_id or token not in around - special)
        if len(token) > 1 and known and (token in ends or not format_tag):
            found[token] = index
    return found


class ControlTokens:
    """Counts control tokens among ids, finds them in text and cuts them there; see `control_tokens`."""

    def __init__(self, tokens: dict[str, int]):
        self._ids = frozenset(tokens.values())
        names = "|".join(re.escape(name) for name in sorted(tokens, key=len, reverse=True)) or "(?!)"
        self._exact, self._any_case = re.compile(names), re.compile(names, re.IGNORECASE)

    def among(self, ids: Sequence[int]) -> int:
        """How many of `ids` are control tokens."""
        return sum(map(self._ids.__contains__, ids))

    def in_text(self, text: str) -> int:
        """How many control tokens `text` writes out."""
        return len(self._exact.findall(text))

    def cut(self, text: str) -> str:
        """`text` with `CUT` inside everything that reads like a control token, in any case."""
        text = text.replace(CUT, "")
        while self._any_case.search(text):
            text = self._any_case.sub(lambda match: f"{match[0][0]}{CUT}{match[0][1:]}", text)
        return text
