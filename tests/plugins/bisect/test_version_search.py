"""Where a behaviour begins is found by comparisons that may be looked at again and again."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from plugins.bisect.behaviour import GroupPlace, TaughtResponse
from plugins.bisect.bisection import outcome_of
from plugins.bisect.taught_groups import by_batch, most_taught, rank_groups
from plugins.bisect.version_search import Mark, Turning, VersionSearch
from streams.evaluation.sequential import ConfidenceSequence

SIZE, ROUND, MOST = 4, 16, 800
"""Answers to a question; questions between two looks, and in all."""


def search_with(share: Callable[[int], float], seed: int, *, most: int = MOST) -> VersionSearch:
    """Search for the turning version of drawn answers, and ask versions until they have `most` questions."""
    rng = random.Random(seed)
    search = VersionSearch(good=4, bad=20, least_rise=0.1)
    asked: dict[int, int] = {}

    def ask(version: int) -> None:
        for number in range(asked.get(version, 0), asked.get(version, 0) + ROUND):
            marks = (Mark(version, str(number), rng.random() < share(version)) for _ in range(SIZE))
            search.shares.add("sampled", marks)
        asked[version] = asked.get(version, 0) + ROUND

    while (version := search.next()) is not None:
        while search.look(version) == "open" and asked.get(version, 0) < most:
            ask(version)
            if asked.get(search.good, 0) < asked[version]:
                ask(search.good)
    return search


@pytest.mark.parametrize("turning", [5, 6, 11, 19, 20])
def test_the_first_version_with_more_is_found(turning: int) -> None:
    search = search_with(lambda version: 0.4 if version >= turning else 0.08, turning)
    assert search.turning == Turning(turning, turning)
    assert len(search.order) <= 6, "a bisection looks at few versions"


def test_without_a_change_nothing_is_found_in_nineteen_of_twenty_runs() -> None:
    found = [search_with(lambda version: 0.15, seed).turning for seed in range(60)]
    assert sum(turning is not None for turning in found) <= 3


def test_versions_that_cannot_be_told_apart_are_an_interval() -> None:
    search = search_with(lambda version: {11: 0.13, 12: 0.13}.get(version, 0.5 if version > 12 else 0.08), 1, most=48)
    assert search.turning is not None
    assert search.turning.first <= 11 and search.turning.last == 13


def test_too_few_answers_of_the_bad_version_find_nothing() -> None:
    search = search_with(lambda version: 0.4 if version >= 9 else 0.08, 0, most=0)
    assert search.turning is None and search.findings == {20: "open"}


def test_a_rise_that_is_too_small_to_matter_is_none() -> None:
    search = search_with(lambda version: 0.1 if version >= 9 else 0.09, 3)
    assert search.findings[20] == "not" and search.turning is None


def test_groups_are_ranked_by_the_advantages_of_the_answers_that_show_it() -> None:
    def taught(version: int, task: str, **advantages: float) -> list[TaughtResponse]:
        place = GroupPlace(version, version - 1, f"g-{task}", task, 0, ord(task))
        return [TaughtResponse(place, name, advantage) for name, advantage in advantages.items()]

    responses = [*taught(8, "a", a1=3.0, a2=-1.0), *taught(9, "b", b1=2.0, b2=-2.0), *taught(9, "c", c1=0.5, c2=-0.5)]
    shows = {"a1": True, "b1": True, "b2": True, "c2": True}
    groups = rank_groups(responses, shows)
    assert [(group.place.task_id, group.showing, group.taught) for group in groups] == [
        ("a", 1, 1.5),
        ("b", 2, 0.0),
        ("c", 1, -0.25),
    ]
    assert [(batch.version, batch.groups, batch.taught) for batch in by_batch(groups)] == [(8, 1, 1.5), (9, 2, -0.125)]
    assert most_taught(groups, (9, 9), 10) == [], "only groups on the way that taught it"
    assert most_taught(groups, (8, 9), 10) == groups[:1]


@pytest.mark.parametrize(
    ("to_turning", "to_good", "outcome"),
    [((-0.3, -0.1), (-0.05, 0.04), "gone"), ((-0.3, -0.1), (0.05, 0.4), "less"), ((-0.05, 0.1), (0.1, 0.4), "remains")],
)
def test_a_counterfactual_is_compared_with_both(
    to_turning: tuple[float, float], to_good: tuple[float, float], outcome: str
) -> None:
    first, second = (ConfidenceSequence(sum(ends) / 2, *ends) for ends in (to_turning, to_good))
    assert outcome_of(first, second, 0.1) == outcome
    assert outcome_of(None, second, 0.1) == outcome_of(first, None, 0.1) == "open"
