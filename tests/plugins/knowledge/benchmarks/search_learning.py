"""How soon a policy learns to search for an answer that it does not know, by retriever, and what is left without one.

    docs/examples/knowledge ──► documents ──► `up --environment search:elements` ──► versions, held-out elements right
    the last version ──► the same held-out elements, a broken retriever ──► those right without having been found

    python -m tests.plugins.knowledge.benchmarks.search_learning [SEED ...] [--retriever hybrid ...]

The steps are those of docs/knowledge.md, as commands, in an empty folder; SEED is that of the adapter's first weights.
The run ends after STEPS versions or MINUTES. The aim is 0.9 of the held-out elements within 15 minutes of two cores.
Where others use the machine, CPU seconds say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from plugins.environments.episode_tasks import HELD_OUT_SEEDS
from plugins.knowledge.embedders import embedder
from plugins.knowledge.search_game import RETRIEVERS
from streams.kafka.node import process as broker
from tests.benchmarks.side_by_side import line, say

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "knowledge"
WANTED, LIMIT_MIN = 0.9, 15.0
STEPS, MINUTES = int(os.environ.get("STEPS", "8")), float(os.environ.get("MINUTES", "30"))
HELD_OUT = 35
RIGHT_OF_BROKEN = (
    "SELECT count(*) FILTER (success) AS n, count(*) AS answered FROM responses WHERE task_id IN "
    "(SELECT task_id FROM tasks WHERE contains(environment.settings, 'broken'))"
)


def run() -> Iterator[dict[str, Any]]:
    """Yield the line of one seed."""
    yield learn(0, "hybrid")


def learn(seed: int, retriever: str) -> dict[str, Any]:
    """Return the line of a seed and a retriever."""
    embedder("static")  # its table is made once a machine
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
        folder = Path(temporary) / "search"
        shutil.copytree(EXAMPLE, folder)
        with broker.embedded(Path(temporary) / "kafka") as node:
            example = Example(folder, node.bootstrap)
            began, of_cpu = time.monotonic(), _cpu_s()
            report = example.train(seed, retriever)
            seconds, of_cpu = time.monotonic() - began, _cpu_s() - of_cpu
            broken = example.right_with_a_broken_retriever()
    return _line(seed, retriever, report, broken, seconds, of_cpu)


class Example:
    """The commands of docs/knowledge.md, in a folder with the example."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._options = json.loads((folder / "elements.json").read_text())
        plain = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
        python_path = os.pathsep.join(filter(None, (str(Path(__file__).parents[4]), plain.get("PYTHONPATH"))))
        here = {"STREAMWARD_CONFIG": "learning.toml", "STREAMWARD_KAFKA__BOOTSTRAP": bootstrap}
        self._env = plain | here | {"PYTHONPATH": python_path}

    def train(self, seed: int, retriever: str) -> dict[str, Any]:
        """Return the report of `up`."""
        self._streamward("admin", "topics", "apply")
        self._streamward("documents", "add", "elements", "elements.jsonl")
        limits = ("--steps", str(STEPS), "--minutes", str(MINUTES), "--max-tokens", "16")
        chosen = json.dumps(self._options | {"retriever": retriever})
        words = ("--environment", "search:elements", "--settings", chosen, *limits, "--output", "json")
        said = self._streamward("--set", f"trainer.seed={seed}", "up", *words)
        return dict(json.loads(said.splitlines()[-1]))

    def right_with_a_broken_retriever(self) -> float:
        """Return the share of held-out elements that the last version has right where no search finds them."""
        start = {"name": "search:elements", "settings": self._options | {"retriever": "broken"}}
        task = {
            "prompt": "shown by the environment",
            "purpose": "eval",
            "group_size": 1,
            "agent": "environment",
            "max_turns": 3,
            "sampling": {"temperature": 0.0, "max_tokens": 16},
            "reward_sources": ["verified"],
        }
        seeds = range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + HELD_OUT)
        lines = [json.dumps(task | {"environment": start | {"seed": seed}}) for seed in seeds]
        (self._folder / "broken.jsonl").write_text("\n".join(lines))
        self._streamward("up", "--tasks", "broken.jsonl", "--purpose", "eval", "--output", "json")
        counts = json.loads(self._streamward("query", RIGHT_OF_BROKEN, "--output", "jsonl"))
        if counts["answered"] != HELD_OUT:
            raise RuntimeError(f"{counts['answered']} of {HELD_OUT} were answered")
        return int(counts["n"]) / HELD_OUT

    def _streamward(self, *words: str) -> str:
        """Return what a command prints on stdout; what it says on stderr is passed on. Raises RuntimeError."""
        command = (sys.executable, "-m", "streams.cli", *words)
        done = subprocess.run(command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        return done.stdout


def _cpu_s() -> float:
    """Return the CPU seconds of this process, its children so far, and theirs."""
    processes = (psutil.Process(), *psutil.Process().children(recursive=True))
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _line(
    seed: int, retriever: str, report: dict[str, Any], broken: float, seconds: float, of_cpu: float
) -> dict[str, Any]:
    looks = [{"version": look["version"], "right": look["exact"]} for look in report["held_out"]]
    said = ", ".join(f"v{look['version']} {look['right']:.2f}" for look in looks)
    say(f"  {retriever}, seed {seed}: {said}; broken {broken:.2f}; {seconds:.0f} s, {of_cpu:.0f} CPU s")
    enough = next((look["version"] for look in looks if look["right"] >= WANTED), None)
    minutes = MINUTES if enough is None else seconds / 60
    return line(
        "search_learning",
        f"minutes of a run that learns to search to 0.9 of held-out elements, {retriever}, seed {seed}",
        ours=minutes,
        peer=LIMIT_MIN,
        unit="min",
        ratio=0.0 if enough is None else LIMIT_MIN / minutes,
        target=1.0,
        peer_is="the aim",
        looks=looks,
        broken_retriever=broken,
        cpu_s=round(of_cpu),
        train_reward=[row["reward"] for row in report["train_reward"]],
        load_at_end=round(os.getloadavg()[0], 1),
    )


def main() -> int:
    """Print a line for each seed that is named, with each retriever."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[0], metavar="SEED")
    parser.add_argument("--retriever", nargs="+", default=["hybrid"], choices=RETRIEVERS)
    given = parser.parse_args()
    for retriever in given.retriever:
        for seed in given.seeds:
            print(json.dumps(learn(seed, retriever)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
