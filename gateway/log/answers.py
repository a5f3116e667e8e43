"""What is answered about tasks, rewards, groups, versions and rows: of log_rest.py, described.

The code there makes the objects; a test compares what a server really answers with what is said here.
"""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.openapi import Answer


class TaskAnswer(Answer):
    """A task that is in the log."""

    object: Literal["task"]
    task_id: str
    policy: str
    purpose: str
    tenant: str | None
    group_size: int
    reward_sources: list[str]
    created_at: int
    recorded_at: str


class RewardAnswer(Answer):
    """A score that is in the log; `enters_group`: the task's group waits for it."""

    object: Literal["reward"]
    reward_id: str
    task_id: str
    response_id: str
    slot: int
    source: str
    score: float
    enters_group: bool
    recorded_at: str


class TriedScore(Answer):
    """What a scorer gives a text, or why nothing."""

    value: float | None
    components: dict[str, float] | None
    rationale: str | None
    version: str | None
    error: str | None
    reason: str | None


class TriedScores(Answer):
    """A score for each text, in their order."""

    object: Literal["list"]
    scorer: str
    data: list[TriedScore]


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


class QueryAnswer(Answer):
    """Rows of a statement; `more`: there are others beyond the limit."""

    object: Literal["query"]
    columns: list[str]
    rows: list[list[Any]]
    more: bool
    left_out: list[str]


class ServingAnswer(Answer):
    """Who answers: the primary, and the candidate that is tried on a share of the tasks."""

    primary: int
    candidate: int | None
    share: float
    newest: int
    primaries: list[int]


class JudgedAnswer(Answer):
    """What a canary came to."""

    verdict: str
    reason: str


class AdapterVersion(Answer):
    """One version. Of a policy that tenants share they see no `tuned_by`, `uri`, `judged` and `held_out`."""

    policy: str
    version: int
    status: str
    share: float | None
    parent_version: int | None
    batches: str | None
    tuned_by: str | None = None
    created_at: int | None
    promoted_at: int | None
    uri: str | None = None
    sha256: str | None
    base_digest: str | None
    judged: JudgedAnswer | None = None
    metrics: dict[str, float]
    held_out: dict[str, dict[str, float]] | None = None


class PolicyAdapters(Answer):
    """A policy's versions, and who serves."""

    object: Literal["adapters"]
    policy: str
    serving: ServingAnswer
    versions: list[AdapterVersion]


class AdapterList(Answer):
    """Every policy that one may know of."""

    object: Literal["list"]
    data: list[PolicyAdapters]


class AdapterDecisionAnswer(Answer):
    """A decision that took effect; `before`: the primary until then."""

    object: Literal["adapter_decision"]
    policy: str
    version: int
    kind: Literal["promoted", "rejected", "rolled_back"]
    actor: str
    reason: str
    before: int
    serving: ServingAnswer
    recorded_at: str
