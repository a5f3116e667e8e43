"""A set of tools: its requests to the server, with the caller's key, and what the assistant gets to read.

    name, arguments ──► ToolBox ──► ToolRequest ──► the server ──► ServerAnswer ──► ToolOutcome: texts, cut where long

tools.py has the sets that are made of routes; a plugin's are its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import quote

import httpx2
from starlette.types import ASGIApp

from schemas import json_text
from streams.errors import CallError, LogError

MOST_CHARACTERS = 100_000
"""Of a result; assistants have room for not much more."""
TRAJECTORY = "x-streamward-trajectory"
"""The header in which a caller names its trajectory."""
CREDENTIALS = ("authorization", "x-api-key", "x-agent-id", TRAJECTORY)
"""Headers of a call that its requests have, too."""


class McpTool(Protocol):
    """A tool, as an assistant is shown it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def description(self) -> str:
        """What it does."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""

    @property
    def changes(self) -> bool:
        """Whether something may be different afterwards."""


class ToolRequest(NamedTuple):
    """A request to the server."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None


class ServerAnswer(NamedTuple):
    """What the server answered to a request: a JSON object, as every route of it does."""

    status: int
    fields: dict[str, Any]

    @property
    def is_error(self) -> bool:
        """Whether the request was refused."""
        return self.status >= 400

    @property
    def message(self) -> str:
        """Why it was refused."""
        error = self.fields.get("error")
        return str(error.get("message") if isinstance(error, dict) else f"the server answered {self.status}")


class ToolOutcome(NamedTuple):
    """What a call gives."""

    texts: list[str]
    is_error: bool = False


class SendsRequests(Protocol):
    """Where tools send their requests: httpx2's client, or OwnServer."""

    @property
    def base_url(self) -> Any:
        """The address of the server."""

    async def request(
        self, method: str, url: str, *, params: dict[str, str], content: bytes | None, headers: dict[str, str]
    ) -> httpx2.Response:
        """Return the response to a request. Raises httpx2.TransportError."""


class OwnServer:
    """The server that offers the tools, asked in memory.

    By httpx2's transport alone: what its client does around that, of cookies, redirections and proxies, took 0.3 ms a
    request, as much as a route.
    """

    base_url = "http://127.0.0.1"

    def __init__(self, server: ASGIApp) -> None:
        self._transport = httpx2.ASGITransport(server)

    async def request(
        self, method: str, url: str, *, params: dict[str, str], content: bytes | None, headers: dict[str, str]
    ) -> httpx2.Response:
        """Return the response to a request."""
        request = httpx2.Request(method, self.base_url + url, params=params, content=content, headers=headers)
        response = await self._transport.handle_async_request(request)
        await response.aread()
        return response


@dataclass(frozen=True)
class ToolBox(ABC):
    """The tools of one server, called as requests to it."""

    client: SendsRequests
    toolset: str
    is_fixed: ClassVar[bool] = True
    """Whether its tools are the same as long as it is open."""

    @abstractmethod
    async def tools(self, credentials: Mapping[str, str]) -> Sequence[McpTool]:
        """Return the tools that a caller may call. Raises CallError if the server refuses it, LogError."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any], credentials: Mapping[str, str]) -> ToolOutcome:
        """Call a tool. Raises CallError if the set has none of this name."""

    async def send(self, request: ToolRequest, credentials: Mapping[str, str], field: str = "") -> ServerAnswer:
        """Return the answer to a request; `field`: of an answer that is no error.

        Raises LogError if the server is unreachable, or is another one.
        """
        headers = {name: credentials[name] for name in CREDENTIALS if name in credentials}
        if request.body is not None:
            headers["content-type"] = "application/json"
        try:
            response = await self.client.request(
                request.method, request.path, params=request.query, content=request.body, headers=headers
            )
        except httpx2.RequestError as exc:
            problem = f"{self.client.base_url} is unreachable: {exc}; start `streamward serve`, or name it"
            raise LogError(problem) from exc
        try:
            fields = json_text.parse(response.content)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or (not response.is_error and field and field not in fields):
            problem = f"{self.client.base_url} answered {response.status_code} with {response.text[:200]!r}"
            raise LogError(f"{problem}, as no `streamward serve` does; is it the right address, without a proxy?")
        return ServerAnswer(response.status_code, fields)


def cut(text: str) -> list[str]:
    """Return a text, or its beginning and how much of it is missing."""
    missing = len(text) - MOST_CHARACTERS
    if missing <= 0:
        return [text]
    advice = "ask for less: a smaller limit, fewer columns, or one task at a time"
    return [text[:MOST_CHARACTERS], f"Cut: {missing:,} of {len(text):,} characters are missing; {advice}."]


def in_path(name: str, parameter: str) -> str:
    """Return a name as a part of a path. Raises CallError for one that would lead to another route.

    A quoted slash is a slash again where it is read, and clients of HTTP drop `.` and `..`.
    """
    if name in (".", "..") or "/" in name:
        raise CallError("not_found", f"nothing has the {parameter} {name[:80]!r}; a name has no slash", parameter)
    return quote(name, safe="")
