"""A canary on a real log: two versions answer side by side, and a rollback in the middle of a round."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, AdapterKind, DeadLetter, Response, derive_id
from streams.adapters.admission.policy_log import PAUSE_S
from streams.adapters.serving import Serving, answers as answers_to
from streams.adapters.versions import read_state
from streams.engines.protocol import Completion, SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.errors import EventError
from streams.kafka import admin
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.audit import recount
from streams.tools.audit.facts import AuditFinding, Reach
from tests.log.test_policy import (
    answers,
    committed,
    group_of,
    promoted,
    read,
    running,
    settings,
    task,
    until,
    until_answered,
    write,
)
from tests.support import factories
from tests.support.log.policy_agents import stored

__all__ = ["settings"]
pytestmark = pytest.mark.kafka


def move(kind: AdapterKind, version: int, expected: int | None = None, share: float | None = None) -> AdapterEvent:
    return factories.adapter_event(kind, version, policy="p", created_at=1, expected_version=expected, share=share)


def in_canary(settings: Settings, folder: Path) -> None:
    """Write that version 1 is primary, and 2 has half of the tasks."""
    write(settings, stored(settings, 1, folder), promoted(1), stored(settings, 2, folder))
    write(settings, move("canary_started", 2, 1, 0.5))


def wrong_versions(settings: Settings) -> list[AuditFinding]:
    """Return what the audit has against versions that answered."""
    records = [record for label in topics(settings.topics) for record in admin.read_topic(settings, label)]
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        tp = (record.at.topic, record.at.partition)
        ends[tp] = max(ends.get(tp, 0), record.at.offset + 1)
    found = recount.recount(records, settings, Reach(ends=ends, settled=True)).findings
    return [one for one in found if " answered" in one.what and " was live" in one.what]


def versions(settings: Settings) -> dict[str, set[int]]:
    return {name: {one.adapter_version for one in found} for name, found in answers(settings).items()}


def test_tasks_are_split_between_two_versions_exactly_as_the_fold_says(settings: Settings, tmp_path: Path) -> None:
    in_canary(settings, tmp_path)
    names = [f"t{n}" for n in range(40)]
    write(settings, *(task(name, purpose="serve") for name in names))
    with running(settings):
        until_answered(settings, *names[:20])
        with running(settings):  # a second agent splits them no other way
            until_answered(settings, *names)
    serving = read_state(settings, "p").serving
    assert versions(settings) == {name: {answers_to(serving, name)} for name in names}
    assert {answers_to(serving, name) for name in names} == {1, 2}
    assert wrong_versions(settings) == []


class Held(ScriptedEngine):
    """Holds every round of version 2 until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.go_on = threading.Event(), threading.Event()

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        if self.served_version == 2:
            self.holds.set()
            self.go_on.wait(300)
        return super().sample(requests)


def test_a_rollback_lets_the_round_in_hand_end_whole_and_the_next_answer_names_the_old_version(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, stored(settings, 1, tmp_path), promoted(1), stored(settings, 2, tmp_path), promoted(2))
    names = [f"t{n}" for n in range(16)]
    write(settings, *map(task, names))
    engine = Held()
    with running(settings, engine):
        assert engine.holds.wait(300)
        write(settings, move("rolled_back", 1, 2))
        until(lambda: read_state(settings, "p").primary == 1, "the rollback")
        time.sleep(PAUSE_S + 0.1)  # after so long the agent asks the log where it ends, and does not trust its luck
        engine.go_on.set()
        found = until_answered(settings, *names)
    assert all([one.slot for one in slots] == [0, 1, 2] for slots in found.values())
    assert all(len({one.sampling_id for one in slots}) == 1 for slots in found.values())
    of_version = versions(settings)
    held = [name for name, by in of_version.items() if by == {2}]
    assert 1 <= len(held) <= settings.policy.round_tasks
    assert all(by == {1} for name, by in of_version.items() if name not in held)
    assert wrong_versions(settings) == []


def test_an_answer_that_was_never_given_is_named_by_the_audit(settings: Settings, tmp_path: Path) -> None:
    in_canary(settings, tmp_path)
    write(settings, stored(settings, 3, tmp_path), task("t"))
    with running(settings):
        until_answered(settings, "t")
    forged = [one for one in read(settings, "responses") if isinstance(one, Response)]
    again = [replace(one, sampling_id="x", response_id=derive_id("x", one.slot), adapter_version=3) for one in forged]
    write(settings, *again)
    assert [found.at.offset for found in wrong_versions(settings)] == [3, 4, 5]


def test_a_candidate_that_cannot_be_loaded_is_dead_lettered_and_its_tasks_go_to_the_primary(
    settings: Settings, tmp_path: Path
) -> None:
    in_canary(settings, tmp_path)
    (Path(settings.adapters.store) / "p" / "2" / "adapter_model.safetensors").write_bytes(b"weights 3")
    names = [f"t{n}" for n in range(10)]
    write(settings, *map(task, names))
    with running(settings):
        until_answered(settings, *names)
        until(lambda: committed(settings) == 10, "every task is done")
    found = answers(settings).values()
    assert {(one.adapter_version, one.error) for slots in found for one in slots} == {(1, None)}
    (letter,) = read(settings, "dead-letters")
    assert isinstance(letter, DeadLetter)
    assert (letter.stage, letter.reason) == ("policy", "bad_adapter")


def test_train_tasks_of_a_primary_that_no_batch_waits_for_are_answered_while_a_canary_needs_them(
    settings: Settings, tmp_path: Path
) -> None:
    # max_policy_lag is 0 and a batch is cut: a group of version 0 is stale. To wait for the next primary would be to
    # wait for the canary, which waits for rewards of both arms
    batch = factories.batch(policy="p", created_at=1, max_policy_lag=0, groups_offsets=(0, 1))
    begun = Serving({0: "primary", 1: "canary"}, candidate=1, share=0.5)
    names = [name for name in map("t{}".format, range(12)) if answers_to(begun, name) == 0]
    write(settings, group_of("g0", teaches=True), group_of("g1", teaches=True), batch)
    write(settings, stored(settings, 1, tmp_path), *(task(name, purpose="train") for name in names))
    with running(settings):
        write(settings, task("free"))
        assert until_answered(settings, "free").keys() == {"free"}
        write(settings, move("canary_started", 1, 0, 0.5))
        found = until_answered(settings, *names)
    assert {one.adapter_version for name in names for one in found[name]} == {0}


class Away(ScriptedEngine):
    """Cannot have version 2 from the store at the moment."""

    def serve(self, version: int, adapter: Path | None) -> None:
        if version == 2:
            raise EventError("the store does not answer", reason="store_unreachable")
        super().serve(version, adapter)


def test_a_candidate_that_the_store_does_not_give_is_not_condemned_and_the_agent_lives(
    settings: Settings, tmp_path: Path
) -> None:
    in_canary(settings, tmp_path)
    names = [f"t{n}" for n in range(10)]
    write(settings, *map(task, names))
    with running(settings, Away()):
        until_answered(settings, *names)
    assert set().union(*versions(settings).values()) == {1}
    assert read(settings, "dead-letters") == []


def test_a_rejected_version_may_be_pinned_and_a_retired_one_fails_and_says_why(
    settings: Settings, tmp_path: Path
) -> None:
    in_canary(settings, tmp_path)
    write(settings, move("rejected", 2), stored(settings, 3, tmp_path), move("retired", 3))
    write(settings, *(task(f"t{v}", adapter_version=v) for v in (1, 2, 3)))
    with running(settings):
        found = until_answered(settings, "t1", "t2", "t3")
    assert {(one.adapter_version, one.error) for name in ("t1", "t2") for one in found[name]} == {(1, None), (2, None)}
    assert {one.finish_reason for one in found["t3"]} == {"error"}
    assert "version 3 is retired and its files are gone" in (found["t3"][0].error or "")
    assert read(settings, "dead-letters") == []
