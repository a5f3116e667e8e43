"""The rules as a scorer: a reward source, and in `scoring try`.

task, response, settings ──► rules, AnswerRules ──► 1: nothing was found; 0, with a component for each rule that found

    {"name": "plugins.guardrails.guardrail_scorer:guardrail", "settings": {"rules": "pii"}}

`scoring.modules` has to list `plugins`. Sources of the answer are the messages of its task.

Not covered: models elsewhere, since a score must not differ from one day to the next.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import Field

from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.rules.answer_checks import AnswerRules, answer_problems
from plugins.guardrails.scanner import Scanner
from schemas.events import Response, Task
from streams.errors import SettingsError
from streams.scorers.verdict import ScoreError, ScorerOptions, Verdict, entry_point, options

NAME = "plugins.guardrails.guardrail_scorer:guardrail"


class GuardrailOptions(ScorerOptions):
    """Settings of the scorer; `rules`, `patterns` and `national_ids` as those of guardrails."""

    rules: str = "pii,injection,patterns"
    patterns: str = ""
    national_ids: str = ""
    validation: AnswerRules | None = Field(None, alias="validate")
    """What the answer has to be, too."""


@entry_point("guardrail/1")
def guardrail(task: Task, response: Response, settings: dict[str, Any]) -> Verdict:
    """Return 1 for a response in which no rule finds anything and that keeps the validation, else 0."""
    chosen = options(GuardrailOptions, settings, NAME)
    try:
        findings = _scanner(chosen.rules, chosen.patterns, chosen.national_ids).scan(response.text)
        problems = list[str]()
        if chosen.validation is not None:
            sources = [message.content for message in task.messages]
            tools = [turn.tool for turn in response.turns if turn.tool is not None]
            problems = [*answer_problems(response.text, chosen.validation, sources=sources, tools=tools)]
    except (SettingsError, ValueError) as exc:
        raise ScoreError(f"{NAME}: {exc}", reason="bad_settings") from None
    broken = [*(finding.name for finding in findings), *(problem.partition(":")[0] for problem in problems)]
    reasons = [*(f"{finding.rule}: {finding.reason}" for finding in findings), *problems]
    return Verdict(0.0 if broken else 1.0, dict.fromkeys(broken, 1.0), "; ".join(reasons) or None)


@lru_cache(maxsize=16)
def _scanner(rules: str, patterns: str, national_ids: str) -> Scanner:
    return Scanner(Guardrails(rules=rules, patterns=patterns, national_ids=national_ids))
