"""Turn each record into what the audit keeps of it.

    Record ──► decode, key ──► Task, Response, Reward, Control, Group, Batch, Adapter, Job, …  facts
                          └──► Unusable: its bytes are not an event of its topic, or its key is wrong

Of texts only digests are kept, so the audit can tell that two responses differ, but not where.
"""

from __future__ import annotations

import base64
import math
from hashlib import sha256
from typing import Any

from schemas.conventions import OUTSIDE_ENGINE, SELFPLAY_TASKS, task_time_ms
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    Coordinates,
    CurationEvent,
    DatasetEvent,
    DeadLetter,
    Event,
    GroupControl,
    JobEvent,
    MemoryEvent,
    PromptEvent,
    QueueEvent,
    Response,
    Reward,
    SampleEvent,
    Task,
    ThreadEvent,
    ToolEvent,
    TrainingCall,
    TrainingResult,
    TrajectoryEvent,
    TriggerEvent,
    Tuning,
    Turn,
    derive_id,
)
from schemas.serde import Poison
from schemas.tool_text import endpoint_kind
from streams.kafka.record import Record
from streams.kafka.topics import Topic
from streams.tools.audit.facts import (
    AdapterFact,
    AgreementFact,
    BatchFact,
    CallFact,
    CallResultFact,
    ControlFact,
    CurationFact,
    DatasetFact,
    Fact,
    GroupFact,
    JobFact,
    LetterFact,
    MemberFact,
    MonthFact,
    PromptFact,
    QueueFact,
    ResponseFact,
    RewardFact,
    RunFact,
    SampleFact,
    TaskFact,
    ToolFact,
    TriggerFact,
    TurnFact,
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
from streams.tools.audit.thread_records import memory_fact, thread_fact, thread_turn


def event_and_key(record: Record, topic: Topic) -> Event | Unusable:
    """Return the event in `record`, or why it is unusable: not an event of its topic, or a wrong key."""
    event = record.decode(topic.event)
    if isinstance(event, Poison):
        return Unusable(record.at, event.reason)
    if topic.key and record.key != getattr(event, topic.key).encode():
        return Unusable(record.at, "wrong_key")
    return event


def fact_of(record: Record, event: Event) -> Fact:
    """Return what the audit keeps of an event."""
    make: Any = _FACTS[type(event)]
    fact: Fact = make(record, event)
    return fact


LINE_KINDS = (
    *("forward", "forward_backward", "optim_step", "load_weights"),
    *("save_weights", "save_weights_for_sampler", "refused"),
)
"""Kinds of training calls that a model takes in order."""
OTHER_ANSWERED = ("create_model", "sample", "unload_model")
"""Further kinds that get a result."""


# --- facts ------------------------------------------------------------------------------------------------------------


def _task(record: Record, task: Task) -> TaskFact:
    return TaskFact(
        at=record.at,
        ms=task_time_ms(task, record.timestamp_ms),
        mark=mark_of(record.key, record.payload),
        content=content_digest(task, "created_at", "traceparent", "deadline_at"),
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
        calls=response.steps,
        turns=tuple((turn.number, turn.end - turn.start, turn.observation) for turn in response.turns),
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


def _turn(record: Record, turn: Turn) -> TurnFact:
    return TurnFact(
        at=record.at,
        event_id=turn.turn_id,
        content=content_digest(turn, "created_at", "traceparent"),
        policy=turn.policy,
        number=turn.number,
        parent_id=turn.parent_id,
        prompt_tokens=turn.prompt_tokens,
        sent=len(turn.prompt_token_ids),
        said=len(turn.completion_token_ids),
        shown=None if turn.observed is None else turn.observed.digest,
        of_thread=thread_turn(turn),
    )


def _run(record: Record, event: TrajectoryEvent) -> RunFact:
    return RunFact(
        at=record.at,
        event_id=event.event_id,
        content=content_digest(event, "created_at", "traceparent"),
        policy=event.policy,
        kind=event.kind,
        turns=event.turns,
        of_task=event.sampling_id is not None,
        answer=event.answer_turn,
    )


def _job(record: Record, event: JobEvent) -> JobFact | MonthFact:
    cost_usd = event.metrics.get("cost_usd")
    if event.kind == "month_closed":
        return MonthFact(record.at, event.tenant or "", event.month or "", cost_usd or 0.0, event.counted)
    return JobFact(
        at=record.at,
        event_id=event.event_id,
        content=content_digest(event, "created_at", "traceparent"),
        kind=event.kind,
        sequence=event.sequence,
        iteration=event.iteration,
        version=event.version,
        created_at=event.created_at,
        tenant=event.tenant or "",
        cost_usd=cost_usd,
        job_id=event.job_id,
        trigger=event.metadata.get("trigger") if event.kind == "created" else None,
    )


def _trigger(record: Record, event: TriggerEvent) -> TriggerFact:
    return TriggerFact(
        at=record.at,
        event_id=event.event_id,
        kind=event.kind,
        sequence=event.sequence,
        created_at=event.created_at,
        due_at=-1 if event.due_at is None else event.due_at,
        job_id=event.job_id,
        has_own_id=event.event_id == derive_id(event.rule, event.kind, event.sequence),
        tasks=int(event.evidence[SELFPLAY_TASKS]) if SELFPLAY_TASKS in event.evidence else None,
    )


def _call(record: Record, call: TrainingCall) -> CallFact:
    creates = call.call_id == call.model
    place = 0 if creates else call.seq_id if call.kind in LINE_KINDS else None
    return CallFact(record.at, call.call_id, place, call.kind in LINE_KINDS or call.kind in OTHER_ANSWERED)


def _call_result(record: Record, result: TrainingResult) -> CallResultFact:
    outputs = result.outputs_sha256 or sha256(result.outputs.data).hexdigest()
    content = digest(result.error, result.version, result.uri, result.state_sha256, result.response, outputs)
    return CallResultFact(record.at, result.call_id, result.source_offset, result.version, content)


def _queue(record: Record, event: QueueEvent) -> QueueFact:
    own_id = derive_id(event.queue, event.kind, event.epoch, event.writer, *event.ends)
    return QueueFact(
        at=record.at,
        event_id=event.event_id,
        has_own_id=event.event_id == own_id,
        kind=event.kind,
        epoch=event.epoch,
        samples=event.samples,
        digest=event.digest,
        counts=event.counts,
        checkpoint=event.checkpoint,
        ends=event.ends,
    )


def _sample(record: Record, event: SampleEvent) -> SampleFact:
    identity = (event.sample_id, event.writer, event.sequence)
    return SampleFact(
        at=record.at,
        content=content_digest(event, "created_at", "traceparent"),
        has_own_id=event.event_id == derive_id(*identity, event.part),
        kind=event.kind,
        epoch=event.epoch,
        sample_id=event.sample_id,
        identity=identity,
        part=event.part,
        parts=event.parts,
        partition=event.partition,
        key=event.key,
        tags=event.tags,
        names=tuple(piece.name for piece in event.fields),
    )


def _tool(record: Record, event: ToolEvent) -> ToolFact:
    own_id = derive_id(event.tool_id, event.kind, event.sequence)
    return ToolFact(
        at=record.at,
        kind=event.kind,
        sequence=event.sequence,
        has_own_id=event.event_id == own_id,
        content=content_digest(event, "created_at", "traceparent"),
        digest=event.digest or "",
        endpoint="" if event.endpoint is None else endpoint_kind(event.endpoint),
        offered=len(event.tools),
    )


def _prompt(record: Record, event: PromptEvent) -> PromptFact:
    own_id = derive_id(event.prompt, event.kind, event.sequence)
    versions = tuple(arm.version for arm in event.arms) if event.version is None else (event.version,)
    return PromptFact(
        at=record.at,
        kind=event.kind,
        sequence=event.sequence,
        has_own_id=event.event_id == own_id,
        content=content_digest(event, "created_at", "traceparent"),
        digest=event.digest or "",
        versions=versions,
        alias=event.alias or "",
    )


def _curation(record: Record, event: CurationEvent) -> CurationFact:
    about = (event.rubric_digest, event.transcript_digest)
    own_id = derive_id(event.answer_id, event.labeller, event.actor, *about, event.supersedes or "")
    judge, claim = event.judge, event.agreement
    return CurationFact(
        at=record.at,
        event_id=event.event_id,
        has_own_id=event.event_id == own_id,
        task_id=event.task_id,
        answer_id=event.answer_id,
        created_at=event.created_at,
        policy=event.policy,
        source=Coordinates(event.source_topic, event.source_partition, event.source_offset),
        verdict=event.verdict,
        labeller=event.labeller,
        measure=about,
        supersedes=event.supersedes,
        gates=tuple((gate.gate, gate.value, gate.bound, gate.passed) for gate in event.gates),
        judge=None if judge is None else (judge.endpoint, judge.model, judge.prompt_digest),
        judge_policy=None if judge is None else judge.policy,
        judge_verdict=None if judge is None else judge.verdict,
        agreement=None
        if claim is None
        else AgreementFact(claim.runs, claim.kappa, claim.low, claim.window, claim.counted),
    )


def _dataset(record: Record, event: DatasetEvent) -> DatasetFact:
    job = None if event.outside is None else event.outside.job
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(event.files, key=lambda file: file.path))
    rows = event.counts.get("train", 0) + event.counts.get("eval", 0)
    left_out = sum(count for name, count in event.counts.items() if name.startswith("left out: "))
    own_id = derive_id(event.dataset, event.kind, event.digest, *([] if job is None else [job]))
    return DatasetFact(
        at=record.at,
        event_id=event.event_id,
        kind=event.kind,
        policy=event.policy,
        digest=event.digest,
        rows=rows,
        judged=rows + left_out,
        by_scenario=sum(event.scenarios.values()),
        by_labeller=dict(event.labellers),
        ranges=event.ranges,
        job=job,
        has_own_id=event.event_id == own_id,
        has_own_digest=event.digest == sha256(lines.encode()).hexdigest(),
    )


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
    Turn: _turn,
    TrajectoryEvent: _run,
    JobEvent: _job,
    TriggerEvent: _trigger,
    TrainingCall: _call,
    TrainingResult: _call_result,
    ToolEvent: _tool,
    PromptEvent: _prompt,
    MemoryEvent: memory_fact,
    ThreadEvent: thread_fact,
    CurationEvent: _curation,
    DatasetEvent: _dataset,
    QueueEvent: _queue,
    SampleEvent: _sample,
    DeadLetter: _letter,
}
