"""The rule by flow: after text from an untrusted source, a tool that acts needs a person's consent, or is refused.

    untrusted, needs_consent, refused, always_allowed ──► FlowRule ─┐
    what was read, by source ──► GuardedCall ───────────────────────┴──► CallRuling, with the reason in words

Pure. A tool acts if it sends, pays, deletes or reaches outside: `needs_consent` names it, or its entry in the registry
says so. With arguments in brackets, `send_money(recipient)`, no consent is needed where the user's or the system's own
words have the values of all of these: then the text that was read since did not choose them.

Not covered: an answer that misleads a person, and a value that a person wrote and an attacker wants, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plugins.guardrails.flow.tool_patterns import ToolPattern
from schemas import json_text
from streams.stages.agents.tool_guard import ALLOWED, CallRuling, GuardedCall, ReadPart, ToolFlow

FlowMode = Literal["off", "monitor", "enforce"]
SHORTEST = 3
"""Characters of a value that the user may have named; a shorter one, as a number of a day, stands there by chance."""
MOST_NAMED = 8
"""Sources that a reason names."""


Declares = Callable[[str], ToolFlow | None]
"""Returns what the registry says of a tool by its name; None: it is not registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRule:
    """Which tools are untrusted sources, and which act."""

    untrusted: tuple[ToolPattern, ...] = ()
    needs_consent: tuple[ToolPattern, ...] = ()
    refused: tuple[ToolPattern, ...] = ()
    always_allowed: tuple[ToolPattern, ...] = ()

    def decide(self, call: GuardedCall, declares: Declares = lambda _: None) -> CallRuling:
        """Return whether a call may be made, and why."""
        flow = declares(call.tool_id)
        names = (call.tool_id, call.name, *(() if flow is None else (flow.tool_id,)))
        if _first(self.always_allowed, call.agent_id, names) is not None:
            return ALLOWED
        asks = _first(self.needs_consent, call.agent_id, names)
        is_refused = _first(self.refused, call.agent_id, names) is not None
        if not (asks or is_refused or (flow is not None and flow.acts)):
            return ALLOWED
        sources = None if call.read is None else [*self._untrusted_sources(call.agent_id, call.read, declares)]
        if sources == []:
            acts = f"{call.tool_id} sends, pays, deletes or reaches outside"
            return CallRuling("allowed", f"{acts}, and nothing from an untrusted source was read before")
        reason = f"{call.tool_id} sends, pays, deletes or reaches outside, and {_what_was_read(sources)}"
        if is_refused:
            return CallRuling("refused", f"{reason}; it is refused then (guardrails.refused)")
        if asks is not None and asks.arguments and _names_values(asks.arguments, call):
            named = ", ".join(asks.arguments)
            return CallRuling("allowed", f"{reason}; the user named its {named}")
        if call.consent is not None:
            return CallRuling("allowed", f"{reason}; {call.consent} consented")
        return CallRuling("consent", f"{reason}; a person has to consent to this call")

    def _untrusted_sources(self, agent_id: str, read: Iterable[ReadPart], declares: Declares) -> Iterator[str]:
        """Yield the untrusted sources of what was read, each once."""
        seen = set()
        for part in read:
            name = part.name if part.kind == "tool" else part.kind
            if part.kind in ("user", "system") or name in seen:
                continue
            seen.add(name)
            flow = declares(name) if part.kind == "tool" else None
            names = (name,) if flow is None else (name, flow.tool_id)
            if (flow is not None and flow.untrusted) or _first(self.untrusted, agent_id, names) is not None:
                yield name or "a tool without a name"


def _first(patterns: Iterable[ToolPattern], agent_id: str, names: Iterable[str]) -> ToolPattern | None:
    return next((pattern for pattern in patterns if pattern.fits(agent_id, names)), None)


def _what_was_read(sources: list[str] | None) -> str:
    if sources is None:
        return "this server does not know what its caller has read"
    named = ", ".join(sources[:MOST_NAMED]) + (" and others" if len(sources) > MOST_NAMED else "")
    return f"text from an untrusted source was read before: {named}"


def _names_values(arguments: Iterable[str], call: GuardedCall) -> bool:
    """Return whether the user's or the system's words have the values of all these arguments that are set."""
    try:
        sent = json_text.parse(call.arguments)
    except ValueError:
        return False
    if not isinstance(sent, Mapping) or call.read is None:
        return False
    words = "\n".join(part.text for part in call.read if part.kind in ("user", "system")).casefold()
    return all(_stands_in(text, words) for name in arguments for text in _texts(sent.get(name)))


def _texts(value: Any) -> Iterator[str]:
    """Yield each text and number in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif value is not None:
        yield str(value)


def _stands_in(text: str, words: str) -> bool:
    """Return whether words have a text that is not a part of a longer word or number."""
    text = text.strip().casefold()
    return len(text) >= SHORTEST and re.search(rf"(?<![\w.@+-]){re.escape(text)}(?![\w@-]|\.\w)", words) is not None
