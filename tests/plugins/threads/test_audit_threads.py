"""The audit recounts threads, and names the event that is missing, forged or contradicts the turn that it names.

Each harm is done to a log of threads as servers write it, which is clean before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given, strategies as st

from plugins.threads.log.compaction import digest_of
from plugins.threads.log.thread_state import RunState
from schemas.conventions import CONSENT, WAITS_FOR
from schemas.events import Event, Message, ParentCall, ThreadEvent, TrajectoryEvent, Turn, derive_id
from streams.kafka.record import partition_of
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from tests.plugins.threads.conversation import (
    CALC_KEY,
    OPEN,
    RED,
    RED_KEY,
    SUMMARIZED,
    Conversations,
    conversation,
    keys,
    run_name,
    turn_of,
)
from tests.support.agent_calls import assistant, system, user
from tests.support.factories import T0, task, thread_event, trajectory, turn
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends, named, recounted
from tests.support.talks import ALONE
from tests.support.thoroughness import examples


def wrong(events: Iterable[Event], *, settled: bool = True) -> list[tuple[str, str]]:
    return [(finding.category, finding.what) for finding in recounted(*events, settled=settled).wrong]


def events() -> list[Event]:
    return list(conversation().events)


def place(kind: str, run: int | None = None, label: str = "threads") -> int:
    """Return where an event of the conversation is, among all."""
    return next(
        number
        for number, event in enumerate(events())
        if (isinstance(event, ThreadEvent) and event.kind == kind and run in (None, _number(event.run_id)))
        or (kind == "turn" and isinstance(event, Turn) and event.trajectory_id == run_name(run or 0))
    )


def _number(run_id: str | None) -> int | None:
    return None if run_id is None else int(run_id.rpartition("-")[2])


def changed(kind: str, run: int | None = None, **changes: Any) -> list[Event]:
    """Return the conversation with one event changed."""
    whole = events()
    number = place(kind, run)
    whole[number] = replace(whole[number], **changes)  # type: ignore[type-var]
    return whole


def without(kind: str, run: int | None = None) -> list[Event]:
    whole = events()
    del whole[place(kind, run)]
    return whole


# --- what servers write -----------------------------------------------------------------------------------------------


def test_whole_threads_are_counted_and_nothing_is_wrong_with_them() -> None:
    report = recounted(*events())
    assert named(report) == ""
    assert (report.plain()["threads"], report.counts["thread events"]) == (1, 7)
    text = "3 = 3 answered + 0 failed + 0 interrupted + 0 open"
    assert ("runs of threads", text, True) in report.equations()


def test_events_that_came_too_late_change_nothing_and_are_no_mistake() -> None:
    made = conversation()
    made.request(3)
    made.request(4)  # refused: busy
    made.about_run("run_cancelled", 3)
    made.end(made.begun[-1])  # the answer came after it was cancelled
    made.about_run("run_cancelled", 3, actor="key 0033")
    made.create()
    made.write(thread_event("deleted", RED))
    made.request(5)
    made.about_run("run_deleted", 0)
    report = recounted(*made.events)
    assert named(report) == ""
    assert report.counts["thread events without effect"] == 6


@pytest.mark.parametrize(
    ("waits_for", "is_answered", "problem"),
    [
        ("consent", False, ""),
        ("child", False, ""),
        ("results", False, "asked no person, or had the answer"),
        ("consent", True, "asked no person, or had the answer"),
    ],
)
def test_a_trajectory_ends_for_want_of_consent_only_where_its_run_waited_for_it(
    waits_for: Any, is_answered: bool, problem: str
) -> None:
    made = conversation()
    made.request(3)
    made.call_tools("a")
    made.pause(waits_for=waits_for)
    if is_answered:
        made.resume()
    made.about_run("run_cancelled", 3)
    of_thread = next(e for e in reversed(made.events) if isinstance(e, TrajectoryEvent)).metadata
    about = {
        "trajectory_id": run_name(3),
        "task_id": run_name(3),
        "agent_id": "red.calc",
        "purpose": "serve",
        "group_size": None,
    }
    made.write(trajectory(**about, **ALONE, metadata={**of_thread, WAITS_FOR: CONSENT}))
    found = [what for _, what in wrong(made.events)]
    assert [problem in what for what in found] == ([True] if problem else []), found


STEPS = (
    *("create", "ask", "ask", "ask", "enqueue", "interrupt", "remember", "alone", "answer", "answer", "late", "twice"),
    *("summarized", "compact", "compact"),
    *("cancel", "roll back", "forget", "delete", "say", "context", "go back", "again", "task", "act", "act", "act"),
)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.booleans()), max_size=30))
@hypothesis.settings(max_examples=examples(100))
def test_whatever_servers_write_is_clean(steps: list[tuple[str, int, bool]]) -> None:
    made = conversation()
    made.events += [task(task_id=name) for name in "01"]
    for step, choice, other in steps:
        take_step(made, step, choice, OPEN if other else RED)
    report = recounted(*made.events, settled=False)
    assert named(report) == "", steps
    assert all(holds for _, _, holds in report.equations())


def compacted(**changes: Any) -> list[Event]:
    """Return a thread of two runs, compacted after the second, with a run that reads the summary."""
    made = Conversations(list[Event](keys()))
    made.create(messages=(system("Add."),))
    for number in range(2):
        made.request(number, f"{number} + {number} =", memory_config=SUMMARIZED)
        made.answer(reply=str(2 * number))
    assert made.compact(**changes) is not None
    made.request(2, "2 + 2 =", memory_config=SUMMARIZED)
    made.answer(reply="4")
    return list(made.events)


def test_a_compacted_thread_is_counted_and_later_runs_read_its_summary() -> None:
    report = recounted(*compacted())
    assert named(report) == "" and report.counts["summaries of threads"] == 1
    answers = [event for event in compacted() if isinstance(event, Turn) and event.protocol == "threads"]
    contents = [message.content for message in answers[-1].messages]
    assert contents == ["Add.", "Summarize our conversation so far.", "Sums.", "1 + 1 =", "2", "2 + 2 ="]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"digest": "0" * 64}, "it stands for other messages than the thread had"),
        ({"rule": "last-turns/1 summary@3"}, "is not of agent red.calc by last-turns/1 summary@3"),
        ({"messages": (user("Summarize."), assistant("Nothing."))}, "its summary is not that of turn"),
        ({"turn_id": derive_id("none")}, "is not in turns"),
    ],
)
def test_a_forged_summary_is_named(changes: dict[str, Any], problem: str) -> None:
    [(_, what)] = wrong(compacted(**changes))
    assert problem in what


def test_a_summary_that_leaves_too_few_questions_is_named() -> None:
    said = (user("0 + 0 ="), assistant("0"), user("1 + 1 ="), assistant("2"))
    problems = [what for _, what in wrong(compacted(stands_for=5, digest=digest_of(said)))]
    assert "it leaves fewer than the last 1 questions as they were" in problems


def test_a_run_that_was_given_the_whole_thread_after_its_summary_is_named() -> None:
    events, whole = compacted(), list[Event]()
    for event in events:
        if isinstance(event, Turn) and event.trajectory_id == run_name(2):
            said = [user("0 + 0 ="), assistant("0"), user("1 + 1 ="), assistant("2"), user("2 + 2 =")]
            event = replace(event, messages=(system("Add."), *said))
        whole.append(event)
    [(_, what)] = wrong(whole)
    assert "was given to other messages than the thread had" in what


def take_step(made: Conversations, step: str, choice: int, thread_id: str) -> None:
    """Do what a client or a server may do to a thread now."""
    state, number = made.states.get(thread_id), 100 + len(made.events)
    if step == "create":
        made.create(thread_id, messages=(system("Add."),) if choice % 2 else ())
    elif step == "alone":
        made.request(number, thread_id=run_name(number), stateless=True)
        made.answer(run_name(number))
    elif state is None:
        return
    elif step in ("ask", "enqueue", "interrupt"):
        made.request(number, thread_id=thread_id, if_busy="reject" if step == "ask" else step)
    elif step == "remember":
        text = '{"turns": 1}' if choice % 2 else '{"turns": 2}'
        made.request(number, thread_id=thread_id, memory_config=text, if_busy="enqueue")
    elif step == "summarized":
        made.request(number, thread_id=thread_id, memory_config=SUMMARIZED, if_busy="enqueue")
    elif step == "compact":
        for said in range(3 if state.active is None and not state.deleted else 0):
            if said == 2:
                made.compact(thread_id, str(number))
            made.request(number + 1000 + said, thread_id=thread_id, memory_config=SUMMARIZED)
            made.answer(thread_id, str(said))
    elif step == "answer":
        if state.active is not None and not state.runs[state.active].steps.open_calls:
            made.end(state.runs[state.active], str(choice))
    elif step == "act":
        if state.active is not None:
            act(made, state.runs[state.active], choice)
    elif step in ("late", "twice"):
        begun = [run for run in made.begun if run.thread_id == thread_id]
        begun = [run for run in begun if not made.newest[run.run_id].steps.open_calls]
        if begun:
            made.end(begun[-1 - choice % len(begun)])
    elif step == "task":
        made.write(said_by_task(str(choice % 2), thread_id, actor=str(number)))
    elif step == "delete":
        made.write(thread_event("deleted", thread_id, event_id=derive_id(number)))
    elif step in ("say", "context"):
        fields: dict[str, Any] = {"messages": (user("so"),)} if step == "say" else {"values": '{"a": 1}'}
        made.write(thread_event("changed", thread_id, event_id=derive_id(number), **fields))
    elif step == "go back":
        line = list(state.head.line())
        checkpoint = line[choice % len(line)].checkpoint_id
        made.write(thread_event("changed", thread_id, event_id=derive_id(number), checkpoint=checkpoint))
    elif state.runs:
        run = list(state.runs.values())[choice % len(state.runs)]
        if step == "again":
            made.write(replace(run.request, event_id=derive_id(number)))
            return
        kind = {"cancel": "run_cancelled", "roll back": "run_cancelled", "forget": "run_deleted"}[step]
        made.about_run(kind, _number(run.run_id) or 0, thread_id, rolled_back=step == "roll back")


def act(made: Conversations, run: RunState, choice: int) -> None:
    """Do what a server may do for a run in progress now, or a person for one that waits."""
    if run.steps.waiting:
        made.resume(run.thread_id, allowed=choice % 2 == 0, result="so" if choice == 5 else None)
    elif not run.steps.open_calls:
        made.call_tools(*"ab"[: 1 + choice % 2], thread_id=run.thread_id)
    elif run.steps.open_calls[0].begun:
        made.finish(run.thread_id, error="failed" if choice == 5 else None)
    elif choice == 5:
        made.finish(run.thread_id, duration_ms=None, error="denied")
    elif choice == 4:
        made.pause(run.thread_id, "unfinished")
    else:
        made.begin(run.thread_id)


def said_by_task(task_id: str, thread_id: str = RED, **changes: Any) -> ThreadEvent:
    """Return the question of a task, in its thread."""
    name, about = derive_id(thread_id, task_id, "question"), {"task_id": task_id, "task_parts": "question"}
    whole = {"event_id": name, "metadata": about, "agent_id": "sums", "messages": (user("7 + 7 ="),)}
    return thread_event("changed", thread_id, **whole | changes)


def acting(*, idempotent: bool = False) -> Conversations:
    """Return a conversation whose last run has begun a call."""
    made = conversation()
    made.request(3, "4 + 7 =")
    made.call_tools("a")
    made.begin(idempotent=idempotent)
    return made


def test_calls_are_counted_by_how_they_ended() -> None:
    made = acting()
    made.finish()
    made.call_tools("a", "b", "c")
    made.begin()
    made.finish(error="failed")
    made.pause(waits_for="results")
    made.resume(result="sunny")
    made.pause()
    report = recounted(*made.events)
    assert named(report) == "", "a run that waits for a person is not missed"
    text = "4 = 1 answered + 1 failed + 1 by clients + 0 left + 1 open"
    assert ("calls by runs", text, True) in report.equations()


def calling(**changes: Any) -> Conversations:
    """Return a run whose call an agent has answered by a run of its own; `changes` are those of that run's request."""
    made = Conversations(list[Event](keys()))
    made.create()
    made.request(0)
    made.call_tools("a")
    parent = made.newest[run_name(0)]
    child = parent.child_id(parent.steps.open_calls[0].call)
    made.begin(child_run=child)
    about = ParentCall(run_id=parent.run_id, turn_id=parent.steps.turns[-1], call_id="0 a", depth=1)
    fields = {"actor": RED_KEY, "agent_id": "red.calc", "stateless": True, "parent": about, "messages": (user("?"),)}
    made.write(thread_event("run_requested", child, child, **fields | changes))
    made.answer(child, "11")
    made.finish(child_run=child)
    made.answer(reply="So 11.")
    return made


def test_a_run_that_answers_a_call_of_another_is_counted_and_follows_from_it() -> None:
    made = calling()
    report = recounted(*made.events)
    assert named(report) == ""
    assert ("child runs", "1 = 1 answered + 0 failed + 0 left", True) in report.equations()
    child = next(event.run_id for event in made.events if isinstance(event, ThreadEvent) and event.parent)
    about = calling().newest[child or ""].request.parent
    assert about is not None
    deep, other = replace(about, depth=3), replace(about, call_id="b")
    assert wrong(calling(parent=deep).events) == [
        ("contradictory", f"run {child} is 3 runs deep, and the run that it answers 0")
    ]
    assert ("contradictory", f"run {child} has not the id of the call that it answers") in wrong(
        calling(parent=other).events
    )
    actor = f"run {child} acts for api, and the run that it answers for {RED_KEY}"
    assert wrong(calling(actor="api").events) == [("contradictory", actor)]
    forged = [
        replace(event, messages=(replace(event.messages[0], content="12"),))
        if isinstance(event, ThreadEvent) and event.kind == "call_ended"
        else event
        for event in made.events
    ]
    assert ("contradictory", f"its result is not the answer of run {child}") in wrong(forged)
    never = [event for event in made.events if not (isinstance(event, ThreadEvent) and event.kind == "call_begun")]
    phantom = f"run {child} answers call 0 a of run {run_name(0)}, which was never begun"
    assert ("phantom", phantom) in wrong(never)


@pytest.mark.parametrize(("text", "findings"), [("11", 0), ("12", 1)])
def test_a_run_that_was_handed_over_ends_with_the_result_of_its_call(text: str, findings: int) -> None:
    made = acting()
    made.finish(handoff=True)
    answer = (Message(role="assistant", content=text),)
    made.write(made.ending(RED, run_name(3), turn_id=None, metadata={"handoff": "0 a"}, messages=answer))
    problem = ("contradictory", "its answer is not that of the agent that it was handed to")
    assert wrong(made.events) == [problem] * findings


def test_a_result_of_a_task_of_another_server_is_of_the_task_that_was_accepted() -> None:
    for name, is_accepted in (("t1", True), ("t2", False)):
        made = acting()
        made.accept("t1")
        made.finish(remote_task=name)
        made.answer()
        problem = ("lost", f"call 0 a ended by task {name}, which was never accepted")
        assert (problem in wrong(made.events), not wrong(made.events)) == (not is_accepted, is_accepted)


# --- what no server writes --------------------------------------------------------------------------------------------


def test_an_event_that_is_dropped_is_missed_at_the_next() -> None:
    gone = "its thread was never created: that event is not before it"
    assert wrong(without("created"))[0] == ("lost", gone)
    requested = f"run {run_name(0)} was never requested: that event is not before it"
    assert ("lost", requested) in wrong(without("run_requested", 0))
    assert ("phantom", f"turn {derive_id(run_name(1), 'turn')} of run {run_name(1)} is not in turns") in wrong(
        without("turn", 1)
    )
    assert ("lost", f"the end of run {run_name(2)} is not in threads") in wrong(without("run_ended", 2))
    assert wrong(without("run_ended", 2), settled=False) == []


def test_a_step_that_is_dropped_or_made_twice_is_missed() -> None:
    made = acting()
    made.begin()  # it was killed, and begins again
    assert ("doubled", "call 0 a was begun already, and its tool is not idempotent") in wrong(made.events)
    allowed = acting()
    allowed.pause(waits_for="unfinished")
    allowed.resume()
    allowed.begin()
    again = acting(idempotent=True)
    again.begin(idempotent=True)
    for fine in (allowed, again):
        assert wrong(fine.events, settled=False) == []
    ended = acting()
    ended.finish()
    del ended.events[-2]
    assert ("lost", "call 0 a was never begun: that event is not before it") in wrong(ended.events)
    early = acting()
    run = early.newest[run_name(3)]
    early.write(early.ending(RED, run.run_id, turn_id=run.steps.turns[0], messages=(assistant("11"),)))
    assert ("lost", f"calls of run {run.run_id} have no results: 0 a") in wrong(early.events)


def test_a_turn_of_a_run_that_nobody_requested_is_a_phantom_once_all_is_settled() -> None:
    made = conversation()
    run = made.begun[-1]
    forged = replace(run, request=replace(run.request, run_id=run_name(9)))
    made.write(turn_of(forged, "9"))
    text = f"it answers run {run_name(9)}, which was never requested in threads"
    assert ("phantom", text) in wrong(made.events)
    assert text not in named(recounted(*made.events, settled=False)), "its request may be newer than what was read"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"messages": (assistant("5"),)}, "its answer is not that of turn"),
        ({"messages": ()}, "it ended with success and 0 messages; expected 1"),
        ({"messages": (assistant("4"), assistant("4"))}, "it ended with success and 2 messages; expected 1"),
        ({"turn_id": "another"}, "turn another of run"),
        ({"turn_id": derive_id(run_name(0), "turn")}, "is not in turns"),
        ({"event_id": "forged"}, "its id is not that of its thread and of what it is about"),
        ({"ending": "error", "turn_id": None, "error": "no"}, "it ended with error and 1 messages; expected 0"),
    ],
)
def test_an_end_that_is_not_as_its_turn_says_is_named(change: dict[str, Any], says: str) -> None:
    assert any(says in what for _, what in wrong(changed("run_ended", 1, **change)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reply": assistant("5")}, "its answer is not that of turn"),
        ({"metadata": {"thread": OPEN}}, f"is of thread {OPEN}, and its run of thread {RED[4:]}"),
        ({"metadata": {}}, f"is of thread None, and its run of thread {RED[4:]}"),
        ({"request_digest": "d" * 64}, f"answers another request than that of run {run_name(1)}"),
        ({"agent_id": "red.other"}, "agent red.other gave turn"),
        ({"protocol": "chat"}, "answers no run of a thread"),
        ({"messages": (user("2 + 2 ="),)}, "was given to other messages than the thread had"),
        ({"messages": (system("Lie."), user("1 + 1 ="), assistant("2"), user("2 + 2 ="))}, "was given to other"),
        ({"turn_id": "another"}, "is not in turns"),
    ],
)
def test_a_turn_that_is_not_as_its_run_says_is_named(change: dict[str, Any], says: str) -> None:
    assert any(says in what for _, what in wrong(changed("turn", 1, **change)))


def test_a_run_of_one_version_that_another_answered_is_named() -> None:
    text = f"version 0 gave turn {derive_id(run_name(1), 'turn')} at"
    assert wrong(changed("run_requested", 1, model="p@0")) == []
    [(category, what)] = wrong(changed("run_requested", 1, model="p@3"))
    assert category == "contradictory" and what.startswith(text) and what.endswith("was requested of p@3")


def test_what_an_agent_remembers_decides_what_it_could_read() -> None:
    made = conversation()
    made.request(3, "and?", memory_config='{"turns": 1}')
    made.answer()
    assert wrong(made.events) == []
    whole = list(made.events)
    number = next(n for n, event in enumerate(whole) if isinstance(event, Turn) and event.trajectory_id == run_name(3))
    turn = whole[number]
    assert isinstance(turn, Turn) and [message.content for message in turn.messages] == ["and?"]
    whole[number] = replace(turn, messages=(user("6 + 6 ="), *turn.messages))
    assert any("other messages than the thread had" in what for _, what in wrong(whole))


def test_items_that_a_run_was_given_are_not_compared_but_its_messages_are() -> None:
    def log(remembered: tuple[Message, ...], first: str) -> list[Event]:
        made = conversation()
        made.request(3, "and?", memory_config='{"turns": 1, "namespace": ["people"]}')
        made.answer(messages=(*remembered, user(first)))
        return made.events

    assert wrong(log((), "and?")) == [] and wrong(log((system("ann likes sums"),), "and?")) == []
    assert any("other messages" in what for _, what in wrong(log((system("ann likes sums"),), "or?")))


IMPOSSIBLE: list[tuple[str, Callable[[Conversations], object], str, str]] = [
    (
        "a run that waits has ended",
        lambda made: (made.request(3), made.request(4, if_busy="enqueue"), made.write(failed(4))),
        "contradictory",
        f"run {run_name(4)} ended before it was in progress",
    ),
    (
        "a run that was refused has ended",
        lambda made: (made.request(3), made.request(4), made.write(failed(4))),
        "contradictory",
        f"run {run_name(4)} was refused when it was requested, and never began",
    ),
    (
        "a run on a thread that was deleted has ended",
        lambda made: (made.write(thread_event("deleted", RED)), made.request(4), made.write(failed(4))),
        "contradictory",
        f"run {run_name(4)} was refused when it was requested, and never began",
    ),
    (
        "a run that nobody requested is cancelled",
        lambda made: made.about_run("run_cancelled", 9),
        "lost",
        f"run {run_name(9)} was never requested: that event is not before it",
    ),
    (
        "a thread that nobody created is changed",
        lambda made: made.write(thread_event("changed", OPEN, values="{}")),
        "lost",
        "its thread was never created: that event is not before it",
    ),
    (
        "a run has ended twice, and otherwise",
        lambda made: made.write(failed(0)),
        "contradictory",
        f"it ends run {run_name(0)} otherwise than",
    ),
    (
        "a run is on two threads",
        lambda made: (made.create(OPEN), made.request(0, thread_id=OPEN, agent_id="calc")),
        "contradictory",
        f"run {run_name(0)} is on thread {RED} already",
    ),
    (
        "an agent of another tenant answers",
        lambda made: made.request(3, agent_id="blue.calc", actor="api"),
        "contradictory",
        "agent blue.calc is not of tenant red, whose thread it is",
    ),
    (
        "a key creates a thread of nobody's",
        lambda made: made.create(OPEN, actor=RED_KEY),
        "contradictory",
        f"{RED_KEY} wrote {OPEN}, and what it names begins with red",
    ),
    (
        "a key of an agent runs another",
        lambda made: made.request(3, agent_id="red.other", actor=CALC_KEY),
        "contradictory",
        f"{CALC_KEY} wrote red.other, and what it names begins with red.calc",
    ),
]


def failed(number: int) -> ThreadEvent:
    return thread_event(
        "run_ended", RED, run_name(number), actor="serve", ending="error", error="no", turn_id=None, messages=()
    )


@pytest.mark.parametrize(("name", "harm", "category", "says"), IMPOSSIBLE, ids=[one[0] for one in IMPOSSIBLE])
def test_what_no_server_writes_is_named(
    name: str, harm: Callable[[Conversations], object], category: str, says: str
) -> None:
    made = conversation()
    harm(made)
    assert [(found, says) for found, what in wrong(made.events, settled=False) if what.startswith(says)] == [
        (category, says)
    ]


def test_a_copy_is_a_repetition_unless_it_takes_effect_again() -> None:
    for number in (place("created"), place("run_requested", 0), place("run_ended", 0)):
        whole = events()
        report = recounted(*whole, whole[number])
        assert named(report) == "" and len(report.of("repeated")) == 1
    said = thread_event("changed", RED, event_id="said", messages=(user("so"),))
    assert [category for category, _ in wrong([*events(), said, said])] == ["doubled"]
    other = replace(said, messages=(user("but"),))
    assert [category for category, _ in wrong([*events(), said, other])] == ["contradictory"]


def test_what_a_task_said_is_in_the_thread_once_and_the_task_is_in_the_log() -> None:
    said = [task(task_id="t"), said_by_task("t"), said_by_task("t", actor="another")]
    report = recounted(*events(), *said, settled=False)
    assert named(report) == ""
    assert report.counts["thread events without effect"] == 1
    missing = ("phantom", "it is of task t, which is not in tasks")
    assert wrong([*events(), said_by_task("t")]) == [missing]
    forged = said_by_task("t", event_id="forged")
    assert ("contradictory", "its id is not that of its thread and of what it is about") in wrong([*events(), forged])
    assert named(recounted(*events(), said_by_task("t"), begins={"tasks": 1})) == ""


def test_a_run_that_was_deleted_and_requested_again_has_the_answer_that_it_had() -> None:
    made = conversation()
    made.about_run("run_deleted", 0)
    made.request(0)
    made.end(made.begun[0])
    assert wrong(made.events) == []


def test_nothing_is_claimed_where_retention_has_deleted_the_beginning() -> None:
    for gone in range(1, 7):
        assert named(recounted(*events(), begins={"threads": gone})) == ""
        assert named(recounted(*events(), begins={"turns": gone})) == ""
    report = recounted(*changed("run_ended", 2, messages=(assistant("7"),)), begins={"threads": 3})
    assert "its answer is not that of turn" in named(report)


def test_a_dropped_record_is_named_by_its_place() -> None:
    log = Written()
    for number, event in enumerate(events()):
        log.write(event, T0 + number)
    partition = partition_of(RED, 2)
    for record in log.records:
        report = recount([other for other in log.records if other is not record], SETTINGS,
                         Reach(ends=ends(log.records), settled=True))  # fmt: skip
        assert record.at in [finding.at for finding in report.wrong]
    assert any(record.at[:2] == (TOPICS["threads"].name, partition) for record in log.records)


# --- the answers of programs ------------------------------------------------------------------------------------------


def by_program(task_id: str = "t1", **changes: Any) -> list[Event]:
    """Return a thread with a run that a program answered by a turn of task t1; `changes` are of the run's end."""
    made = Conversations()
    made.create(OPEN)
    made.request(0, thread_id=OPEN, agent_id="calc", metadata={"run_task": task_id})
    said = turn(task_id="t1", trajectory_id="p", turn_id="said", reply=assistant("2"))
    end = {"turn_id": "said", "messages": (said.reply,), "metadata": {"program_run": "p"}}
    made.write(made.ending(OPEN, run_name(0), **end | changes))
    return [*made.events, said, task(task_id="t1", purpose="serve", group_size=1)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"turn_id": None, "messages": (assistant("printed"),)}, []),
        ({"messages": (assistant("3"),)}, ["its answer is not that of turn said"]),
        ({"metadata": {"program_run": "q"}}, [f"turn said of run {run_name(0)} is not in turns"]),
        ({"task_id": "t2", "turn_id": None}, ["a program answered task t2, which is not in tasks"]),
    ],
)
def test_the_answer_of_a_program_is_of_a_task_of_the_log_and_says_what_its_turn_says(
    changes: dict[str, Any], found: list[str]
) -> None:
    threads, report = TOPICS["threads"].name, recounted(*by_program(**changes))
    assert [wrong.what.partition(" at ")[0] for wrong in report.wrong if wrong.at.topic == threads] == found
