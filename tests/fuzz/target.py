"""A reader of what somebody else wrote, and the rule: each input is an error of ours, or a value that round-trips.

    input ──► check ──► None: a value · text, or an error that is expected: refused · anything else: it broke

An input also breaks a reader that spends LIMIT_S of CPU time on it, or more than MEMORY_BYTES of memory. What takes no
CPU time and does not end, or ends the process, is noticed by the process that waits for it (run.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from schemas.convert import EncodeError
from streams.errors import StreamwardError
from tests.fuzz.mutation import Grammar, mutated

LIMIT_S = 5.0
"""CPU time for one input of at most mutation.MAX_BYTES."""
MEMORY_BYTES = 512 * 1024 * 1024
"""By which an input may raise the peak of the process."""
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
MOST_KEPT = 300
"""Inputs with a new kind of outcome that are mutated further."""
OURS: tuple[type[Exception], ...] = (StreamwardError, EncodeError)

Check = Callable[[bytes], str | None]
"""Returns None for a value that round-trips, or why the input was refused. Raises AssertionError if it does not."""


@dataclass(frozen=True)
class Target:
    """One reader."""

    name: str
    grammar: Grammar
    light: int
    """Mutations in `make test`."""
    open: Callable[[Path], Check]
    """Imports what it needs and returns the check, which may write to the folder it is given."""

    @property
    def folder(self) -> Path:
        """The folder of its corpus: tests/fuzz/corpus/NAME, or fuzz_corpus/NAME next to the targets of a plugin."""
        file = Path(self.open.__code__.co_filename)
        is_of_core = file.parent.name == "targets"
        return (file.parents[1] / "corpus" if is_of_core else file.with_name("fuzz_corpus")) / self.name

    @property
    def corpus(self) -> dict[str, bytes]:
        """The inputs in the repository by file name: what each began from, and what once broke it."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}


TARGETS: dict[str, Target] = {}


def target(name: str, grammar: Grammar = "bytes", *, light: int = 200) -> Callable[[Callable[[Path], Check]], Target]:
    """Make a target of the function that returns its check."""

    def mark(function: Callable[[Path], Check]) -> Target:
        TARGETS[name] = Target(name, grammar, light, function)
        return TARGETS[name]

    return mark


class TooLong(BaseException):
    """An input took LIMIT_S of CPU time. No Exception, so that no reader takes it for an error of its input."""


class Broken(NamedTuple):
    """An input that is neither refused nor a value."""

    data: bytes
    error: str
    """The exception with its traceback."""
    kind: str
    """Type and place: one mistake breaks many inputs."""


@dataclass
class Seen:
    """What came of some inputs."""

    examples: int = 0
    values: int = 0
    broken: dict[str, Broken] = field(default_factory=dict)
    """The first of each kind."""
    kept: list[bytes] = field(default_factory=list)
    """Inputs with a kind of outcome that no earlier one had."""
    outcomes: set[str] = field(default_factory=set)

    def take(self, data: bytes, outcome: str | Broken | None) -> None:
        """Count the outcome of an input."""
        self.examples += 1
        self.values += outcome is None
        if isinstance(outcome, Broken):
            self.broken.setdefault(outcome.kind, outcome)
        elif (kind := _kind(outcome)) not in self.outcomes and len(self.kept) < MOST_KEPT:
            self.outcomes.add(kind)
            self.kept.append(data)


def _kind(outcome: str | None) -> str:
    """Return a message without what differs from input to input."""
    return re.sub(r"\S*/fuzz-\S*|'[^']*'|\"[^\"]*\"|[\d.]+", "…", (outcome or "")[:300])


def run(
    check: Check, data: bytes, *, limit_s: float = LIMIT_S, memory_bytes: int = MEMORY_BYTES
) -> str | Broken | None:
    """Return what becomes of one input."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5")  # proc(5): the peak is what is used now
    before = _peak_bytes()
    try:
        with _limited(limit_s):
            outcome = check(data)
    except OURS as exc:
        outcome = str(exc)
    except (Exception, TooLong) as exc:
        at = traceback.extract_tb(exc.__traceback__)[-1]
        kind = f"{type(exc).__name__} {Path(at.filename).name} {at.name}"
        return Broken(data, "".join(traceback.format_exception(exc, limit=-12))[-4000:], kind)
    grown = _peak_bytes() - before
    if grown > memory_bytes:
        return Broken(data, f"it took {grown >> 20} MiB", "memory")
    return outcome


def _peak_bytes() -> int:
    """Return the most memory of this process; what getrusage says is no less than its parent had when it began."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mutations(one: Target, seen: Seen, draw: random.Random) -> Iterator[bytes]:
    """Yield inputs without end, made from the corpus and from what `seen` keeps."""
    corpus = list(one.corpus.values())
    while True:
        yield mutated(draw, [*corpus, *seen.kept], one.grammar)


def smaller(check: Check, broken: Broken, limit_s: float = 20.0) -> Broken:
    """Return an input that breaks in the same way with as much left out as is found in this time."""
    size, end = len(broken.data) // 2, time.monotonic() + limit_s
    while size and time.monotonic() < end:
        for start in range(0, len(broken.data), size):
            found = run(check, broken.data[:start] + broken.data[start + size :])
            if isinstance(found, Broken) and found.kind == broken.kind:
                broken = found
                break
            if time.monotonic() > end:
                break
        else:
            size //= 2
    return broken


def save(name: str, broken: Broken) -> Path:
    """Write an input that broke a reader into its corpus, and return the file."""
    path = TARGETS[name].folder / f"broke-{hashlib.sha256(broken.data).hexdigest()[:8]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(broken.data)
    return path


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong(f"{limit_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
