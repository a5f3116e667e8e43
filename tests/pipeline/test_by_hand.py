"""The processes run by hand, as a user types them: in the open, behind a password, and behind TLS.

    admin topics apply ─► tasks submit, generate ─► policy, scoring, streams ─► events tail ─► adapters list

Not covered: `admin broker start` and `stop`, which the README's commands begin and end with (tests/readme.py); SCRAM
and client certificates. The nodes here are given neither; their settings take the same way.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from schemas.events import AdapterEvent
from streams.errors import LogError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.load import load
from streams.settings.model import Model, Settings
from tests.support.log.secured_node import Right, Secured, running_node
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, ended, environment, read, running, until

pytestmark = [pytest.mark.kafka, pytest.mark.docs]

LOOP = ("streams", "scoring", "policy")


@dataclass
class Terminal:
    """A folder in which commands are typed, and what each of them said."""

    folder: Path
    env: dict[str, str]
    done: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `streamward ARGUMENTS` to its end, and remember it under its words."""
        finished = subprocess.run(
            command(*arguments), env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        self.done[" ".join(arguments)] = finished
        return finished

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the JSON lines that a command, run before, has printed."""
        return [json.loads(line) for line in self.done[" ".join(arguments)].stdout.splitlines()]


# --- in the open ------------------------------------------------------------------------------------------------------

CONFIG = """\
[topics]
partitions = 2
policy_partitions = 1

[policy]
engine = "scripted"
script = '{"accuracy": 0.5}'
"""
FILE = """\
{"prompt": "4 + 7 =", "answer": "11", "group_size": 2}
{"prompt": "Say hello.", "answer": "hello", "purpose": "serve", "reward_sources": [], "group_size": 1}
"""
SUBMIT = ("tasks", "submit", "tasks.jsonl")
GENERATE = ("tasks", "generate", "sums", "--count", "3", "--group-size", "4", "--submit")
GROUPS = ("events", "tail", "groups", "--until-end")


@pytest.fixture(scope="module")
def session(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A whole session on topics of its own."""
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "streamward.toml").write_text(CONFIG)
    (folder / "tasks.jsonl").write_text(FILE)
    typed = Terminal(folder, environment())
    typed.env |= {"STREAMWARD_KAFKA__BOOTSTRAP": kafka_bootstrap, "STREAMWARD_TOPICS__PREFIX": own_prefix()}
    typed.run("admin", "topics", "apply")
    typed.run(*SUBMIT)
    typed.run(*GENERATE)
    settings = load(file=folder / "streamward.toml", env=typed.env)
    with running(settings, folder, *LOOP):
        typed.run("events", "tail", "groups", "--from", "start", "-n", "5")
    typed.run(*GROUPS)
    typed.run("adapters", "list")
    typed.run("admin", "topics", "list")
    return typed


def test_every_command_of_a_session_ends_with_0(session: Terminal) -> None:
    assert {line: run.stderr for line, run in session.done.items() if run.returncode != 0} == {}
    assert len(session.done) == 7


def test_what_was_submitted_and_generated_comes_out_as_groups(session: Terminal) -> None:
    assert [row["state"] for row in session.rows(*SUBMIT)] == ["sent"] * 2
    assert [row["state"] for row in session.rows(*GENERATE)] == ["sent"] * 3
    groups = [row["event"] for row in session.rows(*GROUPS)]
    assert sorted((group["purpose"], group["group_size"], len(group["responses"])) for group in groups) == [
        ("serve", 1, 1), ("train", 2, 2), ("train", 4, 4), ("train", 4, 4), ("train", 4, 4)
    ]  # fmt: skip
    assert all(group["complete"] and group["adapter_version"] == 0 for group in groups)


def test_looking_again_shows_the_same_groups(session: Terminal) -> None:
    def found(*arguments: str) -> list[tuple[int, int]]:
        return sorted((row["partition"], row["offset"]) for row in session.rows(*arguments))

    assert found("events", "tail", "groups", "--from", "start", "-n", "5") == found(*GROUPS)


def test_a_policy_that_nobody_trained_has_the_base_model_alone(session: Terminal) -> None:
    (version,) = session.rows("adapters", "list")
    assert (version["version"], version["status"], version["uri"]) == (0, "primary", None)


def test_each_topic_holds_what_the_processes_wrote_and_no_dead_letter(session: Terminal) -> None:
    records = {row["label"]: row["records"] for row in session.rows("admin", "topics", "list")}
    written = {label: count for label, count in records.items() if count}  # a batch takes 16 groups
    assert written == {"tasks": 5, "responses": 15, "rewards": 14, "groups": 5} and len(records) > len(written)


# --- behind a password ------------------------------------------------------------------------------------------------

MANY = ("tasks", "generate", "sums", "--count", "8", "--group-size", "4", "--submit")
"""Of so many groups, one at least has answers that differ, and makes a batch."""
USER, PASSWORD, READER = "alice", 'qu"ote\\d; = ü', "bob"
RIGHTS = {
    USER: [Right(("ALL",), kind, "*") for kind in ("TOPIC", "GROUP")],
    READER: [Right(("READ", "DESCRIBE_CONFIGS"), "TOPIC", "*"), Right(("READ",), "GROUP", "*")],
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A node that lets nobody in without a password, and lets one of two only read."""
    with running_node(tmp_path_factory.mktemp("secured"), {USER: PASSWORD, READER: PASSWORD}, RIGHTS) as node:
        yield node


def kafka_of(node: Secured, protocol: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a client that may come in."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD}
    door = {"bootstrap": node.bootstrap[protocol], "security_protocol": protocol, "request_timeout_s": 30.0}
    tls = {"ssl_ca_location": str(node.authority)} if protocol == "SASL_SSL" else {}
    return {**door, **login, **tls, **changes}


def settings_of(kafka: dict[str, Any], folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "kafka": kafka,
            "topics": {"prefix": f"{folder.name}.", "partitions": 2, "policy_partitions": 1},
            "policy": {"engine": "scripted", "script": '{"accuracy": 0.5}'},
            "batches": {"groups": 1, "max_policy_lag": 10},
            "trainer": {"checkpoints": folder / "checkpoints"},
            "adapters": {"store": str(folder / "adapters")},
        }
    )


def test_tls_and_a_password_open_the_door_for_every_process(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The scripted engine has no weights to train, so each version equals the one before. What counts is that it is
    # announced and promoted.
    folder = tmp_path_factory.mktemp("tls")
    plain = settings_of(kafka_of(secured, "SASL_SSL"), folder)
    settings = plain.model_copy(update={"model": Model(base=str(save_tiny(folder / "model")))})
    typed = Terminal(folder, environment(settings))
    assert typed.run("admin", "topics", "apply").returncode == 0
    assert typed.run(*MANY).returncode == 0
    with running(settings, folder, *LOOP, "train"):
        until(
            lambda: {event.kind for _, event in read(settings, AdapterEvent)} == {"trained", "promoted"},
            "a version, trained by the trainer and promoted by the stream worker",
            folder=folder,
        )
        assert typed.run("status").returncode == 0
        (shown,) = typed.rows("status")
        assert [(row["process"], row["alive"]) for row in shown["processes"]] == [
            ("streams", 1), ("scoring", 1), ("policy", 1), ("trainer", 1),
        ]  # fmt: skip
    assert typed.run("adapters", "list").returncode == 0
    statuses = [row["status"] for row in typed.rows("adapters", "list")]
    assert statuses[0] == "superseded" and "primary" in statuses[1:]
    assert typed.run("doctor").returncode == 0


def test_with_a_wrong_password_every_process_ends_with_5_and_says_why(secured: Secured, tmp_path: Path) -> None:
    kafka = kafka_of(secured, "SASL_PLAINTEXT", sasl_password="a wrong one", request_timeout_s=2.0)
    for code, said in ended(settings_of(kafka, tmp_path), tmp_path, *LOOP, "train").values():
        assert code == 5
        assert "Authentication failed" in said and "a wrong one" not in said


def test_who_may_only_read_reads_and_is_told_why_nothing_was_written(secured: Secured, tmp_path: Path) -> None:
    owner, reader = (
        Terminal(tmp_path, environment(settings_of(kafka_of(secured, "SASL_PLAINTEXT", sasl_username=name), tmp_path)))
        for name in (USER, READER)
    )
    assert owner.run("admin", "topics", "apply").returncode == 0
    submitted = reader.run(*MANY)
    assert submitted.returncode == 5
    assert "the log takes nothing more from this process" in submitted.stderr
    assert "authorization failed" in submitted.stderr
    assert reader.run("admin", "topics", "list").returncode == 0
    assert {row["records"] for row in reader.rows("admin", "topics", "list")} == {0}


def test_a_read_only_principal_gets_the_brokers_reason_each_time(secured: Secured, tmp_path: Path) -> None:
    # The client raises a fatal error inside a callback. When its `flush` was asked for 0.2 s or more, further callbacks
    # (a log line, the delivery report) ran while that exception was pending, and made a SystemError of it or lost it:
    # about one try in three.
    owner, reader = (
        settings_of(kafka_of(secured, "SASL_PLAINTEXT", sasl_username=name), tmp_path) for name in (USER, READER)
    )
    admin.apply_topics(owner)
    for _ in range(12):
        with pytest.raises(LogError, match=r"takes nothing more from this process.*authorization failed") as caught:
            send_one(reader)
        cause = caught.value.__cause__
        assert isinstance(cause, ck.KafkaException) and cause.args[0].fatal()
        assert cause.__cause__ is None and cause.__context__ is None


def send_one(settings: Settings) -> None:
    with Producer(settings) as producer:
        producer.send_bytes(f"{settings.topics.prefix}tasks", b"t1", b"x")


def test_a_node_whose_certificate_nobody_vouches_for_is_not_talked_to(secured: Secured, tmp_path: Path) -> None:
    kafka = kafka_of(secured, "SASL_SSL", ssl_ca_location=None, request_timeout_s=2.0)
    ended = Terminal(tmp_path, environment(settings_of(kafka, tmp_path))).run("admin", "topics", "list")
    assert ended.returncode == 5
    assert "certificate" in ended.stderr
