"""The audit counts an agent's turns, and names the one that is lost, doubled or changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.events import Response, TrajectoryEvent, Turn
from streams.kafka.record import partition_of
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import response_of
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from tests.support.agent_calls import Recorded, user
from tests.support.factories import T0, changed, trajectory
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends, named, recounted


def run() -> tuple[list[Turn], TrajectoryEvent, TrajectoryEvent]:
    """Return a run of three turns, its beginning and its end."""
    made = Recorded()
    for question in ("4 + 7 =", "and 5?", "and 6?"):
        history = made.history(made.turns[-1]) if made.turns else []
        made.call([*history, user(question)])
    return made.turns, trajectory("started"), trajectory(turns=3)


def test_a_whole_run_balances_and_is_counted() -> None:
    turns, started, ended = run()
    report = recounted(started, *turns, ended)
    assert named(report) == "" and report.balanced
    assert (report.counts["turns"], report.counts["trajectories"]) == (3, 1)
    assert ("trajectories", "1 = 1 ended + 0 open", True) in report.equations()
    assert (report.plain()["turns"], report.plain()["trajectories"]) == (3, 1)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_turn_that_its_end_counts_and_that_is_not_there_is_lost(gone: int) -> None:
    turns, started, ended = run()
    report = recounted(started, *turns[:gone], *turns[gone + 1 :], ended, settled=False)
    assert f"turn {gone} of this trajectory is not in turns" in named(report)


def test_a_number_that_is_missing_below_another_is_lost_while_the_run_goes_on() -> None:
    turns, started, _ = run()
    report = recounted(started, turns[0], turns[2], settled=False)
    assert [found.category for found in report.wrong] == ["lost", "phantom"]
    assert report.in_flight["trajectories"] == 1


def test_an_answer_that_an_end_names_and_that_is_not_there_is_a_phantom() -> None:
    turns, started, ended = run()
    named_turn = changed(ended, answer_turn=turns[1].turn_id)
    assert recounted(started, *turns, named_turn).balanced
    report = recounted(started, *turns, changed(ended, answer_turn="nobody"))
    assert "its answer is turn nobody, which is not in turns" in named(report)


def test_two_turns_with_one_number_are_doubled_and_a_copy_is_a_repetition() -> None:
    turns, started, ended = run()
    report = recounted(started, *turns, turns[1], replace(turns[1], turn_id="another"), ended)
    at = f"{TOPICS['turns'].name}[{partition_of('t1', SETTINGS.topics.partitions)}]@1"
    assert [found.category for found in report.wrong] == ["doubled"]
    assert [found.what for found in report.of("repeated")] == [f"it repeats {at}"]


def test_a_turn_with_another_answer_under_a_known_id_is_named() -> None:
    turns, started, ended = run()
    report = recounted(started, *turns, replace(turns[1], reply=turns[0].reply), ended)
    assert [found.category for found in report.wrong] == ["contradictory"]


def test_a_turn_after_the_end_is_late_and_nobodys_mistake() -> None:
    turns, started, _ = run()
    report = recounted(started, *turns, trajectory(turns=2))
    assert report.balanced and [found.category for found in report.findings] == ["late"]


def test_tokens_that_are_not_those_of_the_parents_are_named() -> None:
    turns, started, ended = run()
    report = recounted(started, turns[0], replace(turns[1], prompt_tokens=7), turns[2], ended)
    assert "its prompt had 7 tokens, and the log has 8" in named(report)


def test_a_run_without_a_beginning_or_without_an_end_is_named_once_nothing_is_in_flight() -> None:
    turns, started, ended = run()
    assert "the beginning of its trajectory is not in trajectories" in named(recounted(*turns, ended))
    assert "the end of this trajectory is not in trajectories" in named(recounted(started, *turns))
    assert recounted(started, *turns, settled=False).balanced


def test_a_conversation_that_is_no_tasks_may_stay_open() -> None:
    _, started, _ = run()
    alone = replace(started, sampling_id=None, slot=None, group_size=None)
    report = recounted(alone)
    assert report.balanced and report.in_flight["trajectories"] == 1


def response_to(turns: list[Turn], ended: TrajectoryEvent) -> Response:
    return response_of(fold(turns, ended), ended)


def test_a_response_whose_turns_are_in_the_log_balances() -> None:
    turns, started, ended = run()
    assert named(recounted(started, *turns, ended, response_to(turns, ended), settled=False)) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"number": 7}, "turn 7 of it is not in turns"),
        ({"number": 0}, "it has turn 0 2 times"),
        ({"end": 6}, "turn 1 of it has 1 tokens, and 2 in the log"),
        ({"observation": "d" * 64}, f"turn 1 of it was shown {'d' * 64}, and None in the log"),
    ],
)
def test_a_turn_of_a_response_that_is_not_the_one_in_the_log_is_named(change: dict[str, Any], says: str) -> None:
    turns, started, ended = run()
    response = response_to(turns, ended)
    first, second, third = response.turns
    wrong = replace(response, turns=(first, replace(second, **change), third))
    assert says in named(recounted(started, *turns, ended, wrong, settled=False))


def test_a_turn_that_a_response_leaves_out_although_another_continues_it_is_named() -> None:
    turns, started, ended = run()
    response = response_to(turns, ended)
    first, _, third = response.turns
    found = named(recounted(started, *turns, ended, replace(response, turns=(first, third)), settled=False))
    assert "it is made of 3 model calls, and has 2 turns" in found
    assert "it has turn 2, and not turn 1, which that continues" in found


def test_a_response_without_its_run_is_not_compared() -> None:
    """An experiment has the responses of the log that it replays, and no turns."""
    turns, _, ended = run()
    assert "turn" not in named(recounted(response_to(turns, ended), settled=False))


def test_what_is_no_turn_is_named() -> None:
    log = Written()
    log.write(b"no event", T0, label="turns", key=b"t1")
    report = recount(log.records, SETTINGS, Reach(ends=ends(log.records)))
    assert "it is not a turn" in named(report)
