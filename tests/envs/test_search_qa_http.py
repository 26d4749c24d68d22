"""Client and server against each other, and the client against servers that are slow, dead or wrong.

Every server listens on 127.0.0.1 at a free port and is closed.
"""

from __future__ import annotations

import http.client
import json
import pickle
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from turncredit.envs.search_qa import Document, HttpRetriever, Question, RetrievalError, SearchQAEnv
from turncredit.envs.search_qa.http_retriever import read_reply
from turncredit.envs.search_qa.server import MAX_QUERIES, RetrievalServer


class Echo:
    """Answers each query with passages that repeat it; counts calls; may be slow or fail on a word."""

    def __init__(self, delay=0.0):
        self.delay = delay
        self.calls = []

    def search(self, queries, topk):
        self.calls.append(list(queries))
        time.sleep(self.delay)
        if "poison" in queries:
            raise RuntimeError("cannot digest poison")
        return [[Document(str(n), f'"{query}"\n{n}', 1.0 / (n + 1)) for n in range(topk)] for query in queries]

    def close(self):
        self.calls = []


@contextmanager
def client_of(server, **options):
    retriever = HttpRetriever(server.url, **{"backoff": 0.01, "cooldown": 0.0, **options})
    try:
        yield retriever
    finally:
        retriever.close()


@contextmanager
def raw_server(answer):
    """A server whose connections are handled by ``answer(connection, number)``."""
    count = [0]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            count[0] += 1
            answer(self.request, count[0])

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request, client_address):
            count.append(-1)

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/retrieve", count
        finally:
            server.shutdown()
            thread.join(5)


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
    while len(body) < length:
        body += connection.recv(65536)
    return body


def reply(connection, body, status="200 OK", length=None):
    size = len(body) if length is None else length
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + body)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("form", ["queries", "query"])
def test_client_and_server_agree_in_both_request_forms(form):
    echo = Echo()
    with RetrievalServer(echo) as server, client_of(server, request_form=form) as client:
        found = client.search(["a", 'b é \n"', "c"], 2)
    assert found == [
        [Document("0", f'"{query}"\n0', 1.0), Document("1", f'"{query}"\n1', 0.5)] for query in ("a", 'b é \n"', "c")
    ]
    assert client.search([], 3) == []


def test_batches_are_split_and_put_together_in_order():
    with RetrievalServer(Echo()) as server, client_of(server, batch_size=4, max_concurrency=3) as client:
        queries = [f"q{n}" for n in range(23)]
        assert [found[0].contents for found in client.search(queries, 1)] == [f'"{query}"\n0' for query in queries]


def test_connections_are_kept_alive_and_bounded():
    with RetrievalServer(Echo(delay=0.01)) as server, client_of(server, max_concurrency=4) as client:
        connections = set()
        plain = server._server.process_request

        def counted(request, address):
            connections.add(address)
            plain(request, address)

        server._server.process_request = counted
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: client.search([str(n)], 1), range(40)))
    assert 1 <= len(connections) <= 4


def test_fifty_concurrent_slow_requests():
    echo = Echo(delay=0.2)
    with (
        RetrievalServer(echo, max_wait=0.05) as server,
        client_of(server, max_concurrency=50, timeout=30) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        found = list(pool.map(lambda n: client.search([f"q{n}"], 3), range(50)))
    assert [item[0][0].contents for item in found] == [f'"q{n}"\n0' for n in range(50)]
    assert sum(map(len, echo.calls)) == 50
    assert len(echo.calls) < 25, "requests that arrive together are searched together"


def test_server_batches_need_not_agree_on_topk():
    with (
        RetrievalServer(Echo(delay=0.02), max_wait=0.1) as server,
        client_of(server) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda n: client.search([str(n)], n), range(1, 9)))
    assert [len(item[0]) for item in found] == list(range(1, 9))


def test_one_query_that_fails_does_not_fail_its_neighbours():
    with (
        RetrievalServer(Echo(delay=0.02), max_wait=0.2) as server,
        client_of(server, retries=0) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        good = [pool.submit(client.search, [name], 1) for name in ("a", "b")]
        bad = pool.submit(client.search, ["poison"], 1)
        assert [item.result()[0][0].contents for item in good] == ['"a"\n0', '"b"\n0']
        with pytest.raises(RetrievalError, match=r"http_error.*500"):
            bad.result()


def test_health_and_errors_of_the_server():
    with RetrievalServer(Echo(), info={"documents": 7}) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=5)

        def ask(method, path, body=None):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        assert ask("GET", "/health") == (200, {"status": "ok", "documents": 7})
        assert ask("GET", "/other")[0] == 404
        assert ask("POST", "/other", b"{}")[0] == 404
        for body in (
            b"",
            b"{",
            b"[" * 100000,
            b"[]",
            b"{}",
            b'{"queries": "a"}',
            b'{"queries": [1]}',
            b'{"query": 5}',
            b'{"queries": ["a"], "topk": 0}',
            b'{"queries": ["a"], "topk": "3"}',
            b'{"queries": ["a"], "topk": true}',
            b'{"queries": ["a"], "topk": 101}',
            json.dumps({"queries": ["a"] * (MAX_QUERIES + 1)}).encode(),
        ):
            status, content = ask("POST", "/retrieve", body)
            assert (status, list(content)) == (400, ["error"]), body[:40]
        assert ask("POST", "/retrieve", b'{"query": "a", "topk": 1}') == (
            200,
            {"result": [[{"id": "0", "contents": '"a"\n0'}]]},
        )
        scored = ask("POST", "/retrieve", b'{"queries": ["a"], "return_scores": true}')[1]["result"][0]
        assert scored[2] == {"document": {"id": "2", "contents": '"a"\n2'}, "score": pytest.approx(1 / 3)}
        connection.putrequest("POST", "/retrieve")
        connection.putheader("Content-Length", str(2**40))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


GOOD = {"result": [[{"document": {"id": "1", "contents": "x"}, "score": 2}]]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"null",
        b"[]",
        b"{}",
        b'{"result": null}',
        b'{"result": [null]}',
        b'{"result": []}',
        b'{"result": [[], []]}',
        b'{"result": [["text"]]}',
        b'{"result": [[{"document": null}]]}',
        b'{"result": [[{"document": {"id": "1"}}]]}',
        b'{"result": [[{"document": {"contents": 5}}]]}',
        b'{"result": [[{"document": {"contents": "x"}, "score": "high"}]]}',
        b"\xff\xfe",
        b"[" * 100000,
        json.dumps(GOOD).encode()[:-3],
    ],
    ids=range(17),
)
def test_malformed_replies_are_errors_that_are_not_retried(body):
    def answer(connection, number):
        while read_request(connection):
            reply(connection, body)

    with raw_server(answer) as (url, count):
        client = HttpRetriever(url, timeout=5, backoff=0.01)
        for _ in range(2):
            with pytest.raises(RetrievalError) as caught:
                client.search(["q"], 3)
            assert caught.value.cause == "malformed"
        client.close()
    assert count[0] == 1


def test_replies_without_scores_and_with_title_and_text():
    data = json.dumps({"result": [[{"id": 3, "contents": "x"}], [{"document": {"title": "T", "text": "t"}}]]}).encode()
    assert read_reply(data, 2) == [[Document("3", "x")], [Document("0", '"T"\nt')]]


def test_transient_failures_are_tried_again():
    def answer(connection, number):
        body = read_request(connection)
        if number == 1:
            return
        if number == 2:
            reply(connection, b"{}", "503 Busy")
            return
        if number == 3:
            reply(connection, json.dumps(GOOD).encode()[:10], length=len(json.dumps(GOOD)))
            return
        assert json.loads(body) == {"queries": ["q"], "topk": 3, "return_scores": True}
        reply(connection, json.dumps(GOOD).encode())

    with raw_server(answer) as (url, count):
        client = HttpRetriever(url, timeout=5, retries=3, backoff=0.01)
        assert client.search(["q"], 3) == [[Document("1", "x", 2.0)]]
        client.close()
    assert count[0] == 4


def test_other_statuses_are_not_tried_again():
    def answer(connection, number):
        while read_request(connection):
            reply(connection, b"no such path", "404 Not Found")

    with raw_server(answer) as (url, count):
        client = HttpRetriever(url, timeout=5)
        with pytest.raises(RetrievalError, match=r"http_error.*404.*no such path"):
            client.search(["q"], 3)
        client.close()
    assert count[0] == 1


def test_a_silent_and_a_dripping_server_time_out():
    stop = threading.Event()

    def silent(connection, number):
        read_request(connection)
        stop.wait(10)

    def dripping(connection, number):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not stop.wait(0.05):
            connection.sendall(b"x")

    for answer in (silent, dripping):
        with raw_server(answer) as (url, _):
            client = HttpRetriever(url, timeout=0.3, retries=1, backoff=0.01)
            start = time.monotonic()
            with pytest.raises(RetrievalError) as caught:
                client.search(["q"], 3)
            assert caught.value.cause == "timeout"
            assert 0.5 < time.monotonic() - start < 5
            start = time.monotonic()
            with pytest.raises(RetrievalError) as caught:
                client.search(["q"], 3)
            assert caught.value.cause == "cooling_down"
            assert time.monotonic() - start < 0.2
            stop.set()
            client.close()
        stop.clear()


def test_a_kept_connection_closed_by_the_server_costs_no_attempt():
    def answer(connection, number):
        read_request(connection)
        reply(connection, json.dumps(GOOD).encode())

    with raw_server(answer) as (url, count):
        client = HttpRetriever(url, timeout=5, retries=0)
        for _ in range(3):
            assert client.search(["q"], 1) == [[Document("1", "x", 2.0)]]
            time.sleep(0.05)
        client.close()
    assert count[0] == 3


def test_cooldown_ends_with_the_first_success():
    port = free_port()
    client = HttpRetriever(f"http://127.0.0.1:{port}", timeout=5, retries=0, cooldown=0.3)
    causes = []
    for _ in range(2):
        with pytest.raises(RetrievalError) as caught:
            client.search(["q"], 1)
        causes.append(caught.value.cause)
    assert causes == ["unreachable", "cooling_down"]
    with RetrievalServer(Echo(), port=port):
        time.sleep(0.35)
        assert client.search(["q"], 1)[0][0].contents == '"q"\n0'
        assert client.search(["r"], 1)[0][0].contents == '"r"\n0'
    client.close()


def test_client_can_be_pickled_with_its_settings():
    with RetrievalServer(Echo()) as server, client_of(server, timeout=7.0) as client:
        client.search(["q"], 1)
        copy = pickle.loads(pickle.dumps(client))
        assert copy._settings == client._settings
        assert copy.search(["q"], 1) == client.search(["q"], 1)
        copy.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "ftp://x"}, "url must start with http"),
        ({"url": "http://"}, "url must start with http"),
        ({"url": "http://h:port"}, "url must be a valid address"),
        ({"timeout": 0}, "timeout must be positive seconds, got 0"),
        ({"retries": -1}, "retries must be 0 or more, got -1"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1, got 0"),
        ({"request_form": "x"}, "request_form must be"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        HttpRetriever(**arguments)


@contextmanager
def server_process(corpus, port):
    command = [sys.executable, "-m", "turncredit.envs.search_qa.server", "--corpus", str(corpus), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        url = re.search(r"serving (http://127\.0\.0\.1:\d+/retrieve)", line)
        assert url, line
        yield process, url[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_server_killed_half_way_marks_the_steps_and_comes_back(tmp_path):
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        json.dumps({"id": "r", "contents": '"Rome"\nRome fell in 476.'})
        + "\n"
        + json.dumps({"id": "p", "contents": '"Paris"\nParis lies on the Seine.'})
        + "\n",
        encoding="utf-8",
    )
    port = free_port()
    questions = {"t": Question("nq/0", "When did Rome fall?", ("476",), "nq")}

    def episode(client):
        env = SearchQAEnv(questions, client)
        env.reset("t")
        search = env.step("<search>Rome fell</search>")
        return search, env.step("<answer>476</answer>")

    with server_process(corpus, port) as (process, url):
        client = HttpRetriever(url, timeout=5, retries=1, backoff=0.01, cooldown=0.2)
        search, answer = episode(client)
        assert "Rome fell in 476" in search.observation.text
        assert answer.success
        process.kill()
        process.wait()
        causes = []
        for _ in range(5):
            search, answer = episode(client)
            causes.append(search.info["retrieval_error"])
            assert (search.done, answer.success) == (False, True)
        assert causes[0] == "unreachable"
        assert set(causes) <= {"unreachable", "cooling_down"}
    with server_process(corpus, port):
        time.sleep(0.25)
        search, _ = episode(client)
        assert "retrieval_error" not in search.info
    client.close()


def test_the_server_stops_on_a_signal(tmp_path):
    pytest.importorskip("bm25s", reason="the 'search' extra (bm25s) is not installed")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "r", "contents": "Rome fell"}\n', encoding="utf-8")
    with server_process(corpus, 0) as (process, _):
        process.terminate()
        assert process.wait(timeout=10) == 0
