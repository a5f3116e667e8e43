"""What the next batch waits for, since when, until when, and what to do; for `up`, `status`, `doctor` and plugins.

dead letters of scoring ──► StalledGroups ──► groups that lack a score ──► stalled_text
newest group or batch of a policy ───────────────────────────────────────► batch_text

A group that lacks a score does not delay others: another task takes its place (streams/adapters/admission). It stays
open for the score until its deadline.

Not covered: a task's own deadline, which may differ from that of the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from schemas.conventions import SCORELESS
from schemas.events import Coordinates, DeadLetter, Response
from schemas.serde import Poison, decode
from streams.kafka.record import read_base64
from streams.settings.model import Advantages
from streams.stages.scoring.breaker import failed_scorer
from streams.tools.dead_letters.letters import STAGE as DECISIONS, source_of

WAY_OUT = (
    "repair the scorer, then `streamward admin rescore --failed`; once the groups have timed out, "
    "`streamward tasks resubmit --unscored` sends their tasks again"
)
"""What to do about groups that lack a score."""
MOST_ERROR = 120
"""Characters of an error in a line on the whole loop."""


@dataclass(frozen=True, slots=True)
class StalledGroup:
    """A group that lacks a score, since its scorer gave up on an answer."""

    task_id: str
    policy: str
    error: str
    since_ms: int
    until_ms: int | None
    """When it times out; None: never."""


class StalledGroups:
    """The groups that lack a score, in the log as read."""

    def __init__(self, rule: Advantages) -> None:
        self._deadline_ms = int(rule.deadline_s * 1000)
        self._by_answer: dict[Coordinates, StalledGroup] = {}
        self._closed: set[str] = set()

    def take_letter(self, letter: DeadLetter) -> None:
        """Take in a dead letter: of an answer without a score, or the decision about one."""
        if letter.stage == DECISIONS:
            self._by_answer.pop(source_of(letter), None)
        elif letter.reason in SCORELESS and (payload := read_base64(letter.payload)) is not None:
            response = decode(payload, Response)
            if not isinstance(response, Poison) and response.metadata.get("purpose", "train") == "train":
                until_ms = letter.source_timestamp + self._deadline_ms if self._deadline_ms else None
                stalled = (response.task_id, response.policy, failed_scorer(letter)[1], letter.source_timestamp)
                self._by_answer[source_of(letter)] = StalledGroup(*stalled, until_ms)

    def take_group(self, task_id: str) -> None:
        """Take in that the group of a task is out."""
        self._closed.add(task_id)

    def of(self, policy: str) -> list[StalledGroup]:
        """Return the groups of a policy that still lack a score, each once, in the order in which they were found."""
        groups = {group.task_id: group for group in reversed(self._by_answer.values()) if group.policy == policy}
        return [group for task_id, group in reversed(groups.items()) if task_id not in self._closed]


def stalled_text(stalled: Sequence[StalledGroup]) -> str:
    """Return which groups lack a score, since when, why, and until when one still counts."""
    first = stalled[0]
    lacks = f"group of task {first.task_id} lacks" if len(stalled) == 1 else f"{len(stalled)} groups lack"
    error = first.error if len(first.error) <= MOST_ERROR else f"{first.error[:MOST_ERROR]}…"
    until = "" if first.until_ms is None else f"; it still counts if it comes before {clock(first.until_ms)}"
    return f"{lacks} a score since {clock(first.since_ms)} ({error}), and other tasks take their place{until}"


def batch_text(sequence: int, pending: int, groups: int, since_ms: int | None, stalled: Sequence[StalledGroup]) -> str:
    """Return what the trainer waits for: the next batch, how much of it is there, and what it lacks."""
    since = "" if since_ms is None else f" since {clock(since_ms)}"
    lacks = f"; {stalled_text(stalled)}: {WAY_OUT}" if stalled else ""
    return f"waits for batch {sequence}: {pending} of {groups} groups{since}{lacks}"


def clock(timestamp_ms: int) -> str:
    """Return a time of the log to the second."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # a record may claim any time
        return str(timestamp_ms)
