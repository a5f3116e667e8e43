"""The guard of calls and answers: every text is scanned once, verdicts become events, and the mode decides.

    call ──► call_texts ──► Scanner ──► events; block: refused; advise: the model is told
    answer ──► ReleaseWindow ──► what may leave; at its end: events, with the turn

A text that was scanned before is not scanned again, nor recorded again for its agent: a conversation repeats its
history with each call. Runs that something is learned from are only monitored, since what is learned must be what was
sampled.

Not covered: models for streamed answers in mode block: with them an answer leaves once it is whole.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, NamedTuple

from plugins.guardrails.call_texts import (
    CallText,
    call_texts,
    is_replaceable,
    message_with,
    reply_calls,
    with_advice,
    with_texts,
)
from plugins.guardrails.guardrail_metrics import VERDICTS
from plugins.guardrails.guardrail_settings import Guardrails, strictest
from plugins.guardrails.release_window import ReleaseWindow
from plugins.guardrails.rules.answer_checks import VERSION, AnswerRules, answer_problems
from plugins.guardrails.scanner import Finding, Scanner, redact, redact_json
from schemas.events import Event, GuardrailMode, GuardrailPlace, GuardrailVerdict, Message, TextSpan, derive_id
from streams.errors import CallError
from streams.kafka import times
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.call_guard import (
    AnswerGuard,
    AnswerVerdict,
    CallAdmission,
    CallGuard,
    GuardedTurn,
    ReleasedText,
)
from streams.stages.agents.recording.calls import ModelCall

log = logging.getLogger("streamward.guardrails")
SCANNED_TEXTS = 20_000
"""Texts whose findings are remembered."""
MOST_SPANS = 100
"""Places of a finding that its event has."""
_KEY = secrets.token_bytes(32)


Review = tuple[CallText, Sequence[Finding]]
"""A text with what was found in it."""


class TextOrigin(NamedTuple):
    """Where texts are from, as events have it."""

    place: GuardrailPlace
    agent_id: str
    mode: GuardrailMode
    reference: str
    """Their turn, or the digest of their request."""
    policy: str | None = None
    trajectory_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None


def build_guard(settings: Settings, meter: Meter) -> CallGuard | None:
    """Return the guard of the settings; None: nothing is looked at. Raises SettingsError."""
    rule = settings.of_plugin(Guardrails)
    return GuardrailDoor(rule, Scanner(rule), meter) if rule.is_on else None


class GuardrailDoor(CallGuard):
    """Looks at the calls and answers of a server."""

    def __init__(self, rule: Guardrails, scanner: Scanner, meter: Meter = OFF) -> None:
        self.rule, self.scanner, self._meter = rule, scanner, meter
        self._answer_rules = rule.answer_rules
        self._scanned: OrderedDict[str, list[Finding]] = OrderedDict()
        self._recorded: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """Agent, text and rule of the verdicts that were recorded."""

    async def admit(self, call: ModelCall, prompt: str | None, *, is_learned_from: bool) -> CallAdmission:
        """Return the verdict on a call; with mode block its refusal, which names field and rule."""
        mode = self.rule.mode_of(call.agent_id, "call", call.protocol)
        if mode == "off":
            return CallAdmission(call)
        in_force: GuardrailMode = "monitor" if is_learned_from else mode
        reference, policy = f"{call.request_digest} {call.trajectory_id}", call.model.partition("@")[0]
        origin = TextOrigin("call", call.agent_id, in_force, reference, policy, call.trajectory_id)
        reviews = await asyncio.to_thread(self.scan_all, call_texts(call, prompt))
        return self.decide(call, origin, reviews)

    def decide(self, call: ModelCall, origin: TextOrigin, reviews: Sequence[Review]) -> CallAdmission:
        """Return the verdict on a call whose texts were looked at."""
        events = [event for text, findings in reviews for event in self.events(origin, text, findings)]
        if not any(findings for _, findings in reviews) and self.rule.record_passes:
            events.append(pass_event(origin))
        blocked = refusals(reviews)
        if blocked and origin.mode == "block":
            text, finding = blocked[0]
            if not events:  # it was recorded before, and is refused again
                events = [verdict_event(origin, text, finding)]
            problem = f"{text.path} is refused by {finding.rule}: {finding.reason}"
            return CallAdmission(call, events, CallError("content_filter", problem, text.path))
        if origin.mode == "block":
            call = with_texts(call, replacements(reviews))
        elif origin.mode == "advise":
            call = with_advice(
                call,
                (
                    (text.path, finding.reason)
                    for text, findings in reviews
                    for finding in findings
                    if _is_order(finding)
                ),
            )
        return CallAdmission(call, events)

    def answer_guard(self, call: ModelCall, turn: GuardedTurn) -> AnswerGuard | None:
        """Return what looks at an answer."""
        mode = self.rule.mode_of(call.agent_id, "answer", call.protocol)
        if mode == "off":
            return None
        in_force: GuardrailMode = "monitor" if turn.is_learned_from else strictest(mode)
        origin = TextOrigin(
            "answer", call.agent_id, in_force, turn.turn_id, turn.policy, turn.trajectory_id, turn.turn_id, turn.task_id
        )
        return GuardedAnswer(self, origin, self.checks(call.agent_id, call.messages))

    def checks(self, agent_id: str, messages: Sequence[Message]) -> AnswerCheck | None:
        """Return the check of an agent's answers to these messages; None: they may be anything."""
        rules = (rules for pattern, rules in self._answer_rules if fnmatchcase(agent_id, pattern))
        return None if (first := next(rules, None)) is None else AnswerCheck(first, self.scanner, messages)

    def close(self) -> None:
        """Nothing is held."""

    def events(self, origin: TextOrigin, text: CallText, findings: Sequence[Finding]) -> list[Event]:
        """Return the verdicts on a text that were not recorded for its agent yet."""
        fresh = list[Event]()
        for finding in findings:
            key = (origin.agent_id, digest(text.text), finding.rule)
            if origin.place == "call" and key in self._recorded:
                continue
            self._recorded[key] = None
            if len(self._recorded) > SCANNED_TEXTS:
                self._recorded.popitem(last=False)
            self._meter.add(VERDICTS, finding.kind, finding.verdict, origin.mode)
            fresh.append(verdict_event(origin, text, finding))
        return fresh

    def scan(self, text: CallText) -> list[Finding]:
        """Return the findings in a text that may have been scanned before. It may wait for models."""
        key = digest(text.text)
        if (findings_before := self._scanned.get(key)) is not None:
            return findings_before
        findings, _ = self.look(text)
        if not any(finding.kind == "failure" for finding in findings):
            self._scanned[key] = findings
            while len(self._scanned) > SCANNED_TEXTS:
                self._scanned.popitem(last=False)
        return findings

    def look(self, text: CallText) -> tuple[list[Finding], dict[str, float]]:
        """Return the findings in a text, and the scores of the models. A rule that fails is a finding of kind
        `failure`. It may wait for models."""
        try:
            findings, scores = self.scanner.ask_models(text.text)
            return [*self.scanner.scan(text.text), *findings], scores
        except Exception as exc:  # a rule may fail in any way, with the text in its message: no part of it is kept
            log.error("%s could not be looked at: %s", text.path, type(exc).__name__)
            return [self.scanner.failure("scanner", f"it could not be looked at: {type(exc).__name__}")], {}

    def scan_all(self, texts: Iterable[CallText]) -> list[Review]:
        """Return the findings in each of the texts of a call. It may wait for models."""
        left, reviews = self.rule.characters, list[Review]()
        for text in texts:
            if left <= 0 and len(text.text) > 0:
                reason = f"the call has more than {self.rule.characters} characters (guardrails.characters)"
                reviews.append((text, [self.scanner.failure("length", reason)]))
                break
            reviews.append((text, self.scan(text)))
            left -= len(text.text)
        return reviews


class AnswerCheck:
    """The rules for the answer to a call (guardrails.validates). One that calls tools is not the last, and passes."""

    def __init__(self, rules: AnswerRules, scanner: Scanner, messages: Sequence[Message]) -> None:
        self._rules, self._scanner = rules, scanner
        self._sources = [message.content for message in messages if message.role != "assistant"]
        asked = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
        self._tools = [call.name for message in messages[asked:] for call in message.tool_calls]
        """Tools that were called since the user spoke last."""

    def findings(self, reply: Message) -> list[Finding]:
        """Return a finding for each rule that an answer breaks."""
        if reply.tool_calls:
            return []
        problems = answer_problems(reply.content, self._rules, sources=self._sources, tools=self._tools)
        return [problem_finding(problem, self._scanner) for problem in problems]


class GuardedAnswer(AnswerGuard):
    """Looks at one answer."""

    def __init__(self, door: GuardrailDoor, origin: TextOrigin, check: AnswerCheck | None = None) -> None:
        self._door, self._origin, self._check = door, origin, check
        self._blocks = origin.mode == "block"
        self._window = ReleaseWindow(door.scanner, door.rule.hold_back)

    def release(self, text: str) -> ReleasedText:
        """Return what may leave: in mode block nothing that a finding may still reach, else all."""
        if not self._blocks:
            return ReleasedText(text, len(text))
        if self._door.scanner.models or self._check is not None:
            return self._window.text_out
        return self._release(text, is_whole=False)

    async def finish(self, reply: Message) -> AnswerVerdict:
        """Return the verdict on the whole answer."""
        return self.decide(reply, await asyncio.to_thread(self.look, reply))

    def decide(self, reply: Message, reviews: Sequence[Review]) -> AnswerVerdict:
        """Return the verdict on a whole answer whose texts were looked at."""
        text, before = CallText("answer.content", reply.content), self._window.text_out
        if self._window.withheld is not None:
            return self._cut(reply, before, self._events([(text, [self._window.withheld])]))
        events = self._events(reviews)
        if not any(findings for _, findings in reviews) and self._door.rule.record_passes:
            events.append(pass_event(self._origin))
        if not self._blocks:
            return AnswerVerdict(reply, len(reply.content), events)
        released = self._release(reply.content, is_whole=True)
        if self.withheld is not None:
            return self._cut(reply, released, events)
        if blocked := refusals(reviews):  # in a tool call, by a model, or as a failure: of no place in the text
            self.withheld = blocked[0][1].rule
            return self._cut(reply, before, events)
        texts = replacements(reviews) | {text.path: released.text}
        if self.redacted is None and len(texts) > 1:
            self.redacted = next(f.rule for _, findings in reviews for f in findings if f.is_redacted)
        return AnswerVerdict(message_with(reply, "answer", texts), released.unchanged, events)

    def look(self, reply: Message) -> list[Review]:
        """Return what is found in each text of an answer. It may wait for models."""
        text = CallText("answer.content", reply.content)
        texts = [*([text] if reply.content else []), *reply_calls(reply, "answer")]
        reviews: list[Review] = [(part, self._door.scan(part)) for part in texts]
        if self._check is not None and (problems := self._check.findings(reply)):
            reviews.append((text, problems))
        return reviews

    def _cut(self, reply: Message, released: ReleasedText, events: list[Any]) -> AnswerVerdict:
        return AnswerVerdict(Message(role=reply.role, content=released.text), released.unchanged, events)

    def _release(self, text: str, *, is_whole: bool) -> ReleasedText:
        try:
            released = self._window.release(text, is_whole=is_whole)
        except Exception as exc:  # as in `GuardrailDoor.scan`, which also records it
            log.error("an answer could not be looked at: %s", type(exc).__name__)
            return self._window.pass_on(text, len(text) if self._door.rule.on_failure == "open" else 0)
        if self._window.withheld is not None:
            self.withheld = self._window.withheld.rule
        if self._window.redacted is not None:
            self.redacted = self._window.redacted.rule
        return released

    def _events(self, reviews: Iterable[Review]) -> list[Any]:
        return [event for text, findings in reviews for event in self._door.events(self._origin, text, findings)]


def refusals(reviews: Iterable[Review]) -> list[tuple[CallText, Finding]]:
    """Return what is blocked: also words that are to be replaced where none can be, as in a name."""
    return [
        (text, finding)
        for text, findings in reviews
        for finding in findings
        if finding.verdict == "block" or (finding.is_redacted and not is_replaceable(text.path))
    ]


def replacements(reviews: Iterable[Review]) -> dict[str, str]:
    """Return the texts in which words are replaced, by path."""
    replaced = ((text, [finding for finding in findings if finding.is_redacted]) for text, findings in reviews)
    return {
        text.path: redact_json(text.text, findings) if text.path.endswith(".arguments") else redact(text.text, findings)
        for text, findings in replaced
        if findings
    }


def problem_finding(problem: str, scanner: Scanner | None = None) -> Finding:
    """Return the finding of a sentence of `answer_problems`: a flag, or what the scanner's settings say."""
    rule = f"{problem.partition(':')[0]}/{VERSION}"
    verdict = "flag" if scanner is None else scanner.verdict(rule)
    return Finding(kind="validation", rule=rule, verdict=verdict, reason=problem)


def verdict_event(origin: TextOrigin, text: CallText, finding: Finding) -> GuardrailVerdict:
    """Return the event of a finding, without the text."""
    key = digest(text.text)
    return GuardrailVerdict(
        verdict_id=derive_id(origin.place, origin.reference, text.path, finding.rule, key),
        agent_id=origin.agent_id,
        created_at=times.now_ms(),
        kind=finding.kind,
        rule=finding.rule,
        verdict=finding.verdict,
        mode=origin.mode,
        place=origin.place,
        policy=origin.policy,
        trajectory_id=origin.trajectory_id,
        turn_id=origin.turn_id,
        task_id=origin.task_id,
        field_path=text.path,
        spans=tuple(TextSpan(start=start, end=end) for start, end in finding.spans[:MOST_SPANS]),
        digest=key,
        score=finding.score,
        reason=f"{finding.reason}, replaced" if finding.is_redacted and origin.mode == "block" else finding.reason,
    )


def pass_event(origin: TextOrigin) -> GuardrailVerdict:
    """Return the event of texts in which nothing was found."""
    finding = Finding(kind="validation", rule="all/1", verdict="pass", reason="nothing was found")
    return verdict_event(origin, CallText("*", ""), finding)


def digest(text: str) -> str:
    """Return a digest of a text with a key of this process, so that a short text cannot be guessed from it."""
    return hmac.new(_KEY, text.encode(errors="surrogatepass"), sha256).hexdigest()[:32]


def _is_order(finding: Finding) -> bool:
    return finding.kind in ("injection", "model")
