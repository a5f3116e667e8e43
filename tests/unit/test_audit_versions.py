"""No response names a version that was not live, candidate or pinned when its sampling began, or the audit names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.events import AdapterEvent, AdapterKind, Coordinates, DeadLetter, derive_id
from streams.settings.model import Settings
from streams.tools.audit.facts import AuditFinding, Reach
from streams.tools.audit.recount import recount
from tests.support.factories import T0, adapter_event, response, task
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends, trained

SECOND = 1000
FOLLOW_MS = int(SETTINGS.rollouts.follow_s * 1000)
LONG = 60 * SECOND
"""Between two events: far more than the tolerance."""


def decided(kind: AdapterKind, version: int, expected: int, share: float | None = None) -> AdapterEvent:
    return adapter_event(kind, version, expected_version=expected, share=share)


RELEASE = (
    # minute by minute: 0 is live; 1 is; 2 is its candidate; 2 is live; 1 is again
    trained(1),
    decided("promoted", 1, 0),
    trained(2),
    decided("canary_started", 2, 1, 0.5),
    decided("promoted", 2, 0),  # too late: refused
    decided("promoted", 2, 1),
    decided("rolled_back", 1, 2),
    trained(3),
)
PROMOTED, CANARY, REPLACED, BACK = (T0 + n * LONG for n in (1, 3, 5, 6))
END = T0 + len(RELEASE) * LONG


class Log:
    """A log of that release, with answers in it."""

    def __init__(self) -> None:
        self.written = Written()
        for number, one in enumerate(RELEASE):
            self.written.write(one, T0 + number * LONG)

    def answer(self, version: int, began_ms: int, *, took_s: float = 30.0, **asked: Any) -> Coordinates:
        """Write a task and its answer, whose sampling began then."""
        name = f"task-{len(self.written.records)}"
        done_ms = began_ms + int(took_s * 1000)
        self.written.write(task(task_id=name, group_size=1, **asked), began_ms)
        one = response(
            task_id=name, sampling_id=name, group_size=1, adapter_version=version, created_at=done_ms,
            latency_ms=took_s * 1000,
        )  # fmt: skip
        return self.written.write(one, done_ms).at

    def told(self, settings: Settings = SETTINGS, **reach: Any) -> list[AuditFinding]:
        """Return what the audit says about versions of responses."""
        far: dict[str, Any] = {"settled": True, **reach}
        report = recount(self.written.records, settings, Reach(ends=ends(self.written.records), **far))
        return [one for one in report.findings if " answered" in one.what and " was live" in one.what]


def test_who_was_live_or_candidate_when_a_sampling_began_is_not_named() -> None:
    log = Log()
    for version, began_ms in (
        (0, PROMOTED - LONG // 2),
        (1, CANARY - LONG // 2),
        (1, CANARY + LONG // 2),
        (2, CANARY + LONG // 2),
        (2, REPLACED + LONG // 2),
        (1, END),
    ):
        log.answer(version, began_ms)
    assert log.told() == []


def test_a_forged_answer_of_a_version_that_was_not_live_is_named() -> None:
    log = Log()
    log.answer(1, END)
    forged = {log.answer(version, began_ms) for version, began_ms in ((2, CANARY - LONG), (0, REPLACED), (2, END))}
    found = log.told()
    assert {one.at for one in found} == forged
    assert {(one.category, one.accounted) for one in found} == {("contradictory", False)}
    assert any("version 0 answered; 1 or 2 was live and 2 candidate when its sampling began" in o.what for o in found)


@pytest.mark.parametrize(("version", "category"), [(3, "contradictory"), (7, "phantom")])
def test_a_version_that_was_never_released_is_named_whenever_it_answers(version: int, category: str) -> None:
    for began_ms in (T0 - 100 * LONG, *range(T0, END, LONG // 2), END + 100 * LONG):
        log = Log()
        at = log.answer(version, began_ms)
        assert [(one.at, one.category) for one in log.told()] == [(at, category)]


def test_a_sampling_that_was_under_way_when_its_version_was_replaced_is_not_named_however_long_it_took() -> None:
    log = Log()
    log.answer(2, BACK - SECOND, took_s=600)
    assert log.told() == []


def test_an_agent_may_follow_within_the_tolerance_and_no_later() -> None:
    log, late_ms = Log(), FOLLOW_MS
    log.answer(2, BACK + late_ms)
    at = log.answer(2, BACK + late_ms + SECOND)
    assert [one.at for one in log.told()] == [at]


def test_how_long_an_agent_may_take_is_a_setting() -> None:
    log = Log()
    at = log.answer(2, BACK + LONG // 2)
    rollouts = SETTINGS.rollouts.model_copy(update={"follow_s": LONG / SECOND})
    assert [one.at for one in log.told()] == [at]
    assert log.told(SETTINGS.model_copy(update={"rollouts": rollouts})) == []


def test_a_pinned_answer_is_not_named_whatever_became_of_the_version() -> None:
    log = Log()
    for version in (0, 2, 3):
        log.answer(version, END, adapter_version=version)
    assert log.told() == []


def letter_about(log: Log, version: int, stage: str) -> None:
    """Write that a stage could do nothing with the event that made `version`."""
    made = next(
        record
        for record, one in zip(log.written.of("adapters"), RELEASE, strict=True)
        if (one.kind, one.version) == ("trained", version)
    )
    log.written.write(
        DeadLetter(
            dead_letter_id=derive_id(stage, *made.at), created_at=T0, source_topic=made.at.topic,
            source_partition=made.at.partition, source_offset=made.at.offset, source_timestamp=T0, stage=stage,
            reason="bad_adapter", error="it is damaged",
        ),
        END,
    )  # fmt: skip


def test_who_stands_in_for_a_primary_that_cannot_be_loaded_is_not_named_if_it_was_primary_before() -> None:
    log = Log()
    stood_in, never_live = log.answer(0, END), log.answer(3, END)
    letter_about(log, 2, "policy")
    assert {one.at for one in log.told()} == {stood_in, never_live}
    letter_about(log, 1, "policy")
    assert {one.at for one in log.told()} == {never_live}


def test_an_answer_that_may_be_ahead_of_what_was_read_of_adapters_is_judged_next_time() -> None:
    log = Log()
    at = log.answer(3, END)
    soon, later = END + FOLLOW_MS, END + FOLLOW_MS + 1
    assert log.told(settled=False, now_ms=soon) == []
    assert [one.at for one in log.told(settled=False, now_ms=later)] == [at]


def test_versions_of_another_line_of_adapters_are_not_judged() -> None:
    log = Log()
    log.answer(7, END)
    off_policy = SETTINGS.model_copy(update={"trainer": SETTINGS.trainer.model_copy(update={"off_policy": True})})
    assert log.told(off_policy) == []


def test_a_time_that_no_clock_shows_is_no_trouble() -> None:
    log = Log()
    name = "far"
    log.written.write(task(task_id=name, group_size=1), END)
    odd = response(task_id=name, sampling_id=name, group_size=1, adapter_version=7)
    at = log.written.write(replace(odd, created_at=2**60), END).at
    assert [(one.at, one.category) for one in log.told()] == [(at, "phantom")]
    assert at.topic == TOPICS["responses"].name
