"""Put batches of the log into a queue, as verl's agent loop would have put them.

    TrainingBatch ──► a sample a chain: tokens, mask, logprobs, score ──► queue, key group_slot_chain
                 └──► once they are acknowledged: key group, tagged finished, so that verl's trainer samples the group

A sample that is in the queue already is not put again, so a command that was killed can be repeated. verl computes
advantages itself, of the scores; here, they are computed again when the samples come back.

Not covered: advantages by turn, since a sample has no name for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plugins.verl import sample_fields
from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_fields import ABOUT, FINISHED, STATUS, SampleKey, plain, tensor
from plugins.verl.sample_queue import SamplePut, SampleQueue
from schemas.events import AdvantagedGroup
from streams.kafka.history import History
from streams.settings.model import Settings
from trainer.export import batch_rows
from trainer.export.batch_rows import BatchRow, BatchSpan, ExportCheck, TrainingBatch


class QueuePlace(NamedTuple):
    """A partition of a queue."""

    queue: str
    partition: str


class FilledQueue(NamedTuple):
    """The samples that an export put."""

    epoch: int
    batches: list[int]
    groups: int
    samples: int
    refused: list[str]
    """Why a group is left out, one sentence each."""


def fill(
    settings: Settings, policy: str, span: BatchSpan, into: QueuePlace, history: History, check: ExportCheck
) -> FilledQueue:
    """Put the batches of `policy` that `span` names into a queue, which is taken from every program that has it.

    `check` refuses batches with held-out questions before anything is put.

    Raises NotFoundError for a batch that is not in the log, RefusedError for one that cannot be used, SettingsError for
    a name that is none, LogError if the log cannot be read or written.
    """
    batches = list(batch_rows.read(settings, policy, span, history, check))
    with QueueLog(settings) as log:
        restored = QueueOpener(settings, log, into.queue).open(f"export of batches of {policy}")
    epoch = restored.event.epoch
    present = {sample.key for sample in restored.samples.values() if sample.partition == into.partition}
    ids = (f"{into.queue}/{epoch}.{number}" for number in range(1 << 31))
    samples = groups = 0
    with SampleQueue(settings, into.queue, epoch) as queue:
        for batch in batches:
            rows = [row for row in batch.rows if str(key_of(row)) not in present]
            queue.put([_put(row, batch, next(ids), into.partition) for row in rows])
            fresh = [group for group in batch.groups if group.group_id not in present]
            queue.tag([_prompt_tags(group, batch, next(ids), into.partition) for group in fresh])
            samples, groups = samples + len(rows), groups + len(fresh)
    refused = [problem for batch in batches for problem in batch.refused]
    return FilledQueue(epoch, [batch.batch.sequence for batch in batches], groups, samples, refused)


def key_of(row: BatchRow) -> SampleKey:
    """Return the key of a chain: its group is what verl calls the uid of a prompt."""
    return SampleKey(row.group.group_id, row.response.slot, row.number)


def _put(row: BatchRow, batch: TrainingBatch, sample_id: str, partition: str) -> SamplePut:
    tags = {
        STATUS: "success",
        "prompt_len": len(row.chain.context),
        "response_len": len(row.chain.tokens),
        "seq_len": len(row.chain.context) + len(row.chain.tokens),
        **_steps(row.group, batch),
    }
    fields = fields_of(row) | {"extra_fields": plain(_steps(row.group, batch))}
    return SamplePut(sample_id, partition, fields, str(key_of(row)), plain(tags).data.decode())


def _steps(group: AdvantagedGroup, batch: TrainingBatch) -> dict[str, int]:
    """Return by verl's names to which step samples belong, and which version they are of."""
    version = group.adapter_version
    return {"global_steps": batch.batch.sequence, "min_global_steps": version, "max_global_steps": version}


def fields_of(row: BatchRow) -> dict[str, Any]:
    """Return the fields of a chain: P tokens of its prompt, W of its response."""
    prompts, responses = row.chain.context.numpy().astype(np.int64), row.chain.tokens.numpy().astype(np.int64)
    mask = row.chain.loss_mask.numpy().astype(np.int64)
    scores = np.zeros(len(responses), np.float32)
    scores[-1:] = row.response.reward
    tokens = np.concatenate([prompts, responses])
    return {
        sample_fields.PROMPTS: tensor(prompts),  # [P]
        sample_fields.RESPONSES: tensor(responses),  # [W]
        sample_fields.MASK: tensor(mask),  # [W], 1 where the policy wrote the token
        "loss_mask": tensor(mask),
        "input_ids": tensor(tokens),  # [P + W]
        "position_ids": tensor(np.arange(len(tokens))),
        sample_fields.LOGPROBS: tensor(np.where(mask, row.chain.logprobs.numpy(), 0).astype(np.float32)),  # [W], nats
        sample_fields.SCORES: tensor(scores),  # [W], the response's reward at its last token
        "uid": plain(row.group.group_id),
        "data_source": plain(row.group.scenario),
        ABOUT: plain(_about(row)),
    }


def _about(row: BatchRow) -> dict[str, Any]:
    group, response = row.group, row.response
    return {
        "reward": response.reward,
        "temperature": group.sampling.temperature,
        "top_p": group.sampling.top_p,
        "adapter_version": group.adapter_version,
        "trained_batches": group.trained_batches,
        "base_digest": group.base_digest,
        "tokenizer_digest": group.tokenizer_digest,
        "finish_reason": response.finish_reason,
        "task_id": group.task_id,
        "response_id": response.response_id,
    }


def _prompt_tags(group: AdvantagedGroup, batch: TrainingBatch, sample_id: str, partition: str) -> SamplePut:
    """Return the tags of a prompt whose samples are all there."""
    tags = {"is_prompt": True, STATUS: FINISHED, "global_steps": batch.batch.sequence, **batch.held_out}
    return SamplePut(sample_id, partition, {}, group.group_id, plain(tags).data.decode())
