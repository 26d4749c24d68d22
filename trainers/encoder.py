"""Sentence embeddings for AlignOPSD: any object with ``encode(list[str])``, every distinct text encoded once."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Encoder(Protocol):
    """Turns texts into vectors; a ``SentenceTransformer`` is one."""

    def encode(self, texts: list[str], /) -> Any:
        """``[n, D]`` array-like of floats, one row per text."""
        ...


class HashingEncoder:
    """Words and word pairs counted into hashed buckets: no model, no download, the same on every machine.

    Good enough for short templated thinking, where shared words mean a shared decision; no substitute for a real
    encoder on free text.

    Args:
        dimension: number of buckets.
    """

    def __init__(self, dimension: int = 512):
        self.dimension = dimension

    def encode(self, texts: list[str]) -> np.ndarray:
        """``[n, dimension]`` counts."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            words = text.lower().split()
            for feature in (*words, *(" ".join(pair) for pair in itertools.pairwise(words))):
                digest = hashlib.blake2b(feature.encode(), digest_size=4).digest()
                rows[row, int.from_bytes(digest, "little") % self.dimension] += 1
        return rows


def load_encoder(name: str) -> Encoder:
    """``"hashing"`` for `HashingEncoder`, else a frozen SentenceTransformer of that name or folder.

    The published encoder is ``Qwen/Qwen3-Embedding-0.6B`` (last-token pooling, left padding, 4096 tokens, no prefix).
    """
    if name == "hashing":
        return HashingEncoder()
    from sentence_transformers import SentenceTransformer

    encoder: Any = SentenceTransformer(name)
    encoder.max_seq_length = min(encoder.max_seq_length or 4096, 4096)
    return encoder


@functools.cache
def cached_encoder(name: str) -> Encoder:
    """`load_encoder`, once a name."""
    return load_encoder(name)


def embed(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """Unit vectors of texts, blanks collapsed, each distinct text encoded once.

    Args:
        encoder: see `Encoder`.
        texts: n texts; an empty one has a zero vector and is never encoded.

    Returns:
        ``[n, D]`` float32 on the CPU.

    Raises:
        ValueError: the encoder returned another number of rows, or values that are not finite.
    """
    clean = [" ".join(text.split()) for text in texts]
    distinct = sorted({text for text in clean if text})
    if not distinct:
        return torch.zeros(len(clean), 1)
    vectors = torch.as_tensor(np.asarray(encoder.encode(distinct)), dtype=torch.float32)
    if vectors.ndim != 2 or len(vectors) != len(distinct):
        raise ValueError(
            f"embed: encoder must return one row per text, got shape {tuple(vectors.shape)} for {len(distinct)} texts"
        )
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError("embed: encoder must return finite numbers, got nan or inf; check its weights and dtype")
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    table = torch.cat([vectors, torch.zeros(1, vectors.shape[1])])
    place = {text: index for index, text in enumerate(distinct)}
    return table[[place.get(text, len(distinct)) for text in clean]]
