"""A small log of a finished run, as questions find it: two steps of training, and held-out questions after each.

    tasks, responses, rewards ──► the join's own reducer ──► groups ──► two batches ──► versions 1 and 2, each evaluated
    version 1 promoted ──► a canary of version 2, one step, promoted against a primary of before, then right, and back

Policy `demo` is asked sums and words, three slots a task, by two sources of reward. Everything lies at fixed times from
2026-01-31 12:00 UTC on, so that a page can show what a query gives.

Not covered: trouble. tests/support/log/whole_run.py has a log full of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime

from schemas.events import (
    AdapterEvent,
    AdapterKind,
    Batch,
    Message,
    Response,
    Reward,
    RewardSource,
    Sampling,
    Task,
    derive_id,
)
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.settings.model import Settings, Topics
from streams.tools.replay import driver
from tests.support.factories import response, reward, task
from tests.support.log.whole_run import SETTINGS, Joined, Written, trained

BEGIN_MS = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS = 60_000
SOURCES = (RewardSource(name="exact"), RewardSource(name="brief", weight=0.25))

TRAINED: tuple[tuple[int, int, str, str, str, tuple[str, str, str]], ...] = (
    # minute, version, task, question, answer, what was said; `+` at the end: it ran out of tokens
    (0, 0, "sum-1", "4 + 7 =", "11", ("47", "11", "4 + 7 is+")),
    (1, 0, "sum-2", "2 + 3 =", "5", ("23", "5", "5")),
    (1, 0, "word-1", "Spell cat backwards.", "tac", ("cat", "cat", "tac")),
    (4, 1, "sum-3", "6 + 1 =", "7", ("7", "61", "7")),
    (4, 0, "word-2", "Spell dog backwards.", "god", ("dog", "The word dog+", "god")),
    (6, 1, "sum-4", "8 + 9 =", "17", ("17", "17", "89")),
)  # fmt: skip
EVALUATED: tuple[tuple[int, int, str, str, str], ...] = (
    # minute, version, question, answer, what was said
    (3, 1, "1 + 1 =", "2", "11"),
    (3, 1, "3 + 3 =", "6", "6"),
    (3, 1, "Spell top backwards.", "pot", "top"),
    (8, 2, "1 + 1 =", "2", "2"),
    (8, 2, "3 + 3 =", "6", "6"),
    (8, 2, "Spell top backwards.", "pot", "The top+"),
)
CUT = (2, 7)
"""Minute of each batch."""
RELEASED: tuple[tuple[tuple[float, AdapterKind, int, int, float | None], ...], ...] = (
    # minute, kind, version, the primary it was decided against, share
    ((2.6, "promoted", 1, 0, None),),
    (
        (9, "canary_started", 2, 1, 0.25),
        (10, "canary_advanced", 2, 1, 0.5),
        (11, "promoted", 2, 0, None),
        (12, "promoted", 2, 1, None),
        (14, "rolled_back", 1, 2, None),
    ),
)
"""Behind each version: what was decided."""


def log() -> Written:
    """Return the log."""
    written = Written()
    join = Joined(written)
    for minute, version, name, question, answer, said in TRAINED:
        asked = _task(name, minute, question, answer)
        _play(written, join, asked, version, minute, said)
    for minute, version, question, answer, text in EVALUATED:
        name = derive_id("evaluation", "held out", "demo", version, question)
        asked = dataclasses.replace(
            _task(name, minute, question, answer), purpose="eval", group_size=1, adapter_version=version
        )
        _play(written, join, asked, version, minute, (text,))
    for label, key, minute in (("responses", b"sum-1", 5), ("rewards", b"sum-2", 61)):
        join.read(written.write(b"{}", _at(minute), label=label, key=key))
    for batch in driver.cut(SETTINGS, written.of("groups")):
        assert isinstance(batch, Batch)
        at_ms = _at(CUT[batch.sequence])
        written.write(batch, at_ms)
        written.write(trained(batch.sequence + 1, "demo", created_at=at_ms + 30_000), at_ms + 30_000)
        for minute, kind, version, expected, share in RELEASED[batch.sequence]:
            written.write(_decision(minute, kind, version, expected, share), _at(minute))
    return written


def topics(prefix: str) -> Topics:
    """Return topics in the shape of the log, which keep what is this old."""
    return SETTINGS.topics.model_copy(update={"prefix": prefix, "retention_days": 0})


def put(settings: Settings, records: Iterable[Record]) -> None:
    """Make the topics, and write records to the places where they lie."""
    admin.apply_topics(settings)
    with Producer(settings) as producer:
        for record in records:
            topic = settings.topics.prefix + record.at.topic.removeprefix(SETTINGS.topics.prefix)
            producer.send_bytes(
                (topic, record.at.partition), record.key, record.payload, timestamp_ms=record.timestamp_ms
            )


def _at(minute: float) -> int:
    return BEGIN_MS + int(minute * MINUTE_MS)


def _decision(minute: float, kind: AdapterKind, version: int, expected: int, share: float | None) -> AdapterEvent:
    return AdapterEvent(
        event_id=derive_id("demo", kind, version, expected, minute), policy="demo", created_at=_at(minute), kind=kind,
        version=version, actor="a person", reason="because", expected_version=expected, share=share,
    )  # fmt: skip


def _task(name: str, minute: int, question: str, answer: str) -> Task:
    return task(
        task_id=name, created_at=_at(minute), policy="demo", group_size=3, reward_sources=SOURCES,
        scenario="sums" if "+" in question else "words", verifier=f'{{"answer": "{answer}"}}',
        messages=(Message(role="user", content=question),),
    )  # fmt: skip


def _play(written: Written, join: Joined, asked: Task, version: int, minute: int, said: tuple[str, ...]) -> None:
    """Write a task, its answers a few seconds later, and their rewards, and let the join read them."""
    at_ms = _at(minute)
    join.read(written.write(asked, at_ms))
    answer = asked.verifier.split('"')[-2]
    for slot, text in enumerate(said):
        answered = _response(asked, version, at_ms + 5000 + 1000 * slot * len(text), slot, text)
        join.read(written.write(answered, answered.created_at))
        for verdict in _rewards(answered, answer):
            join.read(written.write(verdict, verdict.created_at))


def _response(asked: Task, version: int, at_ms: int, slot: int, text: str) -> Response:
    cut = text.endswith("+")
    tokens = len(text.rstrip("+"))
    return response(
        task_id=asked.task_id, sampling_id=f"{asked.task_id}/{version}", created_at=at_ms, policy="demo", slot=slot,
        group_size=asked.group_size, adapter_version=version, finish_reason="length" if cut else "stop",
        text=text.rstrip("+"), sampling=Sampling(max_tokens=12), latency_ms=50.0 * tokens, completion_tokens=tokens,
        completion_token_ids=tuple(range(tokens)), logprobs=(-0.5,) * tokens, loss_mask=(True,) * tokens,
    )  # fmt: skip


def _rewards(answered: Response, answer: str) -> list[Reward]:
    right = 1.0 if answered.text == answer else 0.0
    brief = 1.0 if len(answered.text) <= 3 else 0.0
    return [
        reward(answered, source=source, value=value, created_at=answered.created_at + 100)
        for source, value in (("exact", right), ("brief", brief))
    ]
