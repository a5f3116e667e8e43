"""The outcome of a group: what it taught, or why it taught nothing. The only place that decides this.

    dropped? ──► not for training? ──► all advantages 0? ──► left out of its batch? ──► it taught, or still will

REST, the demo's report and plugins ask `nothing_reason` and `outcome`; statements ask
NOTHING_REASON_SQL, which a test holds equal to the function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from schemas.conventions import OUTSIDE
from streams.topics.reasons import DROPPED

Verdict = Literal["taught", "nothing", "measured", "waits"]

FLAT = "zero_variance"
"""The reason of a group whose advantages are all 0, as the batch stage spells it."""
LEFT_OUT_OF_BATCH = {
    FLAT: "its batch left it out, as all of its rewards are equal (batches.zero_variance)",
    "stale": "it came too late: its answers are by a version too many steps before the batch (batches.max_policy_lag)",
    "duplicate": "its batch left it out, as the same group was read before",
    OUTSIDE: "its batch left it out, as an outside model answered, whose tokens are not in the log",
    "unknown_version": "its batch left it out, as no batch can have made the version that answered",
}
"""Why batches leave groups out, in words."""
LEFT_OUT_OF_GROUP = {
    "response_failed": "the answer failed",
    "score_failed": "a scorer gave up on it",
    "abstained": "no scorer had an opinion of it",
    "unanswered": "it was not answered in time",
    "unranked": "a sibling of it never came, and a scorer that compares all of them had nothing to rank",
    "unscored": "a reward was missing when the group was closed",
    "incomplete": "the group was dropped, as others of its slots were missing",
    "too_few_scored": "the group was dropped, as too few of its answers had scores",
    "too_large": "the group was dropped, as it is larger than a record may be",
    "erased": "the group was dropped, as its person was erased",
    "no_training": "the group was dropped, as its person does not allow training",
}
"""Why slots are not in their group, in words."""

NOTHING_REASON_SQL = f"""CASE WHEN dropped_reason IS NOT NULL THEN dropped_reason WHEN purpose <> 'train' THEN NULL
    WHEN flat THEN '{FLAT}' ELSE passed_over END"""
"""`nothing_reason` over columns of the same names."""


def nothing_reason(purpose: str, dropped_reason: str | None, flat: bool, passed_over: str | None = None) -> str | None:
    """Return why a group taught nothing, in the log's word for it; None if it taught, still may, or never should.

    `flat`: all of its advantages are 0. `passed_over`: why its batch left it out.

    >>> nothing_reason("train", None, flat=True), nothing_reason("eval", None, flat=True)
    ('zero_variance', None)
    """
    if dropped_reason is not None:
        return dropped_reason
    if purpose != "train":
        return None
    return FLAT if flat else passed_over


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What became of one group."""

    verdict: Verdict
    label: str
    """In two or three words, for a list."""
    explanation: str
    """A sentence on why there was nothing to learn; empty if there was, or if it depends on the rewards."""


def outcome(group: Mapping[str, Any]) -> GroupOutcome:
    """Return what became of a group, of which `task.outcomes_sql` has a row."""
    purpose, dropped, passed_over = group["purpose"], group["dropped_reason"], group["passed_over"]
    reason = nothing_reason(purpose, dropped, group["flat"], passed_over)
    if dropped is not None:
        return GroupOutcome("nothing", f"dropped: {dropped}", _sentence(DROPPED, dropped))
    if purpose != "train":
        measures = "held-out tasks measure a version" if purpose == "eval" else "it answered a request"
        return GroupOutcome("measured", purpose, f"Its purpose is {purpose}: {measures}.")
    if group["flat"]:
        return GroupOutcome("nothing", "all equal", "")
    if reason is not None:
        return GroupOutcome("nothing", f"left out: {reason}", _sentence(LEFT_OUT_OF_BATCH, reason))
    if group["trained"] is not None:
        return GroupOutcome("taught", f"taught version {group['trained']}", "")
    if group["sequence"] is not None:
        return GroupOutcome("taught", f"in batch {group['sequence']}", "")
    return GroupOutcome("taught", "waits for a batch", "")


def left_out_text(reason: str) -> str:
    """Return why a slot is not in its group, in words."""
    return LEFT_OUT_OF_GROUP.get(reason, reason)


def _sentence(explanations: Mapping[str, str], reason: str) -> str:
    text = explanations.get(reason, reason)
    return f"{text[:1].upper()}{text[1:]}."
