"""No version is trained on what a suite holds out, unless somebody says so; and a suite may be newer than a version."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from click.testing import Result

from plugins.data.contamination.contamination_report import CONTAMINATION
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import AdapterEvent, Message
from streams.engines.base_model import Base
from streams.errors import ContaminatedError
from streams.kafka.producer import Producer
from streams.rows.training_gate import TrainingCheck
from streams.settings.model import Settings
from tests.support import factories
from tests.support.commands import invoke
from tests.support.log.held_out_tasks import CLEAN, LEAKED, evaluate, submit
from tests.support.models.chat_tiny import base
from tests.support.models.tiny_log import groups_of, trained, write
from tests.support.models.tiny_settings import settings
from trainer import fleet
from trainer.policy_trainer import PolicyTrainer

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


def train(settings: Settings, steps: int, allowed_by: str | None = None) -> list[AdapterEvent]:
    gate = TrainingCheck(settings, allowed_by=allowed_by)
    fleet.run(settings, steps=steps, stop=threading.Event(), check=gate.check_batch)
    return trained(settings)


def shown(settings: Settings, *arguments: str) -> Result:
    return invoke(settings, "adapters", "show", *arguments)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_with_a_question_that_was_held_out_from_its_policy_is_refused_and_who_lets_it_in_is_recorded(
    settings: Settings, base: Base
) -> None:
    submit(settings, base, 0, CLEAN)
    submit(settings, base, 1, LEAKED.upper())
    evaluate(settings, CLEAN, policy="another")
    evaluate(settings, LEAKED)
    write(settings, base, range(2))
    with pytest.raises(ContaminatedError, match="1 of 2 rows give away held-out questions"):
        train(settings, 2)
    assert [event.metadata for event in trained(settings)] == [{}], "the first batch was clean"
    versions = train(settings, 1, allowed_by="ann")
    assert versions[-1].metadata == {CONTAMINATION: '{"cities@1": 1}', CONTAMINATION_ALLOWED_BY: "ann"}


def test_a_version_that_is_announced_after_a_crash_says_who_let_the_questions_in(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(settings, base, 0, LEAKED)
    evaluate(settings, LEAKED)
    write(settings, base, range(1))

    class Crash(Exception):
        pass

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(PolicyTrainer, "_announce", crash)
        train(settings, 1, allowed_by="ann")
    submit(settings, base, 1, CLEAN)
    write(settings, base, range(1, 2))
    versions = train(settings, 1, allowed_by="bob")
    assert [event.metadata.get(CONTAMINATION_ALLOWED_BY) for event in versions] == ["bob", None]


def test_a_task_of_a_job_that_may_be_trained_on_is(settings: Settings, base: Base) -> None:
    submit(settings, base, 0, LEAKED, metadata={CONTAMINATION_ALLOWED_BY: "carol"})
    evaluate(settings, LEAKED)
    write(settings, base, range(1))
    assert train(settings, 1)[-1].metadata == {CONTAMINATION: '{"cities@1": 1}', CONTAMINATION_ALLOWED_BY: "carol"}


# --- the audit --------------------------------------------------------------------------------------------------------


def contradictions(settings: Settings) -> list[str]:
    """Return what the audit says of the versions of the log."""
    plain = json.loads(invoke(settings, "audit").stdout)
    return [finding["what"] for finding in plain["contradictory"] if ".adapters[" in finding["at"]]


def test_a_version_that_says_what_it_was_trained_on_balances_and_any_other_word_of_it_is_a_finding(
    settings: Settings, base: Base
) -> None:
    evaluate(settings, LEAKED, age_ms=10 * 60_000)
    allowed = {CONTAMINATION_ALLOWED_BY: "ann"}
    said: list[dict[str, str]] = [
        {CONTAMINATION: '{"cities@1": 1}', **allowed},
        {},
        {CONTAMINATION: '{"cities@1": 2}', **allowed},
        {CONTAMINATION: '{"cities@1": 1}'},
        {CONTAMINATION: "[1]", **allowed},
        {CONTAMINATION: '{"a suite of a file that is gone@2": 1}', **allowed},
    ]
    for sequence in range(len(said)):
        submit(settings, base, sequence, LEAKED)
    write(settings, base, range(len(said)))
    assert train(settings, 1, allowed_by="ann")[0].metadata == said[0]
    assert contradictions(settings) == []
    for forged in said[1:]:
        fleet.run(settings, steps=1, stop=threading.Event(), check=lambda *_, forged=forged: forged)
    assert contradictions(settings) == [
        "version 2: it was trained on 1 held-out questions (cities@1), and says 0",
        "version 3: it says 2 questions of suite cities@1, and its records have 1",
        "version 4: it names no person who allowed its held-out questions",
        "version 5: `contamination` is no count by suite",
    ]


def test_a_batch_that_several_people_let_in_says_every_question_and_name(settings: Settings, base: Base) -> None:
    with Producer(settings) as producer:
        for name, group, text in zip(("ann", "bob"), groups_of(base, 0), (LEAKED, CLEAN), strict=True):
            task = factories.task(task_id=group.task_id, policy=group.policy, metadata={CONTAMINATION_ALLOWED_BY: name})
            producer.send(replace(task, messages=(Message(role="user", content=text),)))
    evaluate(settings, LEAKED)
    metadata = {"suite": "sums@1", "suite_size": "1", "suite_index": "0"}
    with Producer(settings) as producer:
        question = (Message(role="user", content=CLEAN),)
        producer.send(
            factories.task(
                task_id="h2", purpose="eval", adapter_version=0, group_size=1, metadata=metadata, messages=question
            )
        )
    write(settings, base, range(1))
    assert train(settings, 1)[-1].metadata == {
        CONTAMINATION: '{"cities@1": 1, "sums@1": 1}',
        CONTAMINATION_ALLOWED_BY: "ann, bob",
    }
    assert contradictions(settings) == []
