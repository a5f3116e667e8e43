"""Mutate inputs for every reader in turn, for so many minutes, in one process at a time.

    python -m tests.fuzz --minutes 60 [--target NAME] [--seed N]
    python -m tests.fuzz FILE ...          what becomes of inputs in the corpus

Each turn runs in a child process with a limit on its memory, so that a reader that ends its process, or hangs where no
signal reaches it, is a finding like any other: the child's last input is in memory that both share. A broken input is
written into the corpus of its reader. Exit status 1: something broke.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import resource
import secrets
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz import targets as targets
from tests.fuzz.mutation import MAX_BYTES
from tests.fuzz.target import TARGETS, Broken, Seen, Target, mutations, run, save, smaller

TURN_S = 20.0
"""The longest turn of a reader."""
GRACE_S = 600.0
"""After which a child that does not report is ended; far longer than any input may take."""
DATA_BYTES = 4 * 1024**3
"""Private memory that a child may have."""

_fork = multiprocessing.get_context("fork")


class _LastInput:
    """The input that a child works on, where its parent can see it."""

    def __init__(self) -> None:
        self._memory = multiprocessing.RawArray("c", MAX_BYTES)
        self._size = multiprocessing.RawValue("L", 0)

    def set(self, data: bytes) -> None:
        """Note an input, before it is read."""
        self._memory[: len(data)], self._size.value = data, len(data)

    def get(self) -> bytes:
        """Return the last one that was noted."""
        return bytes(self._memory[: self._size.value])


class _Turn(NamedTuple):
    """One reader's turn."""

    target: Target
    seen: Seen
    draw: random.Random
    seconds: float


def _child(turn: _Turn, last: _LastInput, answer: Connection) -> None:
    """Mutate for one turn; the corpus comes first, and in the first turn only."""
    one, seen, draw, _ = turn
    logging.disable()
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    known = set(seen.broken)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        check = one.open(Path(folder))
        inputs = iter(()) if seen.examples else iter(one.corpus.values())
        following = mutations(one, seen, draw)
        end = time.monotonic() + turn.seconds
        while time.monotonic() < end:
            data = next(inputs, None)
            data = next(following) if data is None else data
            last.set(data)
            seen.take(data, run(check, data))
        for kind in seen.broken.keys() - known:
            seen.broken[kind] = smaller(check, seen.broken[kind])
    answer.send(seen)


def _take(turn: _Turn) -> Seen:
    """Return what a reader has seen after its turn."""
    seen = turn.seen
    last, (ours, theirs) = _LastInput(), _fork.Pipe(duplex=False)
    child = _fork.Process(target=_child, args=(turn, last, theirs))
    child.start()
    theirs.close()
    try:
        if ours.poll(turn.seconds + GRACE_S):
            found: Seen = ours.recv()
            return found
        what = f"it did not end within {GRACE_S:g} s"
        child.kill()
    except EOFError:
        what = "it ended its process"
    finally:
        child.join()
    seen.take(last.get(), Broken(last.get(), f"{what} (exit status {child.exitcode})", what))
    return seen


def fuzz(chosen: list[Target], minutes: float, seed: int) -> dict[str, Seen]:
    """Give the readers turns until the time is over; print each broken input, and a table at the end."""
    print(f"seed {seed}, {minutes:g} minutes, {len(chosen)} readers", flush=True)
    for one in chosen:  # what they import is imported once, not by each child
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            one.open(Path(folder))
    end, found, spent = time.monotonic() + 60 * minutes, {one.name: Seen() for one in chosen}, Counter[str]()
    number, turn_s = 0, min(TURN_S, 60 * minutes / len(chosen))
    while time.monotonic() < end:
        for one in chosen:
            began, known = time.monotonic(), set(found[one.name].broken)
            draw = random.Random(f"{seed} {one.name} {number}")
            found[one.name] = seen = _take(_Turn(one, found[one.name], draw, turn_s))
            spent[one.name] += round(time.monotonic() - began)
            for kind in seen.broken.keys() - known:
                path = save(one.name, seen.broken[kind])
                print(f"\n{one.name}: {kind}\n{seen.broken[kind].error}\n  {sys.executable} -m tests.fuzz {path}\n")
            sys.stdout.flush()
            if time.monotonic() >= end:
                break
        number += 1
    print(f"{'reader':16} {'examples':>9} {'values':>9} {'outcomes':>9} {'seconds':>8} {'broken':>7}")
    for name, seen in found.items():
        counts = f"{seen.examples:9} {seen.values:9} {len(seen.outcomes):9} {spent[name]:8} {len(seen.broken):7}"
        print(f"{name:16} {counts}")
    return found


def again(files: list[Path]) -> int:
    """Print what becomes of each file, and return how many broke."""
    broken = 0
    for path in files:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            outcome = run(TARGETS[path.resolve().parent.name].open(Path(folder)), path.read_bytes())
        broken += isinstance(outcome, Broken)
        said = outcome.error if isinstance(outcome, Broken) else "a value" if outcome is None else f"refused: {outcome}"
        print(f"{path}: {said}")
    return broken


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="inputs to give to their reader once")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all, in turn")
    parser.add_argument("--seed", type=int, help="repeats the mutations of a run")
    options: Any = parser.parse_args()
    if options.files:
        return min(1, again(options.files))
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    return int(any(seen.broken for seen in fuzz(chosen, options.minutes, seed).values()))


if __name__ == "__main__":
    sys.exit(main())
