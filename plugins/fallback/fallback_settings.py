"""The settings of fallbacks: other engines and versions, and when an engine is paused."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, model_validator

from streams.settings.model import Section

TARGETS = "server", "earlier", "base"


class Fallback(Section):
    """Other engines and versions for calls and serve tasks, where the engine gives no answer."""

    chains: str = Field(
        "",
        description="fallbacks of a policy, in order: POLICY=TARGET+TARGET, comma separated, * in a name is any "
        "text; targets: server (the engine below, with the same version), earlier (the primary before) and base "
        "(version 0) of the same engine; the first match counts; e.g. chat=server+earlier,*=base; empty: nothing",
    )
    engine: Literal["", "vllm", "transformers", "scripted"] = Field(
        "", description="engine of the target server, with the same base model; empty: none"
    )
    servers: str = Field("", description="for engine=vllm: URLs of its servers, as policy.servers")
    script: str = Field("{}", description="for engine=scripted: its replies, as policy.script")
    first_token_s: float = Field(15.0, gt=0, description="time limit for the first token of an engine, seconds")
    max_failures: int = Field(
        5, ge=0, description="failures in a row, for a tenant, after which an engine is paused; 0: never"
    )
    pause_s: float = Field(10.0, gt=0, description="time until one call tries a paused engine again, seconds")
    patience_s: float = Field(
        60.0,
        gt=0,
        description="how long a call is tried again while nothing answers, seconds; less if its client waits less",
    )

    @property
    def targets(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The patterns of policies, with their targets in order."""
        parts = [part.strip().partition("=") for part in self.chains.split(",") if part.strip()]
        return tuple((name.strip(), tuple(target.strip() for target in text.split("+"))) for name, _, text in parts)

    def chain(self, policy: str) -> tuple[str, ...]:
        """Return the targets for a policy."""
        return next((targets for pattern, targets in self.targets if fnmatchcase(policy, pattern)), ())

    @model_validator(mode="after")
    def _is_complete(self) -> Fallback:
        named = {target for _, targets in self.targets for target in targets}
        if unknown := sorted(named - {*TARGETS}):
            raise ValueError(f"chains has {unknown[0]!r}; expected POLICY=TARGET+TARGET of {', '.join(TARGETS)}")
        if ("server" in named) != bool(self.engine):
            raise ValueError("the target server in chains and engine belong together; set both, or neither")
        if bool(self.servers) != (self.engine == "vllm"):
            raise ValueError("servers and engine=vllm belong together; set both, or neither")
        return self
