"""The evidence of a canary so far, and the decision that follows.

    groups of the candidate and of the primary ──► count, step by step ──► decide ──► advance, promote, reject, ask
    unpinned, train or serve, from the time of the canary

One group is one observation, since the responses of a group share their prompt. Its figures: its mean reward, the share
of its responses that are right (streams/evaluation/results.py), the share of its slots without a score, the share of
its responses that were cut at max_tokens, the tokens and the latency. Some figures are shown and decide nothing: the
share of right responses, with Wilson's interval; the cost, by tokens read and written and the prices of the version;
and the share of failed tool calls that a successful one followed. Groups that the trainer cannot use (dropped, all
rewards equal) count like all others. A group counts for the step in which it ended.

A group ends some time after its version was chosen, and an agent that could not fetch the candidate tries again after
half a minute. So whether the candidate answers at all is judged by groups that began `SETTLED_MS` after their step did:
the share is one of task ids, so the candidate's tasks are known (`Evidence.missed`).

The reward is tested by streams/evaluation/sequential.py. A guardrail trips when the same kind of interval shows that
its figure rose at all, and the best estimate is a rise by more than is allowed: so a bad candidate is caught long
before the exact rise is known, while one that is no worse passes every look with probability 1 - alpha over all
guardrails together.

Unanswered tasks do not count, as their version is unknown; at a share of 1 no guardrail can trip, as the primary
answers nothing to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, NamedTuple

from schemas.conventions import PINNED, POLICY_LAG, UNSCORED, has_scores
from schemas.events import AdapterEvent, AdvantagedGroup, GroupResponse, Verdict, derive_id
from streams.adapters.serving import place
from streams.evaluation import intervals, sequential
from streams.evaluation.results import is_right, short
from streams.evaluation.sequential import ARMS, Arm, ArmName, ArmPair, ConfidenceSequence
from streams.settings.model import Canary as Rule
from streams.stages.rollouts.guard import TokenPrices
from streams.worker.table_rows import pack, unpack

STAGE = "rollouts"
GUARDRAILS = ("failed", "truncated", "tokens", "latency_ms")
COUNTS = ("prompt_tokens", "sampled_tokens")
"""Tokens that a response read and wrote, which determine its cost."""
RECOVERY = "recovery"
FIGURES = ("reward", "success", *GUARDRAILS, *COUNTS, RECOVERY)
ArmPrices = Mapping[ArmName, TokenPrices | None]
"""The prices of each arm's tokens; None if unknown."""
NO_PRICES: ArmPrices = {"candidate": None, "primary": None}
SETTLED_MS = 60_000
"""Time after the start of a step: groups that begin later had their version chosen under its share."""


# --- the canary itself -----------------------------------------------------------------------------------------------


class CanaryTrial(NamedTuple):
    """A canary under way, as recorded in the topic `adapters`."""

    id: str
    """event_id of its canary_started."""
    version: int
    primary: int
    steps: tuple[tuple[float, int], ...]
    """Share, and its start in ms since the epoch, of every step so far."""

    @property
    def share(self) -> float:
        """Share of the tasks that the candidate answers now."""
        return self.steps[-1][0]

    def step_at(self, timestamp_ms: int) -> int | None:
        """Return the number of the step in force at this time; None before the first."""
        return max((number for number, (_, since) in enumerate(self.steps) if since <= timestamp_ms), default=None)


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

StepCounts = Mapping[str, ArmPair]
"""Counts of both arms in one step, by figure."""
NOTHING: StepCounts = dict.fromkeys(FIGURES, ArmPair(Arm(), Arm()))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of the groups about one canary."""

    trial: str = ""
    """Id of the canary."""
    next_offset: int = 0
    """Offset in the topic `groups`: everything before it is counted."""
    steps: tuple[StepCounts, ...] = ()
    missed: int = 0
    """Groups of the step in force that the candidate should have answered by their task, but the primary did."""
    proven: bool = False
    """Whether the test has decided for the candidate."""
    written: tuple[str, ...] = ()
    """Short ids of the decisions that were written."""
    over: bool = False
    """Whether one of them ends the canary."""

    def pairs(self, figure: str) -> list[ArmPair]:
        """Return both arms of each step, for one figure."""
        return [step[figure] for step in self.steps]

    def groups(self, arm: ArmName, figure: str = "reward") -> int:
        """Return the number of groups of one arm that have this figure."""
        return sum(pair.arm(arm).n for pair in self.pairs(figure))

    def groups_in_step(self, arm: ArmName, trial: CanaryTrial) -> int:
        """Return the number of groups of one arm that have a reward in the step in force."""
        return self.steps[-1]["reward"].arm(arm).n if len(self.steps) == len(trial.steps) else 0


def figures(group: AdvantagedGroup) -> dict[str, float]:
    """Return the figures of a group, without missing ones."""
    unscored = sum(left.reason in UNSCORED for left in group.left_out)
    answered = group.responses
    found = {
        "reward": group.reward_mean if has_scores(group) else None,
        "success": _mean(is_right(one) for one in answered if one.success is not None or has_scores(group)),
        "failed": unscored / group.group_size,
        "truncated": _mean(one.finish_reason == "length" for one in answered),
        "tokens": _mean(one.completion_tokens for one in answered),
        "latency_ms": _mean(one.latency_ms for one in answered),
        "prompt_tokens": _mean(group.tokens_read(one) for one in answered),
        "sampled_tokens": _mean(one.tokens_written for one in answered),
        RECOVERY: _recovery(answered),
    }
    return {figure: value for figure, value in found.items() if value is not None}


def _recovery(responses: Sequence[GroupResponse]) -> float | None:
    """Return the share of failed tool calls that a successful one followed; None if none failed."""
    failed = sum(response.failed_tools for response in responses)
    return sum(response.recoveries for response in responses) / failed if failed else None


def arm_of(group: AdvantagedGroup, trial: CanaryTrial) -> ArmName | None:
    """Return the arm of a group; None if it belongs to neither."""
    if group.purpose == "eval" or PINNED in group.metadata or POLICY_LAG in group.metadata:
        return None
    if group.adapter_version == trial.primary:
        return "primary"
    return "candidate" if group.adapter_version == trial.version else None


def count(evidence: Evidence, trial: CanaryTrial, group: AdvantagedGroup, offset: int) -> Evidence:
    """Return the evidence after the group at `offset`; one that was already counted, or belongs to no arm, changes
    nothing. Evidence of another canary is dropped.
    """
    if evidence.trial != trial.id:
        evidence = Evidence(trial=trial.id, next_offset=evidence.next_offset)
    if offset < evidence.next_offset:
        return evidence
    arm, step = arm_of(group, trial), trial.step_at(group.created_at)
    if arm is None or step is None:
        return evidence
    begun = [NOTHING] * (len(trial.steps) - len(evidence.steps))
    steps = [*evidence.steps, *begun]
    counts = steps[step]
    steps[step] = {**counts, **{name: counts[name].add(arm, value) for name, value in figures(group).items()}}
    missed = (0 if begun else evidence.missed) + (arm == "primary" and _is_candidates(group, trial))
    return replace(evidence, steps=tuple(steps), missed=missed, next_offset=offset + 1)


def _is_candidates(group: AdvantagedGroup, trial: CanaryTrial) -> bool:
    """Return whether an agent that knew the step in force, and could load the candidate, would have used it."""
    began = group.created_at - max((one.latency_ms for one in group.responses), default=0.0)
    return began >= trial.steps[-1][1] + SETTLED_MS and place(trial.version, group.task_id) < trial.share


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


# --- what follows -----------------------------------------------------------------------------------------------------


class CanaryFinding(NamedTuple):
    """The decision that follows from the evidence."""

    kind: Literal["canary_advanced", "promoted", "rejected", "judged"]
    reason: str
    share: float | None = None
    verdict: Verdict | None = None


def reward_gain(evidence: Evidence, rule: Rule) -> ConfidenceSequence | None:
    """Return the gain in mean reward over the primary, once there are `step_groups` of each arm."""
    if min(evidence.groups("candidate"), evidence.groups("primary")) < rule.step_groups:
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
    """Return the decision that follows from the evidence, if any; it may have been written before.

    In this order: a guardrail or the test rejects the candidate; a test in its favour is remembered (`proven`); a step
    that has its groups is followed by the next one, and the last by the promotion. At a share of 1 there are no groups
    to compare with, so it is entered only once the candidate is proven.
    """
    if broken := tripped(evidence, rule):
        return evidence, CanaryFinding("rejected", f"canary: {'; '.join(broken)}")
    interval = reward_gain(evidence, rule)
    if interval is not None and interval.high < rule.min_improvement:
        return evidence, CanaryFinding(
            "rejected", f"canary: {_interval_text(interval, rule)}, below {rule.min_improvement:g}"
        )
    if interval is not None and interval.low > rule.min_improvement:
        evidence = replace(evidence, proven=True)
    larger = [share for share in rule.shares if share > trial.share]
    if _is_full(evidence, trial, rule):
        if larger and (larger[0] < 1 or evidence.proven):
            reason = f"canary: {rule.step_groups} groups of each arm at {trial.share:g} broke no guardrail"
            return evidence, CanaryFinding("canary_advanced", reason, share=larger[0])
        if not larger and evidence.proven:
            reason = (
                f"canary: {_interval_text(interval, rule)}"
                if interval is not None
                else "canary: the test decided for it earlier"
            )
            if rule.decide == "ask":
                return evidence, CanaryFinding("judged", f"{reason}; a person promotes it", verdict="promote")
            return evidence, CanaryFinding("promoted", reason)
    if not evidence.groups_in_step("candidate", trial) and evidence.missed >= rule.step_groups:
        reason = (
            f"canary: the primary answered all {evidence.missed} groups that were the candidate's at {trial.share:g}; "
            "check whether the agents could load it. A person decides"
        )
        return evidence, CanaryFinding("judged", reason, verdict="ask")
    if evidence.groups("candidate") >= rule.max_groups and not evidence.proven:
        says = "no interval" if interval is None else _interval_text(interval, rule)
        return evidence, CanaryFinding(
            "judged", f"canary: {says} after {rule.max_groups} groups of the candidate; a person decides", verdict="ask"
        )
    return evidence, None


def _is_full(evidence: Evidence, trial: CanaryTrial, rule: Rule) -> bool:
    """Return whether the step in force has its groups: of both arms, while both answer."""
    candidate, primary = evidence.groups_in_step("candidate", trial), evidence.groups_in_step("primary", trial)
    return candidate >= rule.step_groups and (trial.share >= 1 or primary >= rule.step_groups)


def _interval_text(interval: ConfidenceSequence, rule: Rule) -> str:
    return (
        f"reward {interval.estimate:+.4g}, {1 - rule.alpha:.4g} interval {interval.low:+.4g} to {interval.high:+.4g} "
        "at every look"
    )


# --- the event --------------------------------------------------------------------------------------------------------


def decide(
    evidence: Evidence, trial: CanaryTrial, rule: Rule, *, policy: str, at_ms: int, prices: ArmPrices = NO_PRICES
) -> tuple[Evidence, AdapterEvent | None]:
    """Return the evidence, and the event that follows from it unless that was written before.

    Its id is derived from the canary and the decision, so a second copy is the same fact.
    """
    if evidence.over:
        return evidence, None
    evidence, found = find(evidence, trial, rule)
    if found is None:
        return evidence, None
    event_id = derive_id(trial.id, found.kind, found.share, found.verdict)
    if short(event_id) in evidence.written:
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
        metrics=metrics(evidence, rule, prices),
    )
    over = found.kind in ("promoted", "rejected")
    return replace(evidence, written=(*evidence.written, short(event_id)), over=over), event


def gate(rule: Rule) -> dict[str, str]:
    """Return the rule in force, setting by setting."""
    return {f"canary.{name}": str(value) for name, value in rule.model_dump().items()}


def rule_in(gate: Mapping[str, str]) -> Rule | None:
    """Return the rule that an event recorded; None if it is missing or unreadable."""
    given = {name.removeprefix("canary."): value for name, value in gate.items() if name.startswith("canary.")}
    try:
        return Rule.model_validate(given) if given else None
    except ValueError:
        return None


def metrics(evidence: Evidence, rule: Rule, prices: ArmPrices = NO_PRICES) -> dict[str, float]:
    """Return the evidence in figures: groups and means by arm, the gain in reward, and intervals of gain and success.

    Means are over all steps; the gain compares each step within itself, so it need not be their difference. An arm has
    a cost if its prices are known, a recovery if a tool call failed.
    """
    found: dict[str, float] = {}
    for name in ARMS:
        found[f"{name}_groups"] = float(evidence.groups(name))
        for figure in FIGURES:
            arms = [pair.arm(name) for pair in evidence.pairs(figure)]
            if n := sum(one.n for one in arms):
                found[f"{name}_{figure}"] = math.fsum(one.n * one.mean for one in arms) / n
        if n := evidence.groups(name, "success"):
            low, high = intervals.wilson(found[f"{name}_success"], n)
            found |= {f"{name}_success_low": low, f"{name}_success_high": high}
        price, read = prices[name], found.get(f"{name}_prompt_tokens")
        if price is not None and read is not None:
            found[f"{name}_cost_usd"] = price.of_tokens(read, found[f"{name}_sampled_tokens"])
    if found.get("primary_cost_usd") and "candidate_cost_usd" in found:
        found["cost_ratio"] = found["candidate_cost_usd"] / found["primary_cost_usd"]
    gain = sequential.estimate(evidence.pairs("reward"))
    if gain is not None:
        found["gain"] = gain
    interval = reward_gain(evidence, rule)
    if interval is not None:
        found |= {"gain": interval.estimate, "low": interval.low, "high": interval.high}
    return found


# --- the table row ----------------------------------------------------------------------------------------------------

ROW_VERSION = 5


def dump(evidence: Evidence) -> bytes:
    """Return the table row of the evidence."""
    row: dict[str, Any] = {name: getattr(evidence, name) for name in Evidence.__slots__}
    row["steps"] = [
        {figure: [astuple(arm) for arm in pair] for figure, pair in step.items()} for step in evidence.steps
    ]
    return pack(ROW_VERSION, row)


def load(row: bytes | None) -> Evidence:
    """Return the evidence in a table row; none for no row. Raises ValueError for a row of another version."""
    if row is None:
        return Evidence()
    data: Mapping[str, Any] = unpack(row, ROW_VERSION)
    return Evidence(
        trial=data["trial"],
        next_offset=data["next_offset"],
        steps=tuple(
            {figure: ArmPair(*(Arm(*values) for values in pair)) for figure, pair in step.items()}
            for step in data["steps"]
        ),
        missed=data["missed"],
        proven=data["proven"],
        written=tuple(data["written"]),
        over=data["over"],
    )
