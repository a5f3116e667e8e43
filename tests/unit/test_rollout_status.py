"""What `streamward adapters rollout` shows, from the events alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdapterEvent
from streams.adapters import versions as adapters
from streams.cli import rollout as cli_rollout
from streams.settings.model import Canary, Guard, Rollouts, Settings
from streams.stages.rollouts import canary
from streams.stages.rollouts.status import Rollout
from tests.support.factories import T0, adapter_event, group, member, promoted, trained

GATE = canary.gate(Canary(steps="0.2,1", step_groups=30))


def after(*events: AdapterEvent) -> Rollout:
    rollout = Rollout(adapters.empty("default"))
    for one in events:
        rollout.add(one, T0)
    return rollout


def under_canary() -> Rollout:
    return after(trained(1), adapter_event("canary_started", 1, expected_version=0, share=0.2, gate=GATE))


def waits(rollout: Rollout, mode: str, guard: Guard | None = None) -> Any:
    settings = Settings(rollouts=Rollouts(mode=mode), guard=guard or Guard())  # type: ignore[arg-type]
    return rollout.plain(settings)["waits_for"]


def test_without_anything_new_a_new_version_is_waited_for() -> None:
    assert waits(after(), "canary") == "a new version"


def test_in_mode_manual_a_person_is() -> None:
    assert waits(after(trained(1), trained(9)), "manual") == "a person, for version 1"


def test_in_mode_guarded_the_results_are_and_then_what_the_verdict_says() -> None:
    guard = Guard(suite=Path("suite.yaml"))
    rollout = after(trained(1), trained(2))
    assert waits(rollout, "guarded", guard) == "the results of guard.suite for version 2 and for version 0"
    rollout.add(adapter_event("judged", 2, verdict="ask", expected_version=0), T0)
    assert waits(rollout, "guarded", guard) == "a person, for version 2: the guard says ask: because"


def test_a_canary_shows_its_groups_under_the_rule_that_was_recorded_with_it() -> None:
    rollout = under_canary()
    assert rollout.trial is not None
    for offset, version in enumerate((0, 0, 1)):
        one = group(task_id=f"t{offset}", adapter_version=version, created_at=T0)
        rollout.evidence = canary.count(rollout.evidence, rollout.trial, one, offset)
    assert waits(rollout, "canary") == "groups at share 0.2: 1 of the candidate, 2 of the primary; 30 are needed"
    shown = rollout.plain(Settings())
    assert (shown["primary"], shown["candidate"], shown["share"]) == (0, 1, 0.2)
    assert [(arm["arm"], arm["version"], arm["groups"]) for arm in shown["arms"]] == [
        ("candidate", 1, 1),
        ("primary", 0, 2),
    ]


def test_a_decision_that_changed_nothing_says_why() -> None:
    rollout = under_canary()
    rollout.add(promoted(1, expected_version=7), T0)
    last = rollout.plain(Settings())["decisions"][-1]
    assert last["reason"].startswith("refused: expected version 7 to be primary")
    assert rollout.trial is not None


def test_the_end_of_a_canary_ends_what_is_shown_of_it() -> None:
    rollout = under_canary()
    rollout.add(adapter_event("rejected", 1), T0)
    shown = rollout.plain(Settings())
    assert (shown["candidate"], shown["arms"], shown["gain"]) == (None, [], None)


def test_the_table_has_the_gain_the_arms_and_the_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = under_canary()
    assert rollout.trial is not None
    right = group(adapter_version=1, created_at=T0, responses=(member(reward=1.0),))
    rollout.evidence = canary.count(rollout.evidence, rollout.trial, right, 0)
    found = rollout.plain(Settings(rollouts=Rollouts(mode="canary"))) | {"answers": 0, "refused": []}
    cli_rollout._show(found, "table")
    printed = capsys.readouterr().out
    for text in ("1, at share 0.2", "nothing to compare yet", "candidate", "latency ms", "canary_started", "because"):
        assert text in printed
    assert "1 (0.207 to 1)" in printed  # of one group that is right, by Wilson


def test_what_ended_a_canary_has_the_success_of_both_arms(capsys: pytest.CaptureFixture[str]) -> None:
    rollout, metrics = under_canary(), {}
    for arm, (success, low, high) in {"candidate": (0.9, 0.8, 0.95), "primary": (0.1, 0.05, 0.2)}.items():
        metrics |= {f"{arm}_success": success, f"{arm}_success_low": low, f"{arm}_success_high": high}
    rollout.add(promoted(1, expected_version=0, metrics=metrics), T0)
    cli_rollout._show(rollout.plain(Settings()) | {"answers": 1, "refused": []}, "table")
    assert "0.9 (0.8 to 0.95), primary 0.1 (0.05 to 0.2)" in capsys.readouterr().out
