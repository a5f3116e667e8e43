"""The tools of an MCP server, offered to the policy for one task.

    the task's prompt, tools/list ──► calls ──► tools/call, one by one ──► … ──► an answer without a call is the last

A server is an address (streamable HTTP) or a command, which is then started and spoken to over its stdin and stdout.
Each episode has a session of its own; with a command, a process of its own. The environment gives no reward: the
task's scorers judge the answer.

Not covered: MCP has no seed. Every episode of a task begins alike, and a tool's answer must depend on the earlier calls
alone; otherwise the episode cannot be replayed.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from schemas import json_text
from schemas.events import Message, Tool, ToolCall
from streams.environments.episodes.environment import MOST_CALLS, Action, EpisodeError, Observation, StepResult

INVALID_PARAMS = -32602
"""Of JSON-RPC: the server cannot use the call, and is otherwise well."""
DIES_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""Program that becomes another one, which Linux kills (PR_SET_PDEATHSIG, SIGKILL) when its parent ends.

A server is in a session of its own, so it is not killed with our process group."""


class McpEnvironment:
    """Offers the tools of `server`."""

    def __init__(self, server: str, prompt: str, system: str = "") -> None:
        """`prompt` is the user's message, `system` the one before it. Raises EpisodeError: crashed."""
        for name, text in (("prompt", prompt), ("system", system)):
            if not isinstance(text, str):
                raise EpisodeError(f"mcp:{server}: {name}: expected a text, got {text!r:.80}", reason="bad_settings")
        self._name, self._server = f"mcp:{server}", server
        texts = (("system", system), ("user", prompt))
        self._messages = tuple(Message(role=role, content=text) for role, text in texts if text)
        self._portal_context = start_blocking_portal()
        self._portal = self._portal_context.__enter__()
        self._session: AbstractContextManager[Client] | None = None
        self._client = self._connect()
        self._is_new = True
        info = self._client.server_info
        self.version = info.version if info is not None else "unknown"

    def reset(self, seed: int) -> Observation:
        """Begin a session, and show the prompt and the tools."""
        if not self._is_new:
            self._disconnect()
            self._client = self._connect()
        self._is_new = False
        self._tools = self._list_tools()
        return Observation(self._messages, self._tools)

    def step(self, action: Action) -> StepResult:
        """Carry out the calls, in order; an answer without one is the last."""
        if not action.calls:
            return StepResult(Observation(()), terminated=True)
        answers = [self._call(call) for call in action.calls[:MOST_CALLS]]
        if len(action.calls) > MOST_CALLS:
            answers.append((_answer(action.calls[MOST_CALLS], f"error: at most {MOST_CALLS} calls at once"), False))
        observation = Observation(tuple(message for message, _ in answers))
        return StepResult(observation, tool=action.calls[0].name, ok=all(ok for _, ok in answers))

    def close(self) -> None:
        """End the session, and the server if it was started here."""
        self._disconnect()
        self._portal_context.__exit__(None, None, None)

    def _connect(self) -> Client:
        session = self._portal.wrap_async_context_manager(_client(self._server))
        try:
            client = session.__enter__()
        except Exception as exc:  # of the transport, the protocol or the server's start, in groups of any depth
            message = f"{self._name}: no session: {_innermost(exc)}; is the server running?"
            raise EpisodeError(message, reason="crashed") from exc
        self._session = session
        return client

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def _list_tools(self) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = self._portal.call(lambda: self._client.list_tools(cursor=cursor))  # noqa: B023 - called at once
            tools += [
                Tool(name=tool.name, description=tool.description or "", parameters=json.dumps(tool.input_schema))
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return tuple(tools)

    def _call(self, call: ToolCall) -> tuple[Message, bool]:
        """Return the answer to a call, and whether the server could use it. Raises EpisodeError(crashed)."""
        names = [tool.name for tool in self._tools]
        if call.name not in names:
            return _answer(call, f"error: there is no tool {call.name[:40]}, only {', '.join(names)}"), False
        try:
            arguments = json_text.parse(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return _answer(call, f"error: {call.name} takes a JSON object of arguments"), False
        try:
            result = self._portal.call(lambda: self._client.call_tool(call.name, arguments))
        except MCPError as exc:
            if exc.error.code != INVALID_PARAMS:
                raise EpisodeError(f"{self._name}: {call.name}: {exc}", reason="crashed") from exc
            return _answer(call, f"error: {exc}"), False
        parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
        text = "\n".join(parts)
        return _answer(call, f"error: {text}" if result.is_error else text), not result.is_error


@asynccontextmanager
async def _client(server: str) -> AsyncIterator[Client]:
    """Connect to an address, or to a command that is started and ends with this process."""
    if server.startswith(("http://", "https://")):
        # a proxy of the user's is left out: the connection goes to the named host or nowhere
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=httpx2.Timeout(30.0, read=300.0)) as http,
            Client(streamable_http_client(server, http_client=http)) as client,
        ):
            yield client
    else:
        words = shlex.split(server)
        if sys.platform == "linux":
            words = [sys.executable, "-I", "-S", "-c", DIES_WITH_PARENT, *words]
        async with Client(stdio_client(StdioServerParameters(command=words[0], args=words[1:]))) as client:
            yield client


def _answer(call: ToolCall, text: str) -> Message:
    return Message(role="tool", content=text, name=call.name, tool_call_id=call.id)


def _innermost(exc: BaseException) -> BaseException:
    """Return what is inside groups of exceptions."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
