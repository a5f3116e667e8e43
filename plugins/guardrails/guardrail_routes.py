"""Texts that a client asks about: the same rules as at the door, and OpenAI's moderations.

    POST /guardrails/content/moderate ──► Scanner, models ──► verdict, findings, the text without personal data
    POST /guardrails/validate ──► AnswerRules ──► the rules that an answer breaks
    POST /v1/moderations ──► the same in OpenAI's shape, with its 13 categories

Findings are recorded as verdicts of place `route`, without the text. No error repeats a text.

Not covered: images. No rule here sees OpenAI's categories: they are those of `guardrails.moderation_url`, or labels of
`guardrails.classifier`; the others are named in `unseen_categories`, and their `false` means nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from starlette.requests import Request

from gateway.http.body import Answer, Body, SecretBody
from gateway.http.principal import DEFAULT_AGENT, tenant_of
from gateway.http.route import OPENAI, REST
from plugins.guardrails.call_texts import CallText
from plugins.guardrails.guardrail_door import GuardrailDoor, TextOrigin, problem_finding, verdict_event
from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.rules.answer_checks import AnswerRules, answer_problems
from plugins.guardrails.scanner import Finding, Scanner, redact, verdict_of
from plugins.guardrails.verdict_writer import VerdictWriter
from schemas.events import GuardrailDecision, GuardrailKind, derive_id
from schemas.faults import Ignored
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import named
from streams.errors import CallError, SettingsError
from streams.kafka import times
from streams.settings.model import Settings

CHECK = PluginAction("guardrails.check")
AT_ONCE = 2
MOST_TEXTS = 64
CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""Those of OpenAI's moderations."""
RULE_KINDS = "pii", "injection", "pattern"
"""Further categories here: the kinds of rules."""


class ModerateBody(SecretBody):
    """A text to look at."""

    text: str = Field(description="the text")
    redact: bool = Field(False, description="whether the answer has the text without personal data")


class FoundRule(Answer):
    """A rule that found something."""

    kind: GuardrailKind
    rule: str
    verdict: GuardrailDecision
    reason: str
    spans: list[list[int]] = Field(description="start and end of each place, in characters")
    score: float | None


class ModeratedText(Answer):
    """The verdict on a text."""

    object: Literal["guardrail.verdict"]
    verdict: GuardrailDecision
    findings: list[FoundRule]
    redacted: str | None


class ValidateBody(SecretBody):
    """An answer, and the rules that it has to keep."""

    answer: str = Field(description="the answer")
    json_schema: dict[str, Any] | None = Field(None, description="JSON schema of the answer")
    pattern: str | None = Field(None, description="RE2 pattern that the whole answer has to match")
    min_characters: int = Field(0, ge=0, description="least length")
    max_characters: int | None = Field(None, ge=0, description="greatest length")
    language: Literal["en", "de", "fr", "es", "it", "pt", "nl"] | None = Field(None, description="its language")
    tool: str | None = Field(None, description="a tool that it has to call")
    tools: list[str] = Field(default_factory=list, max_length=100, description="the tools that it calls")
    least_overlap: float = Field(0.0, ge=0, le=1, description="least share of its words that sources have")
    sources: list[str] = Field(default_factory=list, max_length=100, description="the texts retrieved for it")


class ValidatedAnswer(Answer):
    """Whether an answer keeps the rules, and a sentence for each that it breaks."""

    object: Literal["guardrail.validation"]
    valid: bool
    problems: list[str]


class ModerationText(Body):
    """A text among inputs."""

    type: Literal["text"]
    text: str


class ModerationsBody(SecretBody):
    """Texts to look at, as OpenAI has it."""

    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
        | Annotated[list[ModerationText], Field(min_length=1, max_length=MOST_TEXTS)]
    ) = Field(description="a text, or several; images are not looked at")
    model: Annotated[str | None, Ignored("the settings name rules and models")] = None


class Moderation(Answer):
    """The categories of a text."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class Moderations(Answer):
    """The categories of texts, in their order."""

    id: str
    model: str
    results: list[Moderation]
    unseen_categories: list[str] = Field(description="categories that no rule or model of this server sees")


EMAIL = FoundRule(kind="pii", rule="email/1", verdict="flag", reason="an e-mail address", spans=[[4, 19]], score=None)


class GuardrailRoutes:
    """The routes. They run in threads, and may wait for models."""

    def __init__(self, settings: Settings, verdicts: VerdictWriter) -> None:
        self._rule, self._verdicts = settings.of_plugin(Guardrails), verdicts
        self._guard: GuardrailDoor | None = None

    @REST.post(
        "/guardrails/content/moderate",
        may=CHECK,
        refuses=(),
        at_once=AT_ONCE,
        sends={"text": "Ask ann@example.org.", "redact": True},
        example=ModeratedText(object="guardrail.verdict", verdict="flag", findings=[EMAIL], redacted="Ask [email]."),
        tools={"moderate_text": ""},
    )
    def moderate_content(self, request: Request, body: ModerateBody) -> ModeratedText:
        """Look at a text by the rules of this server."""
        findings, _ = self._look(request, CallText("text", body.text))
        return ModeratedText(
            object="guardrail.verdict",
            verdict=verdict_of(findings),
            findings=[_rule_of(finding) for finding in findings],
            redacted=redact(body.text, findings) if body.redact else None,
        )

    @REST.post(
        "/guardrails/validate",
        may=CHECK,
        refuses=(),
        at_once=AT_ONCE,
        sends={"answer": '{"sum": 4}', "json_schema": {"type": "object", "required": ["sum"]}},
        example=ValidatedAnswer(object="guardrail.validation", valid=True, problems=[]),
        tools={"validate_answer": ""},
    )
    def validate_answer(self, request: Request, body: ValidateBody) -> ValidatedAnswer:
        """Check an answer: schema, pattern, length, language, tool, sources."""
        fields = {name: getattr(body, name) for name in AnswerRules.model_fields}
        try:
            problems = [*answer_problems(body.answer, AnswerRules(**fields), sources=body.sources, tools=body.tools)]
        except ValidationError as exc:
            [error, *_] = exc.errors(include_input=False, include_url=False)
            raise CallError("invalid", error["msg"].removeprefix("Value error, ")) from None
        except SettingsError as exc:
            raise CallError("unsupported", str(exc)) from None
        findings = [problem_finding(problem) for problem in problems]
        self._record(request, CallText("answer", body.answer), findings)
        return ValidatedAnswer(object="guardrail.validation", valid=not problems, problems=problems)

    @OPENAI.post(
        "/moderations",
        may=CHECK,
        refuses=(),
        at_once=AT_ONCE,
        sends={"input": "Ask ann@example.org."},
        example=Moderations(
            id="modr-9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
            model="guardrails",
            results=[
                Moderation(
                    flagged=True,
                    categories={"violence": False, "pii": True},
                    category_scores={"violence": 0.0, "pii": 1.0},
                    category_applied_input_types={"violence": ["text"], "pii": ["text"]},
                )
            ],
            unseen_categories=["hate"],
        ),
    )
    def create_moderation(self, request: Request, body: ModerationsBody) -> Moderations:
        """Tell the categories of texts, as OpenAI has them."""
        parts = [body.input] if isinstance(body.input, str) else body.input
        texts = [part if isinstance(part, str) else part.text for part in parts]
        results, seen = list[Moderation](), set[str]()
        for number, text in enumerate(texts):
            findings, scores = self._look(request, CallText(f"input[{number}]", text))
            seen |= scores.keys()
            results.append(_moderation(findings, scores))
        return Moderations(
            id=f"modr-{derive_id('moderation', times.now_ms(), id(body))}",
            model=",".join(["guardrails", *(model.name for _, model, _ in self._door.scanner.models)]),
            results=results,
            unseen_categories=[name for name in CATEGORIES if name not in seen],
        )

    @property
    def _door(self) -> GuardrailDoor:
        """The rules of the settings. Raises CallError where a package is missing."""
        try:
            self._guard = self._guard or GuardrailDoor(self._rule, Scanner(self._rule))
            self._guard.scanner.scan("")
        except SettingsError as exc:
            raise CallError("unsupported", str(exc)) from None
        return self._guard

    def _look(self, request: Request, text: CallText) -> tuple[list[Finding], dict[str, float]]:
        findings, scores = self._door.look(text)
        self._record(request, text, findings)
        return findings, scores

    def _record(self, request: Request, text: CallText, findings: list[Finding]) -> None:
        tenant = tenant_of(request)
        agent = DEFAULT_AGENT if tenant is None else named(tenant, DEFAULT_AGENT)
        origin = TextOrigin("route", agent, "monitor", str(times.now_ms()))
        self._verdicts.write(*(verdict_event(origin, text, finding) for finding in findings))


def _rule_of(finding: Finding) -> FoundRule:
    return FoundRule(
        kind=finding.kind,
        rule=finding.rule,
        verdict=finding.verdict,
        reason=finding.reason,
        spans=[[start, end] for start, end in finding.spans],
        score=finding.score,
    )


def _moderation(findings: list[Finding], scores: dict[str, float]) -> Moderation:
    kinds = {kind: float(any(finding.kind == kind for finding in findings)) for kind in RULE_KINDS}
    flags = {finding.name.partition(".")[2] for finding in findings if finding.kind == "model"}
    category_scores = dict.fromkeys(CATEGORIES, 0.0) | scores | kinds
    categories = {name: name in flags or kinds.get(name, 0.0) > 0 for name in category_scores}
    return Moderation(
        flagged=any(categories.values()),
        categories=categories,
        category_scores=category_scores,
        category_applied_input_types={name: ["text"] for name in category_scores},
    )
