"""Recount which versions could answer, and find the responses of any other.

    adapters of a policy, in order ──► folded here once more ──► reigns: since when, primary, candidate
    response: created_at - latency_ms, when its sampling began ──► pinned? else one of those who reigned around then

It uses none of the stages' own fold. The start of a sampling is known by the agent's clock (and is no later than its
record), the start of a reign by the timestamp of a record, which is its writer's clock; and an agent follows within
seconds. So a version counts as live for `rollouts.follow_s` before and after its reign. A version that was never live
or candidate is reported whenever it answers an unpinned task. An earlier primary may answer if an agent's dead letter
reports that it cannot load the primary, or if the primary is an outside model, which does not get every tenant's tasks,
nor calls of agents.

Not covered: a version that answers within that time; larger clock differences, or an event that waited longer for its
broker and has the time of the attempt, which make responses of a replaced version look wrong; whether a task was on the
candidate's side of the split; and the logs of experiments (trainer.off_policy), where versions did not sample.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple

from schemas.events import Coordinates
from streams.kafka.record import partition_of
from streams.tools.audit.facts import AdapterFact, AuditFinding, Category, ResponseFact, TaskFact
from streams.tools.audit.view import AuditView

AGENT = "policy"
"""The stage that writes a dead letter about a `trained` record if an agent could not load the version."""
EARLIEST_MS = -(1 << 62)

_BEFORE = {
    "canary_started": {"fresh"},
    "canary_advanced": {"tried"},
    "promoted": {"fresh", "tried", "former", "undone"},
    "rolled_back": {"fresh", "former", "undone"},
    "rejected": {"fresh", "tried"},
    "retired": {"fresh", "former", "undone", "refused"},
}
"""The states in which each kind of event may decide about a version."""


class Reign(NamedTuple):
    """The version that answers unpinned tasks from an event on."""

    since_ms: int
    primary: int = 0
    candidate: int | None = None
    share: float = 0.0


def reigns(events: Iterable[AdapterFact]) -> list[Reign]:
    """Return the reign before all events, and the one after each of them, in order."""
    became = {0: "live"}
    heard: set[str] = set()
    found = [Reign(EARLIEST_MS)]
    for event in events:
        found.append(found[-1]._replace(since_ms=event.ms))
        if event.kind == "trained" and event.version - 1 in became:
            became.setdefault(event.version, "fresh")
        if event.kind not in _BEFORE or event.event_id in heard:
            continue
        heard.add(event.event_id)
        if became.get(event.version) in _BEFORE[event.kind]:
            found[-1] = _decided(event, found[-1], became)
    return found


def _decided(event: AdapterFact, now: Reign, became: dict[int, str]) -> Reign:
    """Return the reign after a valid decision about a version, and note the new statuses."""
    version, on_time = event.version, event.expected == now.primary
    if event.kind == "retired":
        if version != 0:
            became[version] = "gone"
    elif event.kind == "rejected":
        if event.expected is not None and not on_time:
            return now
        became[version] = "refused"
        return now._replace(candidate=None, share=0.0) if version == now.candidate else now
    elif event.kind in ("promoted", "rolled_back") and on_time:
        if now.candidate is not None:
            became[now.candidate] = "fresh"
        became[now.primary] = "former" if event.kind == "promoted" else "undone"
        became[version] = "live"
        return Reign(now.since_ms, version)
    elif event.kind.startswith("canary") and on_time and event.share is not None and now.share < event.share <= 1:
        if event.kind == "canary_started" and now.candidate is not None:
            return now
        became[version] = "tried"
        return now._replace(candidate=version, share=event.share)
    return now


class VersionLedger:
    """The versions of every policy, for the recount of responses."""

    def __init__(self, events: Mapping[str, Sequence[AdapterFact]], view: AuditView) -> None:
        """Take the adapter events by policy, those of each in order. Nothing is recounted before it is asked for."""
        self._events, self._view = events, view
        self._of: dict[str, _VersionRecount] = {}

    def check(self, tasks: Sequence[TaskFact], responses: Sequence[ResponseFact]) -> tuple[list[AuditFinding], bool]:
        """Return the findings about the versions of these responses to one task, and whether all were checked.

        A sampling that began a moment ago may be ahead of the records read from `adapters`; it is checked next time.
        """
        settings, reach = self._view.settings, self._view.reach
        if not tasks or tasks[0].pinned is not None or settings.trainer.off_policy:
            return [], True  # that a pin is kept is found by the recount of the task
        policy = tasks[0].policy
        if reach.cut(self._view.names["adapters"], partition_of(policy, settings.topics.policy_partitions)):
            return [], True
        if policy not in self._of:
            self._of[policy] = _VersionRecount(self._events.get(policy, ()), self._view)
        follow_ms = settings.rollouts.follow_s * 1000
        ripe = [one for one in responses if reach.settled or one.began_ms + follow_ms < reach.now_ms]
        wrong = [found for one in ripe if (found := self._of[policy].wrong(one)) is not None]
        return wrong, len(ripe) == len(responses)


class _VersionRecount:
    """The versions of one policy."""

    def __init__(self, events: Sequence[AdapterFact], view: AuditView) -> None:
        self._view = view
        self._made: dict[int, Coordinates] = {}
        self._outside = {event.version for event in events if event.is_outside}
        for event in events:
            if event.kind == "trained" and event.version <= len(self._made) + 1:  # a number out of turn is no version
                self._made.setdefault(event.version, event.at)
        self._reigns = reigns(events)
        self._since = list(accumulate((reign.since_ms for reign in self._reigns), max))

    def wrong(self, response: ResponseFact) -> AuditFinding | None:
        """Return the finding about a response of a version that should not have answered."""
        version, at = response.version, response.at
        follow_ms = self._view.settings.rollouts.follow_s * 1000
        first = bisect_left(self._since, response.began_ms - follow_ms) - 1
        last = bisect_right(self._since, response.began_ms + follow_ms)
        around = self._reigns[max(first, 0) : last]
        if any(version in (reign.primary, reign.candidate) for reign in around) or self._stands_in(version, around):
            return None
        category: Category = "contradictory"
        if version != 0 and version not in self._made:
            category, who = "phantom", f"version {version} answered, which is not in adapters"
        else:
            who = f"version {version} answered"
        live = sorted({reign.primary for reign in around})
        tried = sorted({reign.candidate for reign in around if reign.candidate is not None})
        then = f"{_listed(live)} was live" + (f" and {_listed(tried)} candidate" if tried else "")
        return AuditFinding(category, at, f"{who}; {then} when its sampling began, at {_moment(response.began_ms)}")

    def _stands_in(self, version: int, around: Sequence[Reign]) -> bool:
        """Whether `version` was primary before one that some agent could not load, or that answers elsewhere."""
        for reign in around:
            made = self._made.get(reign.primary)
            if made is not None and (reign.primary in self._outside or self._view.lettered(made, AGENT)):
                earlier = bisect_right(self._since, reign.since_ms)
                return any(version == before.primary for before in self._reigns[:earlier])
        return False


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # a producer may write any time


def _listed(versions: Sequence[int]) -> str:
    return " or ".join(map(str, versions))
