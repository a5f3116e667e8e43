"""No text makes a pattern of ours take more than in proportion to its length."""

from __future__ import annotations

import re

import pytest

from gateway.rooms.routes import ROUTES
from tests.support.patterns import SourcePattern, found_patterns, slow_text

FOUND = found_patterns()
OLDER_PATHS = [
    SourcePattern(f"older path {pattern}", re.compile(pattern), frozenset({"fullmatch"}))
    for interface in {route.interface for route in ROUTES}
    for pattern, _ in interface.older
]
MADE_WHEN_USED = {
    "plugins/tuning/api/fine_tuning_body.py: f'\\\\b{re.escape(option)}\\\\b'": "a word",
    "streams/scorers/judge_client.py: f'\\\\b{name}\\\\b'": "a word",
    "streams/evaluation/diagnosis.py: f'(?<!\\\\w){re.escape(answer)}(?!\\\\w)'": "a word",
    "streams/engines/rendering/control_tokens.py: '|'.join(map(re.escape, sorted(names, key=len, reverse=True))) "
    "or '(?!)'": "words",
    "plugins/data/cleaning/steps.py: f'[{span}]'": "in a table, where it is found",
    "streams/scorers/numbers.py: pattern": "in a table, where it is found",
    "streams/scorers/mathematics.py: begin": "a word, or a bracket",
    "streams/scorers/mathematics.py: end": "a word, or a bracket",
    r"plugins/knowledge/search_game.py: f'(?<![\\w.]){answer}(?!\\.?\\w)'": "a literal, and looks two wide",
    "streams/scorers/term_swaps.py: f\"(?<!\\\\w)(?:{'|'.join(map(re.escape, terms)) or '(?!)'})(?!\\\\w)\"": "words",
    "plugins/guardrails/rules/linear_patterns.py: sign": "in a table, where it is found",
    r"plugins/guardrails/flow/flow_rule.py: f'(?<![\\w.@+-]){re.escape(text)}(?![\\w@-]|\\.\\w)'": "a literal",
    "schemas/older_forms.py: pattern": "in a table, where it is found",
    "schemas/tool_text.py: pattern if isinstance(pattern, str) else ''": "a user's, only compiled",
    "streams/scorers/text.py: canonical_text(self.pattern)": "a user's, only compiled",
    "streams/scorers/text.py: canonical_text(settings.pattern)": "a user's, run in a process that is ended",
}
"""Why each is linear, or cannot stop more than itself."""


@pytest.mark.parametrize("pattern", [*FOUND.patterns, *OLDER_PATHS], ids=lambda pattern: pattern.place)
def test_a_pattern_is_linear_in_texts_of_its_own_literals(pattern: SourcePattern) -> None:
    assert slow_text(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "slow"),
    [
        (r"\{\{(.*?)\}\}", True),
        (r"\{\{([^{}]*)\}\}", False),
        (r"\{\{\s*(.*?)\s*\}\}", True),
        (r"[ \t]+$", True),
        (r"(?<![ \t])[ \t]++$", False),
    ],
)
def test_a_pattern_that_is_not_linear_is_found(pattern: str, slow: bool) -> None:
    found = slow_text(SourcePattern("here", re.compile(pattern, re.DOTALL), frozenset({"finditer"})))
    assert (found is not None) == slow


def test_of_each_pattern_that_is_made_when_it_is_used_somebody_said_why_it_is_safe() -> None:
    assert FOUND.unknown == MADE_WHEN_USED.keys()
