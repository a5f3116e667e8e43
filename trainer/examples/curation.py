"""Which answers of a group a version is tuned on.

    AdvantagedGroup ──► Curation ──► slots, or why there are none
                        sft: the best answer, or all that are good enough    dpo: the best and the worst

The same rules as `streamward export`, with one more: without a least reward, a group whose rewards are all equal has no
best answer. Pure, so the same groups always give the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.events import AdvantagedGroup, GroupResponse, Purpose, TuningMethod
from streams.advantage_formulas import are_equal
from streams.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Curation:
    """The rule by which answers of groups are chosen."""

    method: TuningMethod
    purpose: Purpose = "train"
    min_reward: float | None = None
    """sft: an answer needs at least this reward."""
    every: bool = False
    """sft: every answer that is good enough, not only the best one."""
    margin: float = 0.0
    """dpo: best and worst must differ by more than this."""
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """Raise SettingsError for what has no effect together, or no meaning."""
        if self.method == "dpo" and (self.every or self.min_reward is not None):
            raise SettingsError(
                "--min-reward and --all choose answers to imitate, and dpo compares the best with the worst; leave "
                "them out, or tune with sft"
            )
        if self.method == "sft" and self.margin:
            raise SettingsError("--margin compares the best answer with the worst: it needs dpo")
        if self.margin < 0:
            raise SettingsError(f"--margin {self.margin:g}: expected 0 or more")
        if self.every and self.min_reward is None:
            raise SettingsError("--all takes every answer that is good enough: say with --min-reward what is")

    def plain(self) -> dict[str, str]:
        """Return what was chosen by, as texts."""
        entries = {
            "purpose": self.purpose,
            "min_reward": self.min_reward,
            "all": True if self.every else None,
            "margin": self.margin if self.method == "dpo" else None,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
        }
        return {name: str(value) for name, value in entries.items() if value is not None}

    @classmethod
    def of_plain(cls, method: TuningMethod, recorded: Mapping[str, str]) -> Curation:
        """Return the rule that `plain` has written. Raises SettingsError for what it cannot have written."""
        try:
            purpose = recorded.get("purpose", "train")
            if purpose not in ("train", "serve", "eval"):
                raise ValueError(f"purpose is {purpose}")
            numbers = {name: float(recorded[name]) for name in ("min_reward", "margin") if name in recorded}
            times = {name: int(recorded[name]) for name in ("since_ms", "until_ms") if name in recorded}
        except ValueError as exc:
            raise SettingsError(f"the selection {dict(recorded)} is none that can be used: {exc}") from exc
        return cls(
            method=method,
            purpose=purpose,  # type: ignore[arg-type]
            every=recorded.get("all") == "True",
            min_reward=numbers.get("min_reward"),
            margin=numbers.get("margin", 0.0),
            since_ms=times.get("since_ms"),
            until_ms=times.get("until_ms"),
        )

    def covers(self, timestamp_ms: int) -> bool:
        """Return whether a group recorded then is looked at."""
        return (self.since_ms is None or timestamp_ms >= self.since_ms) and (
            self.until_ms is None or timestamp_ms < self.until_ms
        )

    def choose(self, group: AdvantagedGroup) -> tuple[int, ...] | str:
        """Return the slots, or why there are none: sft those to imitate, in order; dpo the better, then the worse."""
        if group.dropped_reason is not None or not group.responses:
            return f"dropped: {group.dropped_reason or 'no responses'}"
        best = max(group.responses, key=lambda response: (response.reward, -response.slot))
        worst = min(group.responses, key=lambda response: (response.reward, response.slot))
        return self._to_imitate(group, best, worst) if self.method == "sft" else self._pair(best, worst)

    def _to_imitate(self, group: AdvantagedGroup, best: GroupResponse, worst: GroupResponse) -> tuple[int, ...] | str:
        if self.min_reward is None:
            return "all rewards are equal" if are_equal((best.reward, worst.reward)) else (best.slot,)
        if best.reward < self.min_reward:
            return "below the least reward"
        good = [response.slot for response in group.responses if response.reward >= self.min_reward]
        return tuple(good) if self.every else (best.slot,)

    def _pair(self, best: GroupResponse, worst: GroupResponse) -> tuple[int, ...] | str:
        if are_equal((best.reward, worst.reward)):
            return "all rewards are equal"
        if best.reward - worst.reward <= self.margin:
            return "best and worst are too close"
        return (best.slot, worst.slot)
