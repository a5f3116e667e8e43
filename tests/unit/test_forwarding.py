"""Several servers of a log, in one process: who answers a request, and that it is forwarded once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gateway.http.several_servers import Forwarder, Gate
from gateway.http.uvicorn_server import bound, quiet_server
from gateway.rooms.routes import TABLE

MAX_BYTES = 1000


@dataclass
class PlaceOfTest:
    """A place that a test moves."""

    urls: list[str]
    is_held: bool = False
    asked: int = field(default=0)

    def member_urls(self) -> list[str]:
        self.asked += 1
        return self.urls


def own_app(name: str) -> Starlette:
    async def say(request: Request) -> Response:
        body = await request.body()
        return PlainTextResponse(f"{name} {request.url.query} {body.decode()}", headers={"x-own": name})

    async def stream(_: Request) -> Response:
        async def parts() -> Iterator[str]:  # type: ignore[misc]
            for number in range(3):
                yield f"part {number};"
                await anyio.sleep(0.01)

        return StreamingResponse(parts())  # type: ignore[arg-type]

    async def echo(socket: WebSocket) -> None:
        if socket.headers.get("authorization") != "Bearer key":
            await socket.send_denial_response(PlainTextResponse("no key", 401, {"www-authenticate": "Bearer"}))
            return
        await socket.accept()
        with suppress(WebSocketDisconnect):
            while (text := await socket.receive_text()) != "end":
                await socket.send_text(f"{name} {socket.url.query} {text}")
                await socket.send_bytes(text.encode())
            await socket.close(1008, "enough")

    return Starlette(
        routes=[
            Route("/say", say, methods=["POST"]),
            Route("/own", say),
            Route("/stream", stream),
            WebSocketRoute("/echo", echo),
        ]
    )


@contextmanager
def server_of(place: PlaceOfTest, listening: socket.socket, name: str) -> Iterator[None]:
    """Run one of several servers while the block does."""

    async def main() -> None:
        forwarder = Forwarder(place, TABLE, MAX_BYTES, None)
        gate = Gate(place, forwarder, PlainTextResponse("healthy"), TABLE)
        gate.open(own_app(name))
        server = quiet_server(gate, grace_s=1, socket_paths=["/echo"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forwarder.follow, lambda: None)
            tasks.start_soon(lambda: server.serve(sockets=[listening]))
            while not stop.is_set():
                await anyio.sleep(0.02)
            server.should_exit = True
            await forwarder.close(1)
            tasks.cancel_scope.cancel()

    stop = threading.Event()
    thread = threading.Thread(target=anyio.run, args=(main,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def servers() -> Iterator[list[tuple[str, PlaceOfTest]]]:
    """Return URL and place of two servers, of which neither has the place."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(bound("serve", "127.0.0.1", 0)) for _ in range(2)]
        urls = [f"http://127.0.0.1:{listening.getsockname()[1]}" for listening in sockets]
        places = [PlaceOfTest([]), PlaceOfTest([])]
        for listening, place, name in zip(sockets, places, "ab", strict=True):
            stack.enter_context(server_of(place, listening, name))
        yield list(zip(urls, places, strict=True))


def test_a_request_is_answered_by_the_server_with_the_place_as_if_it_had_been_sent_there(
    servers: list[tuple[str, PlaceOfTest]],
) -> None:
    (url_a, at_a), (url_b, at_b) = servers
    at_a.is_held, at_b.urls = True, [url_a]
    answer = httpx.post(f"{url_b}/say?x=1%2F2", content="body")
    assert (answer.text, answer.headers["x-own"]) == ("a x=1%2F2 body", "a")
    assert httpx.get(f"{url_b}/stream").text == "part 0;part 1;part 2;"
    assert httpx.get(f"{url_b}/nothing").status_code == 404
    length = httpx.head(f"{url_b}/own").headers["content-length"]
    assert (length, httpx.head(f"{url_b}/own").headers["x-own"]) == (str(len(httpx.get(f"{url_a}/own").text)), "a")
    assert httpx.get(f"{url_b}/healthz").text == "healthy"
    assert httpx.post(f"{url_b}/say", content=b"x" * (MAX_BYTES + 1)).status_code == 413


def test_a_websocket_is_answered_by_the_server_with_the_place_until_it_moves(
    servers: list[tuple[str, PlaceOfTest]],
) -> None:
    (url_a, at_a), (url_b, at_b) = servers
    at_a.is_held, at_b.urls = True, [url_a]
    url, key = f"ws{url_b.removeprefix('http')}/echo?x=1", {"Authorization": "Bearer key"}
    with pytest.raises(InvalidStatus) as refused:
        connect(url)
    answer = refused.value.response
    assert (answer.status_code, answer.body, answer.headers["www-authenticate"]) == (401, b"no key", "Bearer")
    with connect(url, additional_headers=key) as socket:
        for text in ("one", ""):
            socket.send(text)
            assert (socket.recv(), socket.recv()) == (f"a x=1 {text}", text.encode())
        socket.send("end")
        with pytest.raises(ConnectionClosed) as ended:
            socket.recv()
        assert ended.value.rcvd is not None and (ended.value.rcvd.code, ended.value.rcvd.reason) == (1008, "enough")
    with connect(url, additional_headers=key) as socket:
        socket.send("one")
        socket.recv()
        at_a.is_held, at_b.is_held, at_b.urls = False, True, [url_b]
        with pytest.raises(ConnectionClosed) as moved:
            socket.recv()
            socket.recv()
        assert moved.value.rcvd is not None and moved.value.rcvd.code == 1012
    with connect(url, additional_headers=key) as socket:
        socket.send("two")
        assert socket.recv() == "b x=1 two"


def test_a_request_is_forwarded_once_and_waits_until_a_server_has_the_place(
    servers: list[tuple[str, PlaceOfTest]],
) -> None:
    (url_a, at_a), (url_b, at_b) = servers
    at_a.urls = at_b.urls = [url_a]
    refused = httpx.post(f"{url_a}/say", content="body", headers={"x-streamward-forwarded": "1"})
    assert refused.status_code == 503 and refused.headers["x-streamward-moved"] == "1"
    answers: list[str] = []
    waiting = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url_b}/say", content="late", timeout=300).text)
    )
    waiting.start()
    waiting.join(0.6)
    assert not answers
    at_a.is_held = True
    waiting.join()
    assert answers == ["a  late"]


HEAD_OF_TAKEN = b"HTTP/1.1 200 OK\r\nx-streamward-taken: 1\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it is frozen"])
def test_a_request_that_no_server_took_is_answered_by_the_next_one_with_the_place(
    servers: list[tuple[str, PlaceOfTest]], ends: bool
) -> None:
    (url_a, at_a), (_, at_b) = servers
    with bound("serve", "127.0.0.1", 0) as gone:
        gone.listen()
        at_a.urls = [f"http://127.0.0.1:{gone.getsockname()[1]}"]
        answers: list[str] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url_a}/say", content="body", timeout=300).text)
        )
        asking.start()
        connection, _ = gone.accept()
        assert connection.recv(20).startswith(b"POST /say")
        if ends:
            connection.close()
        at_a.is_held, at_a.urls = False, [servers[1][0]]
        at_b.is_held = True
        asking.join()
        connection.close()
    assert answers == ["b  body"]


@pytest.mark.parametrize("part", [b"", b"6\r\n[200, \r\n"], ids=["nothing of it", "part of its head"])
def test_a_request_that_a_server_took_and_did_not_answer_is_not_sent_again(
    servers: list[tuple[str, PlaceOfTest]], part: bytes
) -> None:
    (url_a, at_a), _ = servers
    with bound("serve", "127.0.0.1", 0) as gone:
        gone.listen()
        at_a.urls = [f"http://127.0.0.1:{gone.getsockname()[1]}"]
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url_a}/say", content="body", timeout=300))
        )
        asking.start()
        connection, _ = gone.accept()
        connection.recv(2000)
        connection.sendall(HEAD_OF_TAKEN + part)
        connection.close()
        asking.join()
    assert answers[0].status_code == 503 and "ended while it had this request" in answers[0].text
