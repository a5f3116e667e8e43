"""What a recount found: findings, counts and the sums that must come out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from streams.tools.audit.facts import AuditFinding, Category

CATEGORIES: tuple[Category, ...] = get_args(Category)
SCORES = {
    "scored": "scored", "abstained": "abstained", "failed": "failed scores", "left out or open": "without score"
}  # fmt: skip
"""The outcomes of scores, and the count of each."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a recount came to."""

    findings: tuple[AuditFinding, ...]
    counts: Counter[str]
    in_flight: Counter[str]
    """What is still to come: tasks without group, rewards, groups in a window, batches to train, events that wait."""
    dead_letters: Counter[str]
    """By reason, each stage's letter about a record once."""
    refused_adapters: Counter[str]
    """Of these, by reason: versions that an agent would not serve."""
    headers_left_out: int = 0
    """Records whose headers cannot be read, because a name is not UTF-8 (streams/kafka/headers.py)."""

    @property
    def wrong(self) -> list[AuditFinding]:
        """What does not add up, first of all."""
        return [finding for finding in self.findings if not finding.accounted]

    @property
    def imbalance(self) -> int:
        """How many records do not add up."""
        return len(self.wrong)

    @property
    def balanced(self) -> bool:
        """Whether all does."""
        return not self.wrong

    def of(self, category: Category) -> list[AuditFinding]:
        """Return the findings of one category."""
        return [finding for finding in self.findings if finding.category == category]

    def equations(self) -> list[tuple[str, str, bool]]:
        """Return each sum as (what is added up, the sum with its numbers, whether it comes out)."""
        n = self.counts
        lines: list[tuple[str, int, dict[str, int]]] = [
            (
                "slots of all tasks",
                n["slots"],
                {
                    "answered": n["answered"],
                    "failed": n["failed"],
                    "unanswered": n["unanswered"],
                    "open": n["slots open"],
                },
            ),
            (
                "answers × reward sources",
                n["to score"],
                {name: n[key] for name, key in SCORES.items()},
            ),
            (
                "tasks",
                n["tasks"],
                {"groups": n["groups"] - n["dropped"], "dropped": n["dropped"], "open": n["tasks open"]},
            ),
            (
                "trajectories",
                n["trajectories"],
                {"ended": n["trajectories ended"], "open": n["trajectories open"]},
            ),
            ("jobs", n["jobs"], {"ended": n["jobs ended"], "open": n["jobs open"]}),
            (
                "train groups",
                n["train groups"],
                {
                    "trained": n["groups trained"],
                    "in batches": n["groups in batches"],
                    "dropped": n["groups dropped"] + n["groups dropped unnamed"] + n["groups dropped, not yet named"],
                    "in the window": n["groups waiting"],
                },
            ),
        ]
        if n["crossings"]:  # only where there are rules
            parts = {"with a job": n["crossings with a job"], "with tasks": n["crossings without a job"]}
            lines.append(("crossings of rules", n["crossings"], {**parts, "open": n["crossings open"]}))
        if n["calls"]:  # only where training loops have called
            parts = {"with a result": n["calls with a result"], "without one": n["calls lost"], "open": n["calls open"]}
            lines.append(("training calls", n["calls"], parts))
        if n["queue events"]:  # only where there are queues
            parts = {"in their queues": n["samples in queues"], "cleared": n["samples cleared"]}
            parts["gone back"] = n["samples gone back"]
            lines.append(("samples put, returned", n["samples put"] + n["samples returned"], parts))
        if n["runs of threads"]:  # only where there are threads
            parts = {name: n[f"runs {name}"] for name in ("answered", "failed", "interrupted", "open")}
            lines.append(("runs of threads", n["runs of threads"], parts))
        return [
            (what, f"{total} = " + " + ".join(f"{count} {name}" for name, count in parts.items()),
             total == sum(parts.values()))
            for what, total, parts in lines
        ]  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        n = self.counts
        whole: dict[str, Any] = {name: n[name] for name in ("tasks", "responses", "rewards", "groups")}
        whole |= {
            name: n[name]
            for name in ("batches", "adapters", "turns", "trajectories", "jobs", "verdicts", "threads", "items")
        }
        for category in CATEGORIES:
            whole[category] = [
                {"at": str(found.at), "what": found.what, "accounted": found.accounted} for found in self.of(category)
            ]
        return whole | {
            "outside": n["outside"],
            "headers_left_out": self.headers_left_out,
            "dead_letters": dict(sorted(self.dead_letters.items())),
            "in_flight": {name: count for name, count in sorted(self.in_flight.items()) if count},
            "sums": {what: text for what, text, _ in self.equations()},
            "imbalance": self.imbalance,
            "balanced": self.balanced,
        }
