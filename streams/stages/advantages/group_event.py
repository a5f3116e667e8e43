"""Make the record of a group that leaves.

    EmitGroup, the responses it refers to ──► assemble ──► fits its topic? ──► AdvantagedGroup
                                                └─ no: without responses, metadata, slots ─┘

Every group that leaves is recorded. One that is larger than its topic takes is recorded as dropped (`too_large`): raise
topics.max_record_bytes, or ask for smaller groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from schemas.events import AdvantagedGroup, GroupResponse, LeftOut, Response, Sampling, derive_id
from schemas.serde import encode
from schemas.tokens import TokenIds
from streams import advantage_formulas
from streams.errors import EventError
from streams.kafka.record import check_size, key_of
from streams.kafka.topics import Topic
from streams.stages.advantages.state import EmitGroup, TaskInfo

Responses = Mapping[tuple[int, int], Response]
"""By partition and offset."""


def group_event(effect: EmitGroup, responses: Responses, topic: Topic) -> AdvantagedGroup | None:
    """Return the group's record in the most complete form that `topic` takes; None if it takes none.

    `responses` holds what `effect.members` refer to.
    """
    return next((group for group in _forms(effect, responses) if _fits(group, topic)), None)


def _forms(effect: EmitGroup, responses: Responses) -> Iterator[AdvantagedGroup]:
    yield assemble(effect, responses)
    dropped = assemble(without_responses(effect, "too_large"), {})
    yield dropped
    yield replace(dropped, metadata={})
    yield replace(dropped, metadata={}, left_out=())


def without_responses(effect: EmitGroup, reason: str) -> EmitGroup:
    """Return the effect of a group that is not for the trainer: each member is left out for `reason`."""
    members = (LeftOut(slot=m.slot, response_id=m.response_id, reason=reason) for m in effect.members)
    left_out = sorted((*effect.left_out, *members), key=lambda left: (left.slot, left.response_id or ""))
    return replace(effect, dropped_reason=reason, members=(), left_out=tuple(left_out))


def assemble(effect: EmitGroup, responses: Responses) -> AdvantagedGroup:
    """Return the group's record; `responses` holds what `effect.members` refer to."""
    task, bodies = effect.task, [responses[member.at] for member in effect.members]
    first = bodies[0] if bodies else None
    return AdvantagedGroup(
        group_id=derive_id(effect.task_id, "group", advantage_formulas.FORMULA_VERSION),
        task_id=effect.task_id,
        created_at=effect.created_at,
        traceparent=task.traceparent,
        metadata=_metadata(task),
        policy=task.policy,
        purpose=task.purpose,
        scenario=task.scenario,
        tenant=task.tenant,
        sampling_id=effect.sampling_id,
        group_size=task.group_size,
        adapter_version=effect.adapter_version,
        base_digest=first.base_digest if first else "",
        tokenizer_digest=first.tokenizer_digest if first else "",
        complete=effect.complete,
        dropped_reason=effect.dropped_reason,
        formula=effect.rule.formula,
        formula_version=advantage_formulas.FORMULA_VERSION,
        formula_eps=effect.rule.eps,
        formula_ddof=effect.rule.ddof,
        reward_mean=effect.reward_mean,
        reward_std=effect.reward_std,
        sampling=first.sampling if first else Sampling(),
        prompt_token_ids=first.prompt_token_ids if first else TokenIds(),
        responses=tuple(
            GroupResponse(
                slot=member.slot,
                response_id=member.response_id,
                partition=member.at[0],
                offset=member.at[1],
                finish_reason=member.finish_reason,
                latency_ms=body.latency_ms,
                reward=member.reward,
                advantage=member.advantage,
                components=dict(member.components),
                completion_token_ids=body.completion_token_ids,
                logprobs=body.logprobs,
                loss_mask=body.loss_mask,
            )
            for member, body in zip(effect.members, bodies, strict=True)
        ),
        left_out=effect.left_out,
    )


def _metadata(task: TaskInfo) -> dict[str, str]:
    """Return the task's metadata, with the version it was pinned to: nothing else records it if nobody answered."""
    pinned = {} if task.adapter_version is None else {"pinned_version": str(task.adapter_version)}
    return dict(task.metadata) | pinned


# --- its size ---------------------------------------------------------------------------------------------------------


def _fits(group: AdvantagedGroup, topic: Topic) -> bool:
    if max_size(group) <= topic.max_bytes:  # nearly always, and known without encoding it
        return True
    try:
        check_size(topic, key_of(group, topic), encode(group))
    except EventError:
        return False
    return True


def max_size(group: AdvantagedGroup) -> int:
    """Return a size in bytes that the record of `group`, with its key, does not exceed."""
    tokens = len(group.prompt_token_ids) + sum(len(response.completion_token_ids) for response in group.responses)
    names = [name for response in group.responses for name in response.components]
    texts = [
        *(group.policy, group.policy, group.task_id, group.scenario, group.tenant or "", group.traceparent or ""),
        *(group.sampling_id or "", group.base_digest, group.tokenizer_digest, *group.sampling.stop),
        *(part for item in group.metadata.items() for part in item),
        *(left.reason for left in group.left_out),
        *names,
    ]
    # a token: its id in 4 bytes, a logprob in 4, a mask in 1. A text: 4 bytes a character, 5 for its length
    rows = len(group.responses) + len(group.left_out)
    return 4096 + 9 * tokens + 256 * rows + sum(4 * len(text) + 5 for text in texts) + 8 * len(names)
