"""The audit recounts the agents' store, and names the event that is missing, doubled, or of another tenant's key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.events import Event
from tests.plugins.threads.conversation import CALC_KEY, RED_KEY, item, keys
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


def test_nothing_is_claimed_where_retention_has_deleted_the_beginning() -> None:
    for gone in range(1, 4):
        assert recounted(*store(), begins={"memory": gone}).wrong == []


def test_a_deletion_without_its_put_is_found_although_retention_has_deleted_another_topics() -> None:
    assert [finding.category for finding in recounted(item("deleted")).wrong] == ["lost"]
