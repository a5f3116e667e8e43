"""What the commands about adapters decide before they write: where a roll-back leads, what may go, what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.conventions import FRAMEWORK, FRAMEWORK_VERSION, TRAINED_BY
from schemas.events import AdapterEvent, AdapterFile, AdapterKind, Coordinates, derive_id
from streams.adapters.decisions import AdapterHistory, rollback_target
from streams.adapters.retention import measure, plan
from streams.adapters.versions import AdapterState
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.tools.lineage import difference, parents
from tests.support.factories import adapter_event, state_after, trained

SUITE = "sums/n=64/seed=1"
ME = {"actor": "ada", "reason": "it is worse"}


def event(version: int, kind: AdapterKind = "trained", **changed: Any) -> AdapterEvent:
    """Return an event of policy p. The same decision by somebody else, or for another reason, has an id of its own."""
    if kind == "trained":
        return trained(version, policy="p", **{"base_digest": "b"} | changed)
    own_id = derive_id(version, kind, *map(str, sorted(changed.items())))
    return adapter_event(kind, version, policy="p", event_id=own_id, **changed)


def evaluated(version: int, exact: float, suite: str = SUITE) -> AdapterEvent:
    return event(version, "evaluated", suite=suite, metrics={"n": 64.0, "exact": exact})


def life_of(*events: AdapterEvent) -> AdapterHistory:
    state = state_after(events)
    assert state.refused == ()
    written = tuple((Coordinates("adapters", 0, offset), one) for offset, one in enumerate(events))
    made = {one.version: (at, one) for at, one in written if one.kind == "trained"}
    return AdapterHistory(state, ("adapters", 0), len(events), written, made)


def promoted_up_to(last: int) -> list[AdapterEvent]:
    """Versions 1 to `last`, each promoted after the one before."""
    pairs = ((event(n), event(n, "promoted", expected_version=n - 1)) for n in range(1, last + 1))
    return [one for pair in pairs for one in pair]


# --- where a roll-back leads ------------------------------------------------------------------------------------------


def test_a_roll_back_leads_to_the_primary_before_and_the_next_one_further_back() -> None:
    events = promoted_up_to(3)
    assert rollback_target(life_of(*events), 3, **ME) == 2
    events.append(event(2, "rolled_back", expected_version=3))
    assert rollback_target(life_of(*events), 2, **ME) == 1
    events.append(event(1, "rolled_back", expected_version=2))
    assert rollback_target(life_of(*events), 1, **ME) == 0


def test_the_same_roll_back_said_again_leads_to_where_it_led() -> None:
    back = event(2, "rolled_back", expected_version=3, **ME)
    assert rollback_target(life_of(*promoted_up_to(3), back), 3, **ME) == 2


def test_a_copy_of_an_old_roll_back_is_not_taken_for_the_last_one() -> None:
    # the log may hold a record twice: the copy changed nothing, so it cannot be what this state came of
    first = event(2, "rolled_back", expected_version=3, **ME)
    again = event(3, "promoted", expected_version=2, reason="once more")
    after = [again, event(2, "rolled_back", expected_version=3, actor="bob")]
    life = life_of(*promoted_up_to(3), first, *after, first)
    with pytest.raises(RefusedError, match="it is 2"):
        rollback_target(life, 3, **ME)


def test_the_roll_back_of_somebody_else_is_not_taken_for_ones_own() -> None:
    back = event(2, "rolled_back", expected_version=3, actor="bob", reason="it is worse")
    with pytest.raises(RefusedError, match="expected version 3 to be primary, and it is 2; look again"):
        rollback_target(life_of(*promoted_up_to(3), back), 3, **ME)


def test_a_version_that_is_retired_is_passed_over() -> None:
    assert rollback_target(life_of(*promoted_up_to(3), event(2, "retired")), 3, **ME) == 1


def test_there_is_nothing_behind_the_base_model() -> None:
    with pytest.raises(RefusedError, match="none that was before it can be again"):
        rollback_target(life_of(event(1)), 0, **ME)


# --- what may go ------------------------------------------------------------------------------------------------------


def going(state: AdapterState, *, best: int, primaries: int = 0) -> set[int]:
    return {
        fate.version.version
        for fate in plan(state, best=best, primaries=primaries, by=measure(state, None))
        if fate.goes
    }


def four_versions() -> AdapterState:
    """Version 2 was primary, 4 is, and 1 did best."""
    scores = [evaluated(version, exact) for version, exact in ((1, 0.9), (2, 0.8), (3, 0.7), (4, 0.6))]
    moves = [event(2, "promoted", expected_version=0), event(4, "promoted", expected_version=2)]
    return life_of(*(event(version) for version in (1, 2, 3, 4)), *scores, *moves).state


@pytest.mark.parametrize(
    ("best", "primaries", "gone"),
    [(0, 0, {1, 2, 3}), (1, 0, {2, 3}), (2, 0, {3}), (0, 1, {1, 3}), (1, 1, {3}), (9, 0, set())],
)
def test_the_primary_those_before_it_and_the_best_stay(best: int, primaries: int, gone: set[int]) -> None:
    assert going(four_versions(), best=best, primaries=primaries) == gone


def test_the_base_model_never_goes() -> None:
    assert 0 not in {fate.version.version for fate in plan(four_versions(), best=0, primaries=0, by=None)}


def test_what_nobody_has_decided_about_stays() -> None:
    state = life_of(*promoted_up_to(1), event(2), event(3), event(3, "rejected")).state
    fates = {fate.version.version: fate for fate in plan(state, best=0, primaries=0, by=None)}
    assert {version: fate.goes for version, fate in fates.items()} == {1: False, 2: False, 3: True}
    assert "nobody has decided" in fates[2].reason
    assert fates[3].reason == "was rejected"


def test_what_was_trained_elsewhere_stays_until_somebody_retires_it() -> None:
    """Whoever reproduces or trains on starts from its files, and nothing makes them again."""
    who = {FRAMEWORK: "verl", FRAMEWORK_VERSION: "0.9", TRAINED_BY: "ann"}
    events = [event(1), event(2, recipe=who), event(3), event(3, "promoted", expected_version=0)]
    fates = {fate.version.version: fate for fate in plan(life_of(*events).state, best=0, primaries=0, by=None)}
    assert {version: fate.goes for version, fate in fates.items()} == {1: True, 2: False, 3: False}
    assert fates[2].reason == "was trained elsewhere (verl 0.9, by ann), so it cannot be made again"
    assert going(life_of(*events, event(2, "retired")).state, best=0) == {1, 2}


def test_the_candidate_stays() -> None:
    start = event(1, "canary_started", expected_version=2, share=0.1)
    state = life_of(event(1), event(2), event(2, "promoted", expected_version=0), start).state
    assert going(state, best=0) == set()


@pytest.mark.parametrize("kind", ["retired", "rejected"])
def test_what_can_serve_no_more_holds_no_place_among_the_best(kind: AdapterKind) -> None:
    # one that wins on average and fails a scenario is rejected with the best score of all
    events = [event(version) for version in (1, 2, 3)]
    scores = [evaluated(1, 0.9), evaluated(2, 0.8)]
    moves = [event(1, kind), event(3, "promoted", expected_version=0)]
    state = life_of(*events, *scores, *moves).state
    assert going(state, best=1) == {1}


def test_of_equal_scores_the_newer_version_stays() -> None:
    events = [*(event(version) for version in (1, 2, 3)), evaluated(1, 0.5), evaluated(2, 0.5)]
    assert going(life_of(*events, event(3, "promoted", expected_version=0)).state, best=1) == {1}


def test_what_was_never_evaluated_goes_and_says_so() -> None:
    state = life_of(event(1), event(2), event(2, "promoted", expected_version=0), evaluated(2, 0.5)).state
    (fate,) = [fate for fate in plan(state, best=5, primaries=0, by=(SUITE, "exact")) if fate.goes]
    assert (fate.version.version, fate.reason) == (1, f"was never evaluated by exact of {SUITE}")


def test_every_fate_says_why() -> None:
    why = {
        fate.version.version: fate.reason for fate in plan(four_versions(), best=1, primaries=1, by=(SUITE, "exact"))
    }
    assert why == {
        1: f"number 1 by exact of {SUITE}",
        2: "was primary, for a roll-back",
        3: f"number 3 by exact of {SUITE}",
        4: "is primary",
    }


def test_the_measure_is_named_if_there_are_several() -> None:
    state = life_of(event(1), evaluated(1, 0.5), evaluated(1, 0.7, "other")).state
    assert measure(state, "other/exact") == ("other", "exact")
    assert measure(state, f"{SUITE}/n") == (SUITE, "n")
    with pytest.raises(SettingsError, match=f"say which one ranks the versions, e.g. --by {SUITE}/exact"):
        measure(state, None)
    with pytest.raises(SettingsError, match=r"--by other/loss: no version was evaluated so; expected one of"):
        measure(state, "other/loss")


# --- where a version comes from ---------------------------------------------------------------------------------------


def test_the_line_of_a_version_goes_down_to_the_base_model() -> None:
    life = life_of(event(1), event(2), event(3, parent_version=1))
    assert parents(life, 3) == [3, 1, 0]
    assert parents(life, 0) == [0]
    with pytest.raises(NotFoundError, match="no adapter version 4; the newest is 3"):
        parents(life, 4)


def test_the_line_ends_where_the_log_knows_no_parent() -> None:
    assert parents(life_of(event(1), event(2, parent_version=None)), 2) == [2]


def file(sha256: str) -> tuple[AdapterFile, ...]:
    return (AdapterFile(path="adapter_model.safetensors", sha256=sha256, bytes=7),)


def test_a_difference_names_what_differs_and_the_batches_between() -> None:
    one = event(1, recipe={"loss": "dapo", "seed": "0"}, metrics={"loss": 0.5}, files=file("aa"))
    three = event(3, recipe={"loss": "grpo", "seed": "0", "beta": "0.1"}, metrics={"loss": 0.4}, files=file("bb"))
    found = difference(life_of(one, event(2), three, evaluated(3, 0.5)), 1, 3)
    assert found["recipe"] == {"loss": ["dapo", "grpo"], "beta": [None, "0.1"]}
    assert found["metrics"] == {"loss": [0.5, 0.4]}
    assert found["held_out"] == {SUITE: {"exact": [None, 0.5], "n": [None, 64.0]}}
    assert found["batches_between"] == {"first": 1, "last": 2, "count": 2}
    assert found["common_parent"] == 1
    assert found["files"]["adapter_model.safetensors"] == {"bytes": [7, 7], "sha256": ["aa", "bb"], "same": False}


def test_versions_of_two_branches_have_no_batches_between_them() -> None:
    life = life_of(event(1), event(2), event(3, parent_version=1))
    found = difference(life, 2, 3)
    assert (found["batches_between"], found["common_parent"]) == (None, 1)


def test_a_version_differs_from_the_base_model_in_all_of_it() -> None:
    found = difference(life_of(event(1, recipe={"loss": "dapo"}, files=file("aa"))), 0, 1)
    assert found["recipe"] == {"loss": [None, "dapo"]}
    assert found["batches_between"] == {"first": 0, "last": 0, "count": 1}
    assert found["files"]["adapter_model.safetensors"]["sha256"] == [None, "aa"]


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_tensors_are_compared_by_relative_change_largest_first(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from trainer.versions.differences import relative_changes

    for name, tensors in {
        "one": {"same": torch.ones(2, 2), "moved": torch.tensor([3.0, 4.0]), "zero": torch.zeros(2)},
        "other": {
            "same": torch.ones(2, 2),
            "moved": torch.tensor([3.0, 4.5]),
            "zero": torch.ones(2),
            "new": torch.ones(1),
        },
    }.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
    changes = relative_changes(tmp_path / "one", tmp_path / "other")
    assert [(change.tensor, change.relative) for change in changes] == [
        ("new", None), ("zero", None), ("moved", 0.1), ("same", 0.0),
    ]  # fmt: skip
    assert changes[2].norm == 5.0
