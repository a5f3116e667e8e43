"""How soon a policy that is trained through our own MCP server uses its tool: held-out chains right, and the minutes.

    docs/examples/key_chain ──► `serve` with keys and the tool `get` in its registry ──► /mcp/registered
    `up` ──► episodes ──► HTTP, with a key ──► /mcp/registered ──► the registry ──► a process with `get` ──► versions

    python -m tests.plugins.tools.benchmarks.key_chain [SEED ...]   a line for each seed, with its versions

The steps are those of docs/mcp.md, as commands, in an empty folder. The run ends after STEPS versions or MINUTES. The
aim is 0.9 of 35 held-out chains within 15 minutes of an empty folder. They are asked at temperature 1, as in training:
with two worked examples SmolLM2 has 0.86 of them greedily before any training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from schemas.events import AdapterEvent, RequestEvent
from streams.kafka.node import process as broker
from streams.processes.child import free_port
from streams.settings.model import Kafka, Settings, Topics
from tests.benchmarks.docs_example import DocsExample
from tests.benchmarks.side_by_side import say, time_to_aim
from tests.support.processes import read

WANTED, LIMIT_MIN = 0.9, 15.0
TOOLS_PREFIX = "tools."
"""Of the log of the server with the tools: a log has one server, and `up` starts that of its own."""
OF_TOOLS = ("--set", f"topics.prefix={TOOLS_PREFIX}")
STEPS, MINUTES = int(os.environ.get("STEPS", "8")), float(os.environ.get("MINUTES", "15"))
ANSWERS_S = 120.0
"""For the server to start."""


def run() -> Iterator[dict[str, Any]]:
    """Yield the line of one seed."""
    yield result(0)


def result(seed: int) -> dict[str, Any]:
    """Return the line of a seed."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
        began = time.time()
        with broker.embedded(Path(temporary) / "kafka") as node:
            example = KeyChainExample(Path(temporary) / "key_chain", node.bootstrap)
            report = example.train(seed)
            settings = Settings(kafka=Kafka(bootstrap=node.bootstrap))
            asked = [event for _, event in read(settings, AdapterEvent) if event.kind == "evaluated"]
            of_tools = settings.model_copy(update={"topics": Topics(prefix=TOOLS_PREFIX)})
            paths = Counter(event.resource for _, event in read(of_tools, RequestEvent))
        looks = [
            {"version": event.version, "right": share, "seconds": round(event.created_at / 1000 - began)}
            for event in sorted(asked, key=lambda event: event.version)
            if (share := _share(report, event.version)) is not None
        ]
    return _line(seed, looks, report, paths)


class KeyChainExample(DocsExample):
    """The commands of docs/mcp.md."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._port = free_port()
        self._server = f"http://127.0.0.1:{self._port}"
        own = {"SERVE__PORT": str(free_port()), "ENVIRONMENTS__SERVERS": f"mcp:{self._server}/mcp/registered"}
        super().__init__("key_chain", folder, bootstrap, CONFIG="key_chain.toml", **own)

    def train(self, seed: int) -> dict[str, Any]:
        """Return the report of `up`."""
        self._tools("admin", "topics", "apply")
        self.run(sys.executable, "key_chain.py", str(seed), self._server)
        key = self._tools("admin", "access", "keys", "create", "--role", "submitter", "--name", "episodes").split()[0]
        tokens = {f"mcp:{self._server}/mcp/registered": key}
        (self.folder / "credentials.json").write_text(json.dumps(tokens))
        self._tools("agents", "tools", "add", "get", "key_chain:get", "--reason", "the policy learns to use it")
        with self._serving():
            words = ("--held-out", "held_out.jsonl", "--model", "smollm2-tools", "--output", "json")
            limits = ("--steps", str(STEPS), "--minutes", str(MINUTES))
            return dict(json.loads(self.streamward("up", "--tasks", "train.jsonl", *words, *limits).splitlines()[-1]))

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Run the server with the tools while the block runs."""
        options = (f"serve.port={self._port}", "serve.auth=keys", "policy.engine=scripted")
        words = [word for option in options for word in ("--set", option)]
        command = [sys.executable, "-m", "streams.cli", *OF_TOOLS, *words, "serve"]
        with (self.folder / "tools.log").open("wb") as log:
            server = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + ANSWERS_S
            while not _answers(self._server):
                if server.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "tools.log").read_text()
                    raise RuntimeError(f"the server does not answer: {said[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            server.terminate()
            server.wait(300)

    def _tools(self, *words: str) -> str:
        return self.streamward(*OF_TOOLS, *words)


def _answers(server: str) -> bool:
    try:
        return httpx.get(f"{server}/healthz").is_success
    except httpx.TransportError:
        return False


def _share(report: dict[str, Any], version: int) -> float | None:
    """Return the share of held-out chains that a version had right."""
    return next((look["exact"] for look in report["held_out"] if look["version"] == version), None)


def _line(seed: int, looks: list[dict[str, Any]], report: dict[str, Any], paths: Counter[str]) -> dict[str, Any]:
    for look in looks:
        say(f"  version {look['version']}: {look['right']:.2f} right after {look['seconds']} s")
    minutes = next((look["seconds"] / 60 for look in looks if look["right"] >= WANTED), None)
    return time_to_aim(
        "key_chain",
        f"minutes to 0.9 of held-out chains through our MCP server, seed {seed}",
        minutes,
        limit=LIMIT_MIN,
        most=MINUTES,
        unit="min",
        looks=looks,
        train_reward=[row["reward"] for row in report["train_reward"]],
        requests=dict(paths.most_common(6)),
        turns=report.get("turns"),
    )


def main() -> int:
    """Print a line for each seed that is named."""
    for seed in map(int, sys.argv[1:] or ["0"]):
        print(json.dumps(result(seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
