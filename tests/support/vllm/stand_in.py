"""A server that answers an engine as vLLM does, without weights, in a process that a test can kill.

    python stand_in.py PORT MARK ──► /health, /v1/models, /v1/completions: MARK, words of the prompt, MARK, end

A streamed token takes PAUSE_S, so an answer can be broken off in its middle.

Not covered: adapters, logprobs of a prompt, and vLLM's own words (contract.py has those).
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAUSE_S = 0.1
END = 2
"""The end of a turn of `tiny_tokenizer`; its word `n` has the id n + 4."""
FIRST_ECHOED = 24


def answer_tokens(prompt: list[int], most: int) -> list[int]:
    """Return the tokens of an answer, `most` at most."""
    mark = int(sys.argv[2]) + 4
    return [mark, *(token for token in prompt if token >= FIRST_ECHOED), mark, END][:most]


def choice_of(body: dict[str, Any], index: int, tokens: list[int]) -> dict[str, Any]:
    """Return these tokens as a choice; with a top_p near 0 none has an alternative."""
    logprobs = [0.0 if body.get("top_p", 1.0) < 0.5 else -(1 + token % 7) / 8 for token in tokens]
    top = [{str(token): logprob} for token, logprob in zip(tokens, logprobs, strict=True)]
    ids = {"token_ids": tokens, "prompt_token_ids": body["prompt"]}
    reason = "stop" if tokens[-1] == END else "length" if len(tokens) == body["max_tokens"] else None
    return {
        "index": index,
        "text": "",
        "logprobs": {"token_logprobs": logprobs, "top_logprobs": top},
        "finish_reason": reason,
        **ids,
    }


class StandIn(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer /v1/models and /health."""
        self._send({"data": [{"id": "base"}]})

    def do_POST(self) -> None:
        """Answer a prompt."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream"):
            with suppress(ConnectionError):  # who has the end of an answer hangs up
                self._stream(body)
        else:
            tokens = answer_tokens(body["prompt"], body["max_tokens"])
            choices = [choice_of(body, index, tokens) for index in range(body.get("n", 1))]
            self._send({"model": body["model"], "choices": choices})

    def _send(self, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for token in answer_tokens(body["prompt"], body["max_tokens"]):
            time.sleep(PAUSE_S)
            self._chunk(json.dumps({"model": body["model"], "choices": [choice_of(body, 0, [token])]}))
        self._chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        event = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def log_message(self, *_: object) -> None:
        """Say nothing of a request."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), StandIn).serve_forever()
