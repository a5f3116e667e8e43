"""Verdicts of guardrails: what was found in a text, where, and what was done about it. Never the text itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import KIB, Int, Millis

GuardrailKind = Literal["pii", "injection", "pattern", "validation", "model", "flow", "bias", "failure"]
GuardrailDecision = Literal["pass", "flag", "block"]
GuardrailMode = Literal["monitor", "advise", "block"]
GuardrailPlace = Literal["call", "answer", "tool", "route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """A part of a text, in characters."""

    start: Int
    end: Annotated[Int, "after its last character"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailVerdict:
    """What a guardrail found in a text. The text is not in it."""

    MOST_BYTES: ClassVar[int] = 64 * KIB
    verdict_id: Annotated[str, "uuid5(place, the turn, trajectory or request, field, rule, digest)"]
    agent_id: Annotated[str, "key of the record; a tenant's begins with the tenant and a dot"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: Annotated[GuardrailKind, "what was looked for; failure: the guardrail itself failed"]
    rule: Annotated[str, "NAME/VERSION"]
    verdict: GuardrailDecision
    mode: Annotated[GuardrailMode, "in force: only in block a verdict of block withholds anything"]
    place: Annotated[
        GuardrailPlace,
        "call: a text that is sent; answer: a text that is sampled; tool: a call of one; route: on request",
    ]
    policy: Annotated[str | None, "that was called; null: none"] = None
    trajectory_id: Annotated[str | None, "null: not known, or none"] = None
    turn_id: Annotated[str | None, "answer: its turn"] = None
    task_id: Annotated[str | None, "null: of no task"] = None
    tool: Annotated[str | None, "of the call; null: none"] = None
    field_path: Annotated[str, "of the text, as messages[3].content"]
    digest: Annotated[str | None, "keyed digest of the text: the same text, found again by the same server"] = None
    score: Annotated[float | None, "of a model; null: a rule"] = None
    reason: Annotated[str, "in words, without the text"]
    spans: Annotated[tuple[TextSpan, ...], "what was found, in the text as it was sent"] = ()


def verdict_problems(event: GuardrailVerdict) -> Iterator[str]:
    """Return one sentence for each rule that a verdict breaks."""
    if not event.rule.partition("/")[2]:
        yield f"rule is {event.rule[:80]!r}; expected NAME/VERSION"
    if (event.place == "answer") != (event.turn_id is not None):
        yield f"place is {event.place} and turn_id {event.turn_id!r}; a verdict on an answer names its turn"
    if any(not 0 <= span.start <= span.end for span in event.spans):
        yield "a span ends before it begins"
