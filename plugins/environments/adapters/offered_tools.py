"""Tools offered to the policy for one task: the base of the environments of MCP servers, URLs and functions.

    the task's prompt, the tools ──► calls ──► one by one ──► … ──► an answer without a call is the last

It gives no reward: the task's scorers judge the answer.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from plugins.environments.episodes.environment import MOST_CALLS, Action, EpisodeError, Observation, StepResult
from schemas import json_text
from schemas.events import Message, Tool, ToolCall

MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


class OfferedTools:
    """A base class; `_begin` and `_invoke` are of each kind."""

    def __init__(self, name: str, prompt: str, system: str, messages: Any = ()) -> None:
        """`prompt` is the user's message, `system` the first one; `messages`, such as a worked example, are between.

        Raises EpisodeError: bad_settings.
        """
        for field, text in (("prompt", prompt), ("system", system)):
            if not isinstance(text, str):
                raise EpisodeError(f"{name}: {field}: expected a text, got {text!r:.80}", reason="bad_settings")
        self._name = name
        first = (Message(role="system", content=system),) if system else ()
        last = (Message(role="user", content=prompt),) if prompt else ()
        self._messages = (*first, *_read_messages(name, messages), *last)
        self._tools: tuple[Tool, ...] = ()

    def reset(self, seed: int) -> Observation:
        """Show the prompt and the tools."""
        self._tools = self._begin()
        return Observation(self._messages, self._tools)

    def step(self, action: Action) -> StepResult:
        """Answer the calls, in order; a text without a call is the last."""
        if not action.calls:
            return StepResult(Observation(()), terminated=True)
        answers = [self._answer(call) for call in action.calls[:MOST_CALLS]]
        if len(action.calls) > MOST_CALLS:
            refused = f"error: at most {MOST_CALLS} calls at once"
            answers.append((_message(action.calls[MOST_CALLS], refused), False))
        observation = Observation(tuple(message for message, _ in answers))
        return StepResult(observation, tool=action.calls[0].name, ok=all(ok for _, ok in answers))

    def _answer(self, call: ToolCall) -> tuple[Message, bool]:
        """Return the answer to a call, and whether the tool could use it. Raises EpisodeError(crashed)."""
        names = [tool.name for tool in self._tools]
        if call.name not in names:
            return _message(call, f"error: there is no tool {call.name[:40]}, only {', '.join(names)}"), False
        arguments = _arguments(call)
        if arguments is None:
            return _message(call, f"error: {call.name} takes a JSON object of arguments"), False
        text, ok = self._invoke(call.name, arguments)
        return _message(call, text if ok else f"error: {text}"), ok

    def _begin(self) -> tuple[Tool, ...]:
        """Return the tools of an episode that begins. Raises EpisodeError."""
        raise NotImplementedError

    def _invoke(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Return the text of a tool's answer, and whether it could use the call. Raises EpisodeError(crashed)."""
        raise NotImplementedError


def _read_messages(name: str, messages: Any) -> tuple[Message, ...]:
    """Return the messages of a setting. Raises EpisodeError(bad_settings)."""
    try:
        checked = MESSAGES.validate_python(messages)
    except ValidationError as exc:
        error = exc.errors()[0]
        place = ".".join(map(str, ("messages", *error["loc"])))
        raise EpisodeError(f"{name}: {place}: {error['msg']}", reason="bad_settings") from exc
    for call in (call for message in checked for call in message.tool_calls):
        if _arguments(call) is None:
            problem = f"{name}: messages: the arguments of call {call.id} are no JSON object: {call.arguments[:80]}"
            raise EpisodeError(problem, reason="bad_settings")
    return checked


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return the arguments of a call; None if they are no JSON object."""
    try:
        arguments = json_text.parse(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _message(call: ToolCall, text: str) -> Message:
    return Message(role="tool", content=text, name=call.name, tool_call_id=call.id)
