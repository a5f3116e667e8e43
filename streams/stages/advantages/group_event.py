"""Make the record of a group that leaves.

    EmitGroup, the responses it refers to ──► credit of turns ──► assemble ──► fits its topic? ──► GroupRecord
                                                                     └─ no: without responses, metadata, slots ─┘

Every group that leaves is recorded. One that is larger than its topic takes is recorded as dropped (`too_large`): raise
topics.max_record_bytes, or ask for smaller groups. So is one whose turns cannot be compared as `advantages.credit` says
(`steps_mismatch`, `no_observations`); a replay under another rule makes it anew.

A group is written without an event in between: what it is made of was checked when it was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from schemas.convert import raised
from schemas.events import AdvantagedGroup, LeftOut, ResponseTurn, Sampling, derive_id
from schemas.serde import encode_values
from schemas.tokens import LossMask
from streams import advantage_formulas
from streams.kafka.topics import Topic
from streams.stages.advantages.credit import CREDIT, NEEDS_OBSERVATIONS, Episode
from streams.stages.advantages.incoming import SAMPLING_FIELDS, ResponseBody
from streams.stages.advantages.state import EmitGroup, GroupMember, TaskInfo

Bodies = Mapping[tuple[int, int], ResponseBody]
"""By partition and offset."""
Spans = Mapping[int, list[dict[str, Any]]]
"""By slot: the values of its CreditSpans."""


class CreditError(Exception):
    """The turns of a group cannot be compared as the rule says."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group, ready to be written."""

    values: dict[str, Any]
    """By field, as `schemas.convert.checked` returns them."""
    payload: bytes

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return str(self.values["policy"]).encode()

    def event(self) -> AdvantagedGroup:
        """Return the event in this record."""
        event: AdvantagedGroup = raised(AdvantagedGroup, self.values)
        return event


def group_record(effect: EmitGroup, bodies: Bodies, topic: Topic) -> GroupRecord | None:
    """Return the group's record in the most complete form that `topic` takes; None if it takes none.

    `bodies` holds what `effect.members` refer to.
    """
    try:
        spans = _spans(effect, bodies)
    except CreditError as exc:
        effect, spans = without_responses(effect, exc.reason), {}
    made = (GroupRecord(values, encode_values(AdvantagedGroup, values)) for values in _forms(effect, bodies, spans))
    return next((one for one in made if len(one.key) + len(one.payload) <= topic.max_bytes), None)


def _forms(effect: EmitGroup, bodies: Bodies, spans: Spans) -> Iterator[dict[str, Any]]:
    yield assemble(effect, bodies, spans)
    dropped = assemble(without_responses(effect, "too_large"), {}, {})
    yield dropped
    yield {**dropped, "metadata": {}}
    yield {**dropped, "metadata": {}, "left_out": []}


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
        for member, advantages in zip(effect.members, CREDIT[rule.credit](episodes, rule), strict=True)
    }


def _turns(body: ResponseBody) -> tuple[ResponseTurn, ...]:
    """Return the turns of a response; what the policy answered directly is one."""
    return body.turns or (ResponseTurn(number=0, start=0, end=len(body.loss_mask) // LossMask.BYTES),)


def _episode(member: GroupMember, turns: tuple[ResponseTurn, ...]) -> Episode:
    """Return what each turn earned: what is not of a single turn belongs to the last. Raises CreditError."""
    if member.steps is None or len(member.steps) not in (0, len(turns)):
        raise CreditError("steps_mismatch")
    rewards = list(member.steps) or [0.0] * len(turns)
    rewards[-1] += member.reward - math.fsum(member.steps)
    return Episode(rewards, [turn.observation for turn in turns])


def assemble(effect: EmitGroup, bodies: Bodies, spans: Spans) -> dict[str, Any]:
    """Return the values of the group's record; `bodies` holds what `effect.members` refer to."""
    task, rule = effect.task, effect.rule
    first = bodies[effect.members[0].at] if effect.members else _NOBODY
    return {
        "group_id": derive_id(effect.task_id, "group", advantage_formulas.FORMULA_VERSION),
        "task_id": effect.task_id,
        "created_at": effect.created_at,
        "traceparent": task.traceparent,
        "metadata": _metadata(task),
        "policy": task.policy,
        "purpose": task.purpose,
        "scenario": task.scenario,
        "tenant": task.tenant,
        "sampling_id": effect.sampling_id,
        "group_size": task.group_size,
        "adapter_version": effect.adapter_version,
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
        "prompt_token_ids": first.prompt_token_ids,
        "responses": [_member(member, bodies[member.at], spans.get(member.slot, [])) for member in effect.members],
        "left_out": [
            {"slot": left.slot, "response_id": left.response_id, "reason": left.reason} for left in effect.left_out
        ],
    }


_DEFAULT = Sampling()
_NOBODY = ResponseBody("", "", 0.0, b"", b"", b"", b"", tuple(getattr(_DEFAULT, name) for name in SAMPLING_FIELDS))
"""What a group without responses copies."""


def _member(member: GroupMember, body: ResponseBody, spans: list[dict[str, Any]]) -> dict[str, Any]:
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
        "completion_token_ids": body.completion_token_ids,
        "logprobs": body.logprobs,
        "loss_mask": body.loss_mask,
        "spans": spans,
    }


def _metadata(task: TaskInfo) -> dict[str, str]:
    """Return the task's metadata, with the version it was pinned to: nothing else records it if nobody answered."""
    pinned = {} if task.adapter_version is None else {"pinned_version": str(task.adapter_version)}
    return dict(sorted((dict(task.metadata) | pinned).items()))
