"""The needs of a load: processes, partitions, bytes; and which limit is reached first when it grows.

    Load ──► records and bytes of the log ──► Need: cores of each stage, disk ──► limits: which setting ends it

Everything here is arithmetic. Its constants are printed by `make bench` or are sizes of encoded test events
(tests/unit/test_capacity.py compares both). Users give the rates of sampler and trainer, since they depend on model and
device; MODELS has our measurements.

Not covered: networks, and brokers: one broker is assumed until its disk or network is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from streams.errors import SettingsError

MIB, GIB, DAY_S = 2**20, 2**30, 86_400.0
BUSY: Final = 0.7
"""The share of its time that a process is planned to work: a queue before one that is busier grows long."""
MAX_RANKS: Final = 64
"""The most that trainer.processes may be."""


class Rates(NamedTuple):
    """Tokens a second of one process or device."""

    sampler: float
    trainer: float


MODELS: Final = {"smollm2-135m-instruct": Rates(268.0, 527.0)}
"""One thread of a CPU: BENCH=sampling, 16 prompts x 8; BENCH=trainer, 8 x (256 + 32) tokens in 4.367 s."""

TASK_BYTES, RESPONSE_BYTES, REWARD_BYTES, GROUP_BYTES, SLOT_BYTES = 250, 420, 175, 470, 100
"""Of an event, besides its tokens; SLOT_BYTES: of a response in its group."""
TOKEN_BYTES, PROMPT_TOKEN_BYTES = 9, 4
"""Id, logprob and mask of a token that was sampled; id, or about as much text, of one of a prompt."""
JOIN_S, JOIN_TOKEN_S = 637e-6, 3.5e-8
"""CPU seconds of the live loop for a group of 8, and for each token in it: BENCH=join, at 32 and 1,024 tokens."""
BATCH_S = 260e-6
"""CPU seconds of the live loop for a group of 8 in the batch stage: BENCH=workers, 0.4 of what the join took there."""
ROW_S = 18e-6
"""Seconds until a row is back in memory: BENCH=restart, `reading_s`."""
ROW_BYTES, ROW_SLOT_BYTES = 450, 70
"""What a worker holds in memory of a group that has left, with its key; ROW_SLOT_BYTES: of a response in it."""
ON_DISK = 0.6
"""Bytes of a topic's files, lz4, to those of its records: BENCH=columns."""
ARCHIVED = 0.8
"""Bytes of an archive to those of the topic's files: BENCH=columns, whole groups of 256 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on the loop. Rates are averages per second."""

    responses_s: float
    prompt_tokens: int
    completion_tokens: int
    slots: int
    scorers: int
    score_s: float
    """CPU seconds of one score."""
    answer_s: float
    """From a task to its last reward."""
    retention_days: float
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The settings that a load meets."""

    partitions: int
    policy_partitions: int
    batch_groups: int
    policies: int
    remembered_s: float
    """How long a group that has left is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a load needs. Counts are single cores, or devices for sampler and trainer."""

    responses_s: float
    records_s: float
    log_mib_s: float
    samplers: int
    scoring: int
    streams: int
    trainers: int
    open_groups: int
    rows_gib: float
    """In the memory of all stream workers: groups that are open, or remembered."""
    back_s: float
    """Until a stream worker that takes over from another has its rows in memory."""
    broker_gib: float
    """One copy of all topics, for the retention."""
    archive_gib_month: float
    full: tuple[str, ...]
    """What the plan has too little of."""


def needs(load: Load, plan: CapacityPlan, factors: tuple[float, ...]) -> list[Need]:
    """Return what `load` needs, multiplied by each of `factors`. Raises SettingsError for numbers of 0 or less."""
    for name in ("responses_s", "prompt_tokens", "completion_tokens", "slots", "answer_s", "retention_days"):
        if not getattr(load, name) > 0:
            raise SettingsError(f"{name} is {getattr(load, name)}; a load needs more than 0 of it")
    return [_need(replace(load, responses_s=load.responses_s * factor), plan) for factor in factors]


def join_s(slots: int, tokens: int) -> float:
    """Return the CPU seconds of the live loop for one group."""
    return JOIN_S * slots / 8 + JOIN_TOKEN_S * slots * tokens


def bytes_of_group(load: Load) -> int:
    """Return the bytes of all records about one group: task, responses, rewards, and the group itself."""
    prompt, tokens = PROMPT_TOKEN_BYTES * load.prompt_tokens, TOKEN_BYTES * load.completion_tokens
    return (
        TASK_BYTES + GROUP_BYTES + 2 * prompt
        + load.slots * (RESPONSE_BYTES + prompt + tokens + load.scorers * REWARD_BYTES + SLOT_BYTES + tokens)
    )  # fmt: skip


def _need(load: Load, plan: CapacityPlan) -> Need:
    groups_s = load.responses_s / load.slots
    sampled = load.responses_s * load.completion_tokens
    bytes_s = groups_s * bytes_of_group(load)
    cutting = groups_s * BATCH_S * load.slots / 8
    streams = _processes(groups_s * join_s(load.slots, load.completion_tokens) + cutting)
    rows = groups_s * (load.answer_s + plan.remembered_s)
    trainers = _processes((sampled + groups_s * load.prompt_tokens) / load.rates.trainer)
    return Need(
        responses_s=load.responses_s,
        records_s=groups_s * (2 + load.slots * (1 + load.scorers)),
        log_mib_s=bytes_s / MIB,
        samplers=_processes(sampled / load.rates.sampler),
        scoring=_processes(load.responses_s * load.scorers * load.score_s),
        streams=streams,
        trainers=trainers,
        open_groups=math.ceil(groups_s * load.answer_s),
        rows_gib=rows * (ROW_BYTES + ROW_SLOT_BYTES * load.slots) / GIB,
        back_s=rows / streams * ROW_S * load.slots / 8,
        broker_gib=bytes_s * ON_DISK * load.retention_days * DAY_S / GIB,
        archive_gib_month=bytes_s * ON_DISK * ARCHIVED * 30 * DAY_S / GIB,
        full=tuple(_full(streams, cutting, trainers, plan)),
    )


def _full(streams: int, cutting: float, trainers: int, plan: CapacityPlan) -> list[str]:
    """`cutting` is the CPU seconds a second of the batch stage."""
    full = []
    if streams > plan.partitions:
        full.append(f"topics.partitions={plan.partitions}: {streams} stream workers need a partition each")
    if (cutters := _processes(cutting)) > plan.policy_partitions:
        full.append(f"topics.policy_partitions={plan.policy_partitions}: the batch stage keeps {cutters} workers busy")
    if (busy := cutting / plan.policies) > BUSY:
        full.append(f"policies: {plan.policies}, and the groups of one keep its batch stage busy for {busy:.1f} of 1 s")
    ranks = math.ceil(trainers / plan.policies)
    if ranks > plan.batch_groups:
        full.append(f"batches.groups={plan.batch_groups}: {ranks} ranks of a policy need a group each")
    if ranks > MAX_RANKS:
        full.append(f"trainer.processes: {ranks} ranks of a policy, and {MAX_RANKS} is the most")
    return full


def _processes(busy: float) -> int:
    return max(1, math.ceil(busy / BUSY))
