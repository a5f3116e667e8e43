"""Record what the real vLLM answers to what the engine asks, for the tests that have no vLLM.

    python -m tests.support.vllm.record [--python PYTHON]        writes tests/contracts/vllm-VERSION.json

A proxy that only listens stands between the engine and the server; besides the engine's own requests, a few are made
that vLLM refuses. The draws differ from recording to recording, the promises that the tests check do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from streams.engines.vllm.launch import python_with_vllm
from streams.engines.vllm.vllm_engine import VllmEngine
from tests.support.vllm.contract import (
    CONTEXT,
    FILE,
    REQUESTS,
    SCALES,
    VERSION,
    key_of,
    save_adapter,
    save_model,
    settings_for,
)
from tests.support.vllm.server import vllm_server

MODES = {"processed_logprobs": (1, 2, 3), "raw_logprobs": (1,), "raw_logits": ()}
"""What a server is started with, and the adapters that it is asked to serve."""


def main(arguments: list[str]) -> int:
    """Record all modes; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.vllm.record", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--python", type=Path, help="one that has vllm")
    python = parser.parse_args(arguments).python or python_with_vllm()
    modes = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model(folder / "model")
        for version in SCALES:
            save_adapter(folder / "adapters" / str(version), version)
        for mode, versions in MODES.items():
            print(f"recording {mode} ...", file=sys.stderr, flush=True)
            log = folder / f"{mode}.log"
            options = ("--logprobs-mode", mode, "--max-model-len", str(CONTEXT), "--max-num-seqs", "16")
            with vllm_server(python, model, log, *options) as url, _listening(url) as (proxy, heard):
                _ask(proxy, model, folder, versions)
                _ask_in_vain(url, heard)
                modes[mode] = heard
        said = json.dumps({"vllm": VERSION, "modes": modes}, indent=0, sort_keys=True).replace(name, "/somewhere")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(said + "\n")
    return 0


def _ask(url: str, model: Path, folder: Path, versions: tuple[int, ...]) -> None:
    """Ask what the tests will ask."""
    try:
        engine = VllmEngine(settings_for(url, model, folder))
    except Exception as exc:
        print(f"not met: {exc}", file=sys.stderr)  # as it should be, of a server that reports logits
        return
    for version in (0, *versions):
        engine.serve(version, folder / "adapters" / str(version) if version else None)
        for completions in engine.sample(REQUESTS):
            print(version, [completion.error or completion.text for completion in completions], file=sys.stderr)
    engine.close()


def _ask_in_vain(url: str, heard: dict[str, Any]) -> None:
    """Ask what vLLM refuses; each is kept under a name."""
    here = {"lora_name": "here", "lora_path": ""}
    asked = {
        "no such path": ("/v1/load_lora_adapter", {"lora_name": "nowhere", "lora_path": "/nowhere/at/all"}),
        "unloaded twice": ("/v1/unload_lora_adapter", {"lora_name": "nowhere"}),
        "no such model": ("/v1/completions", {"model": "nowhere", "prompt": [5], "max_tokens": 1}),
        "too long": ("/v1/completions", {"model": "base", "prompt": [5] * (CONTEXT + 1), "max_tokens": 1}),
        "no such route": ("/v1/no_such_route", here),
    }
    for name, (path, body) in asked.items():
        heard[key_of(name, None)] = _kept(httpx.post(url + path, json=body, timeout=300))


def _kept(reply: httpx.Response) -> dict[str, Any]:
    kind = reply.headers.get("content-type", "")
    return {"status": reply.status_code, "type": kind, "body": reply.json() if "json" in kind else reply.text}


@contextmanager
def _listening(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pass everything on to `url`, and keep it by what was asked."""
    heard: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _pass_on(self, body: dict[str, Any] | None) -> None:
            reply = httpx.request(self.command, url + self.path, json=body, timeout=300)
            kept = _kept(reply)
            if self.path == "/v1/models":
                loras = [card for card in kept["body"]["data"] if card.get("parent")]
                if loras:
                    heard[key_of("a card", None)] = {**kept, "body": loras[0]}
                kept = {**kept, "body": {**kept["body"], "data": [c for c in kept["body"]["data"] if c not in loras]}}
            elif body is not None and "lora_path" in body:
                again = httpx.post(url + self.path, json=body, timeout=300)
                heard[key_of("loaded twice", None)] = _kept(again)
                body = {"lora_name": body["lora_name"]}
            heard[key_of(self.path, body)] = kept
            self.send_response(reply.status_code)
            self.send_header("Content-Type", kept["type"])
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
