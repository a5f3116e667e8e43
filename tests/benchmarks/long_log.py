"""A finished run of any length, to load a log with: its groups lie where their batches say.

    LongLog(settings).write(groups) ──► tasks, responses, rewards, groups, a batch and a version for each so many groups
    LongLog(settings, days=…)       ──► the same, over so many days, each group with a served run of one turn

A group has eight responses of 32 tokens, scored by two sources, and a tenth of the groups are held-out questions.

Not covered: runs of tasks, and groups that taught nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    Event,
    GroupResponse,
    Message,
    RewardSource,
    TrajectoryEvent,
    Turn,
    derive_id,
)
from schemas.serde import encode
from streams.kafka.producer import Producer
from streams.kafka.record import key_of, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.benchmarks.whole_groups import SLOTS, Whole, whole

BATCH_GROUPS, VERSIONS = 16, 50
DAY_MS = 86_400_000


class LongLog:
    """Writes a finished run: its groups lie where their batches say."""

    def __init__(
        self, settings: Settings, *, batch_groups: int = BATCH_GROUPS, versions: int = VERSIONS, days: float = 0.0
    ) -> None:
        """`batch_groups`: train groups of a step. `versions`: how many answer by turns, from the first one on. `days`:
        how long ago the log begins; 0 writes everything now, and no runs."""
        self._batch_groups, self._versions, self._days = batch_groups, versions, days
        self._record_ms = 0
        self._topics = {topic.event: topic for topic in topics(settings.topics).values()}
        self._settings = settings
        self._next: dict[tuple[str, int], int] = {}

    def write(self, groups: int) -> None:
        with Producer(self._settings) as self._producer:
            offsets: list[int] = []
            version = 0
            for number in range(groups):
                answers = version % self._versions
                made = _scored(whole(f"{number % 997} + {number % 991}"), number, answers)
                if self._days:
                    self._record_ms = int(time.time() * 1000 - self._days * DAY_MS * (1 - number / groups))
                    made = _at(made, self._record_ms)
                    for event in _run(made, number):
                        self._send(event)
                held_out = number % 10 == 0
                places = [self._send(response) for response in made.responses]
                for event in (made.task, *made.rewards):
                    self._send(event)
                place = self._send(_group(made, places, answers))
                if not held_out:
                    offsets.append(place[1])
                if len(offsets) == self._batch_groups:
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
        self._producer.send_bytes((topic.name, partition), key, encode(event), timestamp_ms=self._record_ms)
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
            response, task_id=task.task_id, policy="demo", sampling_id=sampling_id, adapter_version=version,
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


def _at(made: Whole, now_ms: int) -> Whole:
    return Whole(
        replace(made.task, created_at=now_ms),
        [replace(response, created_at=now_ms) for response in made.responses],
        [replace(reward, created_at=now_ms) for reward in made.rewards],
    )


def _run(made: Whole, number: int) -> tuple[TrajectoryEvent, Turn, TrajectoryEvent]:
    """Return a chat of one turn that was served and has ended."""
    answer, name = made.responses[0], derive_id("chat", number)
    of_run = {"trajectory_id": name, "task_id": name, "created_at": answer.created_at, "policy": "demo"}
    run = {**of_run, "agent_id": "calc", "purpose": "serve", "reason": "a chat"}
    turn = Turn(
        **of_run, turn_id=derive_id(name, 0), agent_id="calc", adapter_version=0, number=0, continuity="first",
        reason="the first call of its trajectory", protocol="chat", request_digest="d" * 64,
        started_at=answer.created_at, engine="bench", base_digest=answer.base_digest, template_digest="e" * 64,
        tokenizer_digest=answer.tokenizer_digest, finish_reason="stop", prompt_tokens=answer.prompt_tokens,
        reply=Message(role="assistant", content=answer.text), sampling=answer.sampling, logprobs=answer.logprobs,
        prompt_token_ids=answer.prompt_token_ids, completion_token_ids=answer.completion_token_ids,
        messages=made.task.messages,
    )  # fmt: skip
    started = TrajectoryEvent(**run, event_id=derive_id(name, "started"), kind="started")
    ended = TrajectoryEvent(
        **run, event_id=derive_id(name, "ended"), kind="ended", ending="completed", turns=1
    )  # fmt: skip
    return started, turn, ended


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
        adapter_version=version, base_digest=first.base_digest, tokenizer_digest=first.tokenizer_digest,
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
