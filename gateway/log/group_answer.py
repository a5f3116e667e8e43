"""A task's group as JSON: its answers slot by slot, side by side."""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.body import Answer


class GroupSource(Answer):
    """Who scores a task, and how much that counts."""

    name: str
    weight: float


class GroupTask(Answer):
    """What was asked."""

    policy: str
    purpose: str
    scenario: str | None
    tenant: str | None
    agent: str | None
    group_size: int
    messages: list[dict[str, Any]]
    reward_sources: list[GroupSource]
    metadata: dict[str, str]
    recorded_at: str


class GroupResult(Answer):
    """What the answers came to together, and the batch and version that they went into."""

    group_id: str
    policy: str
    purpose: str
    adapter_version: int | None
    group_size: int
    complete: bool
    reward_mean: float | None
    reward_std: float | None
    formula: str
    credit: str | None
    dropped_reason: str | None
    passed_over: str | None
    batch: int | None
    trained_version: int | None
    recorded_at: str


class GroupReward(Answer):
    """One score of an answer."""

    reward_id: str
    source: str
    value: float | None
    error: str | None
    rationale: str | None
    components: dict[str, float] | None
    scorer_version: str | None
    metadata: dict[str, str] | None
    recorded_at: str


class GroupSlot(Answer):
    """One answer; `left_out`: why it is not in the group. `opinions`: scores that the task did not ask for."""

    slot: int
    response_id: str | None
    text: str | None
    error: str | None
    finish_reason: str | None
    adapter_version: int | None
    agent_id: str | None
    success: bool | None
    completion_tokens: int | None
    latency_ms: float | None
    reward: float | None
    advantage: float | None
    components: dict[str, float] | None
    left_out: str | None
    rewards: list[GroupReward]
    opinions: list[GroupReward]
    turns: int
    recorded_at: str | None


class GroupAnswer(Answer):
    """A task's answers beside each other; `verdict`: what they taught, and `why` in words."""

    object: Literal["group"]
    task_id: str
    verdict: str
    why: list[str]
    task: GroupTask | None
    group: GroupResult | None
    slots: list[GroupSlot]
    as_of: str
