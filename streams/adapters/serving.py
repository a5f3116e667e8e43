"""The adapter versions that answer, and how events may change them.

    Serving (statuses, primary, candidate, share) + AdapterEvent ──► refusal, or the next Serving
    Serving + task_id ──► the version that answers it

                     ┌────────────── promoted ──────────────┐
    (none) ─trained─► trained ─canary_started─► canary ─────┤     canary_advanced: a larger share of the tasks
                     │   ▲                      │  │        ▼
                     │   └── another promoted ──┼──┘     primary ─► superseded (another was promoted)
                     └─────── rejected ◄────────┘               └► rolled_back (an older one was put back)

Version 0 is the base model: always known, and primary until something is promoted. Each batch makes one version, the
next: a `trained` of any other is refused, so versions have no gaps. Events that change who answers name,
in `expected_version`, the primary they were decided against: compare and swap, so that of two decisions against the
same primary the second changes nothing. A rejection may name it, too, and that of a canary does. At most one version is
the candidate; whatever replaces the primary ends its canary. Tasks are split by their id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from schemas.events import AdapterEvent, AdapterKind

Status = Literal["trained", "canary", "primary", "superseded", "rolled_back", "rejected", "retired"]


class Transition(NamedTuple):
    """The effect of one kind of event on its version."""

    allowed: frozenset[Status | None]
    """Allowed statuses of the version; None is an unknown version."""
    status: Status | None
    """The version's status afterwards; None leaves it."""
    replaced: Status | None = None
    """The status of the primary it replaces; None leaves the primary in force."""
    compares: bool = False
    """Whether it names the primary it was decided against."""


def _from(*statuses: Status | None) -> frozenset[Status | None]:
    return frozenset(statuses)


_ANY = _from("trained", "canary", "primary", "superseded", "rolled_back", "rejected", "retired")

TRANSITIONS: dict[AdapterKind, Transition] = {
    "trained": Transition(_from(None), "trained"),
    "evaluated": Transition(_ANY, None),
    "judged": Transition(_ANY, None),
    "canary_started": Transition(_from("trained"), "canary", compares=True),
    "canary_advanced": Transition(_from("canary"), None, compares=True),
    "promoted": Transition(
        _from("trained", "canary", "superseded", "rolled_back"), "primary", "superseded", compares=True
    ),
    "rolled_back": Transition(_from("superseded", "rolled_back", "trained"), "primary", "rolled_back", compares=True),
    "rejected": Transition(_from("trained", "canary"), "rejected"),
    "retired": Transition(_from("trained", "superseded", "rolled_back", "rejected"), "retired"),
}
SWAPS = frozenset(kind for kind, transition in TRANSITIONS.items() if transition.replaced is not None)
"""Kinds that replace the primary."""
DECISIONS = frozenset(TRANSITIONS) - {"trained", "evaluated"}
"""Kinds with ids that are kept: a copy could have an effect if the first had none, or when the old primary is back."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The versions that answer the tasks of one policy, and the status of every version."""

    statuses: Mapping[int, Status] = field(default_factory=lambda: {0: "primary"})
    primary: int = 0
    candidate: int | None = None
    """The version under canary."""
    share: float = 0.0
    """Share of the unpinned tasks that the candidate answers; 0 without one."""


def refusal(event: AdapterEvent, serving: Serving) -> str | None:
    """Return why `event` has no effect on a policy in this state, or None if it has one."""
    transition = TRANSITIONS[event.kind]
    status = serving.statuses.get(event.version)
    if status not in transition.allowed:
        current = "unknown" if status is None else status
        return f"version {event.version} is {current}; {event.kind} needs {_names(transition.allowed)}"
    if event.kind == "trained" and event.version - 1 not in serving.statuses:
        return (
            f"version {event.version} is not the next one after {newest(serving)}; each batch makes one version, so "
            "none made this"
        )
    if event.kind == "retired" and event.version == 0:
        return "version 0 is the base model, which every adapter needs; it cannot be retired"
    compares = transition.compares or (event.kind == "rejected" and event.expected_version is not None)
    if compares and event.expected_version != serving.primary:
        return (
            f"expected version {event.expected_version} to be primary, and it is {serving.primary}; look again and "
            "decide anew"
        )
    match event.kind:
        case "canary_started" if serving.candidate is not None:
            return f"version {serving.candidate} is the candidate already; promote or reject it first"
        case "canary_started" | "canary_advanced" if not serving.share < (event.share or 0) <= 1:
            return f"share is {event.share}; expected more than the {serving.share:g} it has, and at most 1"
        case _:
            return None


def step(serving: Serving, event: AdapterEvent) -> Serving:
    """Return the state after an event that is not refused."""
    return step_in_place(serving, event, dict(serving.statuses))


def step_in_place(serving: Serving, event: AdapterEvent, after: dict[int, Status]) -> Serving:
    """Return the state after an event that is not refused, with statuses `after`.

    `after` has the statuses before it, and is changed: a fold of a long history copies them once, not with each event.
    """
    transition = TRANSITIONS[event.kind]
    if transition.replaced is not None:
        after[serving.primary] = transition.replaced
        if serving.candidate is not None:
            after[serving.candidate] = "trained"
    if transition.status is not None:
        after[event.version] = transition.status
    serving = replace(serving, statuses=after)
    if transition.replaced is not None:
        return replace(serving, primary=event.version, candidate=None, share=0.0)
    if event.kind in ("canary_started", "canary_advanced"):
        return replace(serving, candidate=event.version, share=event.share or 0.0)
    if event.version == serving.candidate and event.kind == "rejected":
        return replace(serving, candidate=None, share=0.0)
    return serving


def newest(serving: Serving) -> int:
    """Return the newest version; versions have no gaps."""
    return len(serving.statuses) - 1


def answers(serving: Serving, task_id: str) -> int:
    """Return the version that answers an unpinned task: the candidate for its share of the ids, or the primary.

    The same task is always on the same side of the same canary, and stays with the candidate as its share grows.
    """
    if serving.candidate is None or place(serving.candidate, task_id) >= serving.share:
        return serving.primary
    return serving.candidate


@lru_cache(maxsize=1 << 15)  # an agent calls this for every waiting task whenever it looks for work
def place(candidate: int, task_id: str) -> float:
    """Return the position in [0, 1) of a task in the canary of `candidate`; it differs between canaries."""
    digest = hashlib.blake2b(f"{candidate}\x1f{task_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _names(statuses: frozenset[Status | None]) -> str:
    return " or ".join(sorted("a new one" if status is None else status for status in statuses))
