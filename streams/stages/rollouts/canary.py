"""What a canary has shown so far, and what follows from it.

    groups of the candidate and of the primary ──► count, step by step ──► decide ──► advance, promote, reject, ask
    unpinned, train or serve, of the canary's time

One group is one piece of evidence, since the responses of a group share their prompt. What it brings: its mean reward,
the share of its slots without a score, and of its answered responses the share that was cut at max_tokens, the tokens
and the latency. Groups that the trainer cannot use (dropped, all rewards equal) count as all others do.

The verdict on the reward is that of sequential.py. A guardrail trips when the same kind of interval says that
the figure rose at all, and the best estimate says that it rose by more than is allowed: so a bad candidate is caught
long before the exact rise is known, and one that is no different is not, at any look, with probability 1 - alpha over
all guardrails together.

Not covered: tasks that nobody answered, whose version nobody knows; and guardrails at a share of 1, where no primary
answers beside the candidate. A group that was begun before a step, and ended in it, counts for the step it ended in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from schemas.conventions import POLICY_LAG
from schemas.events import AdapterEvent, AdvantagedGroup, Verdict, derive_id
from streams.evaluation import sequential
from streams.evaluation.results import short
from streams.evaluation.sequential import Arm, ArmPair, ConfidenceSequence
from streams.settings.model import Canary as Rule
from streams.table_rows import pack, unpack

STAGE = "rollouts"
UNSCORED = frozenset({"response_failed", "score_failed", "unscored", "unanswered"})
"""Reasons of a slot that is left out because it has no score; any other is that of a whole group."""
FIGURES = ("reward", "failed", "truncated", "tokens", "latency_ms")
GUARDRAILS = FIGURES[1:]


# --- what the line knows of a canary ----------------------------------------------------------------------------------


class CanaryTrial(NamedTuple):
    """A canary under way, as the topic `adapters` tells it."""

    id: str
    """event_id of its canary_started."""
    version: int
    primary: int
    steps: tuple[tuple[float, int], ...]
    """Share, and since when, ms since the epoch, of every step so far."""

    @property
    def share(self) -> float:
        """Share of the tasks that the candidate answers now."""
        return self.steps[-1][0]

    def step_at(self, timestamp_ms: int) -> int | None:
        """Return the number of the step in force at this time; None before the first."""
        begun = [number for number, (_, since) in enumerate(self.steps) if since <= timestamp_ms]
        return begun[-1] if begun else None


def followed(trial: CanaryTrial | None, event: AdapterEvent, candidate: int | None, at_ms: int) -> CanaryTrial | None:
    """Return the canary after an event, recorded at `at_ms`, that took effect and left `candidate` the candidate."""
    if candidate is None:
        return None
    step = (event.share or 0.0, at_ms)
    if event.kind == "canary_started":
        return CanaryTrial(event.event_id, event.version, event.expected_version or 0, (step,))
    if event.kind == "canary_advanced" and trial is not None:
        return trial._replace(steps=(*trial.steps, step))
    return trial


# --- the evidence -----------------------------------------------------------------------------------------------------

Counts = tuple[Arm, ...]
"""One arm in one step: an Arm per figure, in the order of FIGURES."""
NOTHING: Counts = tuple(Arm() for _ in FIGURES)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the groups say of one canary."""

    trial: str = ""
    """Id of the canary they are of."""
    next_offset: int = 0
    """Of the topic `groups`: what lies before is counted."""
    steps: tuple[tuple[Counts, Counts], ...] = ()
    """Candidate and primary, by step."""
    proven: bool = False
    """Whether the test has spoken for the candidate."""
    said: tuple[str, ...] = ()
    """Short ids of the decisions that were written."""
    over: bool = False
    """Whether one of them ends the canary."""

    def pairs(self, figure: str) -> list[ArmPair]:
        """Return both arms of each step, for one figure."""
        at = FIGURES.index(figure)
        return [ArmPair(candidate[at], primary[at]) for candidate, primary in self.steps]

    def groups(self, arm: int, figure: str = "reward") -> int:
        """Return the groups of one arm (0 candidate, 1 primary) that brought this figure."""
        return sum(pair[arm].n for pair in self.pairs(figure))

    def in_step(self, arm: int, trial: CanaryTrial) -> int:
        """Return the groups of one arm that brought a reward in the step in force."""
        return self.steps[-1][arm][0].n if len(self.steps) == len(trial.steps) else 0


def figures(group: AdvantagedGroup) -> tuple[float | None, ...]:
    """Return what a group brings, in the order of FIGURES; None for what it does not tell.

    A dropped group keeps its mean reward, but not its responses. A `serve` task without reward sources has no reward.
    """
    unscored = sum(left.reason in UNSCORED for left in group.left_out)
    scored = group.group_size - unscored
    judged = group.purpose != "serve" or any(one.components for one in group.responses)
    answered = group.responses
    latencies = [one.latency_ms for one in answered if one.latency_ms is not None]
    return (
        group.reward_mean if scored > 0 and judged else None,
        unscored / group.group_size,
        _mean(one.finish_reason == "length" for one in answered),
        _mean(len(one.completion_token_ids) for one in answered),
        _mean(latencies),
    )


def arm_of(group: AdvantagedGroup, trial: CanaryTrial) -> int | None:
    """Return 0 for a group of the candidate, 1 for one of the primary, None for one that says nothing of either."""
    if group.purpose == "eval" or "pinned_version" in group.metadata or POLICY_LAG in group.metadata:
        return None
    return {trial.version: 0, trial.primary: 1}.get(group.adapter_version)


def count(evidence: Evidence, trial: CanaryTrial, group: AdvantagedGroup, offset: int) -> Evidence:
    """Return the evidence after the group at `offset`. One that was counted before, or is of no arm, changes nothing.

    Evidence of another canary is forgotten.
    """
    if evidence.trial != trial.id:
        evidence = Evidence(trial=trial.id, next_offset=evidence.next_offset)
    if offset < evidence.next_offset:
        return evidence
    arm, step = arm_of(group, trial), trial.step_at(group.created_at)
    if arm is None or step is None:
        return evidence
    steps = [*evidence.steps, *([(NOTHING, NOTHING)] * (len(trial.steps) - len(evidence.steps)))]
    both = list(steps[step])
    both[arm] = tuple(
        old if value is None else old.add(value) for old, value in zip(both[arm], figures(group), strict=True)
    )
    steps[step] = (both[0], both[1])
    return replace(evidence, steps=tuple(steps), next_offset=offset + 1)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


# --- what follows -----------------------------------------------------------------------------------------------------


class CanaryFinding(NamedTuple):
    """What the evidence says now."""

    kind: Literal["canary_advanced", "promoted", "rejected", "judged"]
    reason: str
    share: float | None = None
    verdict: Verdict | None = None


def reward(evidence: Evidence, rule: Rule) -> ConfidenceSequence | None:
    """Return the gain in mean reward over the primary, once there are `step_groups` of each arm."""
    if min(evidence.groups(0), evidence.groups(1)) < rule.step_groups:
        return None
    return sequential.interval(evidence.pairs("reward"), rule.alpha)


def tripped(evidence: Evidence, rule: Rule) -> list[str]:
    """Return a sentence for each guardrail that the candidate broke."""
    found = []
    for figure in GUARDRAILS:
        pairs = evidence.pairs(figure)
        rise, interval = sequential.estimate(pairs), sequential.interval(pairs, rule.alpha / len(GUARDRAILS))
        if rise is None or interval is None or interval.low <= 0:
            continue
        level = sequential.level(pairs)
        allowed = _allowed(figure, rule, level)
        if rise > allowed:
            found.append(
                f"{figure} is {level + rise:.4g}, {level:.4g} for the primary: expected at most {level + allowed:.4g}"
            )
    return found


def _allowed(figure: str, rule: Rule, level: float) -> float:
    """Return by how much a figure may rise above the primary's."""
    match figure:
        case "failed":
            return rule.max_failed
        case "truncated":
            return rule.max_truncated
        case "tokens":
            return (rule.max_tokens_ratio - 1) * level
        case _:
            return (rule.max_latency_ratio - 1) * level


def find(evidence: Evidence, trial: CanaryTrial, rule: Rule) -> tuple[Evidence, CanaryFinding | None]:
    """Return what follows from the evidence, if anything does; whether it was said before is not asked.

    In this order: a guardrail or the test rolls the candidate back; the test is remembered to have spoken for it; a
    step that has its groups goes on to the next one, and the last to the promotion. A share of 1 leaves nothing to
    compare with, so it is entered only once the test has spoken.
    """
    if broken := tripped(evidence, rule):
        return evidence, CanaryFinding("rejected", f"canary: {'; '.join(broken)}")
    interval = reward(evidence, rule)
    if interval is not None and interval.high < rule.min_improvement:
        return evidence, CanaryFinding("rejected", f"canary: {_says(interval, rule)}, below {rule.min_improvement:g}")
    if interval is not None and interval.low > rule.min_improvement:
        evidence = replace(evidence, proven=True)
    larger = [share for share in rule.shares if share > trial.share]
    if _is_full(evidence, trial, rule):
        if larger and (larger[0] < 1 or evidence.proven):
            reason = f"canary: {rule.step_groups} groups of each arm at {trial.share:g} broke no guardrail"
            return evidence, CanaryFinding("canary_advanced", reason, share=larger[0])
        if not larger and evidence.proven:
            reason = f"canary: {_says(interval, rule)}" if interval is not None else "canary: the test spoke for it"
            if rule.decide == "ask":
                return evidence, CanaryFinding("judged", f"{reason}; a person promotes it", verdict="promote")
            return evidence, CanaryFinding("promoted", reason)
    if not evidence.in_step(0, trial) and evidence.in_step(1, trial) >= rule.step_groups / trial.share:
        says = f"not one of {evidence.in_step(1, trial)} groups at {trial.share:g} is the candidate's"
        return evidence, CanaryFinding(
            "judged", f"canary: {says}; look whether the agents could load it. A person decides", verdict="ask"
        )
    if evidence.groups(0) >= rule.max_groups and not evidence.proven:
        says = "no interval" if interval is None else _says(interval, rule)
        return evidence, CanaryFinding(
            "judged", f"canary: {says} after {rule.max_groups} groups of the candidate; a person decides", verdict="ask"
        )
    return evidence, None


def _is_full(evidence: Evidence, trial: CanaryTrial, rule: Rule) -> bool:
    """Return whether the step in force has its groups: of both arms, while both answer."""
    candidate, primary = evidence.in_step(0, trial), evidence.in_step(1, trial)
    return candidate >= rule.step_groups and (trial.share >= 1 or primary >= rule.step_groups)


def _says(interval: ConfidenceSequence, rule: Rule) -> str:
    return (
        f"reward {interval.estimate:+.4g}, {1 - rule.alpha:.4g} interval {interval.low:+.4g} to {interval.high:+.4g} "
        "at every look"
    )


# --- the event --------------------------------------------------------------------------------------------------------


def decide(
    evidence: Evidence, trial: CanaryTrial, rule: Rule, *, policy: str, at_ms: int
) -> tuple[Evidence, AdapterEvent | None]:
    """Return the evidence, and the event that follows from it unless that was written before.

    Its id is made of the canary and of what is decided, so a second copy is the same fact.
    """
    if evidence.over:
        return evidence, None
    evidence, found = find(evidence, trial, rule)
    if found is None:
        return evidence, None
    event_id = derive_id(trial.id, found.kind, found.share, found.verdict)
    if short(event_id) in evidence.said:
        return evidence, None
    event = AdapterEvent(
        event_id=event_id,
        policy=policy,
        created_at=max(at_ms, trial.steps[-1][1]),
        version=trial.version,
        kind=found.kind,
        actor=STAGE,
        reason=found.reason,
        expected_version=trial.primary,
        share=found.share,
        verdict=found.verdict,
        gate=gate(rule),
        metrics=metrics(evidence, rule),
    )
    over = found.kind in ("promoted", "rejected")
    return replace(evidence, said=(*evidence.said, short(event_id)), over=over), event


def gate(rule: Rule) -> dict[str, str]:
    """Return the rule in force, setting by setting."""
    return {f"canary.{name}": str(value) for name, value in rule.model_dump().items()}


def rule_in(gate: Mapping[str, str]) -> Rule | None:
    """Return the rule that an event recorded; None if it recorded none, or one of another release."""
    given = {name.removeprefix("canary."): value for name, value in gate.items() if name.startswith("canary.")}
    try:
        return Rule.model_validate(given) if given else None
    except ValueError:
        return None


def metrics(evidence: Evidence, rule: Rule) -> dict[str, float]:
    """Return the evidence in figures: groups and means by arm, the gain in reward and its interval.

    Means are over all steps; the gain compares each step within itself, so it need not be their difference.
    """
    found: dict[str, float] = {}
    for arm, name in enumerate(("candidate", "primary")):
        found[f"{name}_groups"] = float(evidence.groups(arm))
        for figure in FIGURES:
            arms = [pair[arm] for pair in evidence.pairs(figure)]
            if n := sum(one.n for one in arms):
                found[f"{name}_{figure}"] = math.fsum(one.n * one.mean for one in arms) / n
    gain = sequential.estimate(evidence.pairs("reward"))
    if gain is not None:
        found["gain"] = gain
    interval = reward(evidence, rule)
    if interval is not None:
        found |= {"gain": interval.estimate, "low": interval.low, "high": interval.high}
    return found


# --- the table row ----------------------------------------------------------------------------------------------------

ROW_VERSION = 1


def dump(evidence: Evidence) -> bytes:
    """Return the table row of the evidence."""
    row: dict[str, Any] = {name: getattr(evidence, name) for name in Evidence.__slots__}
    row["steps"] = [[[[arm.n, arm.mean, arm.spread] for arm in arms] for arms in both] for both in evidence.steps]
    return pack(ROW_VERSION, row)


def load(row: bytes | None) -> Evidence:
    """Return the evidence in a table row; none for no row. Raises ValueError for a row of another version."""
    if row is None:
        return Evidence()
    data: Mapping[str, Any] = unpack(row, ROW_VERSION)
    steps: Sequence[Any] = data["steps"]
    return Evidence(
        trial=data["trial"],
        next_offset=data["next_offset"],
        steps=tuple((_counts(candidate), _counts(primary)) for candidate, primary in steps),
        proven=data["proven"],
        said=tuple(data["said"]),
        over=data["over"],
    )


def _counts(arms: Iterable[Sequence[float]]) -> Counts:
    return tuple(Arm(int(n), mean, spread) for n, mean, spread in arms)
