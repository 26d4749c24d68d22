"""Nouns of product titles, which the reward compares: precomputed, tagged by spaCy, or by a plain rule.

Three sources, in this order; the one in use is logged once:

- a noun file: JSON, asin -> ``{"name": title, "nouns": [lower-case nouns in order, repeats kept]}``. Build it once with
  ``python -m turncredit.envs.webshop.nouns --data FOLDER`` (needs spaCy and a model);
- spaCy with the model that is named, where it is asked for;
- the rule: every word of the title except numbers, function words and common adjectives and verbs. It finds more nouns
  than a tagger, so title scores come out somewhat lower; rewards then are not the original's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .data import Product, build_products, data_files, iter_json_array
from .words import word_list

SPACY_MODEL = "en_core_web_sm"
_NOUN_TAGS = frozenset({"NOUN", "PROPN"})
_WORD = re.compile(r"[^\W\d_]+")
_NO_NOUNS = frozenset(word_list("not_nouns"))
_logger = logging.getLogger(__name__)
_logged: set[str] = set()


@lru_cache(maxsize=1 << 15)
def rule_nouns(title: str) -> tuple[str, ...]:
    """Words of a title that are no function words, numbers or common adjectives and verbs, lower case, repeats kept.

    >>> rule_nouns("New 2-Pack Leather Boots for Women, Black")
    ('pack', 'leather', 'boots', 'women')
    """
    return tuple(word for word in _WORD.findall(title.lower()) if word not in _NO_NOUNS and len(word) > 1)


class TitleNouns:
    """Nouns by title.

    Args:
        known: title -> nouns; titles that are not in it go to `tagger`.
        tagger: title -> nouns.
        source: words for the log.
    """

    def __init__(
        self, known: Mapping[str, tuple[str, ...]] | None = None, tagger: Any = rule_nouns, source: str = "the rule"
    ):
        self._known = dict(known or {})
        self._tagger = tagger
        self.source = source

    def __call__(self, title: str) -> tuple[str, ...]:
        """Lower-case nouns of `title`, in order, repeats kept."""
        nouns = self._known.get(title)
        return self._tagger(title) if nouns is None else nouns


def title_nouns(
    path: str | os.PathLike[str] | None = None, *, spacy_model: str | None = None, titles: Iterable[str] = ()
) -> TitleNouns:
    """The nouns to use, and one line in the log about where they come from.

    Args:
        path: noun file; None leaves it out.
        spacy_model: name of an installed spaCy model for titles that the file lacks; None uses the rule for them.
        titles: the catalogue's titles, to report how many the file covers.

    Raises:
        ValueError: the noun file is malformed.
        ImportError, OSError: spaCy, or its model, is not installed.
    """
    known = {} if path is None else read_nouns(path)
    tagger = rule_nouns if spacy_model is None else spacy_nouns(spacy_model)
    other = "a word rule (rewards differ from the original's)" if spacy_model is None else f"spaCy {spacy_model}"
    titles = set(titles)
    missing = len(titles - known.keys())
    source = f"the noun file {path}" if known else other
    if known and missing:
        source += f", and {other} for the {missing} of {len(titles)} titles it lacks"
    if source not in _logged:
        _logged.add(source)
        _logger.info("WebShop title nouns come from %s", source)
    return TitleNouns(known, tagger, source)


def read_nouns(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Title -> nouns of a noun file.

    Raises:
        ValueError: the file has another form.
    """
    with open(path, encoding="utf-8") as handle:
        raw = json.load(handle)
    try:
        return {entry["name"]: tuple(entry["nouns"]) for entry in raw.values()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f'read_nouns: path must hold asin -> {{"name", "nouns"}}, got {str(path)!r} ({error!r}); '
            "build it with python -m turncredit.envs.webshop.nouns"
        ) from None


def spacy_nouns(model: str = SPACY_MODEL) -> Any:
    """A tagger: title -> its nouns and proper nouns by spaCy.

    Raises:
        ImportError: spaCy is not installed.
        OSError: its model is not.
    """
    try:
        import spacy
    except ImportError as error:
        raise ImportError(
            "spacy_nouns: spaCy must be installed, got none; run pip install spacy, or give a noun file"
        ) from error
    pipeline = spacy.load(model, disable=["parser", "ner", "lemmatizer"])

    @lru_cache(maxsize=1 << 15)
    def tag(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in pipeline(title) if token.pos_ in _NOUN_TAGS)

    return tag


def write_nouns(products: Iterable[Product], tagger: Any, path: str | os.PathLike[str]) -> int:
    """Write the noun file of a catalogue in one step; returns how many titles it holds."""
    table = {product.asin: {"name": product.title, "nouns": list(tagger(product.title))} for product in products}
    target = Path(path)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False, suffix=".part") as handle:
        json.dump(table, handle)
    os.replace(handle.name, target)
    return len(table)


def main(arguments: list[str] | None = None) -> int:
    """Command line: build the noun file of a data folder."""
    parser = argparse.ArgumentParser(description="Build the noun file of a WebShop data folder with spaCy.")
    parser.add_argument("--data", required=True, help="folder with items_shuffle*.json and items_ins_v2*.json")
    parser.add_argument("--model", default=SPACY_MODEL, help="installed spaCy model")
    parser.add_argument("--out", help="noun file to write; default: title_nouns.json in the folder")
    options = parser.parse_args(arguments)
    files = data_files(options.data)
    products = build_products(iter_json_array(files.products), {})
    target = Path(options.out or Path(options.data) / "title_nouns.json")
    write_nouns(products, spacy_nouns(options.model), target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
