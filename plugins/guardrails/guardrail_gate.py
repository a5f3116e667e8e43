"""The rules as a gate: rows in which a rule of `guardrails.holds_out` finds something are not trained on.

RowTexts of a batch, a file or a data set ──► Scanner ──► RefusedError that names rows and rules, without the text

Not covered: what the system's instructions say, which RowTexts leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.scanner import Scanner
from streams.errors import RefusedError
from streams.evaluation.suite import Suite
from streams.kafka.history import History
from streams.rows.row_texts import RowTexts
from streams.rows.training_gate import ALLOW, ReasonFinder, TrainingGate, TrainingUse
from streams.settings.model import Settings
from streams.settings.name_lists import split_names

NAMED_ROWS = 5
"""Rows that a refusal names."""
WAY_OUT = f"Leave them out, or take the rule from guardrails.holds_out; {ALLOW}"


class HeldOutTexts:
    """Rows in which rules find something."""

    def __init__(self, settings: Settings | None) -> None:
        """None: no row is held out. Raises SettingsError as Scanner."""
        rule = Guardrails() if settings is None else settings.of_plugin(Guardrails)
        self._rules = () if settings is None else split_names(rule.holds_out)
        self._scanner = Scanner(rule) if self._rules else None

    def check(self, rows: Iterable[RowTexts], use: TrainingUse) -> Mapping[str, str]:
        """Return nothing to record. Raises RefusedError for a row that is held out, and that no user allows."""
        if self._scanner is None:
            return {}
        refused = [
            f"{row.place}: {reason}"
            for row in rows
            if row.allowed_by is None and use.allowed_by is None and (reason := self._reason(row)) is not None
        ]
        if refused:
            rest = f", and {len(refused) - NAMED_ROWS} more" if len(refused) > NAMED_ROWS else ""
            named = "; ".join(refused[:NAMED_ROWS])
            raise RefusedError(f"{use.place}: guardrails hold out {named}{rest}. {use.way_out or WAY_OUT}")
        return {}

    def finder(self, policy: str) -> ReasonFinder | None:
        """Return what names the rule that holds a row out; None: no row is."""
        return None if self._scanner is None else self._reason

    def _reason(self, row: RowTexts) -> str | None:
        if self._scanner is None:
            return None
        names = {finding.name for text in row.texts for finding in self._scanner.scan(text)}
        rules = [name for name in self._rules if name in names]
        return f"guardrail {', '.join(rules)}" if rules else None


class GuardrailGate(TrainingGate):
    """Holds out rows in which rules find something."""

    def of_log(self, history: History) -> HeldOutTexts:
        """Return what the settings hold out. Raises SettingsError as Scanner."""
        return HeldOutTexts(self._settings)

    def of_suites(self, suites: Sequence[Suite]) -> HeldOutTexts:
        """Return nothing: suites hold out questions, which are another gate's."""
        return HeldOutTexts(None)


GATES = (GuardrailGate,)
