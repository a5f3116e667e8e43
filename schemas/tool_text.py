"""A registered tool: the endpoint of its calls, and the digest of its description.

    module:function · https://host/path · mcp:SERVER · environment:NAME · agent:NAME · a2a:URL ──► endpoint_kind
    name, description and JSON Schema of each tool it offers ──► offer_digest ──► pinned when a person accepts it

The digest covers the texts that a model reads. A server that describes its tools differently has another digest,
whatever its version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

from schemas import json_text

EndpointKind = Literal["function", "http", "mcp", "environment", "agent", "a2a", "own"]
KINDS: tuple[EndpointKind, ...] = get_args(EndpointKind)
SINGLE: tuple[EndpointKind, ...] = ("function", "http", "agent", "a2a")
"""Endpoints that are one tool each."""
INPUT_REQUIRED = "input_required"
"""The error of a call whose agent, of another server, asks something and waits for the answer."""
AGENT_PARAMETERS = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
"""JSON Schema of a call of an agent."""
NO_AGENT_MESSAGE = "expected one argument, message: a text that is not empty"
TOOL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,63})?")
"""An entry of the registry; before the dot is its tenant."""
OWN_ID = re.compile(r"mcp:[a-z]{1,40}")
"""The list of one of our own MCP servers."""
OFFERED_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The name of a call, as models write it."""
MOST_TOOLS = 200
"""Maximum number of tools of one endpoint."""
MOST_CHARACTERS = 100_000
"""Maximum size of descriptions and schemas together: they become part of prompts."""
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_URL = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")
"""URLs without user, query and fragment, which often contain secrets."""
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
FORMS = "module:function, http(s)://host/path, mcp:SERVER, environment:NAME, agent:NAME or a2a:URL"


class OfferedTool(Protocol):
    """The tool's texts that a model reads."""

    @property
    def name(self) -> str:
        """The name in calls."""

    @property
    def description(self) -> str:
        """What it does."""

    @property
    def parameters(self) -> str:
        """JSON Schema of the arguments."""


class PromptMessage(Protocol):
    """A message of an environment's first prompt."""

    @property
    def role(self) -> str:
        """Its role in the chat."""

    @property
    def content(self) -> str:
        """The text."""


def agent_message(arguments: Mapping[str, Any]) -> str | None:
    """Return the message of a call of an agent; None if it has none, which NO_AGENT_MESSAGE says."""
    message = arguments.get("message")
    return message if isinstance(message, str) and message else None


def endpoint_kind(endpoint: str) -> EndpointKind:
    """Return the kind of an endpoint. Raises ValueError, which names the valid forms.

    >>> endpoint_kind("mcp:https://docs.example/mcp")
    'mcp'
    """
    kind, _, rest = endpoint.partition(":")
    if kind in ("mcp", "environment"):
        url = rest.startswith(("http://", "https://"))
        if rest and rest.isprintable() and (not url or _URL.fullmatch(rest)):
            return "mcp" if kind == "mcp" else "environment"
    elif kind == "agent":
        if _AGENT.fullmatch(rest):
            return "agent"
    elif kind == "a2a":
        if _URL.fullmatch(rest):
            return "a2a"
    elif kind in ("http", "https"):
        if _URL.fullmatch(endpoint):
            return "http"
    elif endpoint in ("/mcp", *(f"/mcp/{name}" for name in ("policy", "scoring", "control"))):
        return "own"
    elif _FUNCTION.fullmatch(endpoint):
        return "function"
    raise ValueError(f"endpoint is {endpoint[:200]!r}; expected {FORMS}, a URL without user, query and fragment")


def offer_digest(tools: Sequence[OfferedTool], messages: Sequence[PromptMessage] = ()) -> str:
    """Return the SHA-256 of tools and first messages; the order of the tools does not matter."""
    offered = sorted([tool.name, tool.description, _canonical(tool.parameters)] for tool in tools)
    shown = [[message.role, message.content] for message in messages]
    return hashlib.sha256(json.dumps([offered, shown], ensure_ascii=False).encode()).hexdigest()


def offer_problems(tools: Sequence[OfferedTool]) -> Iterator[str]:
    """Yield the faults of the tools of one endpoint."""
    if len(tools) > MOST_TOOLS:
        yield f"there are {len(tools)} tools; expected at most {MOST_TOOLS}"
    for name in _duplicates(tool.name for tool in tools):
        yield f"two tools are called {name[:140]!r}; a call could mean either"
    for tool in tools:
        if OFFERED_NAME.fullmatch(tool.name) is None:
            yield f"a tool is called {tool.name[:140]!r}; expected 1 to 128 of A-Z a-z 0-9 _ . -"
        try:
            schema = json_text.parse(tool.parameters)
        except ValueError:
            schema = None
        yield from (f"tool {tool.name[:140]}: parameters: {fault}" for fault in _broken_patterns(schema))
        if not isinstance(schema, dict):
            yield f"tool {tool.name[:140]}: parameters is {tool.parameters[:80]!r}; expected a JSON Schema, an object"
    size = sum(len(tool.description) + len(tool.parameters) for tool in tools)
    if size > MOST_CHARACTERS:
        yield f"descriptions and parameters have {size} characters; expected at most {MOST_CHARACTERS}"


def _broken_patterns(schema: Any) -> Iterator[str]:
    """Yield each `pattern` of a schema that is no regular expression, and would never be enforced."""
    ahead = [schema]
    while ahead:
        part = ahead.pop()
        ahead += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        pattern = part.get("pattern") if isinstance(part, dict) else None
        try:
            re.compile(pattern if isinstance(pattern, str) else "")
        except re.error as exc:
            yield f"the pattern {str(pattern)[:80]!r} is no regular expression: {exc}"


def _duplicates(names: Iterable[str]) -> list[str]:
    all_names = list(names)
    return sorted({name for name in all_names if all_names.count(name) > 1})


def _canonical(schema: str) -> str:
    """Return a schema as bytes that do not depend on white space and the order of keys; other text unchanged."""
    try:
        value = json_text.parse(schema)
    except ValueError:
        return schema
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
