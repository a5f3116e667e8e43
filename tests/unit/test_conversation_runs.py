"""Runs of a conversation as one trajectory, and the recount of conversations."""

from __future__ import annotations

from dataclasses import replace

from schemas.conventions import CONVERSATION
from schemas.events import TrajectoryEvent, Turn, derive_id
from streams.stages.agents.trajectories.fold import fold
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.query.conversation_runs import join_runs
from tests.support.log.whole_run import SETTINGS, Written, ends
from tests.support.talks import calls, served, talk


def test_a_run_that_begins_with_the_tokens_of_the_runs_before_it_continues_their_chain() -> None:
    turns = calls(talk("one", "two", "three"))
    joined = join_runs([fold([turn]) for turn in turns], None)
    (chain,) = joined.chains
    assert [turn.reply.content for turn in chain.turns] == ["one", "two", "three"]
    assert [turn.messages[-1].content for turn in chain.turns] == ["question 0", "question 1", "question 2"]
    whole = b"".join(part.prompt_token_ids.data + part.completion_token_ids.data for part in chain.turns)
    assert whole == turns[2].prompt_token_ids.data + turns[2].completion_token_ids.data


def test_a_run_with_other_tokens_is_a_chain_of_its_own_and_every_answer_is_owned_once() -> None:
    turns = calls(talk("one", "two", same_tokens=False))
    joined = join_runs([fold([turn]) for turn in turns], None)
    assert [[turn.reply.content for turn in chain.turns] for chain in joined.chains] == [["two"], ["one"]]
    assert joined.calls_in_chains == 2


def test_a_late_turn_of_a_run_is_not_joined() -> None:
    _, turn, ended = talk("one")[0]
    assert isinstance(turn, Turn) and isinstance(ended, TrajectoryEvent)
    late = replace(turn, turn_id="late", number=1)
    joined = join_runs([fold([turn, late], ended)], None)
    assert [step.turn.turn_id for step in joined.steps] == [turn.turn_id]


# --- the recount ------------------------------------------------------------------------------------------------------


def findings(**conversations: str) -> list[str]:
    """Return what the audit finds of a thread of two runs; `conversations`: what the second's start or end names."""
    thread = derive_id(CONVERSATION, "th9", "red.calc", "default")
    log = Written()
    for place, run in enumerate(talk("one", "two")):
        for event in run:
            if isinstance(event, TrajectoryEvent):
                named = conversations.get(event.kind, thread) if place else thread
                log.write(replace(event, metadata={CONVERSATION: named}), place)
            else:
                log.write(event, place)
    report = recount(log.records, SETTINGS, Reach(ends=ends(log.records), settled=True))
    assert report.plain()["conversations"] == len({thread, conversations.get("started", thread)})
    return [f"{finding.category}: {finding.what}" for finding in report.wrong]


def test_the_runs_of_a_thread_are_a_conversation_that_balances() -> None:
    assert findings() == []


def test_a_run_with_another_conversation_than_its_thread_is_named() -> None:
    both = findings(started="another", ended="another")
    assert both == ["contradictory: its conversation is not that of thread th9"]
    assert "contradictory: the beginning and the end of run run1 name two conversations" in findings(started="another")


def test_a_run_that_continues_one_that_is_not_in_the_log_is_named() -> None:
    log = Written()
    for event in talk("one")[0]:
        metadata = {CONVERSATION: "gone"} if isinstance(event, TrajectoryEvent) else {}
        log.write(replace(event, metadata=metadata), 0)
    report = recount(log.records, SETTINGS, Reach(ends=ends(log.records), settled=True))
    assert [finding.what for finding in report.wrong] == ["it continues run gone, which is not before it"]


def wrong_of_tasks(*replies: str, named: str | None = None, **changes: str) -> tuple[int, list[str]]:
    """Return the number of conversations in the recount of served tasks, and what it says of them.

    `named`: the conversation that the last run names.
    """
    log = Written()
    for place, run in enumerate(served(*replies, **changes)):
        for event in run:
            is_changed = named is not None and place == len(replies) - 1 and isinstance(event, TrajectoryEvent)
            log.write(replace(event, metadata={CONVERSATION: named} if named else {}) if is_changed else event, place)
    report = recount(log.records, SETTINGS, Reach(ends=ends(log.records), settled=True))
    wrong = [finding.what for finding in report.wrong if "trajectories" in finding.at.topic]
    return report.plain()["conversations"], wrong


def test_served_tasks_of_a_thread_are_a_conversation_that_balances() -> None:
    assert wrong_of_tasks("one", "two") == (1, [])


def test_the_run_of_a_task_with_another_conversation_than_its_thread_is_named() -> None:
    thread = f"red.{derive_id('thread', 'case 17')}"
    told = [f"its conversation is not that of thread {thread}"]
    assert wrong_of_tasks("one", "two", named="another") == (2, told)
    assert wrong_of_tasks("one", "two", named="") == (1, told)
    alone = "it is in a conversation, and its task is not served to it alone"
    assert wrong_of_tasks("one", named="another", purpose="eval") == (0, [alone, alone])
    assert wrong_of_tasks("one", named="gone", thread="") == (1, ["it continues run gone, which is not before it"])
