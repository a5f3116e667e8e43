"""The rule of a data set: which promoted runs it takes, how they are split, and the maximum share of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from schemas.events import CurationEvent, DatasetEvent
from schemas.faults import excerpt
from streams.errors import SettingsError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
_READ: dict[str, Callable[[str], Any]] = {
    "scenario": str,
    "since_ms": int,
    "until_ms": int,
    "eval_share": float,
    "near_duplicate": float,
    "max_scenario_share": float,
    "max_machine_share": float,
    "seed": int,
}
"""What a recorded rule is read by; policy and tenant are fields of the event."""


def check_name(name: str) -> None:
    """Raise SettingsError for a name that cannot be used."""
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"data set {excerpt(name)}: expected 1 to 60 of a-z, 0-9, - and _, not beginning with - or _, e.g. coach"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRule:
    """Everything but the records that decides the rows of a data set."""

    policy: str
    tenant: str | None = None
    """Only runs of this tenant; None: only those of none. No policy learns what another tenant alone may read."""
    scenario: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Of verdicts; exclusive."""
    eval_share: float = 0.1
    """Of clusters: runs of one task, thread or resubmission, and questions that are almost the same."""
    near_duplicate: float = 0.8
    """Questions whose 5-grams of words have this much in common, of 1 (Jaccard), are almost the same."""
    max_scenario_share: float = 1.0
    """Most rows of one scenario, of 1."""
    max_machine_share: float = 1.0
    """Most rows that no person promoted, of 1: a policy that is taught its own judgement drifts."""
    seed: int = 0
    """Of the split, and of what a share cuts."""

    def check(self) -> None:
        """Raise SettingsError for an invalid share."""
        if not 0 <= self.eval_share < 1:
            raise SettingsError(f"--eval {self.eval_share:g}: expected a share from 0 to below 1")
        for option in ("near_duplicate", "max_scenario_share", "max_machine_share"):
            if not 0 < getattr(self, option) <= 1:
                name = option.replace("_", "-")
                raise SettingsError(f"--{name} {getattr(self, option):g}: expected a share above 0, at most 1")

    def plain(self) -> dict[str, str]:
        """Return the rule as an event has it, without policy and tenant."""
        return {name: str(getattr(self, name)) for name in _READ if getattr(self, name) is not None}

    @classmethod
    def of_event(cls, event: DatasetEvent) -> DatasetRule:
        """Return the rule that an event records. Raises SettingsError for what `plain` cannot have written."""
        try:
            read = {name: _READ[name](text) for name, text in event.selection.items()}
        except (KeyError, ValueError) as exc:
            raise SettingsError(f"data set {event.dataset}: its rule {event.selection} cannot be read: {exc}") from exc
        return cls(policy=event.policy, tenant=event.tenant, **read)

    def why_not(self, verdict: CurationEvent) -> str | None:
        """Return why a run with this verdict is not in a set; None if it may be."""
        if verdict.tenant != self.tenant:
            return "of another tenant"
        if self.scenario not in (None, verdict.scenario):
            return "of another scenario"
        if self.since_ms is not None and verdict.created_at < self.since_ms:
            return "judged before"
        if self.until_ms is not None and verdict.created_at >= self.until_ms:
            return "judged after"
        return {"reject": "rejected", "needs_human": "waiting for a person"}.get(verdict.verdict)


assert {field.name for field in fields(DatasetRule)} == {"policy", "tenant", *_READ}  # noqa: S101
