"""Dense retrieval in this process: a sentence encoder and exact search over its vectors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from .retrieval import Document

Backend = Literal["auto", "torch", "faiss"]
_BLOCK = 65536


class VectorIndex:
    """Exact inner-product search over `vectors`.

    Args:
        vectors: ``[N, D] float32`` array of N passages.
        backend: ``"torch"`` multiplies in blocks, ``"faiss"`` uses a flat FAISS index, ``"auto"`` takes FAISS where it
            is installed and the device is the CPU. All are exact.
        device: torch device that holds the vectors.

    Raises:
        ValueError: the array is not two-dimensional, or holds nothing.
        ImportError: FAISS was asked for and is not installed.
    """

    def __init__(self, vectors: Any, *, backend: Backend = "auto", device: str = "cpu") -> None:
        import numpy as np
        import torch

        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[0] == 0:
            raise ValueError(
                f"VectorIndex: vectors must be [N, D] with N > 0, got shape {list(vectors.shape)}; "
                "pass one row per passage"
            )
        self.size, self.width = map(int, vectors.shape)
        self._faiss = _faiss_index(vectors, backend) if backend != "torch" and device == "cpu" else None
        if backend == "faiss" and self._faiss is None:
            raise ValueError(f'VectorIndex: backend "faiss" must run on "cpu", got device {device!r}; use "torch"')
        self.backend = "torch" if self._faiss is None else "faiss"
        self._vectors = None if self._faiss is not None else torch.from_numpy(vectors).to(device)

    def search(self, queries: Any, topk: int) -> tuple[Any, Any]:
        """The best `topk` rows of each query.

        Args:
            queries: ``[Q, D] float32`` array.
            topk: rows wanted; at most N are returned.

        Returns:
            Places ``[Q, k] int64`` and scores ``[Q, k] float32``, best first.

        Raises:
            ValueError: the queries are not as wide as the passages, or `topk` is not positive.
        """
        import numpy as np
        import torch

        count = min(topk, self.size)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise ValueError(
                f"VectorIndex.search: queries must be [Q, {self.width}], got shape {list(queries.shape)}; "
                "encode them with the passages' encoder"
            )
        if topk < 1:
            raise ValueError(f"VectorIndex.search: topk must be at least 1, got {topk}; 3 is the usual value")
        if self._faiss is not None:
            scores, places = self._faiss.search(queries, count)
            return places, scores
        assert self._vectors is not None
        with torch.inference_mode():
            asked = torch.from_numpy(queries).to(self._vectors.device)
            found, where = [], []
            for start in range(0, self.size, _BLOCK):
                product = asked @ self._vectors[start : start + _BLOCK].T
                values, indices = product.topk(min(count, product.shape[1]), dim=1)
                found.append(values)
                where.append(indices + start)
            values, order = torch.cat(found, 1).topk(count, dim=1)
            places = torch.cat(where, 1).gather(1, order)
        return places.cpu().numpy(), values.cpu().numpy()


class DenseRetriever:
    """A sentence-transformers encoder and exact search; the defaults are E5's.

    Vectors are normalised, so scores are cosines. Mean pooling comes with the E5 models' own configuration. Code that a
    model folder brings along is never run.

    Args:
        documents: the corpus.
        model: a name or folder for ``SentenceTransformer``, or one already loaded.
        query_prefix, passage_prefix: E5 was trained with these; encoders that were not want "".
        max_tokens: longer texts are cut.
        backend, device: see `VectorIndex`; the encoder runs on the same device.
        cache: folder that keeps the passages' vectors, by a hash of the model's name, the settings and all texts; None,
            or a model that was passed loaded, keeps none.

    Raises:
        ValueError: there are no passages.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        model: Any = "intfloat/e5-base-v2",
        *,
        query_prefix: str = "query: ",
        passage_prefix: str = "passage: ",
        max_tokens: int = 256,
        backend: Backend = "auto",
        device: str = "cpu",
        batch_size: int = 64,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if not documents:
            raise ValueError("DenseRetriever: documents must not be empty, got none; check the corpus")
        self.documents = list(documents)
        self.query_prefix = query_prefix
        self.passage_prefix = passage_prefix
        self.batch_size = batch_size
        self._model = _load_encoder(model, device)
        self._model.max_seq_length = max_tokens
        texts = [document.contents for document in self.documents]
        named = isinstance(model, (str, os.PathLike))
        file = _cache_file(cache, [str(model), passage_prefix, str(max_tokens), *texts]) if cache and named else None
        self.index = VectorIndex(self._passage_vectors(texts, file), backend=backend, device=device)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The `topk` passages of the largest cosine for each query, best first."""
        if not queries:
            return []
        places, scores = self.index.search(self._encode([self.query_prefix + query for query in queries]), topk)
        return [
            [Document(self.documents[i].id, self.documents[i].contents, s) for i, s in zip(row, values, strict=True)]
            for row, values in zip(places.tolist(), scores.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Nothing to free but memory."""

    def _passage_vectors(self, texts: list[str], file: Path | None) -> Any:
        import numpy as np

        if file is not None and file.is_file():
            return np.load(file, allow_pickle=False)
        vectors = self._encode([self.passage_prefix + text for text in texts])
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f"{file.stem}.{os.getpid()}.part.npy")
            np.save(partial, vectors, allow_pickle=False)
            partial.replace(file)
        return vectors

    def _encode(self, texts: list[str]) -> Any:
        return self._model.encode(
            texts,
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )


def _load_encoder(model: Any, device: str) -> Any:
    if not isinstance(model, (str, os.PathLike)):
        return model
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device=device, trust_remote_code=False)


def _cache_file(cache: str | os.PathLike[str], parts: Sequence[str]) -> Path:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return Path(cache).expanduser() / f"passages-{digest.hexdigest()[:32]}.npy"


def _faiss_index(vectors: Any, backend: Backend) -> Any:
    try:
        import faiss
    except ImportError as error:
        if backend == "auto":
            return None
        raise ImportError(
            f'VectorIndex: backend "faiss" must have FAISS installed, got an ImportError ({error}); '
            'pip install faiss-cpu or use backend="torch"'
        ) from error
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index
