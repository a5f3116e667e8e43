"""A Schema Registry over HTTP: ours, which is read only, and none at all."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from schemas import ids, versions
from schemas.events import Reward, Task
from schemas.serde import encode
from schemas.versions import FIRST_ID
from streams.errors import NotFoundError, SettingsError
from streams.kafka.registry import client as schema_registry, register as schema_register, server as schema_server
from streams.kafka.registry.client import RegistryUnavailable
from streams.kafka.retry import StoppedWaiting
from streams.observability.metrics import Meter
from streams.settings.model import Kafka, Schemas, Settings, Topics
from streams.tools.replay.experiments import settings_of
from tests.chaos.proxy import free_ports
from tests.support.commands import invoke, rows_of
from tests.support.factories import one_of_each
from tests.support.log.confluent_events import registry_client

NOBODY = Settings(schemas=Schemas(registry_url="http://127.0.0.1:1"), kafka=Kafka(bootstrap="127.0.0.1:1"))


@pytest.fixture(autouse=True)
def own_ids_again() -> Iterator[None]:
    yield
    ids.use(ids.LOCK_IDS)


@pytest.fixture(scope="module")
def ours() -> Iterator[Settings]:
    """Settings of the registry that this package serves."""
    with schema_server.serve() as url:
        yield Settings(schemas=Schemas(registry_url=url))


def test_our_own_registry_gives_our_own_ids(ours: Settings) -> None:
    before = [encode(event) for event in one_of_each()]
    ids.use(schema_registry.connect(ours))
    assert [encode(event) for event in one_of_each()] == before


def test_an_experiments_records_have_the_ids_of_its_sources_subjects(
    ours: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = settings_of(ours, "dry", tmp_path_factory.mktemp("dry"), {}, "test")
    assert own.topics.prefix == "streamward.experiment.dry."
    assert schema_registry.connect(own).lacking() == []


def test_registering_what_is_there_changes_nothing(ours: Settings) -> None:
    for arguments in (["--dry-run"], []):
        result = invoke(ours, "admin", "schemas", "register", *arguments, "--output", "jsonl")
        assert (result.exit_code, result.stderr) == (0, "")
        rows = rows_of(result)
        assert [(row["id"], row["result"]) for row in rows] == [(id_, "there") for id_ in versions.files().schemas]
        assert rows[0]["subject"] == "streamward.tasks-value"


def test_other_topics_have_other_subjects_which_are_not_there(ours: Settings) -> None:
    lab = ours.model_copy(update={"topics": Topics(prefix="lab.")})
    with pytest.raises(NotFoundError, match=r"does not hold Task version 1, .*`streamward admin schemas register`"):
        schema_registry.connect(lab)


def test_a_registry_that_registers_nothing_is_a_refusal(ours: Settings) -> None:
    lab = ours.model_copy(update={"topics": Topics(prefix="lab.")})
    dry = invoke(lab, "admin", "schemas", "register", "--dry-run", "--output", "jsonl")
    assert dry.exit_code == 0
    assert {json.loads(line)["result"] for line in dry.stdout.splitlines()} == {"missing"}
    result = invoke(lab, "admin", "schemas", "register")
    assert result.exit_code == 4 and "this registry is read only" in result.stderr


def test_a_registry_that_is_away_is_unreachable_and_none_at_all_a_setting() -> None:
    result = invoke(NOBODY, "admin", "schemas", "register")
    assert result.exit_code == 5
    assert "the Schema Registry at http://127.0.0.1:1 does not answer" in result.stderr
    result = invoke(Settings(), "admin", "schemas", "register")
    assert result.exit_code == 2 and "schemas.registry_url is not set" in result.stderr


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["])
def test_a_registry_that_accepts_and_does_not_finish_its_answer_is_unreachable_after_the_limit(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_S", 0.5)
    with silent(said) as url:
        settings = Settings(schemas=Schemas(registry_url=url))
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable, match=f"the Schema Registry at {url} does not answer: .*timed out"):
            schema_registry.connect(settings)
        with pytest.raises(RegistryUnavailable, match="does not answer"):
            schema_register.register(settings)
        with registry_client(url, 0.5) as client, pytest.raises(Exception, match="timed out"):
            client.get_associations_by_resource_name("tasks", "-", "topic", ["value"])
        assert time.monotonic() - began < 10


@contextmanager
def silent(said: bytes) -> Iterator[str]:
    """Accept connections, say `said`, and no more; the URL of that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = []

        def accept() -> None:
            with suppress(OSError):  # closed: the end
                while True:
                    held.append(listener.accept()[0])
                    held[-1].sendall(said)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def test_a_command_that_needs_no_ids_asks_nobody() -> None:
    assert invoke(NOBODY, "config", "show", "schemas.registry_url").exit_code == 0
    with pytest.raises(RegistryUnavailable):
        encode(one_of_each()[0])


def test_doctor_says_what_becomes_of_the_registry(ours: Settings) -> None:
    def findings(settings: Settings) -> list[str]:
        rows = [json.loads(line) for line in invoke(settings, "doctor", "--output", "jsonl").stdout.splitlines()]
        return [f"{row['state']}: {row['what']}" for row in rows if row["check"] == "schemas"]

    kafka = NOBODY.kafka.model_copy(update={"request_timeout_s": 0.5})
    assert findings(ours.model_copy(update={"kafka": kafka}))[1].endswith(" holds every version")
    assert findings(NOBODY.model_copy(update={"kafka": kafka}))[1].startswith("failed: the Schema Registry at")


def test_a_process_waits_for_its_registry_unready_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    settings = Settings(schemas=Schemas(registry_url=f"http://127.0.0.1:{port}"))
    meter, told = Meter("scoring", waits_for=("schema_registry",)), threading.Event()
    reported = meter._missing

    def report(condition: str, why: str = "") -> None:
        reported[condition] = why
        seen.append(meter.answer("/readyz"))
        if len(seen) == 3:
            told.set()

    seen: list[tuple[int, str]] = []
    meter.ready = meter.not_ready = report  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "streamward.schemas"):
        thread = threading.Thread(target=schema_registry.wait, args=(settings, meter))
        thread.start()
        assert told.wait(300)
        with schema_server.serve(port=port):
            thread.join(300)
    assert not thread.is_alive()
    assert {status for status, _ in seen[:-1]} == {503} and seen[-1] == (200, "ok\n")
    assert seen[0][1].startswith(f"schema_registry: the Schema Registry at http://127.0.0.1:{port} does not answer")
    assert meter.answer("/healthz")[0] == 200
    said = [record.getMessage() for record in caplog.records if record.name == "streamward.schemas"]
    assert len(said) == 2 and said[0].endswith("Waiting") and "answers, after" in said[1]
    task = versions.files().newest(Task)
    assert ids.current().id_of(task) == task.id  # and continues without it: it has ended by now


def test_a_process_that_waits_can_be_stopped() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedWaiting, match="stopping all the same"):
        schema_registry.wait(NOBODY, stop=stop)


def test_an_id_is_unknown_only_if_the_registry_knows_what_it_gave(ours: Settings) -> None:
    reward = versions.files().newest(Reward)
    assert schema_registry.text_of(ours, FIRST_ID, reward.id) == reward.text
    assert schema_registry.text_of(ours, FIRST_ID, 4242) is None
    with pytest.raises(RegistryUnavailable, match="does not know schema id 77, which it gave"):
        schema_registry.text_of(ours, 77, 4242)


def test_a_version_that_reads_nothing_of_ours_is_named_before_anything_is_changed(ours: Settings) -> None:
    with schema_registry.asking(ours) as client:
        plan = schema_register._planned(client, ours)
    strange = ids.RegistryVersion("Reward", 2, 17, json.dumps({"type": "record", "name": "Reward", "fields": []}))
    problems = list(schema_register.incompatible(plan._replace(held=[*plan.held, strange])))
    assert problems and all(
        problem.startswith("streamward.rewards-value: version") and "(id 17)" in problem for problem in problems
    )


def test_a_certificate_file_that_is_not_there_is_a_setting() -> None:
    schemas = Schemas.model_validate({"registry_url": "https://127.0.0.1:1", "registry_ca_location": "nowhere.pem"})
    with pytest.raises(SettingsError, match=r"registry_ca_location=nowhere\.pem"):
        schema_registry.connect(Settings(schemas=schemas))
