"""BM25 in this process, through bm25s."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .data import load_corpus
from .retrieval import Document


class Bm25Retriever:
    """BM25 over passages held in memory; English stemming and stop words.

    Passages that share no term with the query are never returned, so a query may bring back fewer than asked, or none.

    Args:
        documents: the corpus.
        k1, b: BM25's constants; 0.9 and 0.4 are those of Search-R1's own BM25 index.

    Raises:
        ImportError: bm25s or PyStemmer is not installed.
        ValueError: there are no passages.
    """

    def __init__(self, documents: Sequence[Document], *, k1: float = 0.9, b: float = 0.4) -> None:
        if not documents:
            raise ValueError("Bm25Retriever: documents must not be empty, got none; check the corpus")
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise ImportError(
                f"Bm25Retriever: bm25s and PyStemmer must be installed, got an ImportError ({error}); "
                'run: pip install "turncredit[search]"'
            ) from error
        self.documents = list(documents)
        self._stemmer = Stemmer.Stemmer("english")
        self._tokenize = bm25s.tokenize
        self._index: Any = bm25s.BM25(method="lucene", k1=k1, b=b)
        corpus = self._tokens([document.contents for document in self.documents], "ids")
        if not corpus.vocab or set(corpus.vocab) == {""}:
            raise ValueError(
                "Bm25Retriever: documents must hold words, got only stop words or empty texts; check the corpus"
            )
        self._index.index(corpus, show_progress=False)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, k1: float = 0.9, b: float = 0.4) -> Bm25Retriever:
        """The retriever of a corpus file, see `load_corpus`."""
        return cls(load_corpus(path), k1=k1, b=b)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """At most `topk` passages with a positive score for each query, best first."""
        if not queries:
            return []
        vocabulary = self._index.vocab_dict
        texts = self._tokens(list(queries), "words")
        known = [[word for word in words if word in vocabulary] for words in texts]
        results: list[list[Document]] = [[] for _ in queries]
        asked = [number for number, words in enumerate(known) if words]
        if not asked:
            return results
        count = min(topk, len(self.documents))
        places, scores = self._index.retrieve(
            [known[number] for number in asked], k=count, show_progress=False, backend_selection="numpy"
        )
        for number, row, values in zip(asked, places.tolist(), scores.tolist(), strict=True):
            results[number] = [
                Document(self.documents[place].id, self.documents[place].contents, score)
                for place, score in zip(row, values, strict=True)
                if score > 0
            ]
        return results

    def close(self) -> None:
        """Nothing to free but memory."""

    def _tokens(self, texts: list[str], form: str) -> Any:
        return self._tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=form == "ids", show_progress=False
        )
