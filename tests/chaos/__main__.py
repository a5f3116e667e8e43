"""Run the fault matrix: one JSON line on stdout for each run, progress on stderr.

    python -m tests.chaos [--fault NAME ...] [--seed N ...] [--groups N] [--minutes M]
        [--driver faust|loop|mixed] [--sealed] [--group-protocol classic|consumer] [--stock-faust] [--write]

The exit code is 1 if a run did not pass. `--minutes` draws faults and seeds at random for so long, and prints the seed
that draws the same again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import tests.chaos.faults  # noqa: F401 - fills FAULTS
from tests.chaos.disks import NotShown
from tests.chaos.matrix import FAULTS, GROUPS, Line, Workers, run
from tests.chaos.world import World

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"
SEEDS = (1, 2, 3)


def main(arguments: list[str]) -> int:
    """Run what `arguments` name; return the exit code."""
    given = _parser().parse_args(arguments)
    logging.getLogger("librdkafka").addHandler(logging.NullHandler())  # brokers are away here, and that is meant
    if given.list:
        for row in sorted(FAULTS.values(), key=lambda row: row.number):
            print(f"{row.number:3} {row.name:20} {row.what}: {row.how}")
        return 0
    World.sealed, World.group_protocol = given.sealed, given.group_protocol
    lines = []
    for name, seed in _drawn(given.minutes, given.draw) if given.minutes else _named(given):
        lines.append(_one(name, seed, given.groups, Workers(given.driver, given.stock_faust)))
    if given.write and not given.sealed and given.group_protocol == "classic":
        from tests.chaos.table import write

        DOCS.write_text(write(DOCS.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return 0 if all(line["passed"] for line in lines) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--fault", nargs="*", default=[], metavar="NAME", choices=FAULTS, help="the whole matrix if none is named"
    )
    parser.add_argument("--seed", nargs="*", type=int, default=SEEDS, metavar="N", help="1 2 3 unless said")
    parser.add_argument("--groups", type=int, default=GROUPS, help="tasks in a run, at least")
    parser.add_argument(
        "--driver",
        choices=("faust", "loop", "mixed"),
        default="faust",
        help="of the stream workers; mixed: one of each",
    )
    parser.add_argument("--sealed", action="store_true", help="with all words sealed, of a person each; never written")
    parser.add_argument(
        "--group-protocol", choices=("classic", "consumer"), default="classic", help="consumer is never written"
    )
    parser.add_argument("--stock-faust", action="store_true", help="without our fixes, to see why they exist")
    parser.add_argument("--minutes", type=float, help="draw faults and seeds at random for so long")
    parser.add_argument("--draw", type=int, default=None, metavar="SEED", help="draw the same faults again")
    parser.add_argument("--write", action="store_true", help=f"put the results into docs/{DOCS.name}")
    parser.add_argument("--list", action="store_true", help="name the faults, and run nothing")
    return parser


def _named(given: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for name in given.fault or sorted(_matrix(), key=lambda name: FAULTS[name].number):
        for seed in given.seed:
            yield name, seed


def _drawn(minutes: float, seed: int | None) -> Iterator[tuple[str, int]]:
    seed = random.randrange(10**6) if seed is None else seed
    _say(f"drawing with --draw {seed}")
    draw, until = random.Random(seed), time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        yield draw.choice(_matrix()), draw.randrange(10**6)


def _matrix() -> list[str]:
    return sorted(name for name, row in FAULTS.items() if not row.only_named)


def _one(name: str, seed: int, groups: int, workers: Workers) -> Line:
    row = FAULTS[name]
    _say(f"{row.number:2} {name}, seed {seed}, {workers.driver} …")
    about: Line = {"fault": name, "number": row.number, "seed": seed}
    about |= {"faust": "none"} if row.run else {"driver": workers.driver}
    with tempfile.TemporaryDirectory(prefix="streamward-chaos-", ignore_cleanup_errors=True) as folder:
        try:
            line = run(row, seed=seed, groups=groups, folder=Path(folder), workers=workers)
        except NotShown as why:
            line = about | {"passed": True, "not_shown": str(why)}
        except Exception as exc:  # the others still run
            traceback.print_exc()
            line = about | {"passed": False, "complaints": [repr(exc)]}
    print(json.dumps(line), flush=True)
    _say("   not shown: " + line["not_shown"] if "not_shown" in line else _told(line))
    return line


def _told(line: Line) -> str:
    figures = ", ".join(
        f"{line.get(name)} {name}" for name in ("acknowledged", "lost", "doubled", "phantom", "repeated")
    )
    result = "passed" if line["passed"] else "FAILED: " + "; ".join(line["complaints"])
    return f"   {figures}, recovered in {line.get('recovery_s')} s: {result}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
