"""Recount verdicts: each counts once; an answer that was withheld has the verdict that says so, and the reverse.

    guardrail-verdicts ──► by verdict_id ──► passed + flagged + blocked
    turns with metadata `withheld` ◄──► verdicts of place answer, mode block: block

Not covered: whether a verdict is right; the text is not in the log with it.
"""

from __future__ import annotations

from schemas.events import Coordinates, GuardrailVerdict, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import RecountSum, SubjectRecount
from streams.tools.audit.view import AuditView

WITHHELD = "withheld"


class VerdictRecount(SubjectRecount):
    """The recount of verdicts."""

    labels, counts = ("guardrail-verdicts", "turns"), ("guardrail verdicts",)
    sums = (
        RecountSum(
            "guardrails",
            ("guardrail verdicts",),
            {"pass": "guardrail passes", "flag": "guardrail flags", "block": "guardrail blocks"},
        ),
    )

    def __init__(self) -> None:
        self._verdicts: dict[str, tuple[Coordinates, GuardrailVerdict]] = {}
        self._withheld: dict[str, tuple[Coordinates, str, str]] = {}
        """Turns that were cut, with the rule and the policy."""

    def take(self, record: Record, event: GuardrailVerdict | Turn) -> None:
        """Take in a verdict, or a turn."""
        if isinstance(event, GuardrailVerdict):
            self._verdicts.setdefault(event.verdict_id, (record.at, event))
        elif WITHHELD in event.metadata:
            self._withheld.setdefault(event.turn_id, (record.at, event.metadata[WITHHELD], event.policy))

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the verdicts."""
        outcome, withheld = RecountOutcome(), set[tuple[str, str]]()
        for _, event in self._verdicts.values():
            if policy not in (None, event.policy):
                continue
            outcome.counts.update(["guardrail verdicts", f"guardrail {_PLURAL[event.verdict]}"])
            if event.turn_id is not None and (event.verdict, event.mode) == ("block", "block"):
                withheld.add((event.turn_id, event.rule))
        is_cut = view.is_cut("guardrail-verdicts")
        for turn_id, (at, rule, of_policy) in self._withheld.items():
            if policy in (None, of_policy) and (turn_id, rule) not in withheld and not is_cut:
                outcome.find("lost", at, f"its answer was withheld by {rule}, and no verdict says so")
        return outcome


_PLURAL = {"pass": "passes", "flag": "flags", "block": "blocks"}
RECOUNTS = (VerdictRecount,)
