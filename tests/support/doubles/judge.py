"""A task with a verifier, an answer to it, and one score of that answer, for the tests of scorers; and a judge."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from schemas.events import Response, RewardSource, Task
from streams.scorers import ScoreOutcome, Scorers
from tests.support.factories import response, task


def a_task(answer: Any = "11", *, sources: tuple[RewardSource, ...] = (), verifier: str | None = None) -> Task:
    return task(
        verifier=json.dumps({"answer": answer}) if verifier is None else verifier,
        reward_sources=sources or (RewardSource(name="exact"),),
    )


def a_response(text: str, *, tokens: int = 3) -> Response:
    return response(group_size=1, completion_tokens=tokens, text=text)


def outcome(scorers: Scorers, name: str, text: str, settings: dict[str, Any], answer: Any = "11") -> ScoreOutcome:
    source = RewardSource(name=name, settings=json.dumps(settings))
    return scorers.score(a_task(answer), a_response(text), source)


# --- a judge ---------------------------------------------------------------------------------------------------------


@dataclass
class JudgeServer:
    """A server with the chat completions API; `answers` says what it does, one a request, the last for ever."""

    answers: list[Callable[[BaseHTTPRequestHandler], None]]
    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)


def says(content: Any, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    text = content if isinstance(content, str) else json.dumps(content)
    return raw(json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode(), status)


def raw(body: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def drips(begin: bytes, piece: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Send `piece` again and again until the other side hangs up: no single read is late, the whole answer is."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(begin)
        while True:
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


@contextmanager
def judging(*answers: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[JudgeServer]:
    """Run a judge that answers so while the block runs."""
    state = JudgeServer(list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each body waits for its headers to be acknowledged, 40 ms

        def do_POST(self) -> None:
            body = self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append((self.path, dict(self.headers.items()), body))
            answer = state.answers[min(len(state.requests), len(state.answers)) - 1]
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
