"""Make the record of a group that leaves.

    EmitGroup, the responses it refers to ──► credit of turns ──► assemble ──► fits its topic? ──► GroupRecord
                                 ▲ no: the tokens of the largest stay where they are; then without responses, ... ─┘

Every group that leaves is recorded. If it is larger than its topic allows, the largest members only refer to their
responses, from which the trainer fetches the tokens. If it is still too large, it is recorded as dropped (`too_large`):
raise topics.max_record_bytes, or use smaller groups. So is a group with turns that `advantages.credit` cannot compare
(`steps_mismatch`, `no_observations`); a replay under another rule makes it again. A group is written without creating
an event first: its parts were checked when they were read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.conventions import PINNED, tool_failures
from schemas.convert import from_plain, to_plain
from schemas.events import AdvantagedGroup, LeftOut, ResponseTurn, Sampling, derive_id
from schemas.serde import encode_values
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams import advantage_formulas
from streams.kafka.topics import Topic
from streams.stages.advantages.credit import (
    NEEDS_OBSERVATIONS,
    CreditError,
    Episode,
    credit_turns,
    source_digests,
)
from streams.stages.advantages.incoming import SAMPLING_FIELDS, ResponseBody
from streams.stages.advantages.state import EmitGroup, GroupMember, TaskInfo

Bodies = Mapping[tuple[int, int], ResponseBody]
"""By partition and offset."""
Spans = Mapping[int, list[dict[str, Any]]]
"""Values of the CreditSpans, by slot."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group that is ready to be written."""

    values: dict[str, Any]
    """By field, as `schemas.convert.checked` returns them."""
    payload: bytes

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return str(self.values["policy"]).encode()

    @property
    def size_bytes(self) -> int:
        """Its size as a topic's limit counts it."""
        return len(self.key) + len(self.payload)

    def event(self) -> AdvantagedGroup:
        """Return the event in this record."""
        event: AdvantagedGroup = from_plain(AdvantagedGroup, self.values)
        return event


def group_record(effect: EmitGroup, bodies: Bodies, topic: Topic) -> GroupRecord | None:
    """Return the group's record in the most complete form that fits `topic`; None if none does. `bodies` holds the
    responses of `effect.members`.
    """
    try:
        spans = _spans(effect, bodies)
    except CreditError as exc:
        effect, spans = without_responses(effect, exc.reason), {}
    whole = _record(assemble(effect, bodies, spans))
    if (excess := whole.size_bytes - topic.max_bytes) <= 0:
        return whole
    records = map(_record, _smaller_forms(effect, bodies, spans, excess))
    return next((record for record in records if record.size_bytes <= topic.max_bytes), None)


def _record(values: dict[str, Any]) -> GroupRecord:
    return GroupRecord(values, encode_values(AdvantagedGroup, values))


def _smaller_forms(effect: EmitGroup, bodies: Bodies, spans: Spans, excess: int) -> Iterator[dict[str, Any]]:
    """Yield the forms of a group that is too large by this many bytes, the most complete first."""
    if (slots := _largest(effect, bodies, excess)) is not None:
        yield assemble(effect, bodies, spans, slots)
    dropped = assemble(without_responses(effect, "too_large"), {}, {})
    yield dropped
    yield {**dropped, "metadata": {}}
    yield {**dropped, "metadata": {}, "left_out": []}


def _largest(effect: EmitGroup, bodies: Bodies, excess: int) -> frozenset[int] | None:
    """Return the slots of the largest members: leaving out their tokens saves this many bytes."""
    common = len(_prompt_of(effect, bodies))
    sizes = {member.slot: _token_bytes(bodies[member.at], common) - _ELSEWHERE_BYTES for member in effect.members}
    slots = set[int]()
    for slot in sorted(sizes, key=lambda slot: (-sizes[slot], slot)):
        if excess <= 0:
            break
        slots.add(slot)
        excess -= sizes[slot]
    return frozenset(slots) if excess <= 0 else None


def _token_bytes(body: ResponseBody, common: int) -> int:
    """Return the minimum number of bytes per token of a member."""
    own_tokens = len(body.prompt_token_ids) - common + len(body.completion_token_ids) + len(body.logprobs)
    per_token = TokenIds.BYTES + Logprobs.BYTES + LossMask.BYTES
    return own_tokens + len(body.loss_mask) + per_token * sum(len(branch.loss_mask) for branch in body.branches)


_ELSEWHERE_BYTES = 2 * 5
"""Maximum size of two counts."""


def without_responses(effect: EmitGroup, reason: str) -> EmitGroup:
    """Return the effect of a group that is not for the trainer: each member is left out for `reason`."""
    members = (LeftOut(slot=m.slot, response_id=m.response_id, reason=reason) for m in effect.members)
    left_out = sorted((*effect.left_out, *members), key=lambda left: (left.slot, left.response_id or ""))
    return replace(effect, dropped_reason=reason, members=(), left_out=tuple(left_out))


def _spans(effect: EmitGroup, bodies: Bodies) -> Spans:
    """Return the credit of each turn; nothing if the rule gives all turns the same. Raises CreditError."""
    rule = effect.rule
    if rule.credit == "trajectory" or not effect.members:
        return {}
    turns = {member.slot: _turns(bodies[member.at]) for member in effect.members}
    episodes = [_episode(member, turns[member.slot]) for member in effect.members]
    if rule.credit in NEEDS_OBSERVATIONS and any(None in episode.observations for episode in episodes):
        raise CreditError("no_observations")
    return {
        member.slot: [
            {
                "chain": turn.chain,
                "start": turn.start,
                "end": turn.end,
                "reward": member.steps[number] if member.steps else None,
                "advantage": advantage,
            }
            for number, (turn, advantage) in enumerate(zip(turns[member.slot], advantages, strict=True))
        ]
        for member, advantages in zip(effect.members, credit_turns(episodes, rule), strict=True)
    }


def _turns(body: ResponseBody) -> tuple[ResponseTurn, ...]:
    """Return the turns of a response; a direct answer is one turn."""
    return body.turns or (ResponseTurn(number=0, start=0, end=len(body.loss_mask) // LossMask.BYTES),)


def _episode(member: GroupMember, turns: tuple[ResponseTurn, ...]) -> Episode:
    """Return the reward of each turn; rewards for no single turn belong to the last. Raises CreditError."""
    if member.steps is None or len(member.steps) not in (0, len(turns)):
        raise CreditError("steps_mismatch")
    rewards = list(member.steps) or [0.0] * len(turns)
    rewards[-1] += member.reward - math.fsum(member.steps)
    return Episode(rewards, [turn.observation for turn in turns])


def assemble(
    effect: EmitGroup, bodies: Bodies, spans: Spans, elsewhere: frozenset[int] = frozenset()
) -> dict[str, Any]:
    """Return the values of the group's record; `bodies` holds the responses of `effect.members`. The tokens of the
    slots `elsewhere` stay in their responses.
    """
    task, rule = effect.task, effect.rule
    first = bodies[effect.members[0].at] if effect.members else _NO_RESPONSE
    prompt = _prompt_of(effect, bodies)
    return {
        "group_id": derive_id(effect.task_id, "group", advantage_formulas.FORMULA_VERSION),
        "task_id": effect.task_id,
        "created_at": effect.created_at,
        "traceparent": task.traceparent,
        "metadata": _metadata(task) | source_digests(rule.formula, rule.credit),
        "subject": task.subject,
        "policy": task.policy,
        "purpose": task.purpose,
        "scenario": task.scenario,
        "tenant": task.tenant,
        "sampling_id": effect.sampling_id,
        "group_size": task.group_size,
        "adapter_version": effect.adapter_version,
        "trained_batches": first.trained_batches,
        "prompt_version": first.prompt_version,
        "base_digest": first.base_digest,
        "tokenizer_digest": first.tokenizer_digest,
        "complete": effect.complete,
        "dropped_reason": effect.dropped_reason,
        "formula": rule.formula,
        "formula_version": advantage_formulas.FORMULA_VERSION,
        "formula_eps": rule.eps,
        "formula_ddof": rule.ddof,
        "reward_mean": effect.reward_mean,
        "reward_std": effect.reward_std,
        "credit": rule.credit,
        "sampling": dict(zip(SAMPLING_FIELDS, first.sampling, strict=True)),
        "prompt_token_ids": prompt,
        "responses": [
            _member(member, bodies[member.at], spans.get(member.slot, []))
            | (_elsewhere if member.slot in elsewhere or bodies[member.at].outside else _here)(
                bodies[member.at], len(prompt)
            )
            for member in effect.members
        ],
        "left_out": [
            {"slot": left.slot, "response_id": left.response_id, "reason": left.reason} for left in effect.left_out
        ],
        "sealed": None,
    }


def _prompt_of(effect: EmitGroup, bodies: Bodies) -> bytes:
    return common_prompt([bodies[member.at].prompt_token_ids for member in effect.members] or [b""])


def common_prompt(prompts: Sequence[bytes]) -> bytes:
    """Return the tokens that all these prompts begin with.

    >>> list(common_prompt([b"aaaabbbbcccc", b"aaaabbbbc", b"aaaabbbX"]))
    [97, 97, 97, 97]
    """
    low, high = min(prompts), max(prompts)  # all prompts between these two share their common beginning
    if low == high:
        return low
    length = bisect_left(range(len(low)), True, key=lambda last: low[: last + 1] != high[: last + 1])
    return low[: length - length % TokenIds.BYTES]


_DEFAULT = Sampling()
_NO_RESPONSE = ResponseBody("", "", 0.0, b"", b"", b"", b"", tuple(getattr(_DEFAULT, name) for name in SAMPLING_FIELDS))
"""The response fields of a group without responses."""


def _member(member: GroupMember, body: ResponseBody, spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of a member, except those per token."""
    failed_tools, recoveries = tool_failures(body.turns)
    slot, response_id, (partition, offset), finish_reason, reward, components, _, advantage = member
    return {
        "slot": slot,
        "response_id": response_id,
        "partition": partition,
        "offset": offset,
        "finish_reason": finish_reason,
        "latency_ms": body.latency_ms,
        "reward": reward,
        "advantage": advantage,
        "components": {name: components[name] for name in sorted(components)},
        "success": body.success,
        "failed_tools": failed_tools,
        "recoveries": recoveries,
        "agent_id": body.agent_id,
        "program": None if body.program is None else to_plain(body.program),
        "spans": spans,
    }


def _here(body: ResponseBody, common: int) -> dict[str, Any]:
    """Return a member's values per token; `common`: bytes of its prompt that all members share."""
    return {
        "elsewhere": None,
        "prompt_token_ids": body.prompt_token_ids[common:],
        "completion_token_ids": body.completion_token_ids,
        "logprobs": body.logprobs,
        "loss_mask": body.loss_mask,
        "branches": [to_plain(branch) for branch in body.branches],
    }


def _elsewhere(body: ResponseBody, _: int) -> dict[str, Any]:
    """Return a member's values when its tokens stay in its response, or only an outside model has them."""
    masks = [body.loss_mask, *(branch.loss_mask.data for branch in body.branches)]
    counts: dict[str, int | None] = {
        "completion_tokens": sum(map(len, masks)),
        "loss_tokens": sum(mask.count(1) for mask in masks),
    }
    counts["prompt_tokens"] = None
    if body.outside is not None:
        counts["prompt_tokens"], counts["completion_tokens"] = body.outside
    nothing = {"prompt_token_ids": b"", "completion_token_ids": b"", "logprobs": b"", "loss_mask": b"", "branches": []}
    return {"elsewhere": counts, **nothing}


def _metadata(task: TaskInfo) -> dict[str, str]:
    """Return the task's metadata, with its pinned version: if it got no answer, nothing else records that."""
    pinned = {} if task.adapter_version is None else {PINNED: str(task.adapter_version)}
    return dict(sorted((dict(task.metadata) | pinned).items()))
