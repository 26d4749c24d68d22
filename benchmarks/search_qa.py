"""Speed of Search-QA steps and retrievers, start-up times, and how often a retriever finds the answer.

    python benchmarks/search_qa.py --data FOLDER --encoder MODEL_FOLDER

``--data`` is a folder with ``corpus_sample.jsonl`` and ``qa_sample.jsonl``; without it the generated world stands in.
``--encoder`` is a sentence-transformers model; without it the dense retriever is left out. The large corpus is
synthetic: random words for BM25, random unit vectors for exact search. One JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from turncredit.envs.search_qa import (
    Bm25Retriever,
    DenseRetriever,
    Document,
    HttpRetriever,
    Question,
    Retriever,
    SearchQAEnv,
    VectorIndex,
    generate_world,
    load_corpus,
    load_questions,
    normalize_answer,
)
from turncredit.envs.search_qa.server import RetrievalServer

PASSAGES = 100_000


class Fixed:
    """Always the same passages, at once: what is left is the environment's own time."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = list(documents)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        return [self.documents[:topk] for _ in queries]

    def close(self) -> None:
        self.documents = []


def report(name: str, **values: Any) -> None:
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
    print(json.dumps({"what": name, **rounded}), flush=True)


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def steps_per_second(questions: Sequence[Question], documents: Sequence[Document], seconds: float = 2.0) -> None:
    env = SearchQAEnv({item.id: item for item in questions}, Fixed(documents[:3]))
    ids, steps, start, used = [item.id for item in questions], 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        for task_id in ids[:50]:
            env.reset(task_id)
            for action in ("<search>who</search>", "<search>when</search>", "no tags", "<answer>x</answer>"):
                env.step(action)
            steps += 4
    report(
        "environment steps without retrieval",
        per_second=steps / (time.perf_counter() - start),
        per_cpu_second=steps / (time.process_time() - used),
    )


def throughput(name: str, retriever: Retriever, queries: Sequence[str], seconds: float = 3.0) -> None:
    for size in (1, 64):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            first = count % len(queries)
            batch = [queries[(first + place) % len(queries)] for place in range(size)]
            retriever.search(batch, 3)
            count += size
        report(name, batch=size, queries_per_second=count / (time.perf_counter() - start))


def over_http(name: str, retriever: Retriever, queries: Sequence[str], clients: int = 16) -> None:
    with RetrievalServer(retriever) as server:
        client = HttpRetriever(server.url, max_concurrency=clients)
        asked = list(queries) * max(1, 1000 // len(queries))
        with ThreadPoolExecutor(clients) as pool:
            _, alone = timed(lambda: [client.search([query], 3) for query in asked[:200]])
            _, together = timed(lambda: list(pool.map(lambda query: client.search([query], 3), asked)))
        report(
            f"{name} over HTTP",
            one_client_per_second=200 / alone,
            **{f"{clients}_clients_per_second": len(asked) / together},
        )
        client.close()


def slow_requests(count: int = 50, delay: float = 0.2) -> None:
    class Slow(Fixed):
        def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
            time.sleep(delay)
            return super().search(queries, topk)

    with RetrievalServer(Slow([Document("0", "x")]), max_wait=0.02) as server, ThreadPoolExecutor(count) as pool:
        client = HttpRetriever(server.url, max_concurrency=count)
        found, seconds = timed(lambda: list(pool.map(lambda n: client.search([str(n)], 1), range(count))))
        client.close()
    report("concurrent slow requests", requests=count, delay=delay, answered=len(found), seconds=seconds)


def answers_found(name: str, retriever: Retriever, questions: Sequence[Question]) -> None:
    found = retriever.search([item.question for item in questions], 3)
    hits: dict[str, list[bool]] = {}
    for item, documents in zip(questions, found, strict=True):
        text = f" {normalize_answer(' '.join(document.contents for document in documents))} "
        golds = [normalize_answer(gold) for gold in item.answers]
        hits.setdefault(item.data_source, []).append(any(gold and f" {gold} " in text for gold in golds))
    every = [hit for group in hits.values() for hit in group]
    shares = {source: sum(group) / len(group) for source, group in sorted(hits.items())}
    report(f"{name}: answer string in the top 3", questions=len(every), share=sum(every) / len(every), **shares)


def synthetic_passages(count: int, words: int = 100) -> list[Document]:
    """Passages of `words` words whose frequencies fall as in a natural text (Zipf)."""
    rng = random.Random(0)
    vocabulary = [f"w{number}x" for number in range(50_000)]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    drawn = rng.choices(vocabulary, weights, k=count * words)
    return [Document(str(n), " ".join(drawn[n * words : (n + 1) * words])) for n in range(count)]


def large_bm25() -> None:
    documents = synthetic_passages(PASSAGES)
    retriever, seconds = timed(lambda: Bm25Retriever(documents))
    report("BM25 start", passages=PASSAGES, seconds=seconds)
    rng = random.Random(1)
    queries = [" ".join(rng.choices(documents[n].contents.split(), k=8)) for n in range(200)]
    throughput(f"BM25 on {PASSAGES} synthetic passages", retriever, queries)


def large_vectors(dimensions: int) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((PASSAGES, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index, seconds = timed(lambda: VectorIndex(vectors, backend="torch"))
    report("exact search start, vectors given", passages=PASSAGES, dimensions=dimensions, seconds=seconds)
    for size in (1, 64):
        queries, count, start = vectors[:size], 0, time.perf_counter()
        while time.perf_counter() - start < 3.0:
            index.search(queries, 3)
            count += size
        report(
            f"exact search over {PASSAGES} random vectors",
            batch=size,
            queries_per_second=count / (time.perf_counter() - start),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--query-prefix", default="", help="'query: ' for E5")
    parser.add_argument("--passage-prefix", default="", help="'passage: ' for E5")
    parser.add_argument("--cache", help="folder that keeps the passages' vectors for the next run")
    parser.add_argument("--skip-large", action="store_true", help="leave the 100,000 passages out")
    options = parser.parse_args()
    if options.data:
        documents, seconds = timed(lambda: load_corpus(options.data / "corpus_sample.jsonl"))
        questions = load_questions(options.data / "qa_sample.jsonl")
        report("load corpus", passages=len(documents), seconds=seconds)
    else:
        world = generate_world(0)
        documents, questions = list(world.documents), list(world.questions)
    queries = [item.question for item in questions]
    steps_per_second(questions, documents)
    slow_requests()
    bm25, seconds = timed(lambda: Bm25Retriever(documents))
    report("BM25 start", passages=len(documents), seconds=seconds)
    throughput(f"BM25 on {len(documents)} passages", bm25, queries)
    over_http("BM25", bm25, queries)
    answers_found("BM25", bm25, questions)
    if not options.skip_large:
        large_bm25()
        large_vectors(384)
        large_vectors(768)
    if options.encoder:
        dense, seconds = timed(
            lambda: DenseRetriever(
                documents,
                options.encoder,
                query_prefix=options.query_prefix,
                passage_prefix=options.passage_prefix,
                backend="torch",
                cache=options.cache,
            )
        )
        report("dense start, imports and encoding included", passages=len(documents), seconds=seconds)
        throughput(f"dense on {len(documents)} passages", dense, queries)
        over_http("dense", dense, queries[:100])
        answers_found("dense", dense, questions)


if __name__ == "__main__":
    main()
