"""`streamward audit` on a real log: what it says, with which exit code, and as a metric."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import CliRunner, Result

from schemas.events import DeadLetter, derive_id
from schemas.serde import encode
from streams.cli.root import cli
from streams.kafka import admin
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.output import moment
from streams.settings.load import to_env
from streams.settings.model import Settings
from streams.tools.audit.audit_metrics import IMBALANCE
from streams.tools.audit.reading import commits
from tests.support.log.transactions import Transactions
from tests.support.log.whole_run import SETTINGS, event_of, whole_log
from tests.support.processes import command, environment, spawn, until

pytestmark = pytest.mark.kafka

BEGIN_MS = int(time.time() * 1000) - 4 * 3600 * 1000
"""A broker takes no record of the far future, and keeps none of the far past."""


@pytest.fixture
def made(settings: Settings) -> Settings:
    """Settings whose topics exist, in the shape of the log in memory."""
    topics = SETTINGS.topics.model_copy(update={"prefix": settings.topics.prefix})
    settings = settings.model_copy(update={"topics": topics, "batches": SETTINGS.batches})
    admin.apply_topics(settings)
    return settings


def put(settings: Settings, records: Iterable[Record]) -> None:
    """Write the records of the log in memory to the same partitions, and so to the same offsets."""
    with Producer(settings) as producer:
        for record in records:
            payload = record.payload
            if record.at.topic == f"{SETTINGS.topics.prefix}dead-letters":
                payload = encode(renamed(event_of(record), settings))
            producer.send_bytes(
                (ours(record.at.topic, settings), record.at.partition),
                record.key,
                payload,
                timestamp_ms=record.timestamp_ms,
            )


def ours(topic: str, settings: Settings) -> str:
    return settings.topics.prefix + topic.removeprefix(SETTINGS.topics.prefix)


def renamed(letter: DeadLetter, settings: Settings) -> DeadLetter:
    """Return the letter about the record of the same place in these topics."""
    source = ours(letter.source_topic, settings)
    own_id = derive_id(letter.stage, source, letter.source_partition, letter.source_offset)
    return replace(letter, source_topic=source, dead_letter_id=own_id)


def commit(settings: Settings, group: str, *labels: str) -> None:
    """Commit, as `group`, everything that lies in these topics now."""
    ends = {tp: high for tp, (_, high) in admin.offsets(settings, labels).items()}
    consumer = ck.Consumer({**client_config(settings.kafka), "group.id": settings.topics.prefix + group})
    try:
        consumer.commit(offsets=[ck.TopicPartition(*tp, end) for tp, end in ends.items()], asynchronous=False)
    finally:
        consumer.close()


def audit(settings: Settings, *args: str) -> Result:
    return CliRunner().invoke(cli, ["audit", *args], env=to_env(settings))


def found(result: Result) -> dict[str, Any]:
    (line,) = result.stdout.splitlines()
    whole: dict[str, Any] = json.loads(line)
    return whole


KEYS = {
    "tasks", "responses", "rewards", "groups", "batches", "adapters", "lost", "doubled", "phantom", "superseded",
    "contradictory", "late", "repeated", "out_of_order", "dead_letters", "in_flight", "imbalance", "balanced",
}  # fmt: skip


def test_a_log_that_balances_is_exit_code_0_and_one_object_of_json(made: Settings) -> None:
    put(made, whole_log(BEGIN_MS).records)
    result = audit(made, "--settled", "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    said = found(result)
    assert said.keys() >= KEYS
    assert (said["tasks"], said["groups"], said["batches"], said["adapters"]) == (21, 21, 4, 4)
    assert (said["balanced"], said["imbalance"], said["lost"]) == (True, 0, [])
    table = audit(made, "--settled", "--output", "table")
    assert table.exit_code == 0
    assert "slots of all tasks: 63 = 53 answered + 6 failed + 4 unanswered + 0 open" in table.stdout
    assert table.stdout.endswith("\nbalanced\n")


def test_markers_and_aborted_records_of_others_are_no_lost_records(made: Settings) -> None:
    put(made, whole_log(BEGIN_MS).records)
    for label in ("tasks", "rewards"):
        foreign = Transactions(made.kafka.bootstrap, (ours(f"{SETTINGS.topics.prefix}{label}", made), 0))
        foreign.abort((b"k", b"for nobody"), (b"k", b"nor this"))
        foreign.abort((b"k", b"for nobody"))
        foreign.close()
    result = audit(made, "--settled", "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert (found(result)["balanced"], found(result)["lost"]) == (True, [])


def test_what_is_missing_is_in_flight_until_somebody_has_committed_past_it(made: Settings) -> None:
    records = whole_log(BEGIN_MS).records
    last = [record for record in records if record.at.topic == "log.groups" and record.at.partition == 0][-1]
    put(made, [record for record in records if record is not last])
    live = audit(made, "--output", "json")
    assert live.exit_code == 0
    assert found(live)["in_flight"]["tasks"] == 1
    commit(made, "streams", "tasks", "responses", "rewards", "group-control", "groups")
    assert {group for group, _, _ in commits(made)} == {"streams"}
    result = audit(made, "--output", "json")
    assert result.exit_code == 1
    task_id = event_of(last).task_id.encode()
    at = next(record.at for record in records if record.key == task_id and record.at.topic == "log.tasks")
    (lost,) = found(result)["lost"]
    assert lost["at"] == str(at._replace(topic=ours(at.topic, made)))
    table = audit(made, "--output", "table")
    assert table.exit_code == 1
    assert f"! {lost['at']}  " in table.stdout


def test_a_part_of_the_log_is_recounted_alone(made: Settings, tmp_path: Path) -> None:
    put(made, whole_log(BEGIN_MS).records)
    alone = audit(made, "--policy", "other", "--settled", "--output", "json")
    assert (alone.exit_code, found(alone)["tasks"]) == (0, 5)
    later = audit(made, "--since", moment(BEGIN_MS + 200), "--settled", "--output", "json")
    assert later.exit_code == 0, later.stdout
    assert 0 < found(later)["tasks"] < 21
    misspelt = audit(made, "--policy", "ohter")
    assert (misspelt.exit_code, "the log has no policy 'ohter', only default, other" in misspelt.stderr) == (3, True)
    for kind in ("prompts", "conversations"):
        asked = ["export", str(tmp_path / kind), "--format", kind, "--policy", "ohter"]
        exported = CliRunner().invoke(cli, asked, env=to_env(made))
        assert (exported.exit_code, exported.stderr) == (3, misspelt.stderr)
    nothing = audit(made, "--since", "soon")
    assert (nothing.exit_code, "--since soon: expected a time" in nothing.stderr) == (2, True)


def test_a_log_without_topics_is_not_found(settings: Settings) -> None:
    result = audit(settings)
    assert result.exit_code == 3
    assert "admin topics apply" in result.stderr


def test_the_figure_is_served_as_a_metric(made: Settings, tmp_path: Path) -> None:
    put(made, whole_log(BEGIN_MS).records)
    with (tmp_path / "audit.log").open("wb") as said:
        process = spawn(
            command("audit", "--follow", "--listen", "127.0.0.1:0", "--every", "0.2"),
            env=environment(made),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=said,
        )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]

        def metrics() -> str:
            try:
                with urllib.request.urlopen(f"{url}/metrics", timeout=300) as answer:  # noqa: S310 - our own
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    return str(answer.read().decode())
            except urllib.error.HTTPError as exc:  # before the first recount
                assert exc.code == 503
                exc.close()
                return ""

        until(lambda: f"\n{IMBALANCE} 0.0\n" in metrics(), "a balanced log", folder=tmp_path)
        with urllib.request.urlopen(f"{url}/healthz", timeout=300) as healthy:  # noqa: S310
            assert healthy.status == 200
        with Producer(made) as producer:
            producer.send_bytes(f"{made.topics.prefix}dead-letters", b"t1", b"no letter")
        until(lambda: f"\n{IMBALANCE} 1.0\n" in metrics(), "the imbalance of 1", folder=tmp_path)
        assert 'streamward_ledger_findings_records{accounted="false",category="phantom"} 1.0\n' in metrics()
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()
