"""A server of embeddings in a thread: `WordVectors` behind OpenAI's interface, with a gate for each model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.plugins.knowledge.word_vectors import WordVectors


class VectorServer(NamedTuple):
    """The address, the gates, and what was embedded."""

    url: str
    gates: dict[str, threading.Event]
    """By model: texts are embedded once it is set, except the one by which dimensions are found."""
    texts: list[tuple[str, str]]
    """Model and text."""

    def model(self, name: str) -> str:
        """Return the setting knowledge.embedder for a model."""
        return f"{self.url}#{name}"


@contextmanager
def vector_server() -> Iterator[VectorServer]:
    gates: dict[str, threading.Event] = {}
    texts: list[tuple[str, str]] = []

    class Embeddings(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer with a vector for each text."""
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model, given = asked["model"], asked["input"]
            if (gate := gates.get(model)) is not None and given != ["length"]:
                gate.wait()
            texts.extend((model, text) for text in given)
            rows = WordVectors(dimensions=8 * len(model)).embed(given)
            data = [{"index": place, "embedding": row.tolist()} for place, row in enumerate(rows)]
            body = json.dumps({"object": "list", "data": data}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield VectorServer(f"http://127.0.0.1:{server.server_port}/v1/embeddings", gates, texts)
    finally:
        for gate in gates.values():
            gate.set()
        server.shutdown()
        server.server_close()
