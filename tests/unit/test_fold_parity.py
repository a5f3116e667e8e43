"""Who answers is a pure fold of `adapters`, and everybody who folds it says the same, after every event.

histories: two writers who look when they like, illegal moves, copies, events that change places
  ├── adapters.fold     what the command line and every reader has
  ├── VersionRouter     what an agent routes by
  ├── rollouts.reduce   what the stage decides by
  ├── audit_versions    what the audit holds against the responses
  └── the view rollout  what DuckDB says
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import AdapterEvent, AdapterKind, Coordinates
from streams.adapters.router import VersionRouter
from streams.kafka.record import Record
from streams.stages.rollouts import rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutState
from streams.tools.audit.records import fact_of
from streams.tools.audit.recount_versions import reigns
from streams.tools.query.views import KNOWN_VERSIONS, ROLLOUT
from tests.support.thoroughness import examples
from tests.support.version_histories import KINDS, SILENT, Now, by_fold, event, histories, now


def by_arms(history: Sequence[AdapterEvent]) -> list[Now]:
    arms, after = VersionRouter("p"), []
    for one in history:
        arms.take(one)
        after.append(now(arms.serving))
    return after


def by_stage(history: Sequence[AdapterEvent]) -> list[Now]:
    line, after = RolloutState(), []
    for one in history:
        line, _ = rollouts.reduce(line, one)
        after.append(now(line.serving))
    return after


def record(one: AdapterEvent, offset: int) -> Record:
    return Record(Coordinates("adapters", 0, offset), offset, b"p", None)


def by_audit(history: Sequence[AdapterEvent]) -> list[Now]:
    facts = [fact_of(record(one, offset), one) for offset, one in enumerate(history)]
    return [Now(*reign[1:]) for reign in reigns(facts)[1:]]  # type: ignore[arg-type]


def by_query(many: Sequence[Sequence[AdapterEvent]]) -> list[tuple[list[Now], list[str]]]:
    """Fold many histories in one statement: each is another policy, and their records lie mixed."""
    names = ("event_id", "version", "kind", "expected_version", "suite", "share", "actor", "reason")
    rows = [
        {name: getattr(one, name) for name in names}
        | {"policy": f"p{which}", "_partition": 0, "_offset": 1000 * at + which, "_timestamp": at}
        for which, history in enumerate(many)
        for at, one in enumerate(history)
    ]
    types: dict[str, pa.DataType] = dict.fromkeys(
        ("event_id", "kind", "suite", "actor", "reason", "policy"), pa.string()
    )
    types |= dict.fromkeys(("version", "expected_version", "_partition"), pa.int32())
    types |= {"share": pa.float64(), "_offset": pa.int64(), "_timestamp": pa.timestamp("ms", "UTC")}
    table = pa.Table.from_pylist(rows, pa.schema(list(types.items())))
    with duckdb.connect() as con:
        con.register("adapters", table)
        con.execute("CREATE SCHEMA whole")
        con.execute("CREATE VIEW whole.adapters AS FROM memory.main.adapters")
        found = con.sql(
            "SELECT policy, primary_version, candidate_version, share, effect "  # noqa: S608
            f"FROM ({KNOWN_VERSIONS}{ROLLOUT}) ORDER BY _offset"
        ).fetchall()
    after: dict[str, tuple[list[Now], list[str]]] = {f"p{which}": ([], []) for which in range(len(many))}
    for policy, primary, candidate, share, effect in found:
        after[policy][0].append(Now(primary, candidate, share))
        after[policy][1].append(effect)
    return list(after.values())


@given(histories())
@settings(max_examples=examples(300), deadline=None)
def test_the_agents_the_stage_and_the_audit_say_what_the_fold_says_after_every_event(
    history: tuple[AdapterEvent, ...],
) -> None:
    after, _ = by_fold(history)
    assert by_arms(history) == after
    assert by_stage(history) == after
    assert by_audit(history) == after


@given(st.lists(histories(), min_size=1, max_size=12))
@settings(max_examples=examples(15), deadline=None)
def test_the_query_says_what_the_fold_says_after_every_event(many: list[tuple[AdapterEvent, ...]]) -> None:
    assert by_query(many) == [by_fold(history) for history in many]


@given(histories(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_what_changes_nothing_may_come_anywhere(history: tuple[AdapterEvent, ...], data: st.DataObject) -> None:
    # a result that comes sooner or later, a copy of what is there, another policy's events in between
    told = [one for one in history if one.kind not in SILENT]
    expected = by_fold(told)[0]
    mixed = list(told)
    for one in (one for one in history if one.kind in SILENT):
        mixed.insert(data.draw(st.integers(0, len(mixed))), one)
    for one in data.draw(st.lists(st.sampled_from(told or history), max_size=3)):
        mixed.insert(data.draw(st.integers(mixed.index(one) + 1, len(mixed))) if one in mixed else 0, one)
    for one in data.draw(st.lists(st.sampled_from(history), max_size=3)):
        mixed.insert(data.draw(st.integers(0, len(mixed))), replace(one, policy="another"))
    assert by_fold(mixed)[0][-1:] == expected[-1:] or not told


def test_a_version_out_of_turn_cannot_be_promoted_whoever_folds() -> None:
    history = (
        event(0, "trained", 1, None, None),
        event(1, "trained", 3, None, None),  # forged
        event(2, "promoted", 3, 0, None),
        event(3, "trained", 2, None, None),
        event(4, "trained", 3, None, None),
        event(5, "promoted", 3, 0, None),
    )
    after, effects = by_fold(history)
    assert effects == ["effective", "refused", "refused", "effective", "effective", "effective"]
    assert after[-2:] == [Now(0, None, 0.0), Now(3, None, 0.0)]
    for others in (by_arms, by_stage, by_audit):
        assert others(history) == after
    assert by_query([history]) == [(after, effects)]


def test_of_two_who_decide_against_the_same_primary_one_wins_whoever_folds() -> None:
    history = (
        event(0, "trained", 1, None, None),
        event(1, "trained", 2, None, None),
        event(2, "promoted", 1, 0, None),
        event(3, "promoted", 2, 0, None),
    )
    after, effects = by_fold(history)
    assert effects == ["effective", "effective", "effective", "refused"]
    assert after[-1] == Now(1, None, 0.0)
    for others in (by_arms, by_stage, by_audit):
        assert others(history) == after
    assert by_query([history]) == [(after, effects)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_was_decided_on_acts_only_once_whatever_its_kind(kind: AdapterKind) -> None:
    first = event(0, "rejected", 3, None, None)
    history = (first, replace(first, kind=kind, version=1, expected_version=0, share=0.5))
    after, effects = by_fold(history)
    assert by_query([history]) == [(after, effects)]
    assert by_stage(history) == by_audit(history) == by_arms(history) == after
