"""Which trajectories are remembered, and until when."""

from __future__ import annotations

from streams.stages.agents.conversations import Conversations
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
