"""Characters that stand in for those of messages, to find which words of a template come from messages.

    messages ──► some characters of their texts, each replaced by one of private use ───► template ──► text
                                                                                                         │
    the same characters in the same places as in the text of the messages themselves? sources ◄──────────┘

A template is a program over messages, which may also trim, cut, repeat or quote their texts. Its output is not searched
for their texts: each character shows its origin.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from streams.engines.rendering.control_tokens import ANSWER, MESSAGE, Source

FIRST: dict[Source, int] = {MESSAGE: 0xF0000, ANSWER: 0x100000}
"""First of the characters that stand in for the first 65,536 of Unicode."""
SOURCES = {first: source for source, first in FIRST.items()}
STAND_INS = re.compile("[\U000f0000-\U0010ffff]")
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model"})
"""Roles that a template may write into its own control token, such as <|user|>. Any other role is message text."""
NO_SPACE = re.compile(r"\S")


class StandIns(NamedTuple):
    """Selects the characters to replace."""

    patterns: dict[Source, re.Pattern[str]]
    inside: str = ""
    """Texts that are replaced as a whole if a field has nothing else."""

    def message(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a message, in the form for templates, with stand-ins."""
        source = ANSWER if fields["role"] == "assistant" else MESSAGE
        replaced = {
            name: self.value(value, source if name == "content" else MESSAGE, name) for name, value in fields.items()
        }
        return replaced | {"role": fields["role"]} if fields["role"] in ROLES else replaced

    def value(self, value: Any, source: Source = MESSAGE, name: str = "") -> Any:
        """Return a value with stand-ins in its texts and keys; `name` is its key."""
        if isinstance(value, str):
            word = value.strip() if name != "type" and len(value) <= len(self.inside) else ""
            return _replace(value, NO_SPACE if word and word in self.inside else self.patterns[source], source)
        if isinstance(value, dict):
            pattern = self.patterns[source]
            return {_replace(key, pattern, source): self.value(item, source, key) for key, item in value.items()}
        return [self.value(item, source) for item in value] if isinstance(value, list) else value


def sources_of(text: str, with_stand_ins: str) -> bytes | None:
    """Return the source of each character of `text` that has a stand-in; None if the texts differ otherwise."""
    if len(text) != len(with_stand_ins):
        return None
    sources, compared = bytearray(len(text)), 0
    for match in STAND_INS.finditer(with_stand_ins):
        place, distance = match.start(), ord(match[0]) - ord(text[match.start()])
        if text[compared:place] != with_stand_ins[compared:place]:
            return None
        if distance:  # 0: the message itself has this character
            sources[place] = SOURCES.get(distance, 0)
            if not sources[place]:
                return None
        compared = place + 1
    return bytes(sources) if text[compared:] == with_stand_ins[compared:] else None


def _replace(text: str, pattern: re.Pattern[str], source: Source) -> str:
    return pattern.sub(lambda match: "".join(_stand_in(character, source) for character in match[0]), text)


def _stand_in(character: str, source: Source) -> str:
    return chr(FIRST[source] + ord(character)) if ord(character) <= 0xFFFF else character
