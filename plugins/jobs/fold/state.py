"""A job, as the fold of its events.

    jobs[job_id]: created, started, iteration, … ──► fold, compare and swap ──► JobState, or the reason of a refusal

                        ┌──────── resumed ◄─────── paused ◄─┐
    (none) ─created─► queued ─────started─────► running ────┤     iteration, evaluated, budget_warned: it stays running
                        │                          ├─► completed
                        ├─────── failed ◄──────────┤
                        └─────── cancelled ◄───────┴─ also from paused

Each event has the number of events of its job that took effect before it. Two based on the same state have the same
number: the first in the partition takes effect, the second changes nothing and is listed with its reason. A repeated
event counts once. So controllers may be killed and doubled, and two people may decide at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import JobEvent, JobKind, JobPrices, JobQuestion, JobSpec

JobStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]
BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
EVALUATION_SLOTS = 1
"""Responses to a held-out question: the likeliest answer, so one is enough."""


class JobTransition(NamedTuple):
    """What one kind of event does to its job."""

    allowed: frozenset[JobStatus | None]
    """Statuses that the job may have; None is an unknown job."""
    status: JobStatus


def _from(*statuses: JobStatus | None) -> frozenset[JobStatus | None]:
    return frozenset(statuses)


TRANSITIONS: Mapping[JobKind, JobTransition] = {
    "created": JobTransition(_from(None), "queued"),
    "started": JobTransition(_from("queued"), "running"),
    "iteration": JobTransition(_from("running"), "running"),
    "evaluated": JobTransition(_from("running"), "running"),
    "budget_warned": JobTransition(_from("running"), "running"),
    "budget_exceeded": JobTransition(_from("running"), "failed"),
    "paused": JobTransition(_from("queued", "running"), "paused"),
    "resumed": JobTransition(_from("paused"), "queued"),
    "completed": JobTransition(_from("running"), "completed"),
    "failed": JobTransition(_from("queued", "running"), "failed"),
    "cancelled": JobTransition(_from("queued", "running", "paused"), "cancelled"),
    "month_closed": JobTransition(_from(), "queued"),  # it is about no job: plugins/jobs/fold/monthly_spending.py
}
ENDED: frozenset[JobStatus] = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The tokens and seconds that a job used; its prices turn them into a cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    trainer_s: float = 0.0

    def since(self, before: JobUsage) -> JobUsage:
        """Return what was used after `before`."""
        return JobUsage(
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
            self.trainer_s - before.trainer_s,
        )

    def metrics(self, prices: JobPrices | None) -> dict[str, float]:
        """Return the figures of an event; without prices there is no `cost_usd`."""
        figures = {name: float(getattr(self, name)) for name in ("prompt_tokens", "completion_tokens", "trainer_s")}
        return figures if prices is None else figures | {"cost_usd": cost_usd(self, prices)}


def cost_usd(usage: JobUsage, prices: JobPrices) -> float:
    """Return what `usage` costs, in USD.

    >>> cost_usd(JobUsage(1_000_000, 500_000, 1800.0), JobPrices(prompt=0.25, completion=1.0, trainer_hour=3.0))
    2.25
    """
    tokens = usage.prompt_tokens * prices.prompt + usage.completion_tokens * prices.completion
    return tokens / 1e6 + usage.trainer_s * prices.trainer_hour / 3600


@dataclass(frozen=True, slots=True)
class JobEvaluation:
    """One version on the held-out questions, against the version before the job."""

    iteration: int
    version: int
    metrics: Mapping[str, float]

    @property
    def gain(self) -> float:
        """The gain in success or in reward, whichever is larger: where rewards are grades, no answer need be right."""
        return max(self.metrics["success_gain"], self.metrics["gain"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of one job, as the fold of its events."""

    job_id: str
    policy: str
    tenant: str | None
    spec: JobSpec
    train: tuple[int, ...]
    """Numbers of the questions, or of the seeds of episodes, that are trained on."""
    held_out: tuple[int, ...]
    """… that are never trained on."""
    request_digest: str | None
    created_at: int
    updated_at: int
    asks_since: int
    """When what it asks now was first asked, or earlier, ms: the end of its last iteration or evaluation."""
    status: JobStatus = "queued"
    reason: str = ""
    """Of the newest event."""
    sequence: int = 1
    """How many events took effect: what the next one has to name."""
    base_version: int | None = None
    """The newest version before the job; None until it has started."""
    base_batches: int = 0
    """Batches that the line of its policy had taken by then."""
    iteration: int = 0
    """Iterations that have ended."""
    versions: tuple[int, ...] = ()
    """The version that each of them made. Between two of these may be some that others tuned."""
    groups_next: int = 0
    """The offset in the policy's partition of `groups` up to which `usage` counts."""
    usage: JobUsage = field(default_factory=JobUsage)
    warned: bool = False
    evaluations: tuple[JobEvaluation, ...] = ()
    best: tuple[int, ...] = ()
    """The best versions, the best first, though none be better than the one before the job: those that are kept."""
    code: str | None = None
    suggested_action: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each figure."""
    effective: Mapping[str, JobKind] = field(default_factory=dict)
    """The kind of each event that took effect, by its id."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by id of an event that changed nothing."""
    contamination_allowed_by: str | None = None
    """The user who allowed training on questions that a suite holds out."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.status in ENDED

    @property
    def version(self) -> int | None:
        """The version that its last iteration made, or began with; None until it has started."""
        return self.versions[-1] if self.versions else self.base_version

    @property
    def cost_usd(self) -> float | None:
        """What it has cost until now; None without prices."""
        return None if self.spec.prices is None else cost_usd(self.usage, self.spec.prices)


# --- the fold ---------------------------------------------------------------------------------------------------------


def refusal(state: JobState | None, kind: JobKind, sequence: int) -> str | None:
    """Return why an event has no effect on a job in this state, or None if it has one."""
    status = None if state is None else state.status
    if status not in TRANSITIONS[kind].allowed:
        allowed = " or ".join(sorted(status_name or "unknown" for status_name in TRANSITIONS[kind].allowed))
        return f"the job is {status or 'unknown'}; {kind} needs {allowed}"
    expected = 0 if state is None else state.sequence
    if sequence != expected:
        return (
            f"it was decided when {sequence} events had taken effect, and there are {expected}; look at the job and "
            "decide again"
        )
    return None


def fold(state: JobState | None, event: JobEvent) -> JobState | None:
    """Return a job after `event`; None while it is unknown. A repeated event changes nothing."""
    if state is not None and event.event_id in state.effective:
        return state
    refused = refusal(state, event.kind, event.sequence)
    if state is None:
        return None if refused is not None or event.spec is None else _create(event, event.spec)
    if refused is not None:
        return replace(state, refused={**state.refused, event.event_id: refused})
    after = replace(
        state,
        status=TRANSITIONS[event.kind].status,
        reason=event.reason,
        updated_at=event.created_at,
        sequence=state.sequence + 1,
        effective={**state.effective, event.event_id: event.kind},
        warned=state.warned or event.kind == "budget_warned",
        code=event.code,
        suggested_action=event.suggested_action,
    )
    if event.metrics:
        after = replace(after, metrics={**state.metrics, **event.metrics}, usage=usage_of(event.metrics, state.usage))
    if event.groups_next is not None:
        after = replace(after, groups_next=max(state.groups_next, event.groups_next))
    return _apply(after, event)


def _create(event: JobEvent, spec: JobSpec) -> JobState:
    train, held_out = sides(spec)
    return JobState(
        job_id=event.job_id,
        policy=event.policy,
        tenant=event.tenant,
        spec=spec,
        train=train,
        held_out=held_out,
        request_digest=event.request_digest,
        created_at=event.created_at,
        updated_at=event.created_at,
        asks_since=event.created_at,
        reason=event.reason,
        effective={event.event_id: event.kind},
        contamination_allowed_by=event.metadata.get(CONTAMINATION_ALLOWED_BY),
    )


def _apply(state: JobState, event: JobEvent) -> JobState:
    """Return a job with what only this kind of event says."""
    match event.kind:
        case "started":
            if state.base_version is not None or event.version is None:
                return state
            batches = event.version if event.trained_batches is None else event.trained_batches
            return replace(state, base_version=event.version, base_batches=batches)
        case "iteration":
            versions = (*state.versions, event.version or 0)
            return replace(state, iteration=event.iteration or 0, versions=versions, asks_since=event.created_at)
        case "evaluated":
            evaluation = JobEvaluation(event.iteration or 0, event.version or 0, event.metrics)
            evaluations = (*state.evaluations, evaluation)
            return replace(state, evaluations=evaluations, best=event.best, asks_since=event.created_at)
        case _:
            return state


def usage_of(metrics: Mapping[str, float], before: JobUsage) -> JobUsage:
    """Return the usage in the figures of an event; missing figures are as `before`."""
    return JobUsage(
        int(metrics.get("prompt_tokens", before.prompt_tokens)),
        int(metrics.get("completion_tokens", before.completion_tokens)),
        metrics.get("trainer_s", before.trainer_s),
    )


# --- the held-out share -----------------------------------------------------------------------------------------------


def sides(spec: JobSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the questions to train on, and of those held out; of episodes those of their seeds."""
    if spec.environment is None:
        return split(spec.questions, spec.held_out_share)
    count = len(spec.environment.seeds)
    return tuple(range(count)), tuple(range(count, count + len(spec.environment.held_out_seeds)))


def split(questions: Iterable[JobQuestion], share: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the questions to train on, and of those held out: `share` of all, by hash.

    A question is on the same side in every job with this share, so that none learns what another is measured by; a
    variant is on the side of the question that it is one of.
    """
    train: list[int] = []
    held_out: list[int] = []
    for number, question in enumerate(questions):
        (held_out if place(question.variant_of or question.query) < share else train).append(number)
    return tuple(train), tuple(held_out)


def place(query: str) -> float:
    """Return the position in [0, 1) of a question."""
    return (int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") >> 11) / 2**53
