"""An entry of the registry as users write it: commands and requests have the same fields.

{"tool_id": "sums", "endpoint": "my_tools:add"} ──► ToolBody ──► EntryOrder, and the description where it says one
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from plugins.environments.listed import LISTED
from plugins.tools.registry.tool_log import EntryOrder
from schemas.events import EpisodeStart, Tool
from schemas.faults import OutsideObject, faults
from schemas.tool_text import AGENT_PARAMETERS, SINGLE, TOOL_ID, endpoint_kind
from streams.errors import EventError

DESCRIBED = ("name", "description", "parameters")
"""Fields that describe a function, a URL or an agent."""
OF_ENVIRONMENT = ("settings", "seed", "max_turns")
"""Fields of an environment."""


class ToolBody(OutsideObject):
    """An entry to add."""

    tool_id: str = Field(min_length=1, max_length=128, description="name of the entry")
    endpoint: str = Field(
        min_length=1,
        max_length=2000,
        description="module:function, http(s)://host/path, mcp:SERVER or environment:NAME, as the settings list it; or "
        "agent:NAME, an agent of this server, or a2a:URL, one of another",
    )
    name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="of the calls of a function, a URL or an agent; default: the entry's",
    )
    description: str | None = Field(None, description="what the tool does; default: the first lines of a docstring")
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments; default: a signature's")
    auth_required: bool = Field(False, description="calls need the credential that environments.credentials has")
    settings: dict[str, Any] | None = Field(None, description="of an environment")
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="of the described episode; default: 0")
    max_turns: int | None = Field(None, ge=1, le=1024, description="most actions of an episode of an environment")
    idempotent: bool = Field(False, description="a run may make a call again whose result was lost")
    needs_consent: bool = Field(False, description="a run asks a person before each call")
    handoff: bool = Field(False, description="of an agent: its answer to a call is that of the run, which ends")

    untrusted: bool = Field(False, description="others write what its tools answer; rules about flow ask")
    acts: bool = Field(False, description="its tools send, pay, delete or reach outside; rules about flow ask")

    @model_validator(mode="after")
    def _fits_its_endpoint(self) -> ToolBody:
        if TOOL_ID.fullmatch(self.tool_id) is None:
            raise ValueError(f"tool_id is {self.tool_id!r}; expected at most 64 of A-Z a-z 0-9 _ -, not _ or - first")
        kind = endpoint_kind(self.endpoint)
        if kind == "own":
            raise ValueError(f"endpoint is {self.endpoint}, which our own server describes itself; name another")
        for fields, kinds in ((DESCRIBED, SINGLE), (OF_ENVIRONMENT, ("environment",))):
            for name in fields:
                if getattr(self, name) is not None and kind not in kinds:
                    raise ValueError(f"{name} has no effect on {self.endpoint[:200]}; leave it out")
        without = {"agent": ("parameters", "auth_required"), "a2a": ("parameters", "description")}.get(kind, ())
        if any(getattr(self, name) for name in without):
            raise ValueError(f"{' and '.join(without)} have no effect on {self.endpoint[:200]}; leave them out")
        if self.handoff and kind not in ("agent", "a2a"):
            raise ValueError(f"handoff has no effect on {self.endpoint[:200]}; an agent alone takes a run over")
        if kind == "environment" and self.tool_id in LISTED:
            raise ValueError(f"tool_id is {self.tool_id}, as a built-in environment is called; take another name")
        return self

    def order(self, tool_id: str) -> EntryOrder:
        """Return the entry, under its name in the log."""
        kind, _, name = self.endpoint.partition(":")
        start = None
        if kind == "environment":
            start = EpisodeStart(name=name, settings=json.dumps(self.settings or {}), seed=self.seed or 0)
        answered = (self.idempotent, self.needs_consent, self.handoff, self.untrusted, self.acts)
        return EntryOrder(tool_id, self.endpoint, self.auth_required, start, self.max_turns, *answered)

    @property
    def tool(self) -> Tool | None:
        """The description of a function, a URL or an agent, in the place of which a2a has its card; None: its own."""
        kind, description, parameters = endpoint_kind(self.endpoint), self.description or "", self.parameters or {}
        if kind not in SINGLE:
            return None
        if kind in ("agent", "a2a"):
            description, parameters = description or f"Ask {self.endpoint.partition(':')[2]}.", AGENT_PARAMETERS
        return Tool(
            name=self.name or self.tool_id.rpartition(".")[2],
            description=description,
            parameters=json.dumps(parameters),
        )


def read_body(fields: Mapping[str, Any]) -> ToolBody:
    """Return an entry to add. Raises EventError that names its first fault."""
    try:
        return ToolBody.model_validate(fields)
    except ValidationError as exc:
        raise EventError(next(faults(exc, ToolBody, fields)).text) from exc
