"""The settings of guardrails. By default nothing is looked at."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field, field_validator

from plugins.guardrails.flow.flow_rule import FlowMode, FlowRule
from plugins.guardrails.flow.tool_patterns import read_patterns
from streams.scorers.term_swaps import read_terms
from streams.settings.model import Section

_TOOLS = "comma separated patterns of TOOL or AGENT/TOOL"


class Guardrails(Section):
    """Which texts are looked at, for what, and what follows."""

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
        for pattern, mode in _flow_modes(text):
            if not pattern or mode not in ("off", "monitor", "enforce"):
                raise ValueError(f"{pattern}={mode}: expected AGENT=off, AGENT=monitor or AGENT=enforce")
        return text

    @property
    def has_flow(self) -> bool:
        """Whether the rule by flow decides about the calls of any agent."""
        return self.flow != "off" or any(mode != "off" for _, mode in _flow_modes(self.flow_of))

    @property
    def flow_rule(self) -> FlowRule:
        """The rule by flow."""
        names = ("untrusted", "needs_consent", "refused", "always_allowed")
        return FlowRule(**{name: read_patterns(getattr(self, name)) for name in names})

    def flow_mode(self, agent_id: str) -> FlowMode:
        """Return the mode of the rule by flow for an agent."""
        modes = _flow_modes(self.flow_of)
        return next((mode for pattern, mode in modes if fnmatchcase(agent_id, pattern)), self.flow)


def _flow_modes(text: str) -> list[tuple[str, FlowMode]]:
    parts = (part.strip().rpartition("=") for part in text.split(",") if part.strip())
    return [(pattern, mode) for pattern, _, mode in parts]  # type: ignore[misc]  # _is_list_of_modes checks them
