"""Full-text search over the catalogue: BM25 by the bm25s library, set to rank as the original's Lucene index does."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .analysis import analyze
from .data import Product

K1 = 0.9
B = 0.4
MAX_HITS = 50
_FORMAT = 1
_logger = logging.getLogger(__name__)


def document(product: Product) -> str:
    """The text by which a product is found: title, description, first feature and options, in lower case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


def stored_length(length: np.ndarray) -> np.ndarray:
    """Document lengths as Lucene keeps them, in one byte: exact below 40, then to four significant bits.

    Without this rounding two thirds of the original's top-ten lists come out in another order.
    """
    rest = np.maximum(length.astype(np.int64) - 24, 0)
    shift = np.maximum(np.floor(np.log2(np.maximum(rest, 1))).astype(np.int64) - 3, 0)
    return np.where(length < 24, length, 24 + ((rest >> shift) << shift))


@lru_cache(maxsize=1)
def _model_class() -> Any:
    """bm25s's model with Lucene's lengths; made on first use so that importing this module needs no extra."""
    try:
        import bm25s
    except ImportError as error:
        raise ImportError(
            'WebShop search: bm25s must be installed, got none; run pip install "turncredit[webshop]"'
        ) from error

    class LuceneBM25(bm25s.BM25):
        """Replaces the library's score table; vocabulary, scoring, saving and loading are the library's."""

        def build_index_from_ids(
            self, unique_token_ids, corpus_token_ids, show_progress=True, leave_progress=False
        ) -> dict[str, Any]:
            return _score_table(corpus_token_ids, len(unique_token_ids), self.k1, self.b)

    return LuceneBM25


def _score_table(documents: Sequence[Sequence[int]], terms: int, k1: float, b: float) -> dict[str, Any]:
    """score = idf - idf / (1 + tf / (k1 (1 - b + b length / mean length))), idf = ln(1 + (N - n + 1/2) / (n + 1/2)).

    All in float32, as Lucene 8 computes it. Columns are terms, rows documents.
    """
    count = len(documents)
    lengths = np.fromiter((len(ids) for ids in documents), dtype=np.int64, count=count)
    flat = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in documents])
    keys, frequency = np.unique(flat * count + np.repeat(np.arange(count), lengths), return_counts=True)
    term, row = np.divmod(keys, count)
    holding = np.bincount(term, minlength=terms)
    idf = np.log(1.0 + (count - holding + 0.5) / (holding + 0.5)).astype(np.float32)
    mean = np.float32(lengths.mean())
    one = np.float32(1.0)
    norm = one / (
        np.float32(k1) * (np.float32(1.0 - b) + np.float32(b) * stored_length(lengths).astype(np.float32) / mean)
    )
    weight = idf[term]
    return {
        "data": weight - weight / (one + frequency.astype(np.float32) * norm[row]),
        "indices": row.astype(np.int32),
        "indptr": np.concatenate(([0], np.cumsum(holding))),
        "num_docs": count,
    }


class SearchIndex:
    """Ranks products for a query. Ties go to the smaller id, as in the original.

    Args:
        products: the catalogue, any order.
        cache_dir: folder for indexes, one per content hash; None keeps the index in memory only.

    Raises:
        ValueError: nothing to index: an empty search index must never look like "no results".
        ImportError: bm25s or PyStemmer is missing.
    """

    def __init__(self, products: Sequence[Product], cache_dir: str | os.PathLike[str] | None = None) -> None:
        ordered = sorted(products, key=lambda product: product.asin)
        self.asins = tuple(product.asin for product in ordered)
        if not ordered:
            raise ValueError("SearchIndex: products must not be empty, got none; load a catalogue first")
        folder = None if cache_dir is None else Path(cache_dir) / f"webshop-{_fingerprint(ordered)}"
        model = None if folder is None else _load(folder, len(ordered))
        if model is None:
            model = _build(ordered)
            if folder is not None:
                _store(model, folder)
        if not len(model.scores["data"]):
            raise ValueError(
                f"SearchIndex: products must hold words to search, got {len(ordered)} products without any; "
                "check the catalogue's names and descriptions"
            )
        self._model = model
        self._search = lru_cache(maxsize=4096)(self._rank)

    def search(self, query: str) -> tuple[str, ...]:
        """Ids of at most 50 products that share a term with `query`, best first."""
        return self._search(query)

    def scored(self, query: str, limit: int = MAX_HITS) -> list[tuple[str, float]]:
        """(id, score) of the best `limit` hits, best first."""
        terms = self._model.get_tokens_ids(analyze(query.lower()))
        if not terms:
            return []
        scores = self._model.get_scores_from_ids(terms)
        rows = np.flatnonzero(scores > 0)
        if len(rows) > limit:
            threshold = np.partition(scores[rows], len(rows) - limit)[len(rows) - limit]
            rows = rows[scores[rows] >= threshold]
        rows = rows[np.argsort(-scores[rows], kind="stable")][:limit]
        return [(self.asins[row], float(scores[row])) for row in rows]

    def _rank(self, query: str) -> tuple[str, ...]:
        return tuple(asin for asin, _ in self.scored(query))


def default_cache_dir() -> Path:
    """``$TURNCREDIT_CACHE``, else the user's cache folder."""
    named = os.environ.get("TURNCREDIT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "turncredit"


def _fingerprint(ordered: Sequence[Product]) -> str:
    digest = hashlib.sha256(json.dumps([_FORMAT, K1, B]).encode())
    for product in ordered:
        digest.update(f"{product.asin}\x00{document(product)}\x01".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _build(ordered: Sequence[Product]) -> Any:
    model = _model_class()(k1=K1, b=B, method="lucene", dtype="float32", int_dtype="int32")
    vocabulary: dict[str, int] = {}
    documents = [
        array("i", (vocabulary.setdefault(term, len(vocabulary)) for term in analyze(document(product))))
        for product in ordered
    ]
    if vocabulary:
        model.scores = model.build_index_from_ids(list(vocabulary.values()), documents, show_progress=False)
    else:
        model.scores = {
            "data": np.zeros(0, np.float32),
            "indices": np.zeros(0, np.int32),
            "indptr": np.zeros(1, np.int64),
        }
        model.scores["num_docs"] = len(ordered)
    model.vocab_dict = vocabulary
    model.unique_token_ids_set = set(vocabulary.values())
    model.nonoccurrence_array = None
    return model


def _load(folder: Path, count: int) -> Any:
    """The stored index, mapped from disk so that processes share it; None where there is none or it is broken."""
    if not folder.is_dir():
        return None
    try:
        model = _model_class().load(folder, mmap=True, show_progress=False)
        scores = {key: np.asarray(value) if key != "num_docs" else value for key, value in model.scores.items()}
        if scores["num_docs"] != count or len(scores["indptr"]) != len(model.vocab_dict) + 1:
            raise ValueError(f"{scores['num_docs']} documents for {count} products")
    except Exception as error:
        _logger.warning("search index %s cannot be used (%s); building it again", folder, error)
        return None
    model.scores = scores
    return model


def _store(model: Any, folder: Path) -> None:
    """Write the index beside its place and move it there in one step; a folder that cannot be written is no failure."""
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        model.save(temporary, show_progress=False)
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except OSError as error:
        if not folder.is_dir():
            _logger.warning("search index not cached in %s (%s); it stays in memory", folder.parent, error)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
