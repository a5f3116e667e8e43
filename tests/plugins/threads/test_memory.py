"""The store of agents, and what an agent gets to read of it and of its thread."""

from __future__ import annotations

from plugins.threads.log.memory_state import (
    REMEMBERED,
    MemoryItem,
    MemoryState,
    fields_of,
    items_read,
    text_of_items,
    with_items,
)
from plugins.threads.log.thread_state import last_turns
from schemas.events import MemoryEvent, Message
from tests.support.factories import memory_event


def stored(*events: MemoryEvent) -> MemoryState:
    state = MemoryState()
    for event in events:
        state.take(event)
    return state


def user(text: str) -> Message:
    return Message(role="user", content=text)


def test_the_newest_event_of_a_key_counts_and_an_item_remembers_when_it_was_first_put() -> None:
    first, second = memory_event(), memory_event(value='{"likes": "tea"}', created_at=memory_event().created_at + 5)
    item = stored(first, second).get(("people",), "ann")
    assert item == MemoryItem(("people",), "ann", '{"likes": "tea"}', first.created_at, second.created_at)
    gone = memory_event(kind="deleted", value=None)
    assert stored(first, gone).get(("people",), "ann") is None
    assert stored(first, gone).namespaces() == []


def test_items_are_found_below_a_namespace_by_their_fields_and_not_beside_it() -> None:
    state = stored(
        memory_event(namespace="red.people"),
        memory_event(namespace="red.people", key="bob", value='{"likes": "tea"}'),
        memory_event(namespace="redder.people"),
    )
    assert [item.key for item in state.search(("red",), {})] == ["ann", "bob"]
    assert [item.key for item in state.search(("red",), {"likes": "tea"})] == ["bob"]
    assert state.namespaces(("red",)) == [("red", "people")]
    assert state.namespaces((), ("people",)) == [("red", "people"), ("redder", "people")]


def test_an_agent_reads_its_last_turns_and_the_system_message_before_them() -> None:
    system = Message(role="system", content="Add.")
    messages = (system, user("1"), Message(role="assistant", content="a"), user("2"), user("3"))
    assert last_turns(messages, 2) == (system, user("2"), user("3"))
    assert last_turns(messages, None) == last_turns(messages, 3) == messages
    assert last_turns(messages[1:], 1) == (user("3"),)


def test_what_was_remembered_is_given_as_data_after_the_system_message() -> None:
    items = [MemoryItem(("people",), key, '{"likes": "sums"}', 0, 0) for key in ("ann", "bob")]
    text = text_of_items(fields_of(items[:1]))
    [first, question] = with_items((user("hi"),), text)
    assert first == Message(role="system", content=f'{REMEMBERED}\n{{"people/ann": {{"likes": "sums"}}}}')
    assert question == user("hi")
    with_system = with_items((Message(role="system", content="Add."), user("hi")), text)
    assert with_system[0].content == f"Add.\n\n{first.content}"
    assert with_items((user("hi"),), text_of_items({})) == (user("hi"),)
    assert items_read(with_system) == items_read((first, question)) == text and items_read((user(text),)) == ""
