"""A retrieval server with Search-R1's API: ``python -m turncredit.envs.search_qa.server --corpus FILE``.

``POST /retrieve`` takes ``{"queries": [..]}`` or ``{"query": ".."}`` with optional ``topk`` and ``return_scores`` and
answers ``{"result": [[..], ..]}``; ``GET /health`` answers 200 with the number of passages. Queries that arrive
together are searched together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .bm25 import Bm25Retriever
from .data import load_corpus
from .dense import DenseRetriever
from .retrieval import Document, Retriever

MAX_BODY = 8 * 2**20
MAX_QUERIES = 1024
MAX_TOPK = 100
Passages = Future[list[list[Document]]]
_logger = logging.getLogger(__name__)


class _BadRequest(Exception):
    """What the client did wrong; becomes a 400."""


class Batcher:
    """Joins queries of concurrent requests into one call of the retriever, made by one thread.

    Args:
        retriever: need not be safe for threads.
        max_batch: a call is made as soon as so many queries wait.
        max_wait: seconds the first query of a call waits for others.
    """

    def __init__(self, retriever: Retriever, *, max_batch: int = 64, max_wait: float = 0.002) -> None:
        self._retriever = retriever
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._waiting: queue.SimpleQueue[tuple[list[str], int, Passages] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="retrieval-batcher", daemon=True)
        self._thread.start()

    def submit(self, queries: list[str], topk: int) -> Passages:
        """The passages of `queries`, later."""
        future = Passages()
        if not self._thread.is_alive():
            raise RuntimeError("the server is stopping")
        self._waiting.put((queries, topk, future))
        return future

    def close(self) -> None:
        """Finish what waits, then stop."""
        self._waiting.put(None)
        self._thread.join(timeout=10)
        with contextlib.suppress(queue.Empty):
            while True:
                late = self._waiting.get_nowait()
                if late is not None:
                    late[2].set_exception(RuntimeError("the server is stopping"))

    def _run(self) -> None:
        running = True
        while running:
            first = self._waiting.get()
            if first is None:
                return
            batch, size, deadline = [first], len(first[0]), time.monotonic() + self._max_wait
            while size < self._max_batch:
                try:
                    more = self._waiting.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if more is None:
                    running = False
                    break
                batch.append(more)
                size += len(more[0])
            self._answer(batch)

    def _answer(self, batch: Sequence[tuple[list[str], int, Passages]]) -> None:
        queries = [query for asked, _, _ in batch for query in asked]
        try:
            found = self._retriever.search(queries, max(topk for _, topk, _ in batch))
        except Exception as error:
            if len(batch) == 1:
                batch[0][2].set_exception(error)
                return
            for single in batch:
                self._answer([single])
            return
        start = 0
        for asked, topk, future in batch:
            future.set_result([documents[:topk] for documents in found[start : start + len(asked)]])
            start += len(asked)


class RetrievalServer:
    """The server; a context manager that serves from a thread of its own.

    Args:
        retriever: what is asked; closed by the caller.
        host, port: where to listen; port 0 takes a free one, see `url`.
        topk: passages where the request does not say.
        max_batch, max_wait: see `Batcher`.
        info: further fields of the health reply.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        topk: int = 3,
        max_batch: int = 64,
        max_wait: float = 0.002,
        info: dict[str, Any] | None = None,
    ) -> None:
        self._server = _Server((host, port), _Handler)
        self._server.batcher = Batcher(retriever, max_batch=max_batch, max_wait=max_wait)
        self._server.default_topk = topk
        self._server.health = {"status": "ok", **(info or {})}
        self._thread: threading.Thread | None = None
        address = self._server.server_address
        self.host, self.port = str(address[0]), int(address[1])
        self.url = f"http://{self.host}:{self.port}/retrieve"

    def __enter__(self) -> RetrievalServer:
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="retrieval-server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(timeout=10)
            self._thread = None
        self._server.server_close()
        self._server.drop_connections()
        self._server.batcher.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    batcher: Batcher
    default_topk: int
    health: dict[str, Any]

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("connection of %s broke off", client_address, exc_info=True)

    def drop_connections(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = 300
    server: _Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, self.server.health)
        else:
            self._reply(404, {"error": "unknown path; there are POST /retrieve and GET /health"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            self._reply(
                413 if length.isdigit() else 411, {"error": f"Content-Length must be given, at most {MAX_BODY}"}
            )
            return
        body = self.rfile.read(int(length))
        if self.path != "/retrieve":
            self._reply(404, {"error": "unknown path; there are POST /retrieve and GET /health"})
            return
        try:
            queries, topk, scores = read_request(body, self.server.default_topk)
            found = self.server.batcher.submit(queries, topk).result(timeout=self.timeout)
        except _BadRequest as error:
            self._reply(400, {"error": str(error)})
        except Exception as error:
            _logger.exception("a search failed")
            self._reply(500, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._reply(200, {"result": [[_as_json(doc, scores) for doc in documents] for documents in found]})

    def log_message(self, format: str, *args: Any) -> None:
        _logger.debug(format, *args)

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def read_request(body: bytes, default_topk: int) -> tuple[list[str], int, bool]:
    """Queries, passages per query and whether scores are wanted, of a request's body in either form."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise _BadRequest('the body must be JSON; write {"queries": [..], "topk": 3}') from None
    asked = asked if isinstance(asked, dict) else {}
    queries = asked.get("queries", [asked["query"]] if "query" in asked else None)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _BadRequest('the body must have a list of texts "queries", or one text "query"')
    if len(queries) > MAX_QUERIES:
        raise _BadRequest(f"queries must be at most {MAX_QUERIES}, got {len(queries)}; send several requests")
    topk = default_topk if asked.get("topk") is None else asked["topk"]
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise _BadRequest(f"topk must be a whole number in [1, {MAX_TOPK}], got {topk!r}")
    return queries, topk, bool(asked.get("return_scores", False))


def _as_json(document: Document, scores: bool) -> dict[str, Any]:
    plain = {"id": document.id, "contents": document.contents}
    return {"document": plain, "score": document.score} if scores else plain


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m turncredit.envs.search_qa.server", description=__doc__)
    parser.add_argument("--corpus", required=True, help="JSON lines or parquet with id and contents")
    parser.add_argument("--retriever", choices=("bm25", "dense"), default="bm25")
    parser.add_argument("--model", default="intfloat/e5-base-v2", help="encoder of the dense retriever")
    parser.add_argument("--query-prefix", default="query: ", help="'' for encoders without prefixes")
    parser.add_argument("--passage-prefix", default="passage: ", help="'' for encoders without prefixes")
    parser.add_argument("--device", default="cpu", help="device of the dense retriever")
    parser.add_argument("--cache", help="folder that keeps the dense retriever's vectors")
    parser.add_argument("--host", default="127.0.0.1", help="anything else lets other machines ask; no authentication")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--topk", type=int, default=3, help="passages where a request does not say")
    parser.add_argument("--max-batch", type=int, default=64, help="queries searched together")
    parser.add_argument("--max-wait-ms", type=float, default=2.0, help="how long a query waits for others")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server until it is interrupted."""
    options = build_parser().parse_args(arguments)
    _logger.addHandler(logging.StreamHandler())
    _logger.setLevel(logging.INFO)
    clock = time.perf_counter()
    documents = load_corpus(options.corpus)
    retriever: Retriever = Bm25Retriever(documents) if options.retriever == "bm25" else _dense(documents, options)
    server = RetrievalServer(
        retriever,
        host=options.host,
        port=options.port,
        topk=options.topk,
        max_batch=options.max_batch,
        max_wait=options.max_wait_ms / 1000,
        info={"documents": len(documents), "retriever": options.retriever},
    )
    seconds = time.perf_counter() - clock
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        _logger.info("%d passages, %s, %.1f s, serving %s", len(documents), options.retriever, seconds, server.url)
        stop.wait()


def _dense(documents: Sequence[Document], options: argparse.Namespace) -> DenseRetriever:
    return DenseRetriever(
        documents,
        options.model,
        query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix,
        device=options.device,
        cache=options.cache,
    )


if __name__ == "__main__":
    main()
