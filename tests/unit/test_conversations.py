"""Which trajectories are remembered, and until when."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.events import Message, Sampling, Turn, derive_id
from schemas.serde import decode, encode
from streams.errors import CallError
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import RETRIED_MS, Conversations, held_bytes
from streams.stages.agents.trajectories import call_chains
from streams.stages.agents.trajectories.call_chains import Chains, Digests
from tests.support.agent_calls import Recorded, assistant, system, user
from tests.support.factories import T0, trajectory, turn


def test_a_trajectory_that_is_forgotten_leaves_nothing_behind_and_takes_nothing_of_another() -> None:
    remembered = Conversations()
    for name in ("r1", "r2"):
        remembered.take(trajectory("started", trajectory_id=name, task_id=name))
        remembered.take(turn(0, trajectory_id=name, task_id=name, request_digest=name * 32))
    remembered.forget(remembered.by_id["r1"])
    kept = Conversations()
    kept.take(trajectory("started", trajectory_id="r2", task_id="r2"))
    kept.take(turn(0, trajectory_id="r2", task_id="r2", request_digest="r2" * 32))
    assert vars(remembered).keys() == vars(kept).keys()
    remembered._forgotten.clear()  # but for its name

    def held(all_of: Conversations) -> dict[str, object]:
        return {name: [*value] if isinstance(value, dict) else value for name, value in vars(all_of).items()}

    assert held(remembered) == held(kept)


def test_a_trajectory_is_not_idle_while_a_turn_of_it_is_not_acknowledged() -> None:
    remembered = Conversations()
    remembered.take(trajectory("started"))
    (known,) = remembered.by_id.values()
    assert list(remembered.idle(T0 * 2, 0)) == [known]
    known.open_calls += 1
    assert list(remembered.idle(T0 * 2, 0)) == []


def asked(retry_key: str | None) -> ModelCall:
    sampling = Sampling(max_tokens=12)
    return ModelCall(
        agent_id="calc",
        model="default",
        protocol="chat",
        sampling=sampling,
        request_digest="d" * 64,
        retry_key=retry_key,
    )


def test_a_retry_without_a_key_gets_a_recent_answer_that_nobody_has_read_to_its_end() -> None:
    remembered, recorded, retry = Conversations(), turn(0), asked("d" * 64)
    remembered.take(recorded)
    last = recorded.created_at + RETRIED_MS
    assert remembered.find_answered(retry, last) == {0: recorded}
    assert remembered.find_answered(retry, last + 1) is None
    remembered.note_given(retry, "another turn")
    assert remembered.find_answered(retry, last) == {0: recorded}
    remembered.note_given(asked(None), recorded.turn_id)
    assert remembered.find_answered(retry, last) is None


def test_a_retry_gets_every_choice_of_a_call_whose_client_left_without_reading_it() -> None:
    remembered, retry = Conversations(), replace(asked("d" * 64), count=2)
    choices = [turn(number, choice=number, request_digest="d" * 64, started_at=T0) for number in (0, 1)]
    for one in choices:
        remembered.take(one)
    for one in choices:
        remembered.note_given(asked(None), one.turn_id)
    assert remembered.find_answered(retry, T0) is None
    remembered.note_unread("another turn")
    assert remembered.find_answered(retry, T0) is None
    remembered.note_unread(choices[0].turn_id)
    assert remembered.find_answered(retry, T0) == dict(enumerate(choices))


def test_an_answer_that_was_not_read_takes_the_place_of_no_newer_one() -> None:
    remembered = Conversations()
    old, new = (saying(name, "hi", "hello", at, started_at=T0 + at) for at, name in enumerate(("r0", "r1")))
    remembered.take(old)
    remembered.note_given(asked(None), old.turn_id)
    remembered.take(new)
    remembered.note_unread(old.turn_id)
    assert remembered.find_answered(replace(asked(None), request_digest=old.request_digest), T0 + 1) == {0: new}
    remembered.note_given(asked(None), new.turn_id)
    remembered.close(remembered.by_id["r0"], "test")
    remembered.note_unread(old.turn_id)
    assert remembered.find_answered(replace(asked(None), request_digest=old.request_digest), T0 + 1) is None


def test_a_key_of_the_client_finds_the_answer_under_that_key_alone() -> None:
    remembered, whole = Conversations(), turn(0)
    keyed = [turn(number, retry_key=key, request_digest="d" * 64) for number, key in enumerate(("k1", "k2"), 1)]
    for one in (whole, *keyed):
        remembered.take(one)
    later = whole.created_at + 10 * RETRIED_MS
    for key, one in zip(("k1", "k2"), keyed, strict=True):
        remembered.note_given(asked(key), one.turn_id)
        assert remembered.find_answered(asked(key), later) == {0: one}
    assert remembered.find_answered(asked("k3"), whole.created_at) is None
    assert remembered.find_answered(asked("d" * 64), whole.created_at) == {0: whole}


def saying(name: str, asked_for: str, reply: str, at: int = 0, **changes: Any) -> Turn:
    """Return the first turn of a trajectory."""
    return turn(
        0,
        turn_id=f"{name} 0",
        trajectory_id=name,
        task_id=name,
        sampling_id=None,
        messages=(user(asked_for),),
        reply=assistant(reply),
        created_at=T0 + at,
        **changes,
    )


def call_with(*messages: Message, **changes: Any) -> ModelCall:
    return replace(asked(None), messages=messages, **changes)


def continued(remembered: Conversations, call: ModelCall) -> str | None:
    conversation = remembered.find_continued(call)
    return None if conversation is None else conversation.trajectory_id


def test_a_new_trajectory_is_of_its_threads_conversation_or_of_the_ended_one_that_it_continues() -> None:
    remembered, about = Conversations(), {"trajectory_id": "first", "task_id": "first", "sampling_id": None}
    remembered.take(saying("first", "4 + 7 =", "11"))

    def conversation(**changes: Any) -> str | None:
        later = call_with(user("4 + 7 ="), assistant("11"), user("and twice that?"), **changes)
        return remembered.conversation_of(later, "p")

    assert conversation() is None, "it is open: the call is a turn of it"
    remembered.take(trajectory(**about))
    assert (conversation(), conversation(trajectory_id="own")) == ("first", None)
    assert conversation(thread="th9") == derive_id("conversation", "th9", "calc", "p")
    remembered.take(trajectory(metadata={"conversation": "before"}, **about))
    assert conversation() == "before"


def test_a_call_continues_the_newest_turn_by_time_whatever_was_read_last() -> None:
    """A server that starts reads partition by partition."""
    runs = [saying(name, "hi", "hello", at) for at, name in enumerate(("r0", "r1", "r2", "r3"))]
    for order in (runs, runs[::-1], [runs[3], *runs[:3]]):
        remembered = Conversations()
        for one in order:
            remembered.take(one)
        assert continued(remembered, call_with(user("hi"), assistant("hello"), user("and?"))) == "r3"


def test_a_retry_gets_the_newest_answer_by_time_whatever_was_read_last() -> None:
    old, new = (saying(name, "hi", "hello", at, started_at=T0 + at) for at, name in enumerate(("r0", "r1")))
    for order in ((old, new), (new, old)):
        remembered = Conversations()
        for one in order:
            remembered.take(one)
        assert remembered.find_answered(replace(asked(None), request_digest=old.request_digest), T0 + 1) == {0: new}


HI, HELLO, AND = user("hi"), assistant("hello "), user("and?")
SUMMARY = user("What was said so far: hi, hello")


@pytest.mark.parametrize(
    "history",
    [
        (system("now 12:01"), HI, HELLO, AND),
        (HI, assistant("hello"), AND),
        (SUMMARY, HI, HELLO, AND),
        (HI, assistant("I have said something else"), HI, HELLO, AND),
    ],
    ids=[
        "another system prompt",
        "a reply that was stripped",
        "a window, behind a summary",
        "a reply that was changed",
    ],
)
def test_a_call_without_a_name_that_repeats_answers_of_one_trajectory_rewrites_it(history: tuple[Message, ...]) -> None:
    remembered = Conversations()
    remembered.take(saying("r1", "hi", "hello "))
    remembered.take(saying("r2", "ho", "hello "))
    assert continued(remembered, call_with(*history)) == "r1"
    assert continued(remembered, call_with(*history, agent_id="other")) is None
    remembered.take(saying("r3", "hi", "hello "))
    placed = continued(remembered, call_with(*history))
    assert placed is None, "it may be of either"
    remembered.forget(remembered.by_id["r3"])
    assert continued(remembered, call_with(*history)) == "r1"
    remembered.by_id["r1"].ended = True
    assert continued(remembered, call_with(*history)) is None


def test_a_call_that_repeats_no_answer_rewrites_nothing() -> None:
    remembered = Conversations()
    remembered.take(saying("r1", "hi", "hello"))
    for history in ((SUMMARY,), (HI, assistant("hullo"), AND), (user("ho"), assistant("hello"), AND), (HI,)):
        assert continued(remembered, call_with(*history)) is None


def asking(history: Sequence[Message], trajectory_id: str | None) -> ModelCall:
    return call_with(*history, trajectory_id=trajectory_id, agent_id="calc")


@pytest.mark.parametrize("name", [None, "r1"], ids=["without a name", "with a name"])
def test_a_call_late_in_a_conversation_digests_as_much_as_an_early_one(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested: list[Message] = []
    digest_of = call_chains._next

    def counting(before: bytes, message: Message) -> bytes:
        digested.append(message)
        return digest_of(before, message)

    monkeypatch.setattr(call_chains, "_next", counting)
    remembered, run, history, counts = Conversations(), Recorded("r1"), [system("You add.")], list[int]()
    for number in range(200):
        history.append(user(f"{number} + 1 ="))
        recorded = run.call(history, agent_id="calc", request_digest=f"{number:064}")
        call = asking(history, name)
        digested.clear()
        conversation = remembered.find_continued(call)
        placed = (Chains() if conversation is None else conversation.chains).place(
            call.messages, call.tools, None, call.digests
        )
        remembered.take(recorded)
        counts.append(len(digested))
        assert placed.continuity == recorded.continuity == ("extends" if number else "first")
        history.append(recorded.reply)
    assert set(counts[20:]) == {counts[20]}, counts


@pytest.mark.parametrize("name", [None, "r1"], ids=["without a name", "with a name"])
def test_a_history_that_is_compared_has_the_digests_of_one_that_is_not(name: str | None) -> None:
    remembered, run = Conversations(), Recorded("r1")
    first = run.call([system("You add."), HI], agent_id="calc", reply=HELLO)
    second = run.call([*run.history(first), AND], agent_id="calc")
    for one in (first, second):
        remembered.take(one)
    whole = run.history(second)
    changed = (*whole[:2], assistant("hello"), *whole[3:])
    for history in (whole, whole[:4], whole[:3], whole[:2], [*whole, AND], whole[1:], changed, [HI], []):
        call, plain = asking(history, name), Digests(tuple(history), ())
        remembered.find_continued(call)
        assert list(call.digests.longest_first()) == list(plain.longest_first())
        assert call.digests.prefixes == plain.prefixes
        assert [call.digests.since(n) for n in range(len(history))] == [plain.since(n) for n in range(len(history))]


def run_of(remembered: Conversations, name: str, *, turns: int = 1, **changes: Any) -> None:
    """Take in a run of no task, and so many turns of it."""
    remembered.take(trajectory("started", trajectory_id=name, task_id=name, sampling_id=None, **changes))
    for number in range(turns):
        remembered.take(
            turn(number, trajectory_id=name, task_id=name, sampling_id=None, request_digest=f"{name} {number}")
        )


def named(trajectory_id: str) -> ModelCall:
    return replace(asked(None), trajectory_id=trajectory_id)


def test_what_is_remembered_stays_within_its_bound_and_what_leaves_is_refused_until_its_end_and_after() -> None:
    remembered = Conversations(most_bytes=5 * held_bytes(turn(0)))
    for name in ("r1", "r2"):
        run_of(remembered, name, turns=2)
    remembered.by_id["r2"].ended = True
    remembered.take(turn(2, trajectory_id="r1", task_id="r1", sampling_id=None))
    run_of(remembered, "r3")
    assert remembered.nbytes <= 5 * held_bytes(turn(0)) and remembered.evicted == 1
    assert [*remembered.by_id] == ["r1", "r3"], "r2 was used before r1, and had ended"
    run_of(remembered, "r4", turns=2)
    closed = remembered.by_id["r1"]
    assert (closed.closed is not None, closed.number, closed.ended) == (True, 3, False)
    assert [*remembered.idle(0, 0)] == [closed], "it is to end"
    for name in ("r1", "r2"):
        with pytest.raises(CallError, match=rf"trajectory {name} .* remembered no longer") as refused:
            remembered.find_continued(named(name))
        assert refused.value.kind == "conflict"
    assert remembered.find_continued(named("r3")) is remembered.by_id["r3"]
    remembered.forget(closed)
    with pytest.raises(CallError, match="remembered no longer"):
        remembered.find_continued(named("r1"))
    remembered.take(turn(3, trajectory_id="r1", task_id="r1", sampling_id=None))
    assert "r1" not in remembered.by_id


def test_the_longest_unused_does_not_leave_while_it_is_needed() -> None:
    remembered = Conversations(most_bytes=3 * held_bytes(turn(0)))
    run_of(remembered, "called")
    remembered.by_id["called"].open_calls = 1
    remembered.take(trajectory("started", trajectory_id="of a task", task_id="t1"))
    remembered.take(turn(0, trajectory_id="of a task", task_id="t1"))
    for name in ("r1", "r2"):
        run_of(remembered, name)
    assert {name for name, known in remembered.by_id.items() if known.closed is not None} == {"r1"}


def test_a_trajectory_that_began_long_ago_is_known_by_its_name_once_it_has_ended() -> None:
    remembered = Conversations()
    for name in ("open", "over"):
        remembered.restore(trajectory("started", trajectory_id=name, task_id=name, sampling_id=None), T0 + 1)
    remembered.restore(trajectory("ended", trajectory_id="over", task_id="over", sampling_id=None), T0 + 1)
    remembered.take(turn(6, trajectory_id="open", task_id="open", sampling_id=None))
    [known] = remembered.idle(T0, T0 + 1)
    assert (known.trajectory_id, known.number, known.closed) == ("open", 7, None)
    assert remembered.find_continued(named("open")) is known, "a run that waits for a person may be as old"
    with pytest.raises(CallError, match="remembered no longer"):
        remembered.find_continued(named("over"))


def test_what_a_turn_is_said_to_take_is_what_it_takes() -> None:
    said, runs = "What is 47 * 83? " * 60, []
    for number in range(30):
        run, history = Recorded(f"run {number}"), [user(said)]
        for place in range(4):
            last = run.call(history, agent_id="calc", request_digest=f"{number} {place}" * 8)
            history = [*run.history(last), user(f"{place} {said}")]
        runs += [encode(one) for one in run.turns]
    remembered = Conversations()
    tracemalloc.start()
    for payload in runs:
        event = decode(payload, Turn)
        assert isinstance(event, Turn)
        remembered.take(event)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 < remembered.nbytes / taken < 1.25


def test_a_retry_within_a_run_gets_that_runs_answer_though_its_siblings_ask_the_same() -> None:
    remembered = Conversations()
    runs = [turn(0, trajectory_id=name, task_id="t1", slot=slot) for slot, name in enumerate(("r1", "r2"))]
    for one in runs:
        remembered.take(one)
    at = runs[0].created_at
    retries = [
        replace(asked("d" * 64), trajectory_id=name, request_digest=runs[0].request_digest) for name in ("r1", "r2")
    ]
    retries = [replace(one, retry_key=one.request_digest) for one in retries]
    assert [remembered.find_answered(one, at) for one in retries] == [{0: one} for one in runs]
    remembered.note_given(retries[0], runs[0].turn_id)
    assert [remembered.find_answered(one, at) for one in retries] == [None, {0: runs[1]}]
