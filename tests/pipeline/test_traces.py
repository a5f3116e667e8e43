"""One task followed from its submission to the version that was trained on it, through headers and through spans.

a task with a trace, one without ──► streams, scoring, policy, train ──► headers of every record; spans at a receiver
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Event, Message, Response, Reward, RewardSource, Task
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.observability import trace_context
from streams.observability.trace_context import Context, child, of_headers, span_id_of
from streams.settings.model import Settings
from tests.support.doubles.judge import judging, says
from tests.support.doubles.otlp_receiver import Seen, receiving
from tests.support.factories import task
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, read, running, spawn_and_wait, until, write
from tests.support.vllm.contract import replay, request, save_all, settings_for as settings_for_vllm

pytestmark = pytest.mark.kafka

CAME = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
SLOTS = 3


def settings_for(kafka_bootstrap: str, folder: Path, **sections: object) -> Settings:
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": {"prefix": own_prefix(), "partitions": 2, "policy_partitions": 1},
            "batches": {"groups": 2, "zero_variance": "keep"},
            "trainer": {"checkpoints": folder / "checkpoints"},
            "adapters": {"store": str(folder / "adapters")},
            **sections,
        }
    )
    admin.apply_topics(settings)
    return settings


def asked(name: str) -> Task:
    return task(
        task_id=name,
        created_at=int(time.time() * 1000),
        group_size=SLOTS,
        messages=(Message(role="user", content="1 7"),),
        reward_sources=(RewardSource(name="length", settings=json.dumps({"unit": "characters", "limit": 60})),),
    )


def traces(settings: Settings, kind: type[Event], told: Callable[[Event], str]) -> dict[str, Context | None]:
    """Return the trace in the header of each record of a topic, by what `told` says of its event."""
    return {told(event): of_headers(record.headers) for record, event in read(settings, kind)}


def test_without_a_receiver_every_record_that_follows_from_a_traced_one_has_its_header_and_no_other_has_any(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_for(kafka_bootstrap, tmp_path, policy={"engine": "scripted", "script": '{"answers": "echo"}'})
    with running(settings, tmp_path, "streams", "scoring", "policy"):
        with Producer(settings) as producer:
            producer.send(asked("plain"))
            producer.flush()
            until(lambda: bool(read(settings, AdvantagedGroup)), "the first group", folder=tmp_path)
            producer.send(asked("traced"), headers=trace_context.headers_of(CAME))
        until(lambda: bool(read(settings, Batch)), "a batch", folder=tmp_path)
    by_task = {"plain": None, "traced": CAME}
    for kind, count in ((Task, 1), (Response, SLOTS), (Reward, SLOTS), (AdvantagedGroup, 1)):
        found = [(event.task_id, of_headers(record.headers)) for record, event in read(settings, kind)]
        assert sorted(found, key=str) == sorted(list(by_task.items()) * count, key=str)
    ((record, _),) = read(settings, Batch)
    assert of_headers(record.headers) == CAME  # of the group that filled it


def test_what_is_asked_of_vllm_and_of_a_judge_is_in_the_trace_of_the_task(kafka_bootstrap: str, tmp_path: Path) -> None:
    files = save_all(tmp_path / "files")
    source = RewardSource(name="judge", settings="{}")
    seeded = replace(request("seeded", seed=7, slots=2).task, reward_sources=(source,))
    with receiving() as receiver, replay() as server, judging(says({"score": 7})) as judge:
        settings = settings_for(
            kafka_bootstrap,
            tmp_path,
            **settings_for_vllm(server.url, files / "model", tmp_path).model_dump(include={"model", "policy"}),
            scoring={"judge_url": judge.url, "judge_model": "small-judge"},
            tracing={"otlp_endpoint": receiver.url},
        )
        with Producer(settings) as producer:
            producer.send(seeded, headers=trace_context.headers_of(CAME))
        with running(settings, tmp_path, "scoring", "policy"):
            until(lambda: len(read(settings, Reward)) == 2, "two scores", folder=tmp_path)
    ((_, asked_in),) = server.traced()
    assert asked_in == CAME.traceparent, "the record of the task: one request for the answers of all its slots"
    assert {reward.value for _, reward in read(settings, Reward)} == {0.7}
    scores = receiver.named("rl.reward")
    assert {headers["traceparent"] for _, headers, _ in judge.requests} == {
        Context(CAME.trace_id, span.span_id).traceparent for span in scores
    }
    assert len(scores) == len(judge.requests) == 2


def submitted(settings: Settings, folder: Path) -> str:
    """Submit one task as part of the trace CAME, by the command; return its id."""
    line = {"prompt": "3 9", "group_size": SLOTS, "reward_sources": [{"name": "length", "settings": {"limit": 60}}]}
    (folder / "tasks.jsonl").write_text(json.dumps(line))
    env = environment(settings) | {"TRACEPARENT": CAME.traceparent}
    spawn_and_wait(command("tasks", "submit", "tasks.jsonl"), env=env, cwd=folder, check=True, capture_output=True)
    ((_, event),) = read(settings, Task)
    return event.task_id


def test_a_traced_task_is_followed_to_its_batch_and_to_the_version_trained_on_it(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with receiving() as receiver:
        settings = settings_for(
            kafka_bootstrap,
            tmp_path,
            model={"base": str(save_tiny(tmp_path / "model"))},
            tracing={"otlp_endpoint": receiver.url},
        )
        traced = submitted(settings, tmp_path)
        write(settings, asked("untold"))
        with running(settings, tmp_path, "streams", "scoring", "policy", "train"):
            kinds = lambda: {event.kind for _, event in read(settings, AdapterEvent)}  # noqa: E731
            until(lambda: kinds() >= {"trained", "promoted"}, "a version, promoted", folder=tmp_path)
            until(lambda: bool(receiver.named("rl.sync")), "the load of the version", folder=tmp_path)
    spans = {span.span_id: span for span in receiver.spans}
    assert len(spans) == len(receiver.spans)
    (loop,), (sync,) = receiver.named("rl.loop"), receiver.named("rl.sync")  # the spans that are no records
    assert _every_header_names_the_span_of_its_record(settings, spans) == len(spans) - 2
    assert {span.service.removeprefix("streamward-") for span in spans.values()} == {
        *("submit", "policy", "scoring", "streams", "train")
    }
    for span in spans.values():
        parent = spans.get(span.parent_id)
        assert parent is not None or span.parent_id in ("", CAME.span_id)
        assert parent is None or parent.trace_id == span.trace_id
        assert all(spans[linked].trace_id == trace_id for trace_id, linked in span.links)
    _whole(spans, traced, CAME.trace_id, CAME.span_id)
    _whole(spans, "untold", spans[span_id_of("untold")].trace_id, "")
    (batch,) = receiver.named("batch")
    assert {linked for _, linked in batch.links} == {span.span_id for span in receiver.named("join")}
    assert (loop.parent_id, batch.parent_id) == ("", loop.span_id) and batch.trace_id != CAME.trace_id
    (train,), (decide,) = receiver.named("rl.train"), receiver.named("decide")
    assert (train.parent_id, decide.parent_id, sync.parent_id) == (batch.span_id, train.span_id, train.span_id)
    assert loop.began_ns <= train.began_ns and train.ended_ns <= loop.ended_ns
    assert sync.attributes["rl.sync.bytes"] > 0 and sync.service == "streamward-policy"


def _every_header_names_the_span_of_its_record(settings: Settings, spans: dict[str, Seen]) -> int:
    """Check each record of the loop; return how many there are."""
    ids: list[tuple[type[Event], str]] = [
        (Task, "task_id"),
        (Response, "response_id"),
        (Reward, "reward_id"),
        (AdvantagedGroup, "group_id"),
        (Batch, "batch_id"),
        (AdapterEvent, "event_id"),
    ]
    count = 0
    for kind, name in ids:
        for record, event in read(settings, kind):
            span = spans[span_id_of(getattr(event, name))]
            count += 1
            assert span.attributes["messaging.destination.name"] == record.at.topic
            assert span.attributes["messaging.kafka.offset"] == record.at.offset
            if getattr(event, name) == "untold":
                assert record.headers == ()
            else:
                assert of_headers(record.headers) == Context(span.trace_id, span.span_id)
    return count


def _whole(spans: dict[str, Seen], task_id: str, trace_id: str, above: str) -> None:
    """Check that the trace of a task is one tree: it, its answers, their scores, its group."""
    root = spans[span_id_of(task_id)]
    assert (root.trace_id, root.parent_id) == (trace_id, above)
    under = [span for span in spans.values() if span.parent_id == root.span_id]
    samples = [span for span in under if span.name == "rl.sample"]
    (join,) = (span for span in under if span.name == "join")
    assert len(under) == SLOTS + 1 == len(samples) + 1
    scores = [span for span in spans.values() if span.parent_id in {span.span_id for span in samples}]
    assert sorted(span.name for span in scores) == ["rl.reward"] * SLOTS
    assert {linked for _, linked in join.links} == {span.span_id for span in scores}
    assert {span.trace_id for span in (*under, *scores)} == {trace_id}
    assert child(Context(trace_id, above or root.span_id), task_id).span_id == root.span_id
