"""What the four processes say of themselves while the loop runs, compared with the table and with the log.

tasks, one too late, a record that is none ──► streams, scoring, policy, train ──► a version ──► /metrics of each
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Message, Response, Reward, RewardSource, Sampling, Task
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.observability import catalog
from streams.observability.catalog import LOOP, Metric
from streams.settings.model import Metrics, Settings
from tests.chaos.proxy import free_ports
from tests.support.factories import task
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny
from tests.support.processes import read, running, until
from tests.support.scrape import Scraped, get, parse

pytestmark = pytest.mark.kafka

GROUPS = 4
LENGTH = RewardSource(name="length", settings=json.dumps({"unit": "characters", "limit": 60}))
"""Random words differ in it, so that there is something to train on."""


@dataclass
class Seen:
    """One run of the loop."""

    settings: Settings
    answers: dict[str, dict[str, tuple[int, str]]]
    """By process and path."""
    metrics: dict[str, Scraped]
    working: set[str]
    """What lay in the temporary folder while they ran."""
    left: set[str]
    """And once they had ended."""


def asked(number: int, **changes: object) -> Task:
    now_ms = int(time.time() * 1000)
    whole: dict[str, object] = {
        "task_id": f"t{number}",
        "created_at": now_ms,
        "messages": (Message(role="user", content=f"{number} 7"),),
        "reward_sources": (LENGTH,),
        "sampling": Sampling(max_tokens=8),
    }
    return task(**whole | changes)


def tiny_loop(folder: Path, bootstrap: str) -> Settings:
    """Settings of a loop with the tiny model, everything under `folder`; its topics exist."""
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": bootstrap},
            "topics": {"prefix": own_prefix(), "partitions": 2, "policy_partitions": 1},
            "model": {"base": str(save_tiny(folder / "model"))},
            "batches": {"groups": GROUPS},
            "trainer": {"checkpoints": folder / "checkpoints"},
            "adapters": {"store": str(folder / "adapters")},
        }
    )
    admin.apply_topics(settings)
    return settings


@pytest.fixture(scope="module")
def seen(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("metrics")
    settings = tiny_loop(folder, kafka_bootstrap)
    with Producer(settings) as producer:
        producer.send_bytes(settings.topics.prefix + "tasks", b"t0", b"no task")
        producer.send(asked(0, deadline_at=1))
        for number in range(1, GROUPS + 3):
            producer.send(asked(number))
    urls = {name: f"http://127.0.0.1:{port}" for name, port in zip(LOOP, free_ports(len(LOOP)), strict=True)}
    temporary = folder / "tmp"
    temporary.mkdir()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        for name in LOOP:
            port = int(urls[name].rpartition(":")[2])
            own = settings.model_copy(update={"metrics": Metrics(port=port)})
            stack.enter_context(running(own, folder, name))

        def counted(name: str, metric: Metric) -> float:
            status, text = get(f"{urls[name]}/metrics")
            return parse(text).total(metric.name) if status == 200 else 0

        def done(name: str) -> bool:
            found = parse(get(f"{urls[name]}/metrics")[1]).family(catalog.LAG_RECORDS.name)
            return bool(found) and not any(sample.value for sample in found)

        until(lambda: counted("train", catalog.VERSION) >= 1, "a version", folder=folder)
        until(lambda: "trained" in {event.kind for _, event in read(settings, AdapterEvent)}, "its event")
        until(lambda: counted("streams", catalog.DECISIONS) >= 1, "its promotion", folder=folder)
        # the task that is too late has its group once a timer has fired: until then nothing lags for want of a record
        until(lambda: counted("streams", catalog.GROUPS) >= GROUPS + 3, "a group of every task", folder=folder)
        until(lambda: all(map(done, LOOP)), "no lag", folder=folder)
        answers = {
            name: {path: get(url + path) for path in ("/metrics", "/healthz", "/readyz")} for name, url in urls.items()
        }
        working = {path.name for path in temporary.iterdir()}
    metrics = {name: parse(found["/metrics"][1]) for name, found in answers.items()}
    return Seen(settings, answers, metrics, working, {path.name for path in temporary.iterdir()})


PAIRS = [(process, metric) for metric in catalog.all_metrics() for process in metric.processes if process in LOOP]


@pytest.mark.parametrize(("process", "metric"), PAIRS, ids=lambda one: getattr(one, "name", one))
def test_a_process_has_every_metric_that_the_table_gives_it(seen: Seen, process: str, metric: Metric) -> None:
    found = seen.metrics[process]
    if metric.needs and metric.name not in found.kinds:
        return
    assert found.kinds.get(metric.name) == metric.kind
    assert found.family(metric.name)
    for sample in found.family(metric.name):
        assert set(sample.labels) == set(metric.labels)


@pytest.mark.parametrize("process", LOOP)
def test_a_process_has_no_metric_that_the_table_does_not_give_it(seen: Seen, process: str) -> None:
    assert set(seen.metrics[process].kinds) <= {
        metric.name for metric in catalog.all_metrics() if process in metric.processes
    }


@pytest.mark.parametrize("process", LOOP)
def test_a_process_at_work_is_healthy_and_ready(seen: Seen, process: str) -> None:
    status, text = seen.answers[process]["/healthz"]
    assert status == 200 and text.startswith("ok: ")
    assert seen.answers[process]["/readyz"] == (200, "ok\n")


def test_a_run_leaves_nothing_in_the_temporary_folder(seen: Seen) -> None:
    assert [name for name in seen.working if not name.startswith("streamward-adapters-")] == []
    assert len(seen.working) == 1
    assert seen.left == set()


def test_no_label_holds_an_id(seen: Seen) -> None:
    values = {value for told in seen.metrics.values() for one in told.samples for value in one.labels.values()}
    assert [value for value in values if re.search(r"[0-9a-f]{8}-|^t\d+$", value) or len(value) > 40] == []


def test_what_the_agents_count_is_what_lies_in_the_log(seen: Seen) -> None:
    policy, scoring = seen.metrics["policy"], seen.metrics["scoring"]
    responses = [event for _, event in read(seen.settings, Response)]
    assert policy.total("streamward_events_out_total", topic="responses") == len(responses)
    assert policy.total("streamward_tokens_sampled_total") == sum(one.completion_tokens for one in responses)
    by_reason = {
        one.labels["finish_reason"]: one.value for one in policy.family("streamward_responses_total") if one.value
    }
    assert by_reason == Counter(one.finish_reason for one in responses)
    streams = seen.metrics["streams"]  # of a record that is no task it alone writes the dead letter
    assert (policy.total("streamward_dead_letters_total"), streams.total("streamward_dead_letters_total")) == (0, 1)
    assert policy.total("streamward_drops_total", reason="too_late") == 1
    rewards = len(read(seen.settings, Reward))
    assert scoring.total("streamward_score_seconds", source="length") == rewards
    assert scoring.total("streamward_events_in_total", topic="responses") == len(responses)


def test_what_streams_and_trainer_count_is_what_lies_in_the_log(seen: Seen) -> None:
    streams, train = seen.metrics["streams"], seen.metrics["train"]
    groups = [event for _, event in read(seen.settings, AdvantagedGroup)]
    assert (
        streams.total("streamward_groups_total") == streams.total("streamward_group_completion_seconds") == len(groups)
    )
    batches = [event for _, event in read(seen.settings, Batch)]
    assert streams.total("streamward_policy_lag_versions") == sum(batch.groups for batch in batches)
    (trained,) = (event for _, event in read(seen.settings, AdapterEvent) if event.kind == "trained")
    assert train.total("streamward_trainer_tokens_total") == trained.metrics["tokens"]
    for name, metric in catalog.OF_STEP.items():
        assert train.total(metric.name) == pytest.approx(trained.metrics[name])
    phases = {one.labels["phase"]: one.value for one in train.family("streamward_trainer_phase_seconds")}
    assert phases == dict.fromkeys(catalog.PHASES, 1)
    assert [one.labels for one in train.family("streamward_adapter_info")] == [
        {"policy": "default", "role": "trained", "version": "1"}
    ]
