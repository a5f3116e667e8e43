"""How long the cookbook's rl_loop takes to learn sums: steps, seconds, and the share of held-out questions it answers.

    serve, calls (two threads) ──► rl_loop ──► sampler_weights/final ──► held_out.py      a line of JSON

    python -m tests.plugins.tinker.strangers.sums [NAME=VALUE …]          arguments of the recipe

The aim is 0.9 in twice the time of `make demo` on the same machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from streams.kafka.node import process as broker
from tests.plugins.tinker.strangers import suite
from tests.plugins.tinker.strangers.served import Served

SETTINGS = ("batch_size=8", "group_size=8", "max_steps=20", "lora_rank=16", "max_tokens=32", "save_every=0",
            "learning_rate=1e-3", "loss_fn=importance_sampling")  # fmt: skip
QUESTIONS = 50
THREADS = 2


def main() -> int:
    """Run the recipe, and print the line; return the recipe's exit code."""
    chosen = dict(each.split("=", 1) for each in (*SETTINGS, *sys.argv[1:]))
    arguments = [f"{name}={value}" for name, value in chosen.items()]
    with tempfile.TemporaryDirectory() as temporary, broker.embedded(Path(temporary) / "kafka") as node:
        run = suite.Programs(node.bootstrap, Path(temporary) / "sums")
        run.settings = run.settings.model_copy(
            update={"trainer": run.settings.trainer.model_copy(update={"threads": THREADS})}
        )
        with Served(run.settings, run.folder) as served:
            began, log_path = time.perf_counter(), run.folder / "runs"
            recipe = run.start(served.url, "recipe.py", "rl_loop", f"log_path={log_path}", *arguments)
            output, _ = recipe.communicate(timeout=suite.PATIENCE_S)
            seconds = time.perf_counter() - began
            print(*output.splitlines()[-suite.LAST :], sep="\n", file=sys.stderr)
            lines = (log_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            rewards = [round(json.loads(line)["reward/total"], 3) for line in lines if "reward/total" in line]
            saved = json.loads((log_path / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
            answers, _ = run.start(served.url, "held_out.py", saved["sampler_path"], str(QUESTIONS)).communicate()
    share = float(answers.splitlines()[-1])
    print(json.dumps({"settings": chosen, "rewards": rewards, "seconds": round(seconds, 1), "held_out": share}))
    return recipe.returncode


if __name__ == "__main__":
    sys.exit(main())
