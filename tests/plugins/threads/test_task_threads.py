"""What tasks say in a thread, as events of that thread: each part once, in one order, and no history twice."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.threads.log.task_threads import TaskFold, TaskThread, ThreadTask, forgetting_events, says_more
from plugins.threads.log.thread_state import ThreadState, fold
from schemas.conventions import ThreadName
from schemas.events import Coordinates, Message, Task, ThreadEvent, problems
from streams.kafka.record import Record
from tests.support.factories import response, task, thread_event

UUID = "0ab97e5c-19a5-4d0f-8ff6-5c2a9b6f2f11"


def asks(number: int, *texts: str, **changes: Any) -> Task:
    """Return the task of this number in the thread: the texts are a user's and the assistant's by turns."""
    messages = [Message(role="assistant" if place % 2 else "user", content=text) for place, text in enumerate(texts)]
    fields = {"task_id": f"t{number}", "created_at": number * 10, "thread": "case 17", "messages": tuple(messages)}
    return task(**{**fields, **changes})


def thread_of(*tasks: Task, answers: dict[str, str] | None = None) -> TaskThread:
    name = ThreadName.of(tasks[0])
    assert name is not None
    thread = TaskThread(name, ())
    for offset, each in enumerate(tasks):
        thread = thread.with_task(ThreadTask.of(each, Record(Coordinates("tasks", 0, offset), 0, b"", None)))
    for task_id, text in (answers or {}).items():
        thread = thread.with_answer(response(task_id=task_id, text=text))
    return thread


def events(base: ThreadState | None, thread: TaskThread) -> list[ThreadEvent]:
    taken = TaskFold(base)
    taken.take(thread)
    return taken.events


def folded(base: ThreadState | None, *said: ThreadEvent) -> ThreadState:
    state = base
    for event in said:
        state = fold(state, event)
    assert state is not None
    return state


def texts(state: ThreadState | None) -> list[str]:
    assert state is not None
    return [message.message.content for message in state.messages]


def test_a_thread_that_tasks_alone_name_has_their_questions_each_with_its_answer() -> None:
    thread = thread_of(asks(2, "and twice that?"), asks(1, "4 + 7 ="), answers={"t2": "22", "t1": "11"})
    state = folded(None, *events(None, thread))
    assert texts(state) == ["4 + 7 =", "11", "and twice that?", "22"]
    assert (state.created_at, state.labels, state.participants) == (10, {"thread": "case 17"}, ["default"])
    assert [problem for event in events(None, thread) for problem in problems(event)] == []


@pytest.mark.parametrize("name", ["case 17", "a/b?c=d#e", "..", "日本語\n", "red.blue", "x" * 10_000])
def test_a_thread_of_any_name_has_an_id_that_is_a_uuid_and_its_tenant_before_it(name: str) -> None:
    of_red, of_blue, of_nobody = (
        ThreadName.of(asks(1, "?", thread=name, tenant=tenant)) for tenant in ("red", "blue", None)
    )
    assert of_red is not None and of_blue is not None and of_nobody is not None
    assert str(uuid.UUID(of_nobody.thread_id)) == of_nobody.thread_id
    assert (of_red.thread_id.partition(".")[0], of_blue.thread_id.partition(".")[0]) == ("red", "blue")
    assert of_red == ThreadName.of(asks(1, "?", thread=f"red.{name}", tenant="red")) or name.startswith("red.")


def test_a_thread_whose_name_is_a_uuid_is_the_thread_of_that_id() -> None:
    assert ThreadName.of(asks(1, "?", thread=UUID.upper())) == (UUID, UUID.upper())
    assert ThreadName.of(asks(1, "?", thread=f"red.{UUID}", tenant="red")) == (f"red.{UUID}", UUID)


def test_without_a_tenant_nobody_is_in_a_thread_of_a_tenant() -> None:
    name = ThreadName.of(asks(1, "?", thread=f"red.{UUID}"))
    assert name is not None
    assert not name.thread_id.startswith("red.")


@pytest.mark.parametrize("name", [None, ""])
def test_a_task_without_a_thread_is_in_none(name: str | None) -> None:
    assert ThreadName.of(asks(1, "?", thread=name)) is None


def test_of_several_answers_to_a_task_the_first_in_the_log_is_in_the_thread() -> None:
    thread = thread_of(asks(1, "4 + 7 ="), answers={"t1": "11"}).with_answer(response(task_id="t1", text="12"))
    assert texts(folded(None, *events(None, thread))) == ["4 + 7 =", "11"]


def test_a_history_that_is_sent_with_each_question_is_in_the_thread_once() -> None:
    thread = thread_of(
        asks(1, "4 + 7 ="), asks(2, "4 + 7 =", "11", "and twice that?"), answers={"t1": "11", "t2": "22"}
    )
    assert texts(folded(None, *events(None, thread))) == ["4 + 7 =", "11", "and twice that?", "22"]


def test_a_question_that_is_asked_again_is_in_the_thread_again() -> None:
    thread = thread_of(asks(1, "4 + 7 ="), asks(2, "4 + 7 ="), answers={"t1": "12", "t2": "11"})
    assert texts(folded(None, *events(None, thread))) == ["4 + 7 =", "12", "4 + 7 =", "11"]


def test_what_was_written_is_not_said_again_and_what_came_since_is_after_it() -> None:
    before = thread_of(asks(1, "4 + 7 ="))
    kept = folded(None, *events(None, before))
    asked = fold(kept, thread_event("run_requested", kept.thread_id))
    after = before.with_answer(response(task_id="t1", text="11"))
    assert texts(folded(asked, *events(asked, after))) == ["4 + 7 =", "1 + 1 =", "11"]
    assert says_more(kept, after)
    assert not says_more(folded(kept, *events(kept, after)), after)


def test_two_servers_that_write_what_tasks_say_write_it_once() -> None:
    thread = thread_of(asks(1, "4 + 7 ="), asks(2, "and twice that?"), answers={"t1": "11"})
    state = folded(None, *events(None, thread), *events(None, thread))
    assert texts(state) == ["4 + 7 =", "11", "and twice that?"]


def test_a_deleted_thread_has_nothing_of_its_tasks_again_and_what_a_later_one_says() -> None:
    thread = thread_of(asks(1, "4 + 7 ="), asks(2, "secret", thread="case 17"))
    state = folded(None, *forgetting_events(None, thread), thread_event("deleted", thread.name.thread_id))
    assert (state.deleted, "secret" in repr(state)) == (True, False)
    answered = thread.with_answer(response(task_id="t1", text="11"))
    assert not says_more(state, answered)
    later = answered.with_task(ThreadTask.of(asks(3, "again"), Record(Coordinates("tasks", 0, 9), 0, b"", None)))
    assert texts(folded(state, *events(state, later))) == ["again"]


PARTS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=24)


@given(PARTS, st.integers(0, 24))
def test_a_thread_is_the_same_however_often_it_was_read_on_the_way(parts: list[tuple[int, bool]], kept: int) -> None:
    tasks: dict[int, Task] = {}
    thread, on_the_way = thread_of(asks(0, "0")), TaskFold(None)
    for number, is_answer in parts:
        if is_answer and (number in tasks or not number):
            thread = thread.with_answer(response(task_id=f"t{number}", text=f"answer {number}"))
        elif not is_answer and number and number not in tasks:
            tasks[number] = asks(number, str(number))
            record = Record(Coordinates("tasks", 0, number), 0, b"", None)
            thread = thread.with_task(ThreadTask.of(tasks[number], record))
        on_the_way.take(thread)
    on_the_way.take(thread)
    at_once = TaskFold(None)
    at_once.take(thread)
    assert texts(on_the_way.state) == texts(at_once.state)
    assert [event.event_id for event in on_the_way.events] == [event.event_id for event in at_once.events]
    base = folded(None, *at_once.events[: max(1, kept)])
    rest = events(base, thread)
    assert sorted(texts(folded(base, *rest))) == sorted(texts(at_once.state))
