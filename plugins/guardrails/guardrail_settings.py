"""The settings of guardrails. By default nothing is looked at."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from plugins.guardrails.flow.flow_rule import FlowMode, FlowRule
from plugins.guardrails.flow.tool_patterns import read_patterns
from plugins.guardrails.rules.personal import NATIONAL_IDS
from schemas import json_text
from schemas.events import GuardrailMode
from streams.errors import SettingsError
from streams.scorers.term_swaps import read_terms
from streams.settings.model import Section
from streams.settings.name_lists import split_names

if TYPE_CHECKING:
    from plugins.guardrails.rules.answer_checks import AnswerRules

DoorMode = Literal["off", "monitor", "advise", "block"]
_TOOLS = "comma separated patterns of TOOL or AGENT/TOOL"
KINDS = "pii", "injection", "patterns"


class Guardrails(Section):
    """Which texts are looked at, for what, and what follows."""

    mode: DoorMode = Field(
        "off",
        description="what a finding in a call or an answer does: monitor records it; advise also tells the model; "
        "block withholds the answer; off: nothing is looked at. Runs that something is learned from are only monitored",
    )
    modes: str = Field(
        "",
        description="other modes, AGENT=MODE or AGENT@PLACE=MODE, comma separated, * in a name is any text; a tenant's "
        "agents begin with its name and a dot; places: call, answer, or a protocol (chat, completions, responses, "
        "messages, threads, memory, tasks); the first match counts; e.g. red.*@answer=block,calc=off",
    )
    rules: str = Field("pii,injection,patterns", description="what is looked for: pii, injection, patterns")
    blocks: str = Field(
        "secret,key,card,override,persona,prompt_leak,exfiltration",
        description="rules whose finding is a verdict of block; of any other it is flag; patterns by their names",
    )
    redacts: str = Field(
        "",
        description="rules of personal data, and patterns by their names: with mode block what they find in messages, "
        "prompts, arguments of tools and answers is replaced by their name, as [email], and blocks nothing",
    )
    validates: str = Field(
        "",
        description="what answers have to be, as JSON by agent, the first match counts: "
        '{"acme.*": {"language": "de", "max_characters": 2000}}; fields as those of `guardrails validate`; a broken '
        "rule is a flag, or a verdict of block if blocks has its name, as language",
    )
    tasks: Literal["serve", "all"] = Field(
        "serve",
        description="which tasks of policy agents are looked at; all: those that something is learned from, too, which "
        "are only recorded",
    )
    patterns: str = Field(
        "", description='your own, on RE2, by name, as JSON: {"ticket": "TICKET-[0-9]{6}"}; look-around is refused'
    )
    national_ids: str = Field("", description=f"personal numbers to look for, of {', '.join(NATIONAL_IDS)}")
    hold_back: int = Field(
        160,
        ge=32,
        le=10_000,
        description="characters of a streamed answer that wait until what follows them is known, where mode is block: "
        "of a finding up to this long no character leaves",
    )
    characters: int = Field(200_000, ge=1_000, description="most characters of a call or an answer that are looked at")
    on_failure: Literal["open", "closed"] = Field(
        "open",
        description="a text that cannot be looked at, or not all of it: open lets it pass, closed makes "
        "it a verdict of block; either is recorded",
    )
    record_passes: bool = Field(
        False, description="record a verdict of pass for each call and answer without a finding"
    )
    holds_out: str = Field(
        "", description="rules whose findings in a row, as email, keep it from being trained on; empty: none"
    )
    classifier: str = Field(
        "", description="folder or hub id of a text-classification model, whose labels are findings; empty: none"
    )
    classifier_labels: str = Field(
        "", description="its labels that are findings, with the least probability: injection=0.9,toxic=0.8"
    )
    moderation_url: str = Field(
        "", description="base URL of an API with POST /moderations as OpenAI's, which gets the texts; empty: none"
    )
    moderation_model: str = Field("", description="model that it is asked for; empty: its own default")
    moderation_key: SecretStr = Field(SecretStr(""), description="its key; empty: none")
    moderation_scores: str = Field(
        "", description="its categories that are findings, with the least score: violence=0.5; empty: all, at 0.5"
    )
    timeout_s: float = Field(5.0, gt=0, description="time limit for the classifier and the moderation API, seconds")

    flow: FlowMode = Field(
        "off",
        description="rule by flow: after text from an untrusted source, tools that act need consent or are refused; "
        "monitor only records what would be",
    )
    flow_of: str = Field(
        "", description="another mode for some agents: patterns of their names, as acme.*=enforce, mailer=off"
    )
    untrusted: str = Field(
        "",
        description=f"tools whose answers others write, {_TOOLS}; `remembered`: the agents' store; in addition to "
        "what the registry of tools says",
    )
    needs_consent: str = Field(
        "",
        description=f"tools that act, {_TOOLS}; with arguments, as pay(recipient), none is asked where the user named "
        "their values",
    )
    refused: str = Field("", description=f"tools that are refused after untrusted text, {_TOOLS}")
    always_allowed: str = Field("", description=f"tools that no rule by flow is about, {_TOOLS}")

    bias_terms: str = Field(
        "", description="terms that are swapped to measure bias, as he=she, his=her; empty: fourteen pairs of gender"
    )
    max_bias: float | None = Field(
        None,
        ge=0,
        description="difference in mean reward between the swapped copies in guard.suite, beyond which a version is "
        "held back; unset: no limit",
    )

    @field_validator("bias_terms")
    @classmethod
    def _has_terms(cls, text: str) -> str:
        read_terms(text)
        return text

    @field_validator("untrusted", "needs_consent", "refused", "always_allowed")
    @classmethod
    def _is_list_of_tools(cls, text: str) -> str:
        read_patterns(text)
        return text

    @field_validator("flow_of")
    @classmethod
    def _is_list_of_modes(cls, text: str) -> str:
        for pattern, mode in _modes(text):
            if not pattern or mode not in ("off", "monitor", "enforce"):
                raise ValueError(f"{pattern}={mode}: expected AGENT=off, AGENT=monitor or AGENT=enforce")
        return text

    @property
    def has_flow(self) -> bool:
        """Whether the rule by flow decides about the calls of any agent."""
        return self.flow != "off" or any(mode != "off" for _, mode in _modes(self.flow_of))

    @property
    def flow_rule(self) -> FlowRule:
        """The rule by flow."""
        names = ("untrusted", "needs_consent", "refused", "always_allowed")
        return FlowRule(**{name: read_patterns(getattr(self, name)) for name in names})

    def flow_mode(self, agent_id: str) -> FlowMode:
        """Return the mode of the rule by flow for an agent."""
        modes = _modes(self.flow_of)
        return next((mode for pattern, mode in modes if fnmatchcase(agent_id, pattern)), self.flow)

    @property
    def answer_rules(self) -> tuple[tuple[str, AnswerRules], ...]:
        """The rules of answers, by pattern of their agents. Raises SettingsError."""
        from plugins.guardrails.rules.answer_checks import AnswerRules

        try:
            rules = json_text.parse(self.validates or "{}")
            return tuple((pattern, AnswerRules.model_validate(rule)) for pattern, rule in rules.items())
        except (ValueError, AttributeError) as exc:
            problem = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else str(exc)
            raise SettingsError(f"guardrails.validates: {problem}; expected JSON, RULES by AGENT") from None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of rules that run."""
        return split_names(self.rules)

    def mode_of(self, agent_id: str, place: str, protocol: str) -> DoorMode:
        """Return the mode for an agent's texts at a place."""
        modes: list[tuple[str, DoorMode]] = _modes(self.modes)
        for pattern, mode in modes:
            agent, _, part = pattern.partition("@")
            if fnmatchcase(agent_id, agent) and part in ("", place, protocol):
                return mode
        return self.mode

    @property
    def is_on(self) -> bool:
        """Whether any text is looked at."""
        return self.mode != "off" or any(mode != "off" for _, mode in _modes(self.modes))

    @model_validator(mode="after")
    def _is_known(self) -> Guardrails:
        for name, names in (("rules", KINDS), ("national_ids", tuple(NATIONAL_IDS))):
            if unknown := [word for word in split_names(getattr(self, name)) if word not in names]:
                raise ValueError(f"{name} has {unknown[0]!r}; expected of {', '.join(names)}")
        for _, mode in _modes(self.modes):
            if mode not in get_args(DoorMode):
                raise ValueError(f"modes has {mode!r}; expected AGENT=MODE or AGENT@PLACE=MODE")
        for name in ("classifier_labels", "moderation_scores"):
            thresholds(getattr(self, name), name)
        if bool(self.classifier) != bool(self.classifier_labels):
            raise ValueError("classifier and classifier_labels belong together; set both, or neither")
        return self


def thresholds(text: str, name: str) -> dict[str, float]:
    """Return the least scores by label. Raises ValueError that names the setting."""
    parts = [part.partition("=") for part in split_names(text)]
    try:
        return {label.strip().lower(): float(score) for label, _, score in parts}
    except ValueError:
        raise ValueError(f"{name}: expected LABEL=SCORE, comma separated, as toxic=0.8") from None


def strictest(mode: DoorMode) -> GuardrailMode:
    """Return a mode that looks at texts, as events have it."""
    return "monitor" if mode == "off" else mode


def _modes(text: str) -> list[tuple[str, Any]]:
    """Return PATTERN=MODE, comma separated, in order; a validator checks the modes."""
    parts = [part.partition("=") for part in split_names(text)]
    return [(pattern.strip(), mode.strip()) for pattern, _, mode in parts]
