"""Histories of a policy's versions, as two writers leave them, and who answers after each event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from schemas.events import AdapterEvent, AdapterKind, derive_id
from streams.adapters import versions as adapters
from streams.adapters.serving import DECISIONS, TRANSITIONS, Serving, refusal, step

KINDS: tuple[AdapterKind, ...] = tuple(TRANSITIONS)
SILENT = ("evaluated", "judged")
"""Kinds that never change who answers."""


class Now(NamedTuple):
    """Who answers after an event."""

    primary: int
    candidate: int | None
    share: float


def now(serving: Serving) -> Now:
    return Now(serving.primary, serving.candidate, serving.share)


def event(number: int, kind: AdapterKind, version: int, expected: int | None, share: float | None) -> AdapterEvent:
    return AdapterEvent(
        event_id=derive_id("p", number), policy="p", created_at=number, version=version, kind=kind, actor="a person",
        reason="because", expected_version=expected, share=share, suite="s" if kind == "evaluated" else None,
    )  # fmt: skip


anything = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(0, 4)),
    st.sampled_from([None, 0.0, 0.05, 0.25, 0.5, 1.0, 1.5, -1.0]),
)


@st.composite
def histories(draw: st.DrawFn, most: int = 25) -> tuple[AdapterEvent, ...]:
    """Two writers append what was legal when they last looked, or anything at all, or the copy of what is there."""
    found: list[AdapterEvent] = []
    served = [Serving()]
    looked = [0, 0]
    for number in range(draw(st.integers(1, most))):
        who = draw(st.integers(0, 1))
        if draw(st.booleans()):
            looked[who] = len(found)
        seen, how = served[looked[who]], draw(st.sampled_from(["legal", "legal", "legal", "any", "copy"]))
        if how == "copy" and found:
            one = draw(st.sampled_from(found))
            one = draw(st.sampled_from([one, replace(one, version=one.version + 1), replace(one, kind="trained")]))
        elif how == "legal":
            may = [
                (kind, version)
                for kind, moves in TRANSITIONS.items()
                for version in range(5)
                if seen.statuses.get(version) in moves.allowed
            ]
            kind, version = may[draw(st.integers(0, len(may) - 1))]
            one = event(number, kind, version, seen.primary, 0.6 * seen.share + 0.4)
        else:
            one = event(number, *draw(anything))
        found.append(one)
        before = served[-1]
        served.append(before if refusal(one, before) else step(before, one))  # near enough to draw from
    return tuple(found)


def by_fold(history: Sequence[AdapterEvent]) -> tuple[list[Now], list[str]]:
    state, after, effects = adapters.empty("p"), [], []
    for one in history:
        before, state = state, adapters.fold(state, one)
        same = one.event_id in before.decided if one.kind in DECISIONS else state == before
        effects.append("refused" if len(state.refused) > len(before.refused) else "again" if same else "effective")
        after.append(now(state.serving))
    return after, effects
