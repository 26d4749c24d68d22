"""A client for Search-R1's retrieval API over HTTP: patient with a slow server, brief with a dead one."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import urlsplit

from .retrieval import Document, NoListsError, RetrievalError, as_document

RequestForm = Literal["queries", "query"]
_MAX_REPLY = 64 * 2**20
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpRetriever:
    """Asks a Search-R1 server: ``POST {"queries": [..], "topk": k, "return_scores": true}``.

    Timeouts, refused or broken connections and the statuses 408, 425, 429, 500 and 502 to 504 are tried again; a reply
    that is not of the API's form, and any other status, is not. When all attempts of a request have failed, further
    requests fail at once for `cooldown` seconds (cause ``"cooling_down"``): a batch of episodes then costs one
    timeout and not one each. The first request after that tries again, and any success ends the pause.

    Connections are kept alive and reused. It may be called from several threads; at most `max_concurrency` requests
    are on their way at once, the others wait. It can be pickled: the copy opens its own connections.

    Args:
        url: the endpoint, ``http`` or ``https``; without a path, ``/retrieve`` is meant.
        request_form: ``"queries"`` sends up to `batch_size` queries at once, ``"query"`` one a request.
        timeout: seconds for one attempt, from connecting to the last byte.
        retries: further attempts after the first.
        backoff: seconds before the second attempt; doubled for each later one.
        cooldown: see above; 0 turns it off. Keep ``(retries + 1) * timeout`` plus the backoffs below the collector's
            time limit for an environment worker.
        max_concurrency: requests on their way at once.
        batch_size: queries in one request.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000/retrieve",
        *,
        request_form: RequestForm = "queries",
        timeout: float = 20.0,
        retries: int = 2,
        backoff: float = 0.5,
        cooldown: float = 10.0,
        max_concurrency: int = 16,
        batch_size: int = 64,
    ) -> None:
        rules = (
            (
                "request_form",
                request_form,
                request_form in ("queries", "query"),
                'be "queries" or "query"',
                '"queries"',
            ),
            ("timeout", timeout, timeout > 0, "be positive seconds", "20"),
            ("retries", retries, retries >= 0, "be 0 or more", "2"),
            ("backoff", backoff, backoff >= 0, "be 0 seconds or more", "0.5"),
            ("cooldown", cooldown, cooldown >= 0, "be 0 seconds or more", "10"),
            ("max_concurrency", max_concurrency, max_concurrency >= 1, "be at least 1", "16"),
            ("batch_size", batch_size, batch_size >= 1, "be at least 1", "64"),
        )
        for name, value, ok, rule, usual in rules:
            if not ok:
                raise ValueError(f"HttpRetriever: {name} must {rule}, got {value!r}; {usual} is the usual value")
        self._settings: dict[str, Any] = {name: value for name, value, *_ in rules}
        self.url = url
        self._scheme, self._host, self._port, self._path = _split_url(url)
        self._timeout, self._retries, self._backoff, self._cooldown = timeout, retries, backoff, cooldown
        self._form, self._batch_size, self._workers = request_form, batch_size, max_concurrency
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_concurrency)
        self._pool: ThreadPoolExecutor | None = None
        self._resume_at = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self._settings)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """At most `topk` passages for each query, in the server's order.

        Raises:
            RetrievalError: some request failed for good, or is not tried because the server was just found dead.
        """
        size = self._batch_size if self._form == "queries" else 1
        batches = [list(queries[start : start + size]) for start in range(0, len(queries), size)]
        if len(batches) <= 1:
            return self._request(batches[0], topk) if batches else []
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="retrieval")
            pool = self._pool
        replies = list(pool.map(lambda batch: self._request(batch, topk), batches))
        return [documents for reply in replies for documents in reply]

    def close(self) -> None:
        """Close the idle connections. Calling it twice is harmless, and a later search opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            pool, self._pool = self._pool, None
        for connection in idle:
            connection.close()
        if pool is not None:
            pool.shutdown(wait=False)

    def _request(self, queries: list[str], topk: int) -> list[list[Document]]:
        asked: dict[str, Any] = {"queries": queries} if self._form == "queries" else {"query": queries[0]}
        body = json.dumps({**asked, "topk": topk, "return_scores": True}).encode()
        with self._slots:
            left = self._resume_at - time.monotonic()
            if left > 0:
                raise RetrievalError("cooling_down", f"{self.url} failed a moment ago; next attempt in {left:.1f} s")
            attempt = 0
            while True:
                try:
                    status, data = self._exchange(body)
                    if status not in _TRANSIENT_STATUS:
                        break
                    failure = RetrievalError("http_error", f"{self.url} answered with status {status}")
                except RetrievalError as error:
                    failure = error
                if attempt == self._retries:
                    self._resume_at = time.monotonic() + self._cooldown
                    raise failure
                time.sleep(self._backoff * 2**attempt)
                attempt += 1
            self._resume_at = 0.0
        if status != 200:
            raise RetrievalError("http_error", f"{self.url} answered with status {status}: {_start_of(data)}")
        return read_reply(data, len(queries))

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        """One attempt. A kept connection that the server has closed meanwhile is replaced without counting."""
        deadline = time.monotonic() + self._timeout
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
            connection = kept or kind(self._host, self._port)
            try:
                status, data, reusable = self._send(connection, body, deadline)
            except TimeoutError:
                connection.close()
                raise RetrievalError("timeout", f"no complete reply from {self.url} in {self._timeout:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if kept is not None and isinstance(error, (ConnectionError, http.client.BadStatusLine)):
                    continue
                name = type(error).__name__
                raise RetrievalError("unreachable", f"{self.url}: {name}: {error}".rstrip(": ")) from None
            except BaseException:
                connection.close()
                raise
            if reusable:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
            return status, data

    def _send(self, connection: http.client.HTTPConnection, body: bytes, deadline: float) -> tuple[int, bytes, bool]:
        def wait_at_most() -> None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.timeout = left
            if connection.sock is not None:
                connection.sock.settimeout(left)

        wait_at_most()
        connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        wait_at_most()
        reply = connection.getresponse()
        pieces, size = [], 0
        while piece := reply.read1(65536):
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_REPLY:
                raise RetrievalError("malformed", f"the reply of {self.url} exceeds {_MAX_REPLY} bytes")
            if not reply.isclosed():
                wait_at_most()
        reply.close()
        promised = reply.getheader("Content-Length")
        if promised is not None and promised.isdigit() and size < int(promised):
            raise http.client.IncompleteRead(b"".join(pieces), int(promised) - size)
        return reply.status, b"".join(pieces), not reply.will_close


def read_reply(data: bytes, num_queries: int) -> list[list[Document]]:
    """The passages in a server's reply, with or without scores.

    Args:
        data: the reply's body, ``{"result": [[{"document": {..}, "score": x}, ..], ..]}`` or the documents alone.
        num_queries: how many lists there must be.

    Raises:
        RetrievalError: ``"malformed"``: it is anything else; a `NoListsError` where it holds no list at all.
    """
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        raise RetrievalError("malformed", f"the reply is not JSON: {_start_of(data)}") from None
    result = reply.get("result") if isinstance(reply, dict) else None
    if isinstance(reply, dict) and not result:
        raise NoListsError("malformed", f'the reply has no list in its "result": {_start_of(data)}')
    if not isinstance(result, list) or not all(isinstance(found, list) for found in result):
        raise RetrievalError("malformed", f'the reply has no list of lists "result": {_start_of(data)}')
    if len(result) != num_queries:
        raise RetrievalError("malformed", f"the reply holds {len(result)} lists for {num_queries} queries")
    try:
        return [[as_document(item, position=place) for place, item in enumerate(found)] for found in result]
    except (ValueError, OverflowError) as error:
        raise RetrievalError("malformed", str(error)) from None


def _start_of(data: bytes) -> str:
    return repr(data[:80].decode("utf-8", "replace"))


def _split_url(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"HttpRetriever: url must be a valid address, got {url!r} ({error}); fix it") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"HttpRetriever: url must start with http:// or https:// and name a host, got {url!r}; "
            "write for example http://127.0.0.1:8000/retrieve"
        )
    path = parts.path if parts.path not in ("", "/") else "/retrieve"
    return parts.scheme, parts.hostname, port, f"{path}?{parts.query}" if parts.query else path


def _rebuild(url: str, settings: dict[str, Any]) -> HttpRetriever:
    return HttpRetriever(url, **settings)
