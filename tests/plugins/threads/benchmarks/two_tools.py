"""How well an agent of two registered tools answers before it learns, after its rated runs, and after GRPO.

    front_desk.py ──► `serve` ──► /acp: runs with the tools, each rated ──► improve curate, datasets ──► tune: version 1
                        ▲   └──► held-out questions over /acp, at temperature 1                           │
                        └── `agents run desk`: tasks with the same tools ──► groups ──► train ──► 2, 3, … ┘

    python -m tests.plugins.threads.benchmarks.two_tools [SEED ...]   a line for each seed, with its versions

The steps are those of docs/agents.md. The aim is 0.9 of 35 held-out questions within 15 minutes of two cores. Where
others use the machine, CPU seconds say more than the clock: each look has those of all processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from schemas.events import AdapterEvent
from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.processes.child import free_port
from streams.settings.load import load
from streams.settings.model import Settings
from tests.benchmarks.side_by_side import cpu_s, say, time_to_aim
from tests.support.commands import invoke
from tests.support.processes import environment, read, running, until

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "key_chain"
WANTED, LIMIT_S = 0.9, 900.0
SERVED = int(os.environ.get("SERVED", "256"))
"""Questions that are asked and rated before the agent learns; 0: it learns by GRPO alone."""
LOOKS, STEPS = int(os.environ.get("LOOKS", "3")), 2
"""Looks at the held-out questions during GRPO, and steps before each."""
WAITS_S = 3600.0


def run() -> Iterator[dict[str, Any]]:
    """Yield the line of one seed."""
    yield result(0)


def result(seed: int) -> dict[str, Any]:
    """Return the line of a seed."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
        folder = Path(temporary) / "desk"
        shutil.copytree(EXAMPLE, folder)
        with broker.embedded(Path(temporary) / "kafka") as node:
            desk = FrontDesk(folder, node.bootstrap)
            desk.write_files(seed)
            with desk.open():
                looks = list(desk.learn(SERVED, LOOKS))
    return _line(seed, looks)


class FrontDesk:
    """The commands of docs/agents.md, in a folder with the example."""

    def __init__(self, folder: Path, bootstrap: str, *changes: str) -> None:
        """`changes` are those of `streamward --set`."""
        self.folder, self._began, self._sent = folder, time.monotonic(), 0
        port = free_port()
        chosen = (f"kafka.bootstrap={bootstrap}", f"serve.port={port}", *changes)
        self.settings: Settings = load(file=folder / "front_desk.toml", overrides=chosen)
        self._server = f"http://127.0.0.1:{port}"

    def write_files(self, seed: int) -> None:
        """Write questions, prompt, agent and model."""
        self._example(str(seed))

    @contextmanager
    def open(self) -> Iterator[None]:
        """Serve the agent while the block runs."""
        admin.apply_topics(self.settings)
        for tool in ("guest", "room"):
            self._streamward("agents", "tools", "add", tool, f"front_desk:{tool}", "--reason", "the desk uses it")
        self._streamward("improve", "prompts", "create", "desk", "--messages", "@prompt.json", "--alias", "production")
        with running(self.settings, self.folder, "serve", "streams"):
            until(self._answers, "the server to answer", folder=self.folder, timeout_s=WAITS_S)
            agent = json.loads((self.folder / "desk.json").read_text())
            httpx.post(f"{self._server}/rl/agents", json=agent, timeout=WAITS_S).raise_for_status()
            yield

    def learn(self, served: int, looks: int, held_out: int = 35) -> Iterator[dict[str, Any]]:
        """Yield a look at the held-out questions before the agent learns, after its rated runs, and during GRPO."""
        yield self.look(held_out)
        if served:
            self._tune_on_rated_runs(served)
            yield self.look(held_out)
        if not looks:
            return
        with running(self.settings, self.folder, "scoring", "train", f"agents run desk --server {self._server}"):
            for number in range(looks):
                self._send_tasks(STEPS * self.settings.batches.groups)
                self._wait_for(bool(served) + STEPS * (number + 1))
                yield self.look(held_out)

    def _tune_on_rated_runs(self, served: int) -> None:
        say(f"  rated runs: {self._example('rate', 'train.jsonl', str(served))}")
        time.sleep(self.settings.serve.idle_s + 2 * self.settings.serve.idle_s / 10)
        for words in ("curate run", "datasets build desk --eval 0"):
            say(self._streamward("improve", *words.split()))
        self._streamward("tune", "sft", "--dataset", "desk", "--epochs", "4", "--batch", "8")
        self._wait_for(1)

    def look(self, count: int) -> dict[str, Any]:
        """Return how many held-out questions the primary version answers rightly, and what was spent until now."""
        answers = json.loads(self._example("ask", "held_out.jsonl", str(count)))
        spent = {"seconds": round(time.monotonic() - self._began), "cpu_s": round(cpu_s())}
        look = {"version": max(self._promoted(), default=0), "right": answers["right"] / answers["asked"], **spent}
        say(f"  {look}")
        return look

    def _send_tasks(self, count: int) -> None:
        """Submit the next train tasks."""
        lines = (self.folder / "train.jsonl").read_text().splitlines()[self._sent : self._sent + count]
        self._sent += count
        (self.folder / "next.jsonl").write_text("\n".join(lines))
        self._streamward("tasks", "submit", "next.jsonl")

    def _wait_for(self, version: int) -> None:
        until(lambda: version in self._promoted(), f"version {version}", folder=self.folder, timeout_s=WAITS_S)

    def _promoted(self) -> set[int]:
        return {event.version for _, event in read(self.settings, AdapterEvent) if event.kind == "promoted"}

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._server}/healthz").is_success
        except httpx.TransportError:
            return False

    def _streamward(self, *words: str) -> str:
        with _within(self.folder):
            done = invoke(self.settings, *words)
        if done.exit_code:
            raise RuntimeError(f"streamward {' '.join(words)} ended with {done.exit_code}: {done.output}")
        return done.stdout

    def _example(self, *words: str) -> str:
        """Return what front_desk.py prints."""
        environ = environment() | {"DESK_SERVER": self._server}
        command = [sys.executable, "front_desk.py", *words]
        return subprocess.run(
            command, cwd=self.folder, env=environ, check=True, stdout=subprocess.PIPE, text=True
        ).stdout


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _line(seed: int, looks: list[dict[str, Any]]) -> dict[str, Any]:
    enough = next((look for look in looks if look["right"] >= WANTED), None)
    return time_to_aim(
        "two_tools",
        f"CPU seconds of two cores to 0.9 of held-out questions, two registered tools, seed {seed}",
        None if enough is None else enough["cpu_s"] / 2,
        limit=LIMIT_S,
        most=LIMIT_S,
        unit="s",
        looks=looks,
    )


def main() -> int:
    """Print a line for each seed that is named."""
    for seed in map(int, sys.argv[1:] or ["0"]):
        print(json.dumps(result(seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
