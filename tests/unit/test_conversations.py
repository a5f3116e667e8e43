"""Which trajectories are remembered, and until when."""

from __future__ import annotations

from schemas.events import Sampling
from streams.stages.agents.calls import ModelCall
from streams.stages.agents.conversations import RETRIED_MS, Conversations
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
    assert {name: set(value) for name, value in vars(remembered).items()} == {
        name: set(value) for name, value in vars(kept).items()
    }


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
    assert remembered.answered(retry, last) == {0: recorded}
    assert remembered.answered(retry, last + 1) is None
    remembered.given(retry, "another turn")
    assert remembered.answered(retry, last) == {0: recorded}
    remembered.given(asked(None), recorded.turn_id)
    assert remembered.answered(retry, last) is None


def test_a_key_of_the_client_finds_the_answer_under_that_key_alone() -> None:
    remembered, whole = Conversations(), turn(0)
    keyed = [turn(number, retry_key=key, request_digest="d" * 64) for number, key in enumerate(("k1", "k2"), 1)]
    for one in (whole, *keyed):
        remembered.take(one)
    later = whole.created_at + 10 * RETRIED_MS
    for key, one in zip(("k1", "k2"), keyed, strict=True):
        remembered.given(asked(key), one.turn_id)
        assert remembered.answered(asked(key), later) == {0: one}
    assert remembered.answered(asked("k3"), whole.created_at) is None
    assert remembered.answered(asked("d" * 64), whole.created_at) == {0: whole}
