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
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plugins.environments.episode_tasks import HELD_OUT_SEEDS
from plugins.knowledge.embedders import embedder
from plugins.knowledge.search_game import RETRIEVERS
from streams.kafka.node import process as broker
from tests.benchmarks.docs_example import DocsExample
from tests.benchmarks.side_by_side import cpu_s, say, time_to_aim

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
    with (
        tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary,
        broker.embedded(Path(temporary) / "kafka") as node,
    ):
        example = ElementsExample(Path(temporary) / "search", node.bootstrap)
        began, of_cpu = time.monotonic(), cpu_s()
        report = example.train(seed, retriever)
        seconds, of_cpu = time.monotonic() - began, cpu_s() - of_cpu
        broken = example.right_with_a_broken_retriever()
    return _line(seed, retriever, report, broken, seconds, of_cpu)


class ElementsExample(DocsExample):
    """The commands of docs/knowledge.md."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__("knowledge", folder, bootstrap, CONFIG="learning.toml")
        self._options = json.loads((folder / "elements.json").read_text())

    def train(self, seed: int, retriever: str) -> dict[str, Any]:
        """Return the report of `up`."""
        self.streamward("admin", "topics", "apply")
        self.streamward("documents", "add", "elements", "elements.jsonl")
        limits = ("--steps", str(STEPS), "--minutes", str(MINUTES), "--max-tokens", "16")
        chosen = json.dumps(self._options | {"retriever": retriever})
        words = ("--environment", "search:elements", "--settings", chosen, *limits, "--output", "json")
        said = self.streamward("--set", f"trainer.seed={seed}", "up", *words)
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
        (self.folder / "broken.jsonl").write_text("\n".join(lines))
        self.streamward("up", "--tasks", "broken.jsonl", "--purpose", "eval", "--output", "json")
        counts = json.loads(self.streamward("query", RIGHT_OF_BROKEN, "--output", "jsonl"))
        if counts["answered"] != HELD_OUT:
            raise RuntimeError(f"{counts['answered']} of {HELD_OUT} were answered")
        return int(counts["n"]) / HELD_OUT


def _line(
    seed: int, retriever: str, report: dict[str, Any], broken: float, seconds: float, of_cpu: float
) -> dict[str, Any]:
    looks = [{"version": look["version"], "right": look["exact"]} for look in report["held_out"]]
    said = ", ".join(f"v{look['version']} {look['right']:.2f}" for look in looks)
    say(f"  {retriever}, seed {seed}: {said}; broken {broken:.2f}; {seconds:.0f} s, {of_cpu:.0f} CPU s")
    has_learned = any(look["right"] >= WANTED for look in looks)
    return time_to_aim(
        "search_learning",
        f"minutes of a run that learns to search to 0.9 of held-out elements, {retriever}, seed {seed}",
        seconds / 60 if has_learned else None,
        limit=LIMIT_MIN,
        most=MINUTES,
        unit="min",
        looks=looks,
        broken_retriever=broken,
        cpu_s=round(of_cpu),
        train_reward=[row["reward"] for row in report["train_reward"]],
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
