"""What a connection may take of the server without a key: bytes, headers, time, and places; real sockets.

Not covered: the bounds of a body, which are the application's (test_limits.py, test_body_bounds.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gateway.http import connection
from gateway.http.connection import HEAD_BYTES, MOST_HEADERS, MOST_PIPELINED, OpenConnections, network_of
from gateway.http.uvicorn_server import TlsFiles, bound, quiet_server
from tests.support.log.secured_node import self_signed

HOST = b"Host: x\r\n"
GET = b"GET /quick HTTP/1.1\r\n" + HOST
POST = b"POST /echo HTTP/1.1\r\n" + HOST
SOCKET = "/socket"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
SOCKET_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Echo:
    """An application that answers a request with its body and the names of its headers."""

    def __init__(self) -> None:
        self.slow_ones = threading.Semaphore(0)
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        if scope["type"] == "websocket":
            await self._repeat(WebSocket(scope, receive, send))
            return
        request = Request(scope, receive, send)
        if scope["path"] == "/slow":
            await asyncio.to_thread(self.slow_ones.acquire)
        body = await request.body() if scope["path"] == "/echo" else b""
        text = json.dumps({"path": scope["path"], "headers": sorted(request.headers), "body": body.decode()})
        await PlainTextResponse(text)(scope, receive, send)

    async def _repeat(self, socket: WebSocket) -> None:
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await socket.send_text(await socket.receive_text())


class Peer:
    """A client that writes bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=300)

    def send(self, *parts: bytes) -> Peer:
        for part in parts:
            try:
                self.socket.sendall(part)
            except OSError:  # the server has closed it, and says why
                break
        return self

    def answer(self) -> str:
        """Return all that comes until the server closes the connection."""
        received = b""
        try:
            while part := self.socket.recv(65536):
                received += part
        except ConnectionResetError:
            pass
        return received.decode()

    def next_answer(self) -> str:
        """Return one answer, on a connection that stays open."""
        received = b""
        while b"\r\n\r\n" not in received:
            part = self.socket.recv(65536)
            assert part, received
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self.socket.recv(65536)
        return (head + body).decode()

    def part(self) -> str:
        """Return what comes next."""
        return self.socket.recv(65536).decode()

    def close(self) -> None:
        self.socket.close()


class Running:
    """A server in a thread."""

    def __init__(self, port: int, app: Echo, stack: ExitStack) -> None:
        self.port, self.app, self._stack = port, app, stack

    def peer(self) -> Peer:
        peer = Peer(self.port)
        self._stack.callback(peer.close)
        return peer

    def get(self) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}/quick", timeout=300)


@contextmanager
def running(counts: OpenConnections | None = None, tls: TlsFiles | None = None) -> Iterator[Running]:
    app = Echo()
    with bound("serve", "127.0.0.1", 0) as listening, ExitStack() as stack:
        server = quiet_server(app, grace_s=1, tls=tls, open_connections=counts, socket_paths=(SOCKET,))
        thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listening]),))
        thread.start()
        try:
            yield Running(listening.getsockname()[1], app, stack)
        finally:
            app.slow_ones.release(1000)
            server.should_exit = True
            thread.join()


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    with running() as server:
        yield server


def status(answer: str) -> int:
    return int(answer.split(" ", 2)[1]) if answer else 0


# --- bytes ------------------------------------------------------------------------------------------------------------

LONG = {
    "a long path": [b"GET /" + b"x" * HEAD_BYTES],
    "a long query, in parts": [b"GET /quick?", *[b"x" * 4096] * 20],
    "a long value": [GET, b"X: ", *[b"x" * 4096] * 20],
    "a long name": [GET, *[b"x" * 4096] * 20],
    "many short headers": [GET, *[b"X: a\r\n" * 1000] * 20],
    "a long value, whole": [GET + b"X: " + b"x" * HEAD_BYTES + b"\r\n\r\n"],
    "one header too many": [GET, b"X: a\r\n" * MOST_HEADERS, b"\r\n"],
}


@pytest.mark.parametrize("parts", LONG.values(), ids=list(LONG))
def test_a_head_that_is_too_long_is_refused_as_soon_as_it_is_and_others_are_answered(
    server: Running, parts: list[bytes]
) -> None:
    answer = server.peer().send(*parts).answer()
    assert status(answer) == 431 and "connection: close" in answer
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "too_large"
    assert server.app.paths == []
    assert server.get().status_code == 200


def test_a_head_at_the_bounds_is_answered(server: Running) -> None:
    lines = GET + b"Connection: close\r\n" + b"X: a\r\n" * (MOST_HEADERS - 3)
    room = HEAD_BYTES - len(lines) - len(b"Y: \r\n\r\n")
    assert status(server.peer().send(lines + b"Y: " + b"y" * room + b"\r\n\r\n").answer()) == 200
    assert status(server.peer().send(lines + b"Y: " + b"y" * (room + 1) + b"\r\n\r\n").answer()) == 431


def test_a_body_is_not_a_part_of_the_head(server: Running) -> None:
    body = b"a" * 4 * HEAD_BYTES
    whole = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = server.peer().send(whole).answer()
    assert status(answer) == 200 and body.decode() in answer


@pytest.mark.parametrize("part", [b"1;x=" + b"e" * 8 * HEAD_BYTES, b"0\r\nX: " + b"t" * 8 * HEAD_BYTES])
def test_extensions_of_chunks_and_trailers_are_bounded_as_a_head(server: Running, part: bytes) -> None:
    answer = server.peer().send(CHUNKED, part).answer()
    assert status(answer) == 431 and "a chunk's extension, or the trailers," in answer


def test_a_trailer_is_no_header_of_the_request(server: Running) -> None:
    server_says = server.peer().send(CHUNKED + b"1;x=y\r\na\r\n0\r\nAuthorization: Bearer k\r\n\r\n").next_answer()
    assert '"body": "a"' in server_says and "authorization" not in server_says


# --- pipelining -------------------------------------------------------------------------------------------------------


def test_some_requests_may_wait_for_the_answer_before_theirs(server: Running) -> None:
    close = GET + b"Connection: close\r\n\r\n"
    answer = server.peer().send((GET + b"\r\n") * (MOST_PIPELINED - 1) + close).answer()
    assert answer.count("HTTP/1.1 200 ") == MOST_PIPELINED


def test_more_requests_than_may_wait_end_the_connection_after_the_answer_in_progress(server: Running) -> None:
    slow = server.peer().send(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n" + (GET + b"\r\n") * 3000)
    assert server.get().status_code == 200
    server.app.slow_ones.release()
    answer = slow.answer()
    assert (status(answer), answer.count("HTTP/1.1 "), '"/slow"' in answer) == (200, 1, True)
    assert server.app.paths == ["/slow", "/quick"]


def test_a_head_that_is_too_long_after_a_request_in_progress_does_not_pass_for_its_answer(server: Running) -> None:
    slow = server.peer().send(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n", b"GET /" + b"x" * 2 * HEAD_BYTES)
    assert server.get().status_code == 200
    server.app.slow_ones.release()
    answer = slow.answer()
    assert (status(answer), answer.count("HTTP/1.1 ")) == (200, 1)


# --- time -------------------------------------------------------------------------------------------------------------


def drip(peer: Peer, part: bytes) -> str:
    """Send a part now and then until the server closes the connection, and return what it says."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            peer.socket.sendall(part)
        except OSError:
            break
        time.sleep(0.02)
    return peer.answer()


@pytest.mark.parametrize(
    ("begin", "part"), [(GET, b"X: a\r\n"), (b"GET /", b"x"), (GET + b"X: ", b"x"), (b"", b"\r\n")]
)
def test_a_head_that_comes_a_byte_at_a_time_is_cut_off(impatient: Running, begin: bytes, part: bytes) -> None:
    assert "HTTP/1.1 408 " in drip(impatient.peer().send(begin), part)


def test_a_connection_that_says_nothing_is_closed_without_a_word(impatient: Running) -> None:
    assert impatient.peer().answer() == ""


def test_a_second_head_has_its_time_from_its_first_byte_and_an_idle_connection_is_not_cut_off_by_it(
    impatient: Running,
) -> None:
    peer = impatient.peer()
    for _ in range(2):
        assert "/quick" in peer.send(GET + b"\r\n").next_answer()
        time.sleep(0.8)  # longer than a head may take
    assert "HTTP/1.1 408 " in drip(peer.send(b"GET /"), b"x")


def test_empty_lines_do_not_keep_a_connection(impatient: Running) -> None:
    peer = impatient.peer().send(GET + b"\r\n")
    assert "/quick" in peer.next_answer()
    assert "HTTP/1.1 408 " in drip(peer, b"\r\n")


def test_the_rest_of_a_body_whose_answer_was_given_does_not_keep_a_connection(impatient: Running) -> None:
    peer = impatient.peer().send(GET + b"Content-Length: 1000000000\r\n\r\n")
    assert "/quick" in peer.next_answer()
    assert drip(peer, b"x") == ""


def test_an_answer_and_a_body_may_take_longer_than_a_head(impatient: Running) -> None:
    slow = impatient.peer().send(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n")
    body = impatient.peer().send(POST + b"Content-Length: 2\r\n\r\na")
    time.sleep(0.8)
    impatient.app.slow_ones.release()
    assert '"/slow"' in slow.next_answer()
    assert '"body": "ab"' in body.send(b"b").next_answer()


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "setting"),
    [(OpenConnections(3, 0), "serve.max_connections"), (OpenConnections(0, 3), "serve.address_connections")],
)
def test_one_connection_too_many_is_told_so_and_one_that_ends_makes_room(counts: OpenConnections, setting: str) -> None:
    with running(counts) as server:
        held = [server.peer().send(GET) for _ in range(3)]
        refused = server.peer().answer()
        assert status(refused) == 503 and setting in refused and "retry-after: 1" in refused
        held[0].close()
        assert status(_until_answered(server)) == 200


def _until_answered(server: Running) -> str:
    for _ in range(100):
        answer = server.peer().send(GET + b"Connection: close\r\n\r\n").answer()
        if "HTTP/1.1 200 " in answer:
            return answer
        time.sleep(0.05)
    return answer


def test_a_websocket_is_a_place_until_it_ends_and_is_not_waited_for_as_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    with running(OpenConnections(1, 0)) as server:
        with connect(f"ws://127.0.0.1:{server.port}{SOCKET}") as held:
            time.sleep(0.8)
            held.send("still there")
            assert held.recv(timeout=300) == "still there"
            assert status(server.peer().answer()) == 503
        assert status(_until_answered(server)) == 200


def test_a_websocket_ends_with_the_server() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running())
        with connect(f"ws://127.0.0.1:{server.port}{SOCKET}") as held, pytest.raises(ConnectionClosed) as closed:
            stack.close()
            held.recv(timeout=300)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012


NO_HANDSHAKES = {
    "another path": (GET + UPGRADE + SOCKET_KEY, 200),
    "another protocol": (b"GET /socket HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", 200),
    "another method": (b"POST /socket HTTP/1.1\r\n" + HOST + UPGRADE + SOCKET_KEY, 200),
    "no key": (b"GET /socket HTTP/1.1\r\n" + HOST + UPGRADE, 400),
    "a body": (b"GET /socket HTTP/1.1\r\n" + HOST + UPGRADE + SOCKET_KEY + b"Content-Length: 3\r\n", 400),
    "a long header": (b"GET /socket HTTP/1.1\r\n" + HOST + UPGRADE + SOCKET_KEY + b"X: " + b"x" * 9000 + b"\r\n", 400),
}


@pytest.mark.parametrize(("head", "expected"), NO_HANDSHAKES.values(), ids=list(NO_HANDSHAKES))
def test_what_is_no_handshake_of_a_websocket_is_answered_as_a_request(
    server: Running, head: bytes, expected: int
) -> None:
    answer = server.peer().send(head + b"\r\n" + b"abc" * (b"Content-Length" in head)).part()
    assert status(answer) == expected, answer
    assert server.get().status_code == 200


def test_a_handshake_behind_an_answer_in_progress_is_answered_in_its_turn(server: Running) -> None:
    peer = server.peer().send(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n")
    peer.send(b"GET /socket HTTP/1.1\r\n" + HOST + UPGRADE + SOCKET_KEY + b"\r\n")
    server.app.slow_ones.release()
    received = ""
    while '"path": "/socket"' not in received:
        received += (part := peer.part())
        assert part, received
    assert received.index('"path": "/slow"') < received.index('"path": "/socket"') and "101" not in received


def test_connections_are_counted_by_address_and_by_network_of_ipv6() -> None:
    counts = OpenConnections(0, 1)
    assert counts.add("10.0.0.1") is None and counts.add("10.0.0.2") is None
    assert counts.add("2001:db8:0:1::1") is None
    assert "2001:db8:0:1::/64" in str(counts.add("2001:db8:0:1:ffff::2"))
    assert network_of("::ffff:10.0.0.1") != network_of("::ffff:10.0.0.2")
    for address in ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2"):
        counts.remove(address)
    assert counts.add("2001:db8:0:1::3") is None


def test_a_tls_handshake_that_never_ends_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    tls = TlsFiles(tmp_path / "certificate.pem", tmp_path / "key.pem")
    for path, text in zip(tls, self_signed(), strict=True):
        path.write_text(text)
    with running(tls=tls) as server:
        assert server.peer().answer() == ""


# --- what is no request -----------------------------------------------------------------------------------------------

NO_REQUESTS: dict[str, tuple[bytes, str]] = {
    "HTTP/0.9": (b"GET /quick\r\n\r\n", "expected HTTP/1.1 or HTTP/1.0"),
    "HTTP/2.0": (b"GET /quick HTTP/2.0\r\n" + HOST + b"\r\n", "expected HTTP/1.1 or HTTP/1.0"),
    "two Hosts": (GET + b"Host: y\r\n\r\n", "expected one header Host, got 2"),
    "the same Host twice": (GET + HOST + b"\r\n", "expected one header Host, got 2"),
    "no Host": (b"GET /quick HTTP/1.1\r\n\r\n", "expected one header Host, got none"),
    "a Host with a path": (b"GET /quick HTTP/1.1\r\nHost: x/y\r\n\r\n", "neither a name nor an address"),
    "a Host with a user": (b"GET /quick HTTP/1.1\r\nHost: a@x\r\n\r\n", "neither a name nor an address"),
    "no method": (b"\x16\x03\x01\x02\x00", "this is no request of HTTP/1.1"),
    "a bad URL": (b"GET quick HTTP/1.1\r\n" + HOST + b"\r\n", "this is no request of HTTP/1.1"),
}


@pytest.mark.parametrize(("sent", "says"), NO_REQUESTS.values(), ids=list(NO_REQUESTS))
def test_what_is_no_request_of_a_version_that_is_spoken_is_told_so(server: Running, sent: bytes, says: str) -> None:
    answer = server.peer().send(sent).answer()
    assert status(answer) == 400 and says in answer
    assert server.app.paths == []


@pytest.mark.parametrize("host", [b"x", b"x:80", b"my_server.local", b"127.0.0.1:8790", b"[::1]:8790", b""])
def test_hosts_that_are_names_or_addresses_are_answered(server: Running, host: bytes) -> None:
    assert "/quick" in server.peer().send(b"GET /quick HTTP/1.1\r\nHost: %b\r\n\r\n" % host).next_answer()


def test_http_1_0_needs_no_host(server: Running) -> None:
    assert status(server.peer().send(b"GET /quick HTTP/1.0\r\n\r\n").answer()) == 200


def test_a_request_for_another_protocol_is_answered_in_this_one(server: Running) -> None:
    upgrade = GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    assert "/quick" in server.peer().send(upgrade).next_answer()
