"""What the writers of a queue have said of their samples, held against what a restore has.

queue_writer ──► putting, put, clearing, cleared ──► live, unsure, cleared ──► check(restored): lost, back, phantom
"""

from __future__ import annotations

from typing import Any


class QueueAccounts:
    """The samples of one queue, as far as its writers have told."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        """Put and acknowledged, and no clear was begun."""
        self.unsure: set[str] = set()
        """A put or clear of it was begun, and its writer was killed before it was acknowledged."""
        self.cleared: set[str] = set()
        self.puts = 0
        """How many were acknowledged."""

    def take(self, line: dict[str, Any]) -> None:
        """Take in a line of the writer that has the queue."""
        for kind, target in (
            ("putting", self.unsure),
            ("put", self.live),
            ("clearing", self.unsure),
            ("cleared", self.cleared),
        ):
            if kind in line:
                for samples in (self.live, self.unsure, self.cleared):
                    samples.difference_update(line[kind])
                target.update(line[kind])
        self.puts += len(line.get("put", ()))

    def check(self, restored: set[str]) -> list[str]:
        """Return what is wrong with what a restore has; after it, nothing is unsure."""
        problems = {
            "acknowledged samples are lost": self.live - restored,
            "cleared samples are back": restored & self.cleared,
            "samples are there that nobody put": restored - self.live - self.unsure - self.cleared,
        }
        self.cleared |= self.unsure - restored
        self.live, self.unsure = set(restored), set()
        return [f"{len(names)} {problem}: {sorted(names)[:3]}" for problem, names in problems.items() if names]

    def check_late(self, line: dict[str, Any], restored: set[str]) -> list[str]:
        """Return what is wrong with a line that a superseded writer wrote after that restore."""
        if missing := set(line.get("put", ())) - restored:
            return [f"a superseded writer was told of a put that does not count: {sorted(missing)[:3]}"]
        if back := set(line.get("cleared", ())) & restored:
            return [f"a superseded writer was told of a clear that does not count: {sorted(back)[:3]}"]
        return []
