"""Decode each record into its event, and the loop's events into facts.

    Record ──► decode, key ──► event ──► Task, Response, Reward, Control, Group, Batch, Adapter, Letter  facts
                          └──► Unusable: its bytes are not an event of its topic, or its key is wrong

Only digests of texts are kept, so the audit can tell that two responses differ, but not where.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from schemas.conventions import OUTSIDE_ENGINE, task_time_ms
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    Coordinates,
    DeadLetter,
    Event,
    GroupControl,
    Response,
    Reward,
    Task,
    Tuning,
    derive_id,
)
from schemas.serde import Poison
from streams.kafka.record import Record
from streams.kafka.topics import Topic
from streams.tools.audit.facts import (
    AdapterFact,
    BatchFact,
    ControlFact,
    GroupFact,
    LetterFact,
    MemberFact,
    ResponseFact,
    RewardFact,
    TaskFact,
    Unusable,
)
from streams.tools.audit.record_digests import (
    content_digest,
    digest,
    head_digest,
    mark_of,
    mark_of_digests,
    shared_digest,
    tokens_digest,
)


def event_and_key(record: Record, topic: Topic) -> Event | Unusable:
    """Return the event in `record`, or why it is unusable: not an event of its topic, or a wrong key.

    Sealed fields stay sealed: an audit counts the same before an erasure and after it.
    """
    event = record.decode_closed(topic.event)
    if isinstance(event, Poison):
        return Unusable(record.at, event.reason)
    if topic.key and record.key != getattr(event, topic.key).encode():
        return Unusable(record.at, "wrong_key")
    return event


def fact_of(record: Record, event: Event) -> Any:
    """Return what the audit keeps of an event of the loop; None of any other."""
    make = _FACTS.get(type(event))
    return None if make is None else make(record, event)


# --- facts ------------------------------------------------------------------------------------------------------------


def _task(record: Record, task: Task) -> TaskFact:
    return TaskFact(
        at=record.at,
        ms=task_time_ms(task, record.timestamp_ms),
        mark=mark_of(record.key, record.payload),
        content=content_digest(task, "created_at", "traceparent", "deadline_at", "sealed"),
        policy=task.policy,
        purpose=task.purpose,
        scenario=task.scenario,
        tenant=task.tenant,
        agent=task.agent,
        group_size=task.group_size,
        pinned=task.adapter_version,
        deadline_at=task.deadline_at,
        sources=tuple((source.name, source.weight) for source in task.reward_sources),
        traceparent=task.traceparent,
        metadata=task.metadata,
    )


def _response(record: Record, response: Response) -> ResponseFact:
    drawn, failed = response.sampling, response.error is not None
    prompt = response.prompt_token_ids.data if response.agent_id is None else b""
    where = (response.base_digest, response.tokenizer_digest)
    prompted = (prompt, response.batches, response.prompt_version)
    head = head_digest(*where, drawn, response.batches, response.prompt_version)
    tokens = tokens_digest(response)
    plain = [getattr(response, name) for name in _SAID]
    return ResponseFact(
        at=record.at,
        ms=record.timestamp_ms,
        mark=mark_of(record.key, record.payload),
        content=digest(*plain, head, tokens),
        response_id=response.response_id,
        sampling_id=response.sampling_id,
        slot=response.slot,
        group_size=response.group_size,
        policy=response.policy,
        version=response.adapter_version,
        # sampling ends before it is recorded, whatever number a producer writes
        began_ms=min(response.created_at, record.timestamp_ms) - _whole(response.latency_ms),
        failed=failed,
        finish_reason=response.finish_reason,
        shared=0 if failed else shared_digest(*where, drawn.temperature + 0.0, drawn.top_p, *prompted),  # not -0.0
        head=head,
        tokens=tokens,
        counted=_token_counts(response),
    )


def _token_counts(response: Response) -> tuple[int, int]:
    """Return how many tokens a response has, and how many the policy wrote: an outside model's are counted by it."""
    if response.engine == OUTSIDE_ENGINE:
        return response.completion_tokens, 0
    masks = [response.loss_mask, *(branch.loss_mask for branch in response.branches)]
    return sum(map(len, masks)), sum(mask.trained_tokens for mask in masks)


def _whole(number: float) -> int:
    return int(number) if math.isfinite(number) else 0


_SAID = ("sampling_id", "slot", "policy", "group_size", "adapter_version", "engine", "finish_reason", "text")
"""What makes a response besides its tokens: with another time or trace it is the same response."""


def _reward(record: Record, reward: Reward) -> RewardFact:
    return RewardFact(
        at=record.at,
        ms=record.timestamp_ms,
        mark=mark_of(record.key, record.payload),
        response_id=reward.response_id,
        source=reward.source,
        policy=reward.policy,
        value=reward.value,
        components=tuple(sorted(reward.components.items())),
        abstained=reward.abstained,
    )


def _control(record: Record, control: GroupControl) -> ControlFact:
    return ControlFact(record.at, record.timestamp_ms, control.kind)


def _group(record: Record, group: AdvantagedGroup) -> GroupFact:
    return GroupFact(
        at=record.at,
        mark=mark_of(record.key, record.payload),
        group_id=group.group_id,
        task_id=group.task_id,
        created_at=group.created_at,
        about=(group.policy, group.purpose, group.scenario, group.tenant, group.group_size, group.traceparent),
        metadata=group.metadata,
        sampling_id=group.sampling_id,
        version=group.adapter_version,
        batches=group.batches,
        complete=group.complete,
        dropped_reason=group.dropped_reason,
        formula=group.formula,
        credit=group.credit,
        formula_version=group.formula_version,
        eps=group.formula_eps,
        ddof=group.formula_ddof,
        mean=group.reward_mean,
        std=group.reward_std,
        head=head_digest(
            group.base_digest, group.tokenizer_digest, group.sampling, group.batches, group.prompt_version
        ),
        members=tuple(
            MemberFact(
                slot=one.slot,
                response_id=one.response_id,
                partition=one.partition,
                offset=one.offset,
                finish_reason=one.finish_reason,
                reward=one.reward,
                advantage=one.advantage,
                components=tuple(sorted(one.components.items())),
                tokens=tokens_digest(one, group.prompt_token_ids),
                elsewhere=None if one.elsewhere is None else (one.completion_tokens, one.loss_tokens),
                is_outside=one.elsewhere is not None and one.elsewhere.prompt_tokens is not None,
            )
            for one in group.responses
        ),
        left_out=tuple((left.slot, left.response_id, left.reason) for left in group.left_out),
        loss_tokens=sum(one.loss_tokens for one in group.responses),
    )


def _batch(record: Record, batch: Batch) -> BatchFact:
    unnamed = batch.metadata.get("dropped_unnamed", "0")
    return BatchFact(
        at=record.at,
        mark=mark_of(record.key, record.payload),
        batch_id=batch.batch_id,
        sequence=batch.sequence,
        created_at=batch.created_at,
        max_policy_lag=batch.max_policy_lag,
        counted=(batch.groups, batch.responses, batch.loss_tokens),
        partition=batch.groups_partition,
        offsets=batch.groups_offsets,
        lags={lag.lag: lag.groups for lag in batch.lags},
        dropped=tuple((dropped.group_id, dropped.offset, dropped.reason) for dropped in batch.dropped),
        unnamed=int(unnamed) if unnamed.isdecimal() else 0,
    )


def _adapter(record: Record, event: AdapterEvent) -> AdapterFact:
    return AdapterFact(
        at=record.at,
        ms=record.timestamp_ms,
        mark=mark_of(record.key, record.payload),
        event_id=event.event_id,
        version=event.version,
        kind=event.kind,
        expected=event.expected_version,
        share=event.share,
        parent=event.parent_version,
        batches=(event.first_batch, event.last_batch),
        files=digest(event.files),
        tuned_on=None if event.tuning is None else _tuned_on(event.tuning),
        is_outside=event.outside is not None,
        origin=None if event.origin is None else event.origin.call_id,
    )


def _tuned_on(tuning: Tuning) -> tuple[int, tuple[int, ...]]:
    return tuning.groups_partition or 0, tuple(group.offset for group in tuning.groups)


def _letter(record: Record, letter: DeadLetter) -> LetterFact:
    source = Coordinates(letter.source_topic, letter.source_partition, letter.source_offset)
    digests = letter.key_sha256, letter.payload_sha256  # of a record that was too large for its dead letter
    return LetterFact(
        at=record.at,
        mark=mark_of(record.key, record.payload),
        stage=letter.stage,
        reason=letter.reason,
        source=source,
        source_mark=mark_of_digests(*digests) if any(digests) else mark_of(_bytes(letter.key), _bytes(letter.payload)),
        has_own_id=letter.dead_letter_id == derive_id(letter.stage, *source),
    )


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return b"not base64: " + text.encode() if text is not None else None


_FACTS: dict[type[Event], Any] = {
    Task: _task,
    Response: _response,
    Reward: _reward,
    GroupControl: _control,
    AdvantagedGroup: _group,
    Batch: _batch,
    AdapterEvent: _adapter,
    DeadLetter: _letter,
}
