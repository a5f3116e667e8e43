"""Patterns that users set, on RE2: its time is linear in the text, whatever the pattern.

    {"ticket": "TICKET-[0-9]{6}"} ──► compiled, or refused by name: look-around, back-references ──► places in a text

RE2 prints its own errors to stderr, which is turned off: a pattern may hold what must not be in a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from schemas import json_text
from streams.errors import SettingsError

INSTALL = "pip install 'streamward[guardrails]'"
MOST_CHARACTERS = 1_000
"""Longest pattern."""
MOST_MATCHES = 1_000
"""Places that are looked for in one text."""
_MEMORY_BYTES = 8 * 1024 * 1024
_REFUSED = {
    r"\(\?<?[=!]": "look-around",
    r"\\[1-9]|\(\?P=": "a back-reference",
    r"\(\?>|[*+?}]\+": "a possessive group",
}


class PatternError(ValueError):
    """A pattern that is not run; the message does not repeat it."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """Return a compiled pattern of a user. Raises PatternError that says what RE2 does not have, SettingsError."""
    if len(pattern) > MOST_CHARACTERS:
        raise PatternError(f"it has {len(pattern)} characters; at most {MOST_CHARACTERS} are allowed")
    return re2_pattern(pattern)


def re2_pattern(pattern: str) -> Any:
    """Return a pattern that RE2 has compiled. Raises PatternError, SettingsError without RE2."""
    try:
        import re2
    except ImportError:
        raise SettingsError(f"guardrails need google-re2: {INSTALL}") from None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        plain = pattern.replace(r"\\", "")
        feature = next((words for sign, words in _REFUSED.items() if re.search(sign, plain)), None)
        problem = (
            f"{feature} is not available (RE2); write it without" if feature else f"RE2 cannot read it: {_first(exc)}"
        )
        raise PatternError(problem) from None


def matches(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the first MOST_MATCHES places of a pattern in a text, without empty ones. Raises as `compile_pattern`."""
    for number, match in enumerate(compile_pattern(pattern).finditer(text)):
        if number == MOST_MATCHES:
            return
        if match.end() > match.start():
            yield match.span()


def named_patterns(text: str) -> Mapping[str, str]:
    """Return the patterns of a setting by name. Raises SettingsError that names the wrong one."""
    try:
        patterns = json_text.parse(text or "{}")
    except ValueError as exc:
        raise SettingsError(f"guardrails.patterns is not JSON: {exc}") from exc
    if not isinstance(patterns, dict) or not all(isinstance(pattern, str) for pattern in patterns.values()):
        raise SettingsError('guardrails.patterns: expected names and patterns, as {"ticket": "TICKET-[0-9]{6}"}')
    for name, pattern in patterns.items():
        if re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is None:
            raise SettingsError(f"guardrails.patterns: {name[:60]!r} is no name; use small letters, digits and _")
        try:
            compile_pattern(pattern)
        except PatternError as exc:
            raise SettingsError(f"guardrails.patterns: {name}: {exc}") from None
    return patterns


def _first(exc: Exception) -> str:
    """Return RE2's words for an error, without the part of the pattern that it repeats."""
    return str(exc.args[0] if exc.args else exc).partition(":")[0][:80].removeprefix("b'").removesuffix("'")
