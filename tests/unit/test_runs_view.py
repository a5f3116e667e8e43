"""View `runs` and `run_row` give the same figures of every finished run, and of an open one those that are known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas.conventions import CONSENT, CONVERSATION, FAILED_TOOLS, WAITS_FOR, RatedAnswer, feedback
from schemas.events import (
    Event,
    JobPrices,
    LeftOut,
    Message,
    Observed,
    Reward,
    RewardSource,
    ToolCall,
    TrajectoryEvent,
    derive_id,
)
from streams.settings.model import Prices
from streams.tools.query.finished import FinishedReader, FinishedSelection
from streams.tools.query.runs_view import runs_sql
from streams.tools.runs.run_row import FigureRules, FinishedRun, run_row
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.appended import SETTINGS, Appended
from tests.support.factories import T0, group, member, response, reward, task, trajectory
from tests.support.talks import TALK, records, run_of_talk, served
from tests.support.thoroughness import examples

PRICED = SETTINGS.model_copy(update={"prices": Prices(prompt_usd=10.0, completion_usd=100.0)})
RULES = FigureRules.of(PRICED)
EVERYTHING = FinishedSelection(unfit=True)
ALONE: dict[str, Any] = {"sampling_id": None, "slot": None}


def rows_of_view(log: Appended) -> dict[str, dict[str, Any]]:
    """Return the rows of the view, by run."""
    with log.connect() as con:
        result = con.sql(runs_sql(PRICED))
        names = result.columns
        rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    by_id = {row["answer_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def rows_of_fold(log: Appended) -> dict[str, FinishedRun]:
    """Return what `run_row` says of every finished run."""
    rows = {}
    for finished in FinishedReader(SETTINGS, log, EVERYTHING).round():
        assert finished.answer_id not in rows
        rows[finished.answer_id] = run_row(finished, RULES, None)
    return rows


def check_equal(view: dict[str, dict[str, Any]], fold: dict[str, FinishedRun]) -> None:
    """Both have the same values of every finished run."""
    for name, row in fold.items():
        expected = {**asdict(row), "versions": list(row.versions), "run_ids": list(row.run_ids)}
        got = {key: value for key, value in view[name].items() if not key.startswith("_")}
        assert list(got) == list(expected)
        figures = ("cost_usd", "feedback", "reward", "latency_ms")
        assert {key: got[key] for key in got if key not in figures} == {
            key: value for key, value in expected.items() if key not in figures
        }
        for key in figures:
            assert got[key] == (None if expected[key] is None else pytest.approx(expected[key])), (name, key)


def opinion(about: str, task_id: str, value: float, source: str = "ada") -> Reward:
    return feedback(RatedAnswer(about, task_id, "default", 0, T0), value, source=source, reason=None, now_ms=T0)


def grouped(task_id: str, answers: Iterable[Any], offset: int, **changes: Any) -> Event:
    """Return the group of answers that begin at this offset; those with an error are left out."""
    answers = list(answers)
    members = tuple(
        replace(member(n), response_id=one.response_id, offset=offset + n, reward=n / 4, components={"exact": n / 4})
        for n, one in enumerate(answers)
        if one.error is None
    )
    left_out = tuple(
        LeftOut(slot=n, response_id=one.response_id, reason="response_failed")
        for n, one in enumerate(answers)
        if one.error is not None
    )
    whole = {"task_id": task_id, "group_id": derive_id(task_id), "group_size": len(answers)}
    return group(**{**whole, "responses": members, "left_out": left_out, **changes})


def answer(task_id: str, slot: int = 0, **changes: Any) -> Any:
    return response(task_id=task_id, sampling_id=task_id, slot=slot, group_size=3, latency_ms=12.75, **changes)


def direct_answers() -> list[Event]:
    """Return a task with two answers and one that failed; one whose group was dropped; and one that nobody scores."""
    first, second = [answer("t1", slot) for slot in (0, 1)]
    failed, dropped, served = answer("t1", 2, error="out of memory"), answer("t2"), answer("t3", adapter_version=4)
    sources = (RewardSource(name="exact"), RewardSource(name="judge"))
    judged = {"tries": 1.0, "prompt_tokens": 40.0, "cost_usd": 0.5}
    return [
        task(task_id="t1", group_size=3, scenario="sums", tenant="red", thread="th1", reward_sources=sources),
        *(first, second, failed, dropped, served),
        reward(first, source="exact", value=0.25),
        reward(first, source="judge", value=0.5, components=judged),
        reward(first, source="judge", value=0.75, components={"cost_usd": 9.0}),
        reward(second, source="judge", error="no verdict", components={"cost_usd": 0.125}),
        opinion(second.response_id, "t1", 1.0),
        opinion(second.response_id, "t1", 1.0),
        opinion(second.response_id, "t1", 0.5, "bob"),
        grouped("t1", (first, second, failed), 0),
        task(task_id="t2"),
        reward(dropped, value=1.0),
        grouped("t2", (), 3, dropped_reason="too_few_scored", left_out=(LeftOut(slot=0, reason="unscored"),)),
        task(task_id="t3", purpose="serve", reward_sources=()),
        grouped("t3", (served,), 4, purpose="serve",
                responses=(member(0, response_id=served.response_id, offset=4),)),
    ]  # fmt: skip


def says(*calls: tuple[str, str, str]) -> dict[str, Any]:
    made = tuple(ToolCall(id=call, name=name, arguments=arguments) for call, name, arguments in calls)
    return {"reply": Message(role="assistant", content="", tool_calls=made), "finish_reason": "tool_calls"}


def chat(name: str, *, ends: bool = True, agent_id: str = "red.calc") -> list[Event]:
    """Return a chat with tools of which one fails, an escalation, and a title beside it."""
    run, alone = Recorded(name), {"task_id": name, "agent_id": agent_id, **ALONE}
    first = run.call([system("You add."), user("4 + 7 =")], [ADD], **says(("c1", "add", "{}")), **alone)
    run.call([system("Name this."), user("4 + 7 =")], **alone)
    failed = Message(role="tool", content='{"isError": true}', tool_call_id="c1")
    again = run.call([*run.history(first), failed], [ADD], adapter_version=2,
                     **says(("c2", "add", "{}"), ("c3", "handoff", "{}")), **alone)  # fmt: skip
    results = [Message(role="tool", content="11", tool_call_id=call) for call in ("c2", "c3")]
    run.call([*run.history(again), *results], [ADD], reply=assistant("It is 11."), malformed="half a call", **alone)
    common = {"trajectory_id": name, "group_size": None, "purpose": "serve", **alone}
    began, ended = trajectory("started", created_at=T0 - 7, **common), trajectory(turns=4, success=True, **common)
    return [began, *run.turns, run.turns[0], *([ended] if ends else []), opinion(run.turns[3].turn_id, name, 0.25)]


def shown(tool: str | None, ok: bool | None) -> Observed:
    return Observed(environment="walk@1", seed=1, digest="d" * 64, tool=tool, ok=ok)


def walk(offset: int) -> list[Event]:
    """Return the run of an agent on a task in an environment, its response and its group."""
    name = derive_id("t4", 0)
    run, common = Recorded(name), {"task_id": "t4", "sampling_id": "t4", "slot": 0}
    history = [user("walk")]
    for observed in (shown(None, None), shown("go", False), shown("go", True)):
        turn = run.call(history, reply=assistant("go(1)"), observed=observed, **common)
        history = [*run.history(turn), user("ok")]
    whole = {"trajectory_id": name, "group_size": 1, "purpose": "train", **common}
    made = answer("t4", agent_id="calc", steps=3, success=False)
    return [
        task(task_id="t4", agent="calc", group_size=1),
        trajectory("started", observed=shown(None, None), **whole),
        *run.turns,
        trajectory(turns=3, observed=shown("go", False), **whole),
        made,
        grouped("t4", (made,), offset),
    ]


def test_a_run_whose_response_names_no_agent_is_one_row() -> None:
    events = [replace(event, agent_id=None) if hasattr(event, "engine") and hasattr(event, "text") else event
              for event in walk(0)]  # fmt: skip
    log = Appended(*events)
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert [(row["agent_id"], row["turns"]) for row in view.values()] == [("calc", 3)]


def failing_thread(*, last: Message | None = None, ends: bool = True, agent_id: str = "red.calc") -> list[Event]:
    """Return a thread of three runs: a tool fails, fails again, and then gives what the last answer says."""
    history: list[Message] = []
    events: list[Event] = []
    replies = [says(("c1", "add", "{}")), says(("c2", "add", "[]")), {"reply": last or assistant("It is 11.")}]
    sent: list[Message] = [user("4 + 7 =")]
    for place, reply in enumerate(replies):
        history = [*history, *sent]
        run = run_of_talk(f"red.run{place}", history, place=place, agent_id=agent_id, **reply)
        history = run.history(run.turns[0])
        sent = [Message(role="tool", content='{"isError": true}' if place == 0 else "11", tool_call_id=f"c{place + 1}")]
        events += records(run, place, ends=ends or place < 2)
    return events


def test_runs_of_one_thread_are_one_row_with_all_their_turns_and_tools() -> None:
    log = Appended(*failing_thread())
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    row = fold["talk"]
    assert (list(fold), row.run_ids, row.thread) == (["talk"], ("red.run0", "red.run1", "red.run2"), "th9")
    assert (row.turns, row.tool_calls, row.failed_tools, row.retries, row.recoveries) == (3, 2, 1, 0, 1)
    assert (row.ending, row.latency_ms, row.ended_ms) == ("completed", 120.0, T0 + 290)


def test_a_result_without_an_id_that_later_runs_repeat_counts_once() -> None:
    first = run_of_talk("run0", [user("4 + 7 =")], place=0, **says(("c1", "add", "{}")))
    history = [*first.history(first.turns[0]), Message(role="tool", content='{"isError": true}')]
    second = run_of_talk("run1", history, place=1)
    third = run_of_talk("run2", [*second.history(second.turns[0]), user("and twice that?")], place=2)
    log = Appended(*(event for place, run in enumerate((first, second, third)) for event in records(run, place)))
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert (fold["talk"].tool_calls, fold["talk"].failed_tools) == (1, 1)


def test_a_conversation_whose_last_answer_calls_a_tool_waits_for_it() -> None:
    unanswered = says(("c3", "add", "{}"))["reply"]
    log = Appended(*failing_thread(last=unanswered))
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert (fold["talk"].ending, fold["talk"].retries) == ("waits_for_tool", 1)
    *before, ended = failing_thread(last=unanswered)
    assert isinstance(ended, TrajectoryEvent)
    handed = Appended(*before, replace(ended, output="the answer of another agent"))
    view, fold = rows_of_view(handed), rows_of_fold(handed)
    check_equal(view, fold)
    assert fold["talk"].ending == "completed"
    asking = replace(ended, metadata={**ended.metadata, WAITS_FOR: CONSENT})
    unanswered_person = Appended(*before, asking)
    view, fold = rows_of_view(unanswered_person), rows_of_fold(unanswered_person)
    check_equal(view, fold)
    assert fold["talk"].ending == "waits_for_consent"


def test_a_conversation_is_open_while_one_of_its_runs_is() -> None:
    log = Appended(*failing_thread(ends=False))
    row = rows_of_view(log)["talk"]
    assert (row["turns"], row["ended_ms"], row["ending"]) == (3, None, None)
    assert rows_of_fold(log) == {}


def test_a_conversation_comes_again_with_its_next_run() -> None:
    *before, began, turn, ended = failing_thread()
    log = Appended(*before)
    reader = FinishedReader(SETTINGS, log, EVERYTHING)
    assert [finished.run_ids for finished in reader.round()] == [("red.run0", "red.run1")]
    log.write(began, turn)
    assert list(reader.round()) == []
    log.write(ended, opinion("red.run0", "red.run0", 0.5))
    assert [len(finished.run_ids) for finished in reader.round()] == [3]
    assert next(iter(rows_of_fold(log).values())).feedback == 0.5
    check_equal(rows_of_view(log), rows_of_fold(log))


def test_a_chat_that_is_continued_after_its_end_is_a_conversation_of_its_first_run() -> None:
    first = chat("talk")
    later = run_of_talk("red.later", [user("And twice that?")], place=9)
    log = Appended(*first, *records(later, 9))
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert (list(fold), fold["talk"].run_ids, fold["talk"].turns) == (["talk"], ("talk", "red.later"), 5)


def log_of(*talks: list[list[Event]]) -> Appended:
    return Appended(*(event for talk in talks for run in talk for event in run))


def test_served_tasks_of_one_thread_are_one_row_with_the_cost_of_all_and_the_last_score() -> None:
    unscored = [event for event in served("four", first=3)[0] if not isinstance(event, Reward)]
    failed = replace(unscored[-1], responses=(), left_out=(LeftOut(slot=0, reason="score_failed"),))
    log = log_of(served("one", "two", "three"), [[*unscored[:-1], failed]])
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    (row,) = fold.values()
    runs = tuple(derive_id(f"s{place}", 0) for place in range(4))
    assert (row.run_ids, row.turns, row.answer_id, row.thread) == (runs, 4, row.task_id, "case 17")
    assert (row.scenario, row.tenant, row.purpose, row.ending) == ("sums", "red", "serve", "completed")
    assert (row.reward, row.scores, row.latency_ms) == (0.5, {"judge": 0.5}, 160.0)
    assert row.cost_usd == pytest.approx(1.5 + (10.0 * row.prompt_tokens + 100.0 * row.sampled_tokens) / 1e6)


@pytest.mark.parametrize("changes", [{"thread": "case 18"}, {"thread": None}, {"purpose": "eval"}, {"policy": "other"}])
def test_a_task_of_another_thread_or_purpose_is_in_no_conversation_of_others(changes: dict[str, Any]) -> None:
    log = log_of(served("one", "two"), served("three", first=2, **changes))
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert sorted(row.turns for row in fold.values()) == [1, 2]


def test_a_conversation_of_tasks_comes_with_the_group_of_its_newest_task_and_again_with_the_next() -> None:
    first, second, third = served("one", "two", "three")
    log = Appended(*first, *second[:-1])
    reader = FinishedReader(SETTINGS, log, EVERYTHING)
    assert list(reader.round()) == []
    log.write(second[-1])
    assert [(len(finished.runs), finished.position.offset) for finished in reader.round()] == [(2, 1)]
    log.write(*third, opinion(derive_id("s0", 0), "t0", 0.25))
    (finished,) = reader.round()
    assert (len(finished.runs), finished.position.topic, finished.mean_feedback) == (3, "streamward.groups", 0.25)
    check_equal(rows_of_view(log), rows_of_fold(log))
    assert list(reader.round()) == []


@pytest.mark.parametrize(("agent", "named"), [("red.calc", TALK), ("calc", f"red.{TALK}")])
def test_a_thread_of_tasks_and_runs_is_one_conversation_and_of_another_tenant_another(agent: str, named: str) -> None:
    tenant, _, _ = named.rpartition(TALK)
    thread = tenant + derive_id("thread", TALK)
    of_thread = {CONVERSATION: derive_id(CONVERSATION, thread, agent, "default")}
    run = records(run_of_talk("run9", [user("and twice that?")], place=9, agent_id=agent), 9)
    run = [replace(event, metadata=of_thread) if isinstance(event, TrajectoryEvent) else event for event in run]
    of_blue = served("three", first=2, thread=TALK, tenant="blue", agent=agent)
    log = log_of(served("one", "two", thread=TALK, agent=agent), [run], of_blue)
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert len(fold) == 2
    row = fold[of_thread[CONVERSATION]]
    assert (row.turns, row.reward) == (3, 0.25)


def test_a_history_that_its_client_changed_counts_the_same_both_ways() -> None:
    run, about = Recorded("changed"), {"task_id": "changed", **ALONE}
    asked = [user("4 + 7 =")]
    for choice in range(2):
        run.call(asked, [ADD], choice=choice, choices=2, reply=assistant("11"), **about)
    run.call([*asked, assistant("12"), user("Sure?")], [ADD], **about)
    run.call([user("So far: 11.")], [ADD], **about)
    common = {"trajectory_id": "changed", "group_size": None, "purpose": "serve", **about}
    log = Appended(trajectory("started", **common), *run.turns, trajectory(turns=4, **common))
    view, fold = rows_of_view(log), rows_of_fold(log)
    check_equal(view, fold)
    assert (fold["changed"].rewrites, fold["changed"].retries) == (2, 1)


def test_a_log_with_every_kind_of_run_has_the_same_rows_both_ways() -> None:
    log = Appended(*direct_answers(), *chat("red.chat"), *walk(5), *chat("open", ends=False, agent_id="calc"))
    late = answer("t5")
    log.write(task(task_id="t5", purpose="eval"), late)
    view, fold = rows_of_view(log), rows_of_fold(log)
    assert view.keys() - fold.keys() == {"open", late.response_id}
    check_equal(view, fold)
    row = fold["red.chat"]
    assert (row.tool_calls, row.failed_tools, row.retries, row.recoveries, row.escalations) == (3, 1, 1, 1, 1)
    assert (row.verdict, row.feedback, row.scenario, row.tenant, row.malformed) == (None, 0.25, "chat", "red", 1)
    walked = fold[derive_id("t4", 0)]
    assert (walked.tool_calls, walked.failed_tools, walked.recoveries, walked.turns) == (3, 2, 1, 3)
    first, second, failed = (fold[derive_id("t1", slot)] for slot in (0, 1, 2))
    assert first.scores == {"exact": 0.25, "judge": 0.5} and first.cost_usd == pytest.approx(0.5 + 230 / 1e6)
    assert (second.feedback, second.reward, failed.ending, failed.reward) == (0.75, 0.25, "failed", None)
    assert fold[derive_id("t2", 0)].reward is None and fold[derive_id("t3", 0)].reward is None
    assert (view["open"]["ending"], view["open"]["ended_ms"], view["open"]["turns"]) == (None, None, 4)
    assert (view[late.response_id]["purpose"], view[late.response_id]["reward"]) == ("eval", None)


def test_names_of_tools_and_prices_of_the_settings_are_in_the_statement_as_literals() -> None:
    hostile = SETTINGS.model_copy(update={"serve": SETTINGS.serve.model_copy(update={"escalation_tools": "it's, add"})})
    with Appended(*chat("red.chat")).connect() as con:
        (row,) = con.sql(f"SELECT escalations, cost_usd FROM ({runs_sql(hostile)})").fetchall()  # noqa: S608
    assert row == (2, None)


# --- any run ----------------------------------------------------------------------------------------------------------

CALLS = st.lists(st.tuples(st.sampled_from(["add", "handoff"]), st.sampled_from(["{}", '{"a": 1}'])), max_size=2)
CONTENTS = st.sampled_from(["11", '{"isError": true}', '{"isError": false}', '"isError"', "error"])
OBSERVED = st.none() | st.builds(shown, st.sampled_from([None, "go"]), st.sampled_from([None, True, False]))


@st.composite
def runs(draw: st.DrawFn, place: int | None = None) -> list[Event]:
    """Return a run of some calls, with or without an environment; `place`: its place in a conversation."""
    agent_id = draw(st.sampled_from(["a", "red.b"])) if place is None else "red.b"
    name = agent_id if place is None else f"run{place}"
    run, alone = Recorded(name), {"task_id": name, "agent_id": agent_id, **ALONE}
    history, waiting = [system("You add."), user("4 + 7 =")], list[str]()
    in_environment = draw(st.booleans())
    for number in range(draw(st.integers(1, 5))):
        calls = draw(CALLS)
        changes = says(*((f"c{number}.{place}", *call) for place, call in enumerate(calls))) if calls else {}
        changes |= {"observed": draw(OBSERVED) if in_environment else None, "delivered": draw(st.integers(0, 3)) > 0}
        if draw(st.integers(0, 3)) == 0:
            changes |= {"error": "gone", "finish_reason": "error", "reply": assistant("")}
        failed = [call for call in waiting if draw(st.integers(0, 3)) == 0]
        changes |= {"metadata": {FAILED_TOOLS: json.dumps(failed)} if failed else {}}
        turn = run.call(history, [ADD], **changes, **alone)
        if draw(st.integers(0, 3)) == 0:  # the same call again, or another beginning
            history = history if draw(st.booleans()) else [system("You add well."), *history[1:]]
            continue
        waiting = [call.id for call in turn.reply.tool_calls]
        results = [Message(role="tool", content=draw(CONTENTS), tool_call_id=call) for call in waiting]
        history = [*run.history(turn), *(results or [user("and now?")])]
    common = {"trajectory_id": name, "group_size": None, "purpose": "serve", **alone}
    common |= {} if place is None else {"metadata": {CONVERSATION: TALK}, "created_at": T0 + 1000 * place}
    last = draw(OBSERVED) if in_environment else None
    return [trajectory("started", **common), *run.turns, trajectory(turns=len(run.turns), observed=last, **common)]


@given(runs().map(lambda run: [run]) | st.tuples(runs(0), runs(1), runs(2)))
@settings(max_examples=examples(60), deadline=None)
def test_any_run_and_any_conversation_has_the_same_row_both_ways(events: Sequence[list[Event]]) -> None:
    log = Appended(*(event for run in events for event in run))
    view, fold = rows_of_view(log), rows_of_fold(log)
    assert view.keys() == fold.keys()
    check_equal(view, fold)


def test_prices_are_those_of_the_settings() -> None:
    assert RULES.prices == JobPrices(prompt=10.0, completion=100.0)
