"""The state of a rollout: the answering versions, the canary's evidence, and what it waits for.

    adapters[policy] ──► fold ──► primary, candidate, last decisions ──┐
    groups[policy], since the canary began ──► canary.count ───────────┴──► Rollout

Everything comes from the log, by the functions that decide, so this shows what the stage sees once it has read as far.
The rule shown is the one recorded with the canary, not that of this machine's settings. Groups that retention has
deleted since the canary began are missing here, but not in the stage's tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.events import AdapterEvent, AdvantagedGroup
from schemas.serde import Poison
from streams.adapters import versions as adapters
from streams.adapters.serving import DECISIONS
from streams.adapters.versions import AdapterState, Version
from streams.evaluation import sequential
from streams.evaluation.results import short
from streams.evaluation.sequential import ARMS, ArmName
from streams.kafka import admin
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Canary, Settings
from streams.stages.rollouts import canary
from streams.stages.rollouts.canary import CanaryTrial, Evidence
from streams.stages.rollouts.guard import TokenPrices, version_prices

LAST = 5
"""Number of decisions shown."""


class RolloutDecision(NamedTuple):
    """A decision in the log, and whether it took effect."""

    at_ms: int
    event: AdapterEvent
    refused: str | None


@dataclass(slots=True)
class Rollout:
    """One policy's rollout, up to the last event read."""

    state: AdapterState
    trial: CanaryTrial | None = None
    rule: Canary | None = None
    """Of the canary under way."""
    evidence: Evidence = field(default_factory=Evidence)
    decisions: tuple[RolloutDecision, ...] = ()

    def add(self, event: AdapterEvent, at_ms: int) -> None:
        """Read one more event of `adapters`, recorded at `at_ms`."""
        before = self.state
        self.state = adapters.fold(before, event)
        if self.state is before:
            return  # a second copy, or another policy's
        refused = self.state.refused[-1].reason if len(self.state.refused) > len(before.refused) else None
        if event.kind in DECISIONS:
            self.decisions = (*self.decisions, RolloutDecision(at_ms, event, refused))[-LAST:]
        if refused is not None:
            return
        self.trial = canary.followed(self.trial, event, self.state.serving.candidate, at_ms)
        if event.kind == "canary_started":
            self.rule = canary.rule_in(event.gate)

    def _arms(self, trial: CanaryTrial, rule: Canary, settings: Settings) -> list[dict[str, Any]]:
        local, versions = TokenPrices.of(settings.prices), self.state.versions
        prices: canary.ArmPrices = {
            "candidate": version_prices(versions[trial.version].outside, local),
            "primary": version_prices(versions[trial.primary].outside, local),
        }
        return [_arm(self.evidence, trial, name, rule, prices) for name in ARMS]

    def plain(self, settings: Settings) -> dict[str, Any]:
        """Return the status as plain values for JSON."""
        rule, trial, serving = self.rule or settings.canary, self.trial, self.state.serving
        interval = None if trial is None else canary.reward_gain(self.evidence, rule)
        found: dict[str, Any] = {
            "policy": self.state.policy,
            "mode": settings.rollouts.mode,
            "primary": serving.primary,
            "candidate": serving.candidate,
            "share": serving.share,
            "newest": self.state.newest,
            "waits_for": waits_for(self, settings),
            "arms": [] if trial is None else self._arms(trial, rule, settings),
            "gain": None,
            "guardrails": [] if trial is None else canary.tripped(self.evidence, rule),
            "decisions": [
                {
                    "at": one.at_ms,
                    "kind": one.event.kind,
                    "version": one.event.version,
                    "by": one.event.actor,
                    "reason": one.event.reason if one.refused is None else f"refused: {one.refused}",
                    "metrics": one.event.metrics,
                }
                for one in self.decisions
            ],
        }
        if trial is not None:
            guess = sequential.estimate(self.evidence.pairs("reward"))
            low, high = (None, None) if interval is None else (interval.low, interval.high)
            found["gain"] = {"estimate": guess if interval is None else interval.estimate, "low": low, "high": high}
        return found


DERIVED = ("success_low", "success_high", "cost_usd")
"""Values of an arm that are shown with its figures, if known."""


def _arm(
    evidence: Evidence, trial: CanaryTrial, name: ArmName, rule: Canary, prices: canary.ArmPrices
) -> dict[str, Any]:
    shown = canary.metrics(evidence, rule, prices)
    return {
        "arm": name,
        "version": trial.version if name == "candidate" else trial.primary,
        "groups": evidence.groups(name),
        "in_step": evidence.groups_in_step(name, trial),
        **{figure: shown.get(f"{name}_{figure}") for figure in (*canary.FIGURES, *DERIVED)},
    }


# --- what it waits for ------------------------------------------------------------------------------------------------


def waits_for(rollout: Rollout, settings: Settings) -> str:
    """Return one sentence about what must happen before the next change."""
    if rollout.trial is not None:
        return _canary_waits(rollout, rollout.trial, rollout.rule or settings.canary)
    waiting = _newest_waiting(rollout.state)
    if waiting is None:
        return "a new version"
    if settings.rollouts.mode == "manual":
        return f"a person, for version {waiting.version}"
    if settings.rollouts.mode == "direct" or settings.guard.suite is None:
        return f"the stream worker, for version {waiting.version}"
    judged = waiting.judged
    if judged is None or judged.against != rollout.state.primary:
        return f"the results of guard.suite for version {waiting.version} and for version {rollout.state.primary}"
    if judged.verdict == "ask" or settings.guard.decide != "auto":
        return f"a person, for version {waiting.version}: the guard says {judged.verdict}: {judged.reason}"
    return f"the stream worker, for version {waiting.version}: the guard says {judged.verdict}"


def _canary_waits(rollout: Rollout, trial: CanaryTrial, rule: Canary) -> str:
    evidence, (_, found) = rollout.evidence, canary.find(rollout.evidence, trial, rule)
    if found is not None and found.kind == "judged":
        return f"a person: {found.reason}"
    if found is not None:
        return f"the stream worker, to write {found.kind}: {found.reason}"
    candidate, primary = evidence.groups_in_step("candidate", trial), evidence.groups_in_step("primary", trial)
    if candidate < rule.step_groups or (trial.share < 1 and primary < rule.step_groups):
        of_primary = f", {primary} of the primary" if trial.share < 1 else ""
        return (
            f"groups at share {trial.share:g}: {candidate} of the candidate{of_primary}; {rule.step_groups} are needed"
        )
    return f"the test: the whole interval of the gain on one side of {rule.min_improvement:g}"


def _newest_waiting(state: AdapterState) -> Version | None:
    last = max(number for number, version in state.versions.items() if version.status != "trained")
    waiting = [version for number, version in state.versions.items() if number > last]
    return max(waiting, key=lambda version: version.version, default=None)


# --- reading ----------------------------------------------------------------------------------------------------------


class RolloutWatch:
    """Reads a policy's rollout, and on each `look` what is new."""

    def __init__(self, settings: Settings, policy: str) -> None:
        self._settings = settings
        partition = partition_of(policy, settings.topics.policy_partitions)
        names = topics(settings.topics)
        self._adapters: TopicPartition = (names["adapters"].name, partition)
        self._groups: TopicPartition = (names["groups"].name, partition)
        self._next: dict[TopicPartition, int] = {}
        self._counted: set[str] = set()
        self._rollout = Rollout(adapters.empty(policy))

    def look(self) -> Rollout:
        """Return the rollout as of now. Raises NotFoundError without topics, LogError if the broker does not answer."""
        rollout, trial = self._rollout, self._rollout.trial
        bounds = admin.offsets(self._settings, ["adapters", "groups"])
        low, high = bounds[self._adapters]
        for record in read(
            self._settings, {self._adapters: self._next.get(self._adapters, low)}, {self._adapters: high}
        ):
            event = record.decode_placed(AdapterEvent, self._settings.topics.policy_partitions)
            if not isinstance(event, Poison):
                rollout.add(event, record.timestamp_ms)
        self._next[self._adapters] = high
        if rollout.trial is None:
            return rollout
        low, high = bounds[self._groups]
        if trial is None or trial.id != rollout.trial.id:
            since = admin.offsets_at(self._settings, ["groups"], rollout.trial.steps[0][1])[self._groups]
            self._next[self._groups] = max(since, low) if since >= 0 else high
            rollout.evidence, self._counted = Evidence(), set()
        for record in read(self._settings, {self._groups: self._next[self._groups]}, {self._groups: high}):
            group = record.decode(AdvantagedGroup)
            if isinstance(group, Poison) or group.policy != rollout.state.policy:
                continue
            if canary.arm_of(group, rollout.trial) is not None and short(group.group_id) not in self._counted:
                self._counted.add(short(group.group_id))
                rollout.evidence = canary.count(rollout.evidence, rollout.trial, group, record.at.offset)
                rollout.evidence = canary.find(rollout.evidence, rollout.trial, rollout.rule or self._settings.canary)[
                    0
                ]
        self._next[self._groups] = high
        return rollout
