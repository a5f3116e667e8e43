"""Tests that need a container engine run where one answers, and elsewhere say what they need."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.doubles.loopback_http import serving
from tests.support.log import container

pytest.importorskip("testcontainers", reason=container.missing() or "")


class Engine(BaseHTTPRequestHandler):
    """An engine as far as it says that it is there."""

    def do_GET(self) -> None:
        """Answer /version and /_ping."""
        body = b'{"ApiVersion": "1.44", "MinAPIVersion": "1.24"}' if self.path.endswith("/version") else b"OK"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[str]:
    with serving(Engine) as address:
        yield f"tcp://{address}"


def test_docker_host_is_enough(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine)
    monkeypatch.setenv("PATH", "")  # no program of an engine is needed
    assert container.missing() is None


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "unix:///nothing/here"])
def test_without_an_engine_the_skip_says_what_it_needs(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert container.missing() == "needs a container engine that answers; run `make test`"
    with pytest.raises(pytest.skip.Exception, match="needs a container engine"), container.kafka_in_a_container():
        raise AssertionError
    gc.collect()  # what it opened is closed: an open socket is a warning, here and not in any later test
