"""The audit recounts the agents' store, and names the event that is missing, doubled, or of another tenant's key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.events import Event, Turn, derive_id
from tests.plugins.threads.conversation import CALC_KEY, RED_KEY, Conversations, item, keys, run_name
from tests.support.agent_calls import assistant
from tests.support.factories import T0, trajectory, turn
from tests.support.log.whole_run import recounted, wrong


def store() -> list[Event]:
    """Return an item that was put, replaced, deleted, and put again, and the keys of those who did it."""
    return [*keys(), item(), item(number=1), item("deleted", 2), item(number=3)]


def test_a_whole_store_is_counted_and_nothing_is_wrong_with_it() -> None:
    assert wrong(*store()) == []
    report = recounted(*store())
    assert (report.counts["memory events"], report.plain()["items"]) == (4, 1)


def test_an_item_that_is_deleted_by_two_clients_at_once_is_no_mistake() -> None:
    assert wrong(*store()[:5], item("deleted", 7)) == []


def test_an_item_that_is_deleted_and_was_never_put_is_missed() -> None:
    problem = "it deletes an item whose put is not before it"
    assert wrong(item("deleted")) == [("lost", 0, problem)]
    assert wrong(item(), item("deleted", 1, key="ben")) == [("lost", 1, problem)]


def test_a_copy_is_a_repetition_unless_it_brings_back_what_was_replaced() -> None:
    events = store()
    report = recounted(*events, events[-1])
    assert report.balanced and [finding.at.offset for finding in report.of("repeated")] == [4]
    [(category, offset, what)] = wrong(*events, events[2])
    assert (category, offset) == ("doubled", 4) and what.endswith("and takes effect again")


def test_another_event_with_a_known_id_is_named() -> None:
    events = store()
    [(category, offset, what)] = wrong(*events, replace(item(), value='{"number": 9}'))
    assert (category, offset) == ("contradictory", 4) and what.endswith("and is another")


@pytest.mark.parametrize(
    ("key", "namespace", "own"),
    [
        (RED_KEY, "people", "red"),
        (RED_KEY, "blue.people", "red"),
        (RED_KEY, "redder.people", "red"),
        (CALC_KEY, "red.people", "red.calc"),
        (CALC_KEY, "calc.people", "red.calc"),
    ],
)
def test_a_key_that_writes_what_is_not_its_own_is_named(key: str, namespace: str, own: str) -> None:
    [(category, _, what)] = wrong(*keys(), item(namespace=namespace, actor=key))
    assert category == "contradictory"
    assert what == f"{key} wrote {namespace}, and what it names begins with {own}"


def test_keys_write_what_is_their_own_and_who_has_no_tenant_writes_everything() -> None:
    own = [item(namespace="red.calc.notes", actor=key) for key in (RED_KEY, CALC_KEY)]
    assert wrong(*keys(), own[0]) == [] and wrong(*keys(), own[1]) == []
    assert wrong(*keys(), item(namespace="anything", actor="api")) == []
    assert wrong(*keys(), item(namespace="anything", actor="key 0099")) == []


REMEMBERS = '{"namespace": ["people"], "remember": {"prompt": "notes@1"}}'


def remembered(*runs: dict[str, Any]) -> list[Event]:
    """Return runs of an agent with a rule, each with the event that it left and the call that made it, changed so."""
    made = Conversations(list[Event](keys()))
    made.create()
    for number, changes in enumerate(runs):
        run_id = run_name(number)
        made.request(number, memory_config=REMEMBERS)
        made.answer()
        event_id = derive_id(run_id, "remember", "")
        reply = '{"key": "ann", "value": {"number": 2}}'
        call = turn(
            turn_id=derive_id(event_id, "turn"), trajectory_id=event_id, task_id=event_id, agent_id="red.calc",
            sampling_id=None, slot=None, protocol="memory", prompt_version="notes@1", reply=assistant(reply),
        )  # fmt: skip
        evidence = {"run_id": run_id, "answer_turn": derive_id(run_id, "turn"), "rule": "prompt notes@1"}
        whole = {"event_id": event_id, "actor": "serve", "item_turn": call.turn_id, "value": '{"number": 2}'}
        made.events += [
            trajectory(
                "started", trajectory_id=event_id, task_id=event_id, agent_id="red.calc", purpose="serve",
                sampling_id=None, slot=None, group_size=None,
            ),
            call,
            item(**evidence | whole | changes),
        ]  # fmt: skip
    return made.events


FAILED = {"kind": "failed", "value": None, "error": "it is no JSON"}


def test_what_runs_have_left_is_counted_by_its_outcome_and_a_copy_counts_once() -> None:
    events = remembered({}, {"kind": "skipped", "value": None, "key": run_name(1)}, {**FAILED, "key": run_name(2)})
    report = recounted(*events, replace(events[-1], created_at=T0 + 900))
    assert report.wrong == [] and len(report.of("repeated")) == 1
    text = "3 = 1 remembered + 1 skipped + 1 failed + 0 open"
    assert ("runs to remember", text, True) in report.equations()
    assert "1 open" in str(
        [text for name, text, _ in recounted(*events[:-1]).equations() if name == "runs to remember"]
    )


def test_an_item_of_a_call_that_was_never_made_is_named() -> None:
    events = [event for event in remembered({}) if not (isinstance(event, Turn) and event.protocol == "memory")]
    [finding] = recounted(*events).wrong
    assert "which made its item, is not in turns" in finding.what


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run_id": run_name(9)}, "is not in threads with a rule to remember"),
        ({"event_id": derive_id("another")}, "its id is not that of its run and verdict"),
        ({"namespace": "red.others"}, "wrote it to red.others, and the run has prompt notes for red.people"),
        ({"rule": "prompt other@1"}, "and the run has prompt notes for red.people"),
        ({"answer_turn": derive_id("none")}, "its evidence is turn"),
        ({"item_turn": derive_id("none")}, "was made for it, and it names"),
        ({"value": '{"number": 3}'}, "its item is not that of turn"),
    ],
)
def test_what_no_rule_can_have_left_is_named(changes: dict[str, Any], problem: str) -> None:
    [finding] = recounted(*remembered(changes)).wrong
    assert finding.category == "contradictory" and problem in finding.what


def test_nothing_is_claimed_where_retention_has_deleted_the_beginning() -> None:
    for gone in range(1, 4):
        assert recounted(*store(), begins={"memory": gone}).wrong == []


def test_a_deletion_without_its_put_is_found_although_retention_has_deleted_another_topics() -> None:
    assert [finding.category for finding in recounted(item("deleted")).wrong] == ["lost"]
