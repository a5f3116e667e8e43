"""The settings of guardrails. By default nothing is looked at."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from plugins.guardrails.tool_patterns import read_patterns
from streams.settings.model import Section

FlowMode = Literal["off", "monitor", "enforce"]
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
    def flow_by_agent(self) -> list[tuple[str, FlowMode]]:
        """The patterns of agents with a mode of their own, the first that fits first."""
        return _modes(self.flow_of)


def _modes(text: str) -> list[tuple[str, FlowMode]]:
    parts = (part.strip().rpartition("=") for part in text.split(",") if part.strip())
    return [(pattern, mode) for pattern, _, mode in parts]  # type: ignore[misc]  # _is_list_of_modes checks them
