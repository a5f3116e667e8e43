"""Simulate many workers over many partitions, and print what each happening costs.

    python -m tests.simulation [--workers N] [--partitions N] [--seed N] [--only TEXT] [--write]
    python -m tests.simulation --beside-kafka

The second plays a few happenings with real workers on a real node, and beside them with simulated ones (beside.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from streams.kafka import admin
from streams.settings.model import Settings
from tests.benchmarks.loop import node
from tests.simulation.beside import RealWorkers, Seen, SimulatedWorkers, play
from tests.simulation.process import Costs
from tests.simulation.scenarios import SCENARIOS, Fleet, Outcome, played
from tests.simulation.world import Simulation

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
PARTITIONS = 12
"""Of the comparison with real workers."""
BEGIN, END = "<!-- simulation:begin -->", "<!-- simulation:end -->"
HEAD = (
    "what happens", "rebalances", "still, longest (median)", "moved", "rows read again", "done again", "written again",
    "largest share (mean)", "lost, wrong",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Play the scenarios; return 1 if anything was lost or wrong."""
    usual = Fleet()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=usual.workers)
    parser.add_argument("--partitions", type=int, default=usual.partitions)
    parser.add_argument("--groups-per-s", type=float, default=usual.groups_s)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scenarios at once")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    parser.add_argument("--beside-kafka", action="store_true", help="compare a few workers with real ones")
    given = parser.parse_args(arguments)
    if given.beside_kafka:
        print(_beside())
        return 0
    fleet = Fleet(partitions=given.partitions, workers=given.workers, groups_s=given.groups_per_s, seed=given.seed)
    names = [name for name in SCENARIOS if given.only in name]
    began = time.monotonic()
    with ProcessPoolExecutor(min(len(names), given.jobs), mp_context=get_context("spawn")) as pool:
        outcomes = []
        for outcome in pool.map(played, names, [fleet] * len(names)):
            outcomes.append(outcome)
            print(f"{time.monotonic() - began:.0f} s: {_lines([_row(outcome)])}", file=sys.stderr, flush=True)
    table = _table(outcomes)
    print(table)
    if given.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    return 0 if all(outcome.verdict.holds for outcome in outcomes) else 1


def _beside() -> str:
    with node() as settings, tempfile.TemporaryDirectory(prefix="streamward-simulation-") as folder:
        tree = settings.model_dump()
        tree["topics"] |= {"prefix": "beside.", "partitions": PARTITIONS}
        settings = Settings.model_validate(tree)
        admin.apply_topics(settings)
        session_s = settings.kafka.session_timeout_s
        with Simulation(settings, costs=Costs(start_s=0.2)) as world:
            simulated = play(SimulatedWorkers(world), PARTITIONS, session_s)
        with RealWorkers(settings, Path(folder)) as workers:
            real = play(workers, PARTITIONS, session_s)
    rows = [
        ["what happens", "members at the end", "real, longest (median)", "simulated"],
        ["---", "---", "---:", "---:"],
    ]
    for one, other in zip(real, simulated, strict=True):
        same = _members(one) == _members(other)
        members = _members(one) if same else f"{_members(one)} against {_members(other)}"
        rows.append([one.what, members, _still(one), _still(other)])
    return _lines(rows)


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _members(seen: Seen) -> str:
    return ", ".join(map(str, seen.members[-1]))


def _still(seen: Seen) -> str:
    return f"{max(seen.still_s):.1f} s ({statistics.median(seen.still_s):.1f})"


def _table(outcomes: list[Outcome]) -> str:
    return _lines([HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *map(_row, outcomes)])


def _row(outcome: Outcome) -> list[str]:
    verdict = outcome.verdict
    return [
        outcome.name,
        str(outcome.rebalances),
        f"{outcome.still_s:.1f} s ({outcome.still_median_s:.1f})",
        str(outcome.moved),
        f"{outcome.rows / 1e6:.1f} M",
        f"{outcome.again:.2%}",
        f"{outcome.written_again:.2%}",
        f"{outcome.largest} ({outcome.mean:.1f})",
        f"{len(verdict.lost)}, {len(verdict.wrong)} of {verdict.expected + verdict.batches}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
