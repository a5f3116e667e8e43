"""How many tokens a run samples until it has 0.9 of held-out chains, from scratch and with forks of its failures.

    demo --task lookup, FIRST versions ──► it continues ────────────────────────────────────┐
                               └──► a copy ──► fork --where FAILED ──► it continues ────────┴─► tokens, share

    python -m tests.benchmarks fork [SEED ...]   two lines for each seed: scratch, then forks with their share

A chain (plugins/environments/games/lookup.py) has two keys and a number. FAILED are the moments at which a run had
looked both keys up, and then did not say the number. Tokens are those that were sampled for training by versions
before the one that is named, forked runs and failed ones included; the tokens that a fork reads are not sampled, and
counted apart. Held-out chains are evaluated at every second version, so both figures are that coarse. A run that does
not get there has no version, and all its tokens, so that the share is at most the one that is printed. A run that has
learned the chain in its first versions is drawn again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from streams.kafka.node import process as broker
from tests.benchmarks.side_by_side import cpu_s, say
from tests.support.processes import command

WANTED, MOST_SHARE = 0.9, 0.6
GROUPS, FIRST, MOST_DRAWS = 1, 1, 4
STEPS = int(os.environ.get("STEPS", "10"))
FAILED = "turn = 2 AND purpose = 'train' AND NOT is_fork AND NOT success AND reward > 0.15"
TOKENS = """
SELECT r.adapter_version AS version, sum(r.completion_tokens)::BIGINT AS sampled,
    coalesce(sum(len(r.prompt_token_ids)) FILTER (t.fork IS NOT NULL), 0)::BIGINT AS read
FROM responses AS r JOIN tasks AS t USING (task_id) WHERE t.purpose = 'train' GROUP BY ALL
"""


def run(seeds: Sequence[int] = (0,)) -> Iterator[dict[str, Any]]:
    """Yield the lines of each seed."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
            own, other = Path(temporary) / "scratch", Path(temporary) / "forks"
            for drawn in range(MOST_DRAWS):
                own.mkdir()
                if max(look["exact"] for look in _demo(own, seed, FIRST)["held_out"]) < WANTED:
                    break
                say(f"fork: seed {seed}, draw {drawn}: version {FIRST} has learned the chain")
                shutil.rmtree(own)
            else:
                continue
            shutil.copytree(own, other)
            scratch = _line(own, seed, "scratch")
            yield scratch
            with broker.embedded(_data(other) / "kafka"):
                forks = len(_rows(other, "fork", "--where", FAILED))
            forked = _line(other, seed, "forks")
        share = forked["tokens"] / scratch["tokens"]
        yield forked | {"forks": forks, "share": share, "met": forked["version"] is not None and share <= MOST_SHARE}


def _line(folder: Path, seed: int, case: str) -> dict[str, Any]:
    """Return the line of a run that is continued to STEPS versions."""
    began, before = time.monotonic(), cpu_s()
    scores = {look["version"]: look["exact"] for look in _demo(folder, seed, STEPS)["held_out"]}
    with broker.embedded(_data(folder) / "kafka"):
        rows = _rows(folder, "query", TOKENS)
        audit = subprocess.run(command("audit"), cwd=folder, stdout=subprocess.DEVNULL).returncode
    reached = next((version for version, score in sorted(scores.items()) if score >= WANTED), None)
    counted = [row for row in rows if reached is None or row["version"] < reached]
    say(f"fork: {case}, seed {seed}: {scores}")
    return {
        "bench": "fork",
        "case": case,
        "seed": seed,
        "held_out": scores,
        "version": reached,
        "tokens": sum(row["sampled"] for row in counted),
        "tokens_read": sum(row["read"] for row in counted),
        "audit": audit,
        "wall_s": round(time.monotonic() - began),
        "cpu_s": round(cpu_s() - before),
    }


def _demo(folder: Path, seed: int, steps: int) -> dict[str, Any]:
    """Return the report of the demo after so many versions; it continues what is in the folder."""
    own = {"batches.groups": GROUPS, "learning.stop_after": 0, "trainer.seed": seed}
    words = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    words += ["demo", "--task", "lookup", "--seed", str(seed), "--steps", str(steps), "--minutes", "30"]
    done = subprocess.run(command(*words, "--output", "json"), cwd=folder, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def _rows(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Return what a command says of the log, in a process of its own: a client takes a copy for the same log."""
    done = subprocess.run(command(*words, "--output", "jsonl"), cwd=folder, check=True, stdout=subprocess.PIPE)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _data(folder: Path) -> Path:
    return folder / ".streamward" / "demo"
