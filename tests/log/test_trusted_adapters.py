"""An agent serves only adapters it can trust; what it refuses is told as an event and as a metric."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, DeadLetter, Response, Task
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.errors import SettingsError
from streams.kafka import admin
from streams.settings.model import Settings
from streams.stages.policy import policy_agent as policy
from streams.tools.audit import audit_metrics
from streams.tools.audit.reading import Audit
from tests import skips
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.log.policy_agents import stored, sum_task
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka


@pytest.fixture
def made(settings: Settings) -> Settings:
    topics = settings.topics.model_copy(update={"partitions": 2, "policy_partitions": 2})
    here = settings.policy.model_copy(update={"name": "p", "engine": "scripted"})
    settings = settings.model_copy(update={"topics": topics, "policy": here})
    admin.apply_topics(settings)
    return settings


class Based(ScriptedEngine):
    """Has weights, as far as anybody can see."""

    name = "based"
    base_digest = "b" * 64


@contextmanager
def agent(settings: Settings) -> Iterator[None]:
    """Run an agent beside the test."""
    with running_beside(lambda stop: policy.run(settings, stop=stop, engine=Based(json.dumps({})))):
        yield


def promoted(version: int) -> AdapterEvent:
    return factories.promoted(version, policy="p", created_at=version)


def task(name: str) -> Task:
    return sum_task(name, group_size=1)


def served(settings: Settings) -> dict[str, int]:
    return {one.task_id: one.adapter_version for _, one in read(settings, Response)}


def letters(settings: Settings) -> list[tuple[str, str]]:
    return [(one.stage, one.reason) for _, one in read(settings, DeadLetter)]


def metrics(settings: Settings) -> str:
    return audit_metrics.text(Audit(settings).look(), at_s=0)


def test_an_agent_with_a_key_serves_what_is_signed_and_refuses_the_rest(made: Settings, tmp_path: Path) -> None:
    pytest.importorskip("model_signing", reason=skips.SIGNING)
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "adapters.key", tmp_path / "adapters.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    made = made.model_copy(update={"adapters": made.adapters.model_copy(update={"verify_key": public})})
    write(made, stored(made, 1, tmp_path, key=private, base_digest=Based.base_digest), promoted(1), task("signed"))
    with agent(made):
        until(lambda: served(made) == {"signed": 1}, "the signed version")
        write(made, stored(made, 2, tmp_path, base_digest=Based.base_digest), promoted(2))
        write(made, task("unsigned"))
        until(lambda: len(served(made)) == 2, "an answer by the version that goes on")
    assert served(made)["unsigned"] == 1
    assert letters(made) == [("policy", "bad_signature")]
    assert '\nstreamward_adapters_refused_total{reason="bad_signature"} 1.0\n' in metrics(made)


def test_an_agent_refuses_an_adapter_of_another_base_model(made: Settings, tmp_path: Path) -> None:
    write(made, stored(made, 1, tmp_path, base_digest="c" * 64), promoted(1), task("asked"))
    with agent(made):
        until(lambda: served(made) == {"asked": 0}, "an answer of the base model")
    assert letters(made) == [("policy", "wrong_base")]
    assert '\nstreamward_adapters_refused_total{reason="wrong_base"} 1.0\n' in metrics(made)


def test_an_agent_whose_key_is_missing_does_not_start(made: Settings, tmp_path: Path) -> None:
    pytest.importorskip("model_signing", reason=skips.SIGNING)
    made = made.model_copy(update={"adapters": made.adapters.model_copy(update={"verify_key": tmp_path / "none"})})
    with pytest.raises(SettingsError, match=r"adapters\.verify_key="):
        policy.run(made, stop=threading.Event(), engine=Based())
