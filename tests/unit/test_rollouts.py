"""rollouts: which version serves; and the fold of adapter events that rests on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import AdapterEvent, AdapterFile
from streams.adapters import serving, versions as adapters
from streams.stages.rollouts import rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutState
from tests.support import factories
from tests.support.factories import adapter_event, state_after
from tests.support.thoroughness import examples

event = partial(adapter_event, policy="p")
trained = partial(factories.trained, policy="p")


class Log:
    """The `adapters` partition with the stage at its end: what it writes is read again, in order."""

    def __init__(self) -> None:
        self.events: list[AdapterEvent] = []
        self.rollout = RolloutState()
        self.read = 0

    def append(self, *events: AdapterEvent) -> Log:
        self.events += events
        return self

    def settle(self) -> Log:
        while self.read < len(self.events):
            self.rollout, made = rollouts.reduce(self.rollout, self.events[self.read])
            self.rollout = rollouts.load(rollouts.dump(self.rollout))
            self.events += made
            self.read += 1
        return self


# --- the fold ---------------------------------------------------------------------------------------------------------


def test_a_policy_nobody_trained_serves_the_base_model() -> None:
    state = adapters.empty("p")
    assert (state.primary, state.newest, state.versions[0].status) == (0, 0, "primary")


def test_the_fold_keeps_what_an_agent_needs_to_load_a_version() -> None:
    files = (AdapterFile(path="adapter.safetensors", sha256="0" * 64, bytes=1),)
    version = state_after([trained(1, files=files, parent_version=0)]).versions[1]
    assert (version.status, version.uri, version.files, version.parent_version) == ("trained", "/store/p/1", files, 0)


def test_the_first_event_of_an_id_wins() -> None:
    first, second = trained(1), trained(1, metrics={"loss": 1.0})
    state = state_after([first, second])
    assert (state.versions[1].metrics, state.refused) == ({}, ())


def test_the_base_model_cannot_be_retired() -> None:
    state = state_after([trained(1), event("promoted", 1, expected_version=0), event("retired", 0)])
    assert (state.versions[0].status, [refused.reason[:9] for refused in state.refused]) == (
        "superseded",
        ["version 0"],
    )


def test_a_canary_that_is_rejected_when_its_primary_was_replaced_meanwhile_is_not_rejected() -> None:
    begun = [trained(1), trained(2), event("canary_started", 1, expected_version=0, share=0.5)]
    replaced = event("promoted", 2, expected_version=0)
    assert state_after([*begun, replaced, event("rejected", 1, expected_version=0)]).versions[1].status == "trained"
    assert state_after([*begun, replaced, event("rejected", 1)]).versions[1].status == "rejected"


def test_a_promotion_that_expected_another_primary_changes_nothing_and_is_listed() -> None:
    events = [
        trained(1),
        trained(2),
        event("promoted", 1, expected_version=0),
        event("promoted", 2, expected_version=0),
    ]
    state = state_after(events)
    assert (state.primary, [refused.event.version for refused in state.refused]) == (1, [2])
    assert "expected version 0 to be primary, and it is 1" in state.refused[0].reason


def test_a_promotion_without_an_expectation_is_refused() -> None:
    assert state_after([trained(1), event("promoted", 1)]).primary == 0


def test_a_second_copy_of_a_promotion_does_not_act_when_the_old_primary_is_back() -> None:
    promotion = event("promoted", 1, expected_version=0)
    back = event("rolled_back", 0, expected_version=1)
    assert state_after([trained(1), promotion, back, promotion]).primary == 0


def test_a_rollback_puts_the_older_version_in_force_and_takes_the_newer_off_the_list() -> None:
    events = [trained(1), event("promoted", 1, expected_version=0), event("rolled_back", 0, expected_version=1)]
    state = state_after(events)
    assert (state.primary, state.primaries, state.versions[1].status) == (0, (0,), "rolled_back")


def test_a_rejected_version_is_never_promoted() -> None:
    state = state_after([trained(1), event("rejected", 1), event("promoted", 1, expected_version=0)])
    assert (state.primary, state.versions[1].status) == (0, "rejected")


def test_a_version_out_of_turn_is_none_and_leaves_its_number_to_the_true_one() -> None:
    state = state_after([trained(1), trained(3, uri="/forged"), trained(2)])
    assert (state.newest, sorted(state.versions), list(state.strays)) == (2, [0, 1, 2], [3])
    assert state.strays[3].reason.startswith("version 3 is not the next one after 1")
    state = state_after([trained(1), trained(3, uri="/forged"), trained(2), trained(3)])
    assert (state.newest, state.versions[3].uri, state.strays) == (3, "/store/p/3", {})


def test_events_of_another_policy_change_nothing() -> None:
    assert state_after([trained(1, policy="q")]) == adapters.empty("p")


kinds = st.sampled_from(sorted(serving.TRANSITIONS))
some_events = st.lists(
    st.builds(event, kinds, st.integers(0, 4), expected_version=st.none() | st.integers(0, 4)), max_size=20
)


@settings(max_examples=examples(50))
@given(some_events)
def test_exactly_one_version_is_primary_after_any_events(events: list[AdapterEvent]) -> None:
    state = state_after(events)
    assert [number for number, version in state.versions.items() if version.status == "primary"] == [state.primary]
    assert state.primaries[-1] == state.primary


@settings(max_examples=examples(50))
@given(some_events)
def test_the_stage_and_the_agents_agree_on_the_primary_after_any_events(events: list[AdapterEvent]) -> None:
    log = Log().append(*events).settle()
    assert log.rollout.serving.primary == state_after(log.events).primary


@settings(max_examples=examples(50))
@given(some_events, st.data())
def test_delivering_any_events_again_changes_nothing(events: list[AdapterEvent], data: st.DataObject) -> None:
    log = Log().append(*events).settle()
    strays = state_after(log.events).strays  # a version out of turn is none, and may come again in its turn
    known = [one for one in log.events if one.kind != "trained" or one.version not in strays]
    again = data.draw(st.lists(st.sampled_from(known), max_size=10)) if known else []
    before = log.rollout
    log.append(*again).settle()
    assert replace(log.rollout, pending=None) == replace(before, pending=None)


# --- direct -----------------------------------------------------------------------------------------------------------


def test_the_newest_trained_version_is_promoted_against_the_primary_in_force() -> None:
    log = Log().append(trained(1, created_at=1000)).settle()
    promotion = log.events[-1]
    assert (promotion.kind, promotion.version, promotion.expected_version) == ("promoted", 1, 0)
    assert (promotion.created_at, promotion.actor) == (1000, "rollouts")
    assert log.rollout.serving.primary == 1


def test_versions_trained_before_a_promotion_is_read_back_end_with_the_newest_as_primary() -> None:
    # 2 and 3 are trained while the promotion of 1 is on its way: one expecting version 0 would be refused
    log = Log().append(trained(1), trained(2), trained(3)).settle()
    state = state_after(log.events)
    assert (state.primary, state.refused) == (3, ())


def test_a_promotion_that_a_person_outran_is_decided_anew() -> None:
    log = Log().append(trained(1), trained(2), event("promoted", 1, expected_version=0)).settle()
    assert state_after(log.events).primary == 2
    back = event("rolled_back", 0, expected_version=1)
    log = Log().append(trained(1)).settle().append(trained(2), back).settle()
    assert state_after(log.events).primary == 2  # by a second promotion of 2, which is another event


def test_a_version_that_was_rolled_back_is_not_promoted_again() -> None:
    log = Log().append(trained(1)).settle().append(event("rolled_back", 0, expected_version=1)).settle()
    assert state_after(log.events).primary == 0


def test_the_version_after_a_rollback_is_promoted() -> None:
    log = Log().append(trained(1)).settle().append(event("rolled_back", 0, expected_version=1), trained(2)).settle()
    assert state_after(log.events).primary == 2


def test_a_stage_that_lost_its_state_writes_nothing_that_acts_again() -> None:
    log = Log().append(trained(1), trained(2)).settle()
    before = state_after(log.events)
    log.rollout, log.read = RolloutState(), 0
    assert replace(state_after(log.settle().events), refused=()) == replace(before, refused=())


def test_a_row_of_another_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="another consumer group"):
        rollouts.load(b'{"v": 0}')


def test_a_row_whose_fields_change_has_another_version() -> None:
    """A worker of the release before reads what this one wrote, after a rollback, or refuses it: never a KeyError."""
    serving = b'{"statuses":{"0":"primary"},"primary":0,"candidate":null,"share":0.0}'
    rest = b'"newest_at":0,"pending":null,"decided":[],"swaps":0,"canary":null,"suite":"",'
    rest += b'"evaluating":[],"outside":{},"judged":[]}'
    assert rollouts.dump(RolloutState()) == b'{"v":5,"serving":' + serving + b"," + rest
