"""The rule of a retraining: a TOML file, frozen, with a digest.

    retrain.toml ──► RetrainRule ──► what is watched (`when`), what is done then (`actions`), its digest

    name = "nightly"                     key of its events: one rule of this name at a time
    policy = "default"                   whose runs are watched, and what is trained
    actions = ["tune", "train"]          in turn, from crossing to crossing
    budget_usd = 5.0                     of each job

    [when]                               any of these
    promotable = 200                     so many runs were promoted since the last crossing
    reward = {low = 0.0, high = 1.0}     the mean reward of served answers fell
    feedback = {low = -1.0, high = 1.0}  people's opinions of them did
    failure = {}                         more runs fail
    every = "1d"                         or daily = "03:00" (UTC): a schedule

    [tune]                               fields of `streamward jobs start --method sft --config` (docs/jobs.md)
    dataset = "good-runs"                its newest build; without it, the answers that the log has

    [train]                              fields of `streamward jobs start --config`
    n_iterations = 10

Settings without effect are refused. The digest covers the rule with its defaults: each event names it, so an edited
rule counts as another one in the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from plugins.improve.triggers.detector import WINDOW
from plugins.improve.triggers.tick_schedule import TickSchedule
from plugins.jobs.orders.request import JobConfig, RequestPart
from plugins.tuning.api.tuning_request import TuningConfig
from schemas.events import Purpose, TuningMethod
from schemas.faults import faults
from streams.errors import SettingsError
from streams.settings.toml_file import read_toml

Signal = Literal["failure", "reward", "feedback", "promotable", "schedule"]
SIGNALS: tuple[Signal, ...] = ("failure", "reward", "feedback", "promotable", "schedule")
"""In the order in which they are looked at: of two that are due, the first is in the event."""
FALLS: tuple[Signal, ...] = ("failure", "reward", "feedback")
"""Those that a detector watches."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"


class WatchedMean(RequestPart):
    """A mean that may fall."""

    window: int = Field(WINDOW, ge=50, le=1_000_000, description="values of the reference")


class WatchedScore(WatchedMean):
    """The mean of scores; those outside of the range count as its ends."""

    low: float = Field(0.0, description="the worst score")
    high: float = Field(1.0, description="the best score")

    @model_validator(mode="after")
    def _is_a_range(self) -> WatchedScore:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; expected less and more")
        return self

    def scale(self, score: float) -> float:
        """Return a score in [0, 1]."""
        return min(max((score - self.low) / (self.high - self.low), 0.0), 1.0)


class WatchedSignals(RequestPart):
    """The signals that may start a retraining."""

    promotable: int | None = Field(None, ge=1, description="newly promoted runs")
    reward: WatchedScore | None = None
    feedback: WatchedScore | None = None
    failure: WatchedMean | None = None
    every: str | None = Field(None, description="an age: 30m, 6h, 1d")
    daily: str | None = Field(None, description="a time of day in UTC: 03:00")

    @model_validator(mode="after")
    def _names_one(self) -> WatchedSignals:
        if not self.model_dump(exclude_none=True):
            raise ValueError(
                "it names no signal, so nothing would start a retraining; name one of promotable, reward, feedback, "
                "failure, every and daily"
            )
        _ = self.schedule  # raises what is wrong with it
        return self

    @property
    def schedule(self) -> TickSchedule | None:
        """When it is due by time; None: never."""
        return TickSchedule.parse(self.every, self.daily)

    @property
    def falls(self) -> dict[Signal, WatchedMean]:
        """The means that detectors watch, by signal."""
        means = {signal: getattr(self, signal) for signal in FALLS}
        return {signal: mean for signal, mean in means.items() if mean is not None}


class TunePart(TuningConfig):
    """How a version is tuned: the fields of an order, with where its examples are from."""

    method: TuningMethod = "sft"
    target: str | None = Field(None, min_length=1, description="policy that is tuned from it; default: itself")

    @model_validator(mode="after")
    def _has_effect(self) -> TunePart:
        chosen = self.model_fields_set & {"groups_of", "purpose", "min_reward", "all", "margin", "since", "until"}
        if self.dataset is not None and chosen:
            raise ValueError(f"{min(chosen)} chooses answers of the log, and the examples are those of {self.dataset}")
        return self


class TrainPart(JobConfig):
    """How a policy is trained on the questions of runs: the fields of an order, but for the scorers."""

    questions: int = Field(1000, ge=1, le=100_000, description="at most so many, the newest")

    @field_validator("reward_sources")
    @classmethod
    def _no_scorers(cls, sources: Any) -> Any:
        raise ValueError("the questions keep the scorers that they were asked with; leave it out")


class RetrainRule(RequestPart):
    """A rule."""

    name: str = Field(pattern=NAME)
    policy: str = Field(min_length=1)
    tenant: str | None = Field(None, min_length=1, description="tenant that pays, and whose runs count")
    purpose: Purpose = "serve"
    actions: tuple[Literal["tune", "train"], ...] = Field(min_length=1, max_length=2)
    budget_usd: float | None = Field(None, gt=0, description="of each job; default: jobs.max_budget_usd")
    when: WatchedSignals
    tune: TunePart | None = None
    train: TrainPart | None = None

    @model_validator(mode="after")
    def _says_how(self) -> RetrainRule:
        if len(set(self.actions)) != len(self.actions):
            raise ValueError(f"actions names {self.actions[0]} twice; name each once")
        for action in ("tune", "train"):
            if (action in self.actions) != (getattr(self, action) is not None):
                missing = "add it, or leave the action out" if action in self.actions else "leave it out, or name it"
                raise ValueError(f"actions is {', '.join(self.actions)}, and [{action}] says otherwise: {missing}")
        return self

    @property
    def digest(self) -> str:
        """sha256 over the rule with its defaults."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def read_rule(file: Path) -> RetrainRule:
    """Return the rule in a TOML file. Raises NotFoundError, SettingsError that names what is wrong with it."""
    data = read_toml(file, "docs/improve.md has a rule to begin with")
    try:
        return rule_of(data)
    except SettingsError as exc:
        raise SettingsError(f"{file}: {exc}") from exc


def rule_of(fields: Mapping[str, Any]) -> RetrainRule:
    """Return a rule. Raises SettingsError for its first fault."""
    try:
        return RetrainRule.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as exc:
        raise SettingsError(next(faults(exc, RetrainRule, fields)).text) from exc
    except (ValueError, RecursionError) as exc:  # nan, or endless nesting
        raise SettingsError(f"a value cannot be read: {exc}") from exc
