"""Recount verdicts: each counts once; an answer that was withheld, or in which words were replaced, has the verdict
that says so.

    guardrail-verdicts ──► by verdict_id ──► passed + flagged + blocked
    turns and responses with metadata `withheld` or `redacted` ──► verdicts of place answer, in mode block

Not covered: whether a verdict is right; the text is not in the log with it.
"""

from __future__ import annotations

from schemas.conventions import REDACTED, WITHHELD
from schemas.events import Coordinates, GuardrailVerdict, Response, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import RecountSum, SubjectRecount
from streams.tools.audit.view import AuditView


class VerdictRecount(SubjectRecount):
    """The recount of verdicts."""

    labels, counts = ("guardrail-verdicts", "turns", "responses"), ("guardrail verdicts",)
    sums = (
        RecountSum(
            "guardrails",
            ("guardrail verdicts",),
            {"pass": "guardrail passes", "flag": "guardrail flags", "block": "guardrail blocks"},
        ),
    )

    def __init__(self) -> None:
        self._verdicts: dict[str, tuple[Coordinates, GuardrailVerdict]] = {}
        self._changed: dict[str, tuple[Coordinates, str, str]] = {}
        """Turns and responses that were changed, with the rule and the policy."""

    def take(self, record: Record, event: GuardrailVerdict | Turn | Response) -> None:
        """Take in a verdict, or an answer."""
        if isinstance(event, GuardrailVerdict):
            self._verdicts.setdefault(event.verdict_id, (record.at, event))
        elif rule := event.metadata.get(WITHHELD) or event.metadata.get(REDACTED):
            answer_id = event.turn_id if isinstance(event, Turn) else event.response_id
            self._changed.setdefault(answer_id, (record.at, rule, event.policy))

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the verdicts."""
        outcome, decided = RecountOutcome(), set[tuple[str, str]]()
        for _, event in self._verdicts.values():
            if policy not in (None, event.policy):
                continue
            outcome.counts.update(["guardrail verdicts", f"guardrail {_PLURAL[event.verdict]}"])
            if event.turn_id is not None and event.mode == "block":
                decided.add((event.turn_id, event.rule))
        is_cut = view.is_cut("guardrail-verdicts")
        for answer_id, (at, rule, of_policy) in self._changed.items():
            if policy in (None, of_policy) and (answer_id, rule) not in decided and not is_cut:
                outcome.find("lost", at, f"its answer was changed by {rule}, and no verdict says so")
        return outcome


_PLURAL = {"pass": "passes", "flag": "flags", "block": "blocks"}
RECOUNTS = (VerdictRecount,)
