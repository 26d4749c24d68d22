"""Whether a saved tokenizer reads back as itself: beside some models' configurations it comes back as another class."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

_TEXTS = ("Hello world, 12 + 3.5 = 15.5?\n\n<think>\nGo to the desk 1.</think>", " Ünïcode and  blanks ")
_ENTRIES = 64


def warn_where_it_reads_back_otherwise(tokenizer: Any, folder: Path) -> bool:
    """Log a warning unless `AutoTokenizer` makes of a folder the tokenizer that was saved there; never raises.

    Args:
        tokenizer: as it was saved.
        folder: holds it, beside the model's configuration.

    Returns:
        Whether the warning was logged.
    """
    try:
        there = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        differs = next((text for text in _texts(tokenizer) if _ids(tokenizer, text) != _ids(there, text)), None)
        if differs is None:
            return False
        got = f"a {type(there).__name__} that encodes {differs[:40]!r} as {_ids(there, differs)[:8]}"
        had = f"{type(tokenizer).__name__} gave {_ids(tokenizer, differs)[:8]}"
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        had = f"tokenizer is a {type(tokenizer).__name__}"
    logger.warning(
        "AutoTokenizer does not read the saved tokenizer back: %s where the %s; training is not touched, but load the "
        "tokenizer of this run's checkpoints with transformers.%s.from_pretrained(folder)",
        got,
        had,
        "PreTrainedTokenizerFast" if isinstance(tokenizer, PreTrainedTokenizerFast) else type(tokenizer).__name__,
    )
    return True


def _texts(tokenizer: Any) -> list[str]:
    """Plain texts and entries from all over the vocabulary, which may hold words only."""
    count = len(tokenizer)
    entries = [tokenizer.decode([index]) for index in range(0, count, max(count // _ENTRIES, 1))]
    return [*_TEXTS, " ".join(entries)]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
