"""Measure the demo and its peers one after the other, and make the tables and plots of docs/compare.md.

    python -m tests.benchmarks.compare [SEED ...] [--crash] [--arm NAME ...] --results DIR        one JSON line a run
    python -m tests.benchmarks.compare --table --results DIR                                      runs.jsonl ──► docs

With --crash every arm runs again, killed at a third and at two thirds of the time that it took undisturbed until the
score, or in all if it did not reach it. So the runs without kills come first.

Not covered: a machine that does other things. Run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from streams.errors import SettingsError
from streams.settings.model import Model
from tests.benchmarks.compare import compare_tables, demo_run, trl_run
from tests.benchmarks.compare.measured_run import Limits, MeasuredRun, read, write
from tests.benchmarks.loop import REPO
from tests.benchmarks.side_by_side import machine, say

ARMS = {
    "streamward": ("sums", ""),
    "trl-tuned": ("sums", "trl_tuned.py"),
    "trl-documented": ("sums", "trl_as_documented.py"),
    "streamward-calculator": ("calculator", ""),
    "trl-calculator": ("calculator", "trl_with_tools.py"),
}
"""Task and script of each arm; no script: the demo."""
LIBRARIES = ("torch", "transformers", "peft", "trl", "datasets")
AIM = 0.9


def main(arguments: Sequence[str]) -> int:
    """Run what `arguments` name; return the exit code."""
    given = _parser().parse_args(arguments)
    if given.table:
        compare_tables.write(read(given.results), REPO / "docs")
        return 0
    arms = given.arm or [name for name, (task, _) in ARMS.items() if not given.crash or task == "sums"]
    limits = Limits(seconds=60 * given.minutes, until=given.until, model=given.model, steps=given.steps)
    for seed in given.seeds or [0]:
        for arm in arms:
            run = MeasuredRun(arm, ARMS[arm][0], seed, machine=machine())
            run.versions = {name: version(name) for name in LIBRARIES}
            if given.crash:
                run.kills = _kills(given.results, run)
            say(f"{arm}, seed {seed}, kills at {run.kills}")
            _measure(run, ARMS[arm][1], limits)
            write(run, given.results)
            print(json.dumps(asdict(run)), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.compare", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "seeds", nargs="*", type=int, metavar="SEED", help="of questions and samplers; 0 if none is named"
    )
    parser.add_argument("--results", type=Path, required=True, metavar="DIR", help="folder of runs.jsonl")
    parser.add_argument("--crash", action="store_true", help="kill each run twice")
    parser.add_argument("--table", action="store_true", help="put the results into docs/compare.md, and run nothing")
    parser.add_argument("--arm", nargs="*", choices=ARMS, default=[], help="all if none is named")
    parser.add_argument("--minutes", type=float, default=20.0, help="limit of one run, evaluations of peers left out")
    parser.add_argument("--until", type=float, default=AIM, help="held-out score at which a peer stops")
    parser.add_argument("--model", default=Model().base, metavar="NAME", help="base of all arms, as in model.base")
    parser.add_argument("--steps", type=int, default=0, help="for a try: fewer steps than the commands have")
    return parser


def _kills(results: Path, run: MeasuredRun) -> list[float]:
    """Return when to kill a run. Raises SettingsError without the undisturbed run of the same arm and seed."""
    found = {done.key: done for done in read(results)}.get(run.key)
    if found is None:
        raise SettingsError(f"{results}: no undisturbed run of {run.arm} with seed {run.seed}; run it without --crash")
    reached = found.first(AIM)
    whole = found.seconds if reached is None else reached[0]
    return [round(whole / 3, 1), round(2 * whole / 3, 1)]


def _measure(run: MeasuredRun, script: str, limits: Limits) -> None:
    with tempfile.TemporaryDirectory(prefix="streamward-compare-") as name:
        if script:
            trl_run.measure(run, script, Path(name), limits)
        else:
            demo_run.measure(run, Path(name), limits)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
