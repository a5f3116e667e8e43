"""The HTTP server of a process: what it answers, and that no client can occupy it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from streams.observability import http_server
from streams.observability.http_server import Site, serve
from tests.support.scrape import get


def answer(path: str) -> tuple[int, str]:
    if path == "/bug":
        raise RuntimeError("ours")
    return 200, f"{path}\n"


@pytest.fixture
def url() -> Iterator[str]:
    with serve(Site(answer), "127.0.0.1", 0) as url:
        yield url


def talk(url: str, request: bytes) -> str:
    """Send bytes, and return all that comes until the server closes the connection."""
    with connected(url) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read().decode()


def connected(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=300)


def closed_by_the_server(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_path_is_answered_without_its_query(url: str) -> None:
    assert get(f"{url}/metrics?x=1") == (200, "/metrics\n")


def test_an_error_of_ours_is_a_500_and_the_next_request_is_answered(url: str) -> None:
    assert get(f"{url}/bug")[0] == 500
    assert get(f"{url}/fine")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_every_other_method_is_refused(url: str, method: str) -> None:
    said = talk(url, f"{method} / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab".encode())
    assert said.startswith("HTTP/1.0 405 ") and said.endswith("only GET is supported\n")


@pytest.mark.parametrize("length", [str(http_server.MOST_BODY_BYTES + 1), "-1", "many"])
def test_a_body_that_is_too_large_is_refused_unread(url: str, length: str) -> None:
    assert " 413 " in talk(url, f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())


def test_a_request_line_or_headers_without_an_end_are_refused(url: str) -> None:
    assert " 414 " in talk(url, b"GET /" + b"x" * 70_000)
    assert " 431 " in talk(url, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n")


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    with connected(url) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began + 5:
                slow.sendall(b"G")
                time.sleep(0.05)


def test_clients_that_say_nothing_keep_others_out_only_until_they_are_cut_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 1.0)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(url)) for _ in range(http_server.MOST_CONNECTIONS + 1)]
        assert closed_by_the_server(silent[-1])
        assert all(closed_by_the_server(one) for one in silent)
        assert get(f"{url}/again") == (200, "/again\n")
