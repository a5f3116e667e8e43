"""A thread of which a model reads a summary in place of the beginning."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from plugins.agents.registry.agent_log import CompactionRule
from plugins.threads.log.compaction import as_read, cuts, digest_of, summary_source
from plugins.threads.log.thread_state import ThreadState, fold, refusal
from schemas.events import Message, ThreadEvent
from tests.plugins.threads.conversation import OPEN, SUMMARIZED, Conversations
from tests.support.agent_calls import assistant, system, user

RULE = CompactionRule(over_tokens=10, turns=2, prompt="summary")


def said(questions: int) -> tuple[Message, ...]:
    return tuple(message for number in range(questions) for message in (user(f"q{number}"), assistant(f"a{number}")))


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.content for message in messages]


def grown(runs: int = 3) -> Conversations:
    made = Conversations()
    made.create(OPEN)
    for number in range(runs):
        made.request(number, f"q{number}", OPEN, memory_config=SUMMARIZED, agent_id="calc")
        made.answer(OPEN, f"a{number}")
    return made


def state_of(made: Conversations) -> ThreadState:
    state = made.states[OPEN]
    assert state is not None
    return state


def test_the_last_turns_stay_and_a_call_that_is_too_long_is_made_with_half_of_the_others() -> None:
    assert list(cuts(said(2), RULE, None)) == []
    assert list(cuts(said(6), RULE, None)) == [8, 4, 2]
    assert list(cuts((system("Add."), *said(3)), RULE, None)) == [3]


def test_the_system_message_is_read_before_the_summary_and_is_no_part_of_it() -> None:
    made = grown(2)
    event = made.compact(OPEN)
    assert event is not None
    assert texts(as_read((system("Add."), *said(2)), replace(event, stands_for=3)))[0] == "Add."
    assert texts(summary_source((system("Add."), *said(2)), 3, None)) == ["q0", "a0"]
    assert digest_of((system("Add."), *said(2))) == digest_of(said(2)) != digest_of(said(1))


def test_runs_after_a_summary_read_it_with_the_same_beginning_until_the_next_one() -> None:
    made, beginnings = grown(), []
    made.compact(OPEN, "s1")
    for number in range(3, 5):
        made.request(number, f"q{number}", OPEN, memory_config=SUMMARIZED, agent_id="calc")
        run = made.begun[-1]
        assert run.checkpoint is not None
        beginnings.append(texts(as_read(tuple(one.message for one in run.checkpoint.messages()), run.compaction)))
        made.answer(OPEN, f"a{number}")
    first, second = beginnings
    assert first == ["Summarize our conversation so far.", "s1", "q2", "a2", "q3"]
    assert second[: len(first)] == first
    made.compact(OPEN, "s2")
    made.request(5, "q5", OPEN, memory_config=SUMMARIZED, agent_id="calc")
    state, run = state_of(made), made.begun[-1]
    messages = tuple(one.message for one in state.messages)
    assert texts(as_read(messages, run.compaction)) == [first[0], "s2", "q4", "a4", "q5"]
    assert texts(messages)[:4] == ["q0", "a0", "q1", "a1"]  # the thread keeps what was said


def test_a_run_in_progress_reads_what_was_there_when_it_began() -> None:
    made = grown()
    made.request(3, "q3", OPEN, memory_config=SUMMARIZED, agent_id="calc")
    assert made.compact(OPEN) is not None
    assert state_of(made).runs[made.begun[-1].run_id].compaction is None


def test_a_thread_is_compacted_once_after_each_run_and_not_where_it_has_gone_back() -> None:
    made = grown()
    event = made.compact(OPEN)
    assert event is not None
    assert "already" in (refusal(state_of(made), event) or "")
    earlier = list(state_of(made).head.line())[-2].checkpoint_id
    back = fold(state_of(grown()), replace(_changed(), checkpoint=earlier))
    assert back is not None
    assert "no checkpoint" in (refusal(back, event) or "")
    late = fold(state_of(made), replace(_changed(), checkpoint=earlier))
    assert late is not None and late.compaction_of(late.head) is None


def _changed() -> ThreadEvent:
    return ThreadEvent(event_id="e", thread_id=OPEN, created_at=0, kind="changed", actor="api", messages=(user("x"),))


@given(st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_every_cut_leaves_the_last_turns_and_begins_with_a_question(questions: int, turns: int, first: bool) -> None:
    messages = (*((system("Add."),) if first else ()), *said(questions))
    for cut in cuts(messages, RULE.model_copy(update={"turns": turns}), None):
        assert messages[cut].role == "user" and cut > int(first)
        assert sum(message.role == "user" for message in messages[cut:]) >= turns
