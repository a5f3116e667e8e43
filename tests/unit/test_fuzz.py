"""Every reader of what others wrote, on its corpus and on some mutations of it; `make fuzz` makes more of them."""

from __future__ import annotations

import contextlib
import random
from itertools import islice
from pathlib import Path

import pytest

import tests.fuzz.targets as targets
from tests.fuzz.target import TARGETS, Broken, Seen, Target, mutations, run, save
from tests.support.thoroughness import FULL

SEED = 1

__all__ = ["targets"]


@pytest.mark.parametrize("reader", TARGETS.values(), ids=list(TARGETS))
def test_any_input_is_refused_with_an_error_of_ours_or_is_a_value_that_round_trips(
    reader: Target, tmp_path: Path
) -> None:
    check, seen = reader.open(tmp_path), Seen()
    corpus = reader.corpus
    for data in corpus.values():
        seen.take(data, run(check, data))
    assert seen.values, "no input of the corpus is a value"
    following = mutations(reader, seen, random.Random(SEED))
    for data in islice(following, reader.light * (10 if FULL else 1)):
        seen.take(data, run(check, data))
    broken = [f"python -m tests.fuzz {save(reader.name, one)}: {one.error}" for one in seen.broken.values()]
    assert not broken, "\n".join(broken)


def test_a_reader_that_raises_or_hangs_or_takes_memory_is_a_finding() -> None:
    def broken_by(data: bytes) -> str | None:
        match data:
            case b"raises":
                raise IndexError
            case b"hangs":
                while True:
                    with contextlib.suppress(Exception):
                        sum(range(1000))
            case b"takes":
                return str(len(bytearray(b"x") * 200_000_000))
            case _:
                raise AssertionError("it does not round-trip")

    inputs = (b"raises", b"hangs", b"takes", b"other")
    limits_s = {b"hangs": 0.1}  # the others end by themselves, on a busy machine later than that
    outcomes = [run(broken_by, data, limit_s=limits_s.get(data, 60), memory_bytes=20_000_000) for data in inputs]
    found = [outcome for outcome in outcomes if isinstance(outcome, Broken)]
    assert [one.kind.partition(" ")[0] for one in found] == ["IndexError", "TooLong", "memory", "AssertionError"]
