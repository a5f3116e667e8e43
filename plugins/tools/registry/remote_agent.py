"""An agent of another server, by A2A 1.0: its card, and a task of it for each call.

    a2a:URL ──► URL/.well-known/agent-card.json ──► one tool, and the card: what a person accepts
    message ──► SendMessage ──► task ──► GetTask, again and again ──► ToolOutput: a text, an error, or a question

The server opens these connections itself, so the rules of tools with a URL are kept here: only URLs that
environments.servers lists, no redirects, no proxy, an answer's size and time. A card may name no host but its own.

Not covered: A2A 0.3, gRPC and HTTP+JSON; files and data in an answer, which are left out; streaming.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2

from plugins.environments.episodes.environment import EpisodeError
from plugins.tools.registry.tool_state import Offer, ToolOutput
from schemas import json_text
from schemas.events import Message, Tool
from schemas.tool_text import INPUT_REQUIRED, offer_digest, offer_problems
from streams.egress.address_guard import UrlOrigin
from streams.egress.http_client import AnswerTooLarge, fetch, new_client
from streams.egress.retry_budget import budget_of

CARD_PATH = "/.well-known/agent-card.json"
PROTOCOL, BINDING = "1.", "JSONRPC"
CHANGES_OFTEN = ("version", "signatures")
"""Fields of a card that no description is made of."""
MOST_BYTES = 256 * 1024
"""Of a card, and of an answer."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0
"""Time between two looks at a task, which doubles."""
PATIENCE_S = 30.0
"""How long a task's server may be unreachable."""
AT_WORK = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
ASKS = "TASK_STATE_INPUT_REQUIRED"
ENDINGS = {
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "cancelled",
    "TASK_STATE_REJECTED": "rejected",
    "TASK_STATE_AUTH_REQUIRED": "auth_required",
}


class RemoteTask(Protocol):
    """A task, as the caller follows it."""

    message_id: str
    """Of the message to send; sent again, it begins no second task on a server that knows it."""
    task_id: str | None
    """None: the task has not begun."""
    answer: str | None
    """The answer to its agent's question; None: there is none."""

    @property
    def is_stopped(self) -> bool:
        """Whether its result is not needed any more."""

    def accept(self, task_id: str) -> None:
        """Take in which task it is."""

    def arm(self, kill: Callable[[], None]) -> None:
        """Take what ends the task now."""


class _TimedTask:
    """A task that no run waits for: it has the time of a call."""

    def __init__(self, limit_s: float) -> None:
        self.message_id = str(uuid.uuid4())
        self.task_id: str | None = None
        self.answer: str | None = None
        self._ends_at = time.monotonic() + limit_s

    @property
    def is_stopped(self) -> bool:
        return time.monotonic() > self._ends_at

    def accept(self, task_id: str) -> None:
        self.task_id = task_id

    def arm(self, kill: Callable[[], None]) -> None:
        """Take nothing: it is stopped by the time."""


class RemoteAgent:
    """An agent by its URL. Each method opens a connection of its own; threads may use it together."""

    def __init__(self, url: str, credential: str, limit_s: float) -> None:
        """`limit_s`: of each request."""
        headers = {"A2A-Version": "1.0"} | ({"authorization": f"Bearer {credential}"} if credential else {})
        self._url, self._limit_s = url.rstrip("/"), limit_s
        self._client = new_client(UrlOrigin.LISTED, headers=headers)
        self._address = ""

    def offer(self, tool: Tool, task: RemoteTask | None = None) -> Offer:
        """Return a tool as the card describes it, and the card; patient with the server of a `task` that has begun.

        Raises EpisodeError: crashed, timeout, too_large, bad_result, not_allowed.
        """
        card = _patiently(lambda: self._fetch("GET", self._url + CARD_PATH), self._url, task)
        self._address = self._address_in(card)
        described = Tool(name=tool.name, description=_description(card), parameters=tool.parameters)
        if problem := next(offer_problems([described]), None):
            raise EpisodeError(f"the card of {self._url}: {problem}", reason="bad_result")
        version = card.get("version")
        pinned = {name: value for name, value in card.items() if name not in CHANGES_OFTEN}
        messages = (Message(role="system", content=json.dumps(pinned, sort_keys=True, ensure_ascii=False)),)
        digest = offer_digest((described,), messages)
        return Offer(
            tools=(described,), digest=digest, messages=messages, version=None if version is None else str(version)
        )

    def answer(self, text: str, task: RemoteTask) -> ToolOutput:
        """Return what a task comes to that answers a text, or continues; `offer` is called before.

        Raises EpisodeError: crashed, timeout, bad_result, failed.
        """
        if task.task_id is None:
            result = self._send(text, task)
            if isinstance(message := result.get("message"), dict):
                return ToolOutput(_text(message))
            state = _task_in(result)
            task.accept(state["id"])
        else:
            state = self._get(task.task_id, task)
        task_id = str(task.task_id or state["id"])
        task.arm(partial(self._cancel_if_possible, task_id))
        if task.answer is not None and _state(state) == ASKS and not _was_sent(state, task.message_id):
            state = _task_in(self._send(task.answer, task, taskId=task_id, contextId=state.get("contextId")))
        return self._follow(task_id, state, task)

    def answer_in_time(self, text: str) -> ToolOutput:
        """Return what a task comes to, without an answer to its questions. Raises as `answer`."""
        task = _TimedTask(self._limit_s)
        output = self.answer(text, task)
        if output.error == INPUT_REQUIRED:
            output = ToolOutput(f"it asks {output.text!r}; only a run of an agent can answer", INPUT_REQUIRED)
        elif output.error is not None and task.is_stopped:
            output = ToolOutput(f"no answer within {self._limit_s:g} s (environments.timeout_s)", "timeout")
        else:
            return output
        self._cancel_if_possible(task.task_id or "")
        return output

    def cancel(self, task_id: str) -> None:
        """Cancel a task, which may have ended. Raises EpisodeError."""
        self._call("CancelTask", {"id": task_id})

    def _cancel_if_possible(self, task_id: str) -> None:
        with contextlib.suppress(EpisodeError):  # it has ended, or is unreachable
            self.cancel(task_id)

    def _follow(self, task_id: str, state: dict[str, Any], task: RemoteTask) -> ToolOutput:
        """Return what a task comes to."""
        pause_s = FIRST_LOOK_S
        while _state(state) in AT_WORK and not task.is_stopped:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
            state = self._get(task_id, task)
        status, said = _state(state), _text(state["status"].get("message"))
        if status == ASKS:
            return ToolOutput(said or "it asks for input", INPUT_REQUIRED)
        if status == "TASK_STATE_COMPLETED":
            return ToolOutput("\n".join(filter(None, map(_text, _objects(state.get("artifacts"))))) or said)
        ending = ENDINGS.get(status, "failed")
        return ToolOutput(f"{self._url} gave no answer: {said or ending}", ending)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _send(self, text: str, task: RemoteTask, **names: Any) -> dict[str, Any]:
        names = {name: value for name, value in names.items() if value is not None}
        message = {"messageId": task.message_id, "role": "ROLE_USER", "parts": [{"text": text}], **names}
        return self._call("SendMessage", {"message": message, "configuration": {"returnImmediately": True}})

    def _get(self, task_id: str, task: RemoteTask) -> dict[str, Any]:
        return _task_in({"task": _patiently(lambda: self._call("GetTask", {"id": task_id}), self._url, task)})

    def _call(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a method. Raises EpisodeError."""
        body = {"jsonrpc": "2.0", "id": method, "method": method, "params": parameters}
        answer = self._fetch("POST", self._address, json=body)
        error = answer.get("error")
        if isinstance(error, dict):
            problem = f"{self._url}: {method}: {str(error.get('message'))[:2000]} ({error.get('code')})"
            raise EpisodeError(problem, reason="failed")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise EpisodeError(f"{self._url}: {method}: the answer has no result", reason="bad_result")
        return result

    def _fetch(self, method: str, url: str, **request: Any) -> dict[str, Any]:
        """Return the JSON object of an answer. Raises EpisodeError."""
        try:
            status, body = fetch(self._client, method, url, limit_s=self._limit_s, most_bytes=MOST_BYTES, **request)
        except AnswerTooLarge as exc:
            raise EpisodeError(f"{url} answered with {exc}", reason="too_large") from exc
        except httpx2.TimeoutException as exc:
            raise EpisodeError(f"{url}: {exc} (environments.timeout_s)", reason="timeout") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise EpisodeError(f"{url}: no answer: {exc}", reason="crashed") from exc
        if status >= 500:
            raise EpisodeError(f"{url} answered {status}", reason="crashed")
        try:
            value = json_text.parse(body)
        except ValueError:
            value = None
        if status >= 300 or not isinstance(value, dict):
            text = body.decode(errors="replace")[:2000]
            raise EpisodeError(f"{url} answered {status}: {text}; expected a JSON object", reason="bad_result")
        return value

    def _address_in(self, card: Mapping[str, Any]) -> str:
        """Return where a card takes JSON-RPC. Raises EpisodeError for another host, and without it."""
        interfaces = _objects(card.get("supportedInterfaces"))
        for interface in interfaces:
            address, version = str(interface.get("url")), str(interface.get("protocolVersion"))
            if interface.get("protocolBinding") != BINDING or not version.startswith(PROTOCOL):
                continue
            if _origin(address) != _origin(self._url):
                problem = f"the card of {self._url} sends calls to {address[:200]}; a card may name its own host alone"
                raise EpisodeError(problem, reason="not_allowed")
            return address
        known = ", ".join(f"{each.get('protocolBinding')} {each.get('protocolVersion')}" for each in interfaces)
        problem = f"the card of {self._url} has no interface of A2A 1.0 by JSONRPC, only {known[:200] or 'none'}"
        raise EpisodeError(problem, reason="bad_result")


def _patiently(read: Callable[[], dict[str, Any]], url: str, task: RemoteTask | None) -> dict[str, Any]:
    """Return what is read, again if the server of a task that has begun is briefly unreachable. Raises EpisodeError."""
    retry, ends_at = 0, time.monotonic() + PATIENCE_S
    while True:
        try:
            return read()
        except EpisodeError as exc:
            is_brief = exc.reason in ("crashed", "timeout") and time.monotonic() < ends_at
            if task is None or task.task_id is None or task.is_stopped or not is_brief:
                raise
        retry += 1
        time.sleep(budget_of(url).pause_s(retry, FIRST_LOOK_S, LONGEST_LOOK_S))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url, None, None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _description(card: Mapping[str, Any]) -> str:
    """Return what a model reads of an agent: its description, and its skills."""
    lines = [f"{card.get('name') or 'An agent'}: {card.get('description') or 'no description'}"]
    lines += [f"- {skill.get('name')}: {skill.get('description')}" for skill in _objects(card.get("skills"))]
    return "\n".join(lines)


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _task_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a result. Raises EpisodeError."""
    task = result.get("task")
    if isinstance(task, dict) and isinstance(task.get("id"), str) and isinstance(task.get("status"), dict):
        return task
    raise EpisodeError("the answer has no task with id and status", reason="bad_result")


def _state(task: Mapping[str, Any]) -> str:
    return str(task["status"].get("state"))


def _was_sent(task: Mapping[str, Any], message_id: str) -> bool:
    """Return whether a task has got a message."""
    return any(message.get("messageId") == message_id for message in _objects(task.get("history")))


def _text(value: Any) -> str:
    """Return the text in the parts of a message or an artifact."""
    texts = (part.get("text") for part in _objects(value.get("parts") if isinstance(value, dict) else None))
    return "\n".join(text for text in texts if isinstance(text, str))
