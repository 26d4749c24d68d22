"""BM25 against a naive reference, vector search against sorting, the dense retriever's texts, and real data."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.envs.search_qa import Bm25Retriever, DenseRetriever, Document, Retriever, VectorIndex, load_corpus

WORDS = ["amber", "birch", "cedar", "dusk", "elder", "frost", "gull", "hazel"]


def naive_bm25(texts, query, k1, b):
    """Lucene's BM25, term by term: idf = ln(1 + (N - n + 0.5)/(n + 0.5)), tf/(tf + k1 (1 - b + b len/avg))."""
    tokens = [text.split() for text in texts]
    average = sum(map(len, tokens)) / len(tokens)
    scores = []
    for words in tokens:
        counts, score = Counter(words), 0.0
        for term in query.split():
            holding = sum(term in other for other in tokens)
            idf = math.log(1 + (len(tokens) - holding + 0.5) / (holding + 0.5))
            frequency = counts[term]
            score += idf * frequency / (frequency + k1 * (1 - b + b * len(words) / average))
        scores.append(score)
    return scores


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join), min_size=1, max_size=8),
    st.lists(st.sampled_from([*WORDS, "unknown"]), min_size=1, max_size=4).map(" ".join),
)
def test_bm25_equals_the_naive_reference(texts, query):
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")
    retriever = Bm25Retriever([Document(str(n), text) for n, text in enumerate(texts)])
    found = retriever.search([query], 8)[0]
    expected = naive_bm25(texts, query, 0.9, 0.4)
    assert {int(doc.id) for doc in found} == {place for place, score in enumerate(expected) if score > 0}
    for doc in found:
        assert doc.score == pytest.approx(expected[int(doc.id)], rel=1e-5)
    assert [doc.score for doc in found] == sorted((doc.score for doc in found), reverse=True)


@pytest.fixture
def bm25():
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")
    texts = ['"Rome"\nRome fell in 476.', '"Athens"\nAthens has an acropolis.', '"Paris"\nParis lies on the Seine.']
    return Bm25Retriever([Document(f"d{n}", text) for n, text in enumerate(texts)])


def test_bm25_finds_stems_and_returns_only_matches(bm25):
    assert isinstance(bm25, Retriever)
    (found,) = bm25.search(["Which city has acropolises?"], 3)
    assert [doc.id for doc in found] == ["d1"]
    assert found[0].contents == '"Athens"\nAthens has an acropolis.'


@pytest.mark.parametrize("query", ["", "the of and", "zzz", "?!", "\x00", "é" * 10000])
def test_bm25_answers_any_query(bm25, query):
    assert bm25.search([query, "Rome"], 2)[0] == []
    assert [doc.id for doc in bm25.search([query, "Rome"], 2)[1]] == ["d0"]


def test_bm25_batches_equal_single_queries(bm25):
    queries = ["Rome Paris", "Seine", "", "acropolis Rome"]
    assert bm25.search(queries, 3) == [bm25.search([query], 3)[0] for query in queries]
    assert bm25.search([], 3) == []


def test_bm25_refuses_an_empty_corpus():
    with pytest.raises(ValueError, match="documents must not be empty"):
        Bm25Retriever([])
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")
    with pytest.raises(ValueError, match="documents must hold words"):
        Bm25Retriever([Document("0", "the of"), Document("1", "")])


def backends():
    try:
        import faiss  # noqa: F401
    except ImportError:
        return ["torch", pytest.param("faiss", marks=pytest.mark.skip(reason="FAISS is not installed"))]
    return ["torch", "faiss"]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("topk", [1, 3, 500])
def test_vector_index_equals_sorting(backend, topk, monkeypatch):
    monkeypatch.setattr("turncredit.envs.search_qa.dense._BLOCK", 64)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((150, 16)).astype(np.float32)
    queries = rng.standard_normal((5, 16)).astype(np.float32)
    places, scores = VectorIndex(vectors, backend=backend).search(queries, topk)
    product = queries @ vectors.T
    expected = np.argsort(-product, axis=1)[:, :topk]
    assert places.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(product, expected, 1), rtol=1e-4, atol=1e-5)


def test_vector_index_names_faults(monkeypatch):
    with pytest.raises(ValueError, match=r"vectors must be \[N, D\].*\[0, 3\]"):
        VectorIndex(np.zeros((0, 3)))
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match="must have FAISS installed"):
        VectorIndex(np.ones((2, 2)), backend="faiss")
    assert VectorIndex(np.ones((2, 2))).backend == "torch"


@pytest.mark.parametrize("backend", backends())
def test_vector_index_refuses_queries_of_another_encoder(backend):
    index = VectorIndex(np.ones((4, 3)), backend=backend)
    with pytest.raises(ValueError, match=r"queries must be \[Q, 3\], got shape \[2, 5\]"):
        index.search(np.ones((2, 5)), 1)
    with pytest.raises(ValueError, match="topk must be at least 1, got 0"):
        index.search(np.ones((2, 3)), 0)


class Letters:
    """Stands in for a sentence encoder: counts letters, and remembers what it was given."""

    max_seq_length = 512

    def __init__(self):
        self.texts = []

    def encode(self, texts, **options):
        assert options["normalize_embeddings"]
        self.texts += texts
        counts = np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
        counts = counts + 1e-6
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def test_dense_retriever_puts_e5s_prefixes_and_limit():
    encoder = Letters()
    documents = [Document("0", "zzzz"), Document("1", "qqqq")]
    retriever = DenseRetriever(documents, encoder)
    assert isinstance(retriever, Retriever)
    assert encoder.max_seq_length == 256
    assert [[doc.id for doc in found] for found in retriever.search(["qqqqqqqqqqqqqqq", "zzzzzzzzzzzzzzz"], 2)] == [
        ["1", "0"],
        ["0", "1"],
    ]
    assert encoder.texts[:3] == ["passage: zzzz", "passage: qqqq", "query: qqqqqqqqqqqqqqq"]
    assert retriever.search([], 3) == []


def test_dense_retriever_keeps_vectors_by_content(tmp_path, monkeypatch):
    made = []

    def load(model, device):
        made.append(Letters())
        return made[-1]

    monkeypatch.setattr("turncredit.envs.search_qa.dense._load_encoder", load)
    documents = [Document("0", "zzzz"), Document("1", "qqqq")]
    first = DenseRetriever(documents, "m", cache=tmp_path).search(["q"], 1)
    again = DenseRetriever(documents, "m", cache=tmp_path)
    assert made[1].texts == []
    assert again.search(["q"], 1) == first
    DenseRetriever([Document("0", "zzzz"), Document("1", "other")], "m", cache=tmp_path)
    assert made[2].texts == ["passage: zzzz", "passage: other"]
    assert len(list(tmp_path.iterdir())) == 2


def test_bm25_on_real_passages(shared_dir, bm25):
    path = shared_dir / "search_qa" / "corpus_sample.jsonl"
    if not path.is_file():
        pytest.skip("reference data (../shared/search_qa/corpus_sample.jsonl) is not here")
    documents = load_corpus(path)
    assert len(documents) == 1459
    found = Bm25Retriever(documents).search(["who performed the first c section in 1794"], 3)[0]
    assert found[0].contents.startswith('"Jesse Bennett"')
