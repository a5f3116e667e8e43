"""The eleven questions of docs/queries.md over an archive, and one of them against DuckDB on the same Parquet files.

    python -m tests.benchmarks queries                    STREAMWARD_BENCH_RESPONSES=1000000 for a long archive

The log is written, archived and then asked with `--source archive`: what the live tail adds is its own reading. A group
has eight responses of 32 tokens, scored by two sources; 16 groups make a batch, and a tenth are held-out questions. The
peer of the last lines is a bare DuckDB connection and the same statement over read_parquet of the same files.

Not covered: a cold disk. The files are in the page cache, for both.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Event, GroupResponse, RewardSource, derive_id
from schemas.serde import encode
from streams.kafka.producer import Producer
from streams.kafka.record import key_of, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Archive, Settings
from streams.tools.archive import sync
from streams.tools.query.session import Session
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.whole_groups import SLOTS, Whole, whole

RESPONSES = int(os.environ.get("STREAMWARD_BENCH_RESPONSES", "40000"))
FULL = 1_000_000
"""Responses from which on the targets are meant: a statement costs a few milliseconds, however little it reads."""
TARGETS = RESPONSES >= FULL
BATCH_GROUPS = 16
LIMIT_S = 1.0
"""For each question, at a million responses on two cores."""
OF_PLAIN = 1 / 1.2
PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
QUESTION = re.compile(r"^## (\d+)\. (.*?)$.*?^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLAIN = """
SELECT adapter_version, count(*) AS answers, count(*) FILTER (finish_reason = 'length') AS truncated,
       avg(completion_tokens), max(latency_ms)
FROM {} WHERE policy = 'demo' AND error IS NULL GROUP BY adapter_version ORDER BY adapter_version
"""


def run() -> Iterator[dict[str, Any]]:
    """Yield a line per question, in seconds, and two against plain DuckDB."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as settings:
        settings = settings.model_copy(update={"archive": Archive(store=folder)})
        say(f"queries: {RESPONSES} responses are written and archived")
        _Log(settings).write(RESPONSES // SLOTS)
        sync.sync(settings)
        yield from _questions(settings)
        yield from _against_plain(settings)


def _questions(settings: Settings) -> Iterator[dict[str, Any]]:
    with Session(settings, source="archive") as session:
        for number, title, sql in QUESTION.findall(PAGE.read_text(encoding="utf-8")):
            measured = by_turns({"ours": lambda sql=sql: _rows(session, sql)}, rounds=3)["ours"]
            took_s = median_s(measured)
            yield line(
                "queries", f"{number}. {title} ({RESPONSES} responses)", ours=took_s, peer=LIMIT_S, unit="s",
                ratio=LIMIT_S / took_s, target=1.0 if TARGETS else None,
                peer_is="the limit for 1000000 responses, 2 cores", rows=measured[0][1],
            )  # fmt: skip


def _against_plain(settings: Settings) -> Iterator[dict[str, Any]]:
    say("queries: one statement, by turns with plain DuckDB")
    with Session(settings, source="archive") as session, duckdb.connect() as con:
        files = [segment.path for part in range(settings.topics.partitions) for segment in _segments(settings, part)]
        plain = PLAIN.format(f"read_parquet({files})")

        def opened() -> int:
            with Session(settings, source="archive") as fresh:
                return _rows(fresh, PLAIN.format("responses"))

        def bare() -> int:
            with duckdb.connect() as fresh:
                return len(fresh.execute(plain).fetchall())

        runs = {
            "ours": lambda: _rows(session, PLAIN.format("responses")),
            "peer": lambda: len(con.execute(plain).fetchall()),
            "ours, opened": opened,
            "peer, opened": bare,
        }
        seconds = {name: median_s(each) for name, each in by_turns(runs, rounds=9).items()}
    shared: dict[str, Any] = {"unit": "s", "peer_is": "DuckDB, read_parquet of the same files"}
    for case, suffix, target in (("one statement", "", OF_PLAIN), ("with opening the session", ", opened", None)):
        ours, peer = seconds["ours" + suffix], seconds["peer" + suffix]
        yield line(
            "queries", f"{case} ({RESPONSES} responses)", ours=ours, peer=peer, ratio=peer / ours,
            target=target if TARGETS else None,
            **shared,
        )  # fmt: skip


def _segments(settings: Settings, partition: int) -> list[Any]:
    from streams.tools.archive.segments import ArchiveReader as Kept

    return Kept(settings).segments("responses", partition)


def _rows(session: Session, sql: str) -> int:
    statement = session.parse(sql)
    session.check(session.labels(statement))
    return sum(map(len, session.run(sql).batches))


class _Log:
    """Writes a finished run: its groups lie where their batches say."""

    def __init__(self, settings: Settings) -> None:
        self._topics = {topic.event: topic for topic in topics(settings.topics).values()}
        self._settings = settings
        self._next: dict[tuple[str, int], int] = {}

    def write(self, groups: int) -> None:
        with Producer(self._settings) as self._producer:
            offsets: list[int] = []
            version = 0
            for number in range(groups):
                made = _scored(whole(f"{number % 997} + {number % 991}"), number, version)
                held_out = number % 10 == 0
                places = [self._send(response) for response in made.responses]
                for event in (made.task, *made.rewards):
                    self._send(event)
                place = self._send(_group(made, places, version))
                if not held_out:
                    offsets.append(place[1])
                if len(offsets) == BATCH_GROUPS:
                    batch, trained = _step(version, place[0], tuple(offsets), made.task.created_at)
                    self._send(batch)
                    self._send(trained)
                    offsets.clear()
                    version += 1

    def _send(self, event: Event) -> tuple[int, int]:
        topic = self._topics[type(event)]
        key = key_of(event, topic)
        partition = partition_of((key or b"").decode(), topic.partitions)
        offset = self._next.get((topic.name, partition), 0)
        self._next[topic.name, partition] = offset + 1
        self._producer.send_bytes((topic.name, partition), key, encode(event))
        return partition, offset


def _scored(made: Whole, number: int, version: int) -> Whole:
    """Return the group as one of this run: its own ids, policy `demo`, two sources, answers of some variety."""
    task = replace(
        made.task, task_id=f"task-{number}", policy="demo", scenario=f"scenario-{number % 5}",
        purpose="eval" if number % 10 == 0 else "train",
        reward_sources=(RewardSource(name="exact"), RewardSource(name="brief", weight=0.25)),
    )  # fmt: skip
    responses, rewards = [], []
    for slot, response in enumerate(made.responses):
        sampling_id = f"{task.task_id}/first"
        answered = replace(
            response, task_id=task.task_id, policy="demo", sampling_id=sampling_id, adapter_version=version % 50,
            response_id=derive_id(sampling_id, slot), text=f"{response.text}{(number * slot) % 10_007}",
            finish_reason="length" if (number + slot) % 7 == 0 else "stop",
        )  # fmt: skip
        responses.append(answered)
        for source in ("exact", "brief"):
            value = float((number * 31 + slot * 7 + (source == "brief")) % 3 == 0)
            rewards.append(
                replace(
                    made.rewards[slot], response_id=answered.response_id, task_id=task.task_id, policy="demo",
                    source=source, value=value, reward_id=derive_id(answered.response_id, source),
                )
            )  # fmt: skip
    return Whole(task, responses, rewards)


def _group(made: Whole, places: list[tuple[int, int]], version: int) -> AdvantagedGroup:
    task, first = made.task, made.responses[0]
    members = []
    for slot, (response, (partition, offset)) in enumerate(zip(made.responses, places, strict=True)):
        exact, brief = (reward.value or 0.0 for reward in made.rewards[2 * slot : 2 * slot + 2])
        members.append(
            GroupResponse(
                slot=slot, response_id=response.response_id, partition=partition, offset=offset,
                finish_reason=response.finish_reason, latency_ms=response.latency_ms, reward=exact + 0.25 * brief,
                advantage=exact - 0.5,
                components={"exact": exact, "brief": brief}, completion_token_ids=response.completion_token_ids,
                logprobs=response.logprobs, loss_mask=response.loss_mask,
            )
        )  # fmt: skip
    return AdvantagedGroup(
        group_id=derive_id(task.task_id, "group", 1), task_id=task.task_id, created_at=task.created_at, policy="demo",
        purpose=task.purpose, scenario=task.scenario, sampling_id=first.sampling_id, group_size=SLOTS,
        adapter_version=version % 50, base_digest=first.base_digest, tokenizer_digest=first.tokenizer_digest,
        complete=True, formula="grpo", formula_version=1, formula_eps=1e-4, formula_ddof=1, reward_mean=0.5,
        reward_std=0.5, prompt_token_ids=first.prompt_token_ids, responses=tuple(members),
    )  # fmt: skip


def _step(version: int, partition: int, offsets: tuple[int, ...], now_ms: int) -> tuple[Batch, AdapterEvent]:
    batch = Batch(
        batch_id=derive_id("demo", version), policy="demo", created_at=now_ms, sequence=version, closed_by="count",
        max_policy_lag=1, groups=len(offsets), responses=len(offsets) * SLOTS, loss_tokens=0,
        groups_partition=partition, groups_offsets=offsets,
    )  # fmt: skip
    trained = AdapterEvent(
        event_id=derive_id("demo", version, "trained"), policy="demo", created_at=now_ms, version=version + 1,
        kind="trained", actor="bench", reason="", first_batch=0, last_batch=version,
    )  # fmt: skip
    return batch, trained
