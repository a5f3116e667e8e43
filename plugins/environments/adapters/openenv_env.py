"""An environment behind a server of OpenEnv, over its WebSocket: one connection is one session.

    GET /schema, /metadata ──► {"type": "reset", "data": {"seed"}} ──► {"type": "step", "data": action} ──► … ──► close

A message is the JSON that OpenEnv's own client sends (openenv/core/env_client.py); the package itself is not needed,
and takes seconds to import. If an action has one field, the policy's text is that field; otherwise it is a JSON object.

Not covered: an environment that ignores its seed. The server does not report that; `agents environments try` detects
it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx2
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from plugins.environments.episodes.environment import Action, EpisodeError, Observation, StepResult
from schemas import json_text
from schemas.events import Message
from streams.egress import trace_headers
from streams.egress.address_guard import EgressRefused, UrlOrigin, open_socket
from streams.egress.http_client import AnswerTooLarge, fetch, new_client
from streams.processes.worker_pipe import MAX_ANSWER_BYTES

LIMIT_S = 10.0
"""Of a connection, and of a description."""
TOO_BIG = 1009
"""What a WebSocket is closed with for a message over the limit (RFC 6455, section 7.4.1)."""
UNUSABLE = ("VALIDATION_ERROR", "INVALID_JSON")
"""Errors of a server that are about the action, and leave the episode where it was."""


class OpenEnvEnvironment:
    """Talks to the server at `url`."""

    def __init__(self, url: str, prompt: str = "", **reset: Any) -> None:
        """`prompt` is shown first; the other settings are arguments of the environment's `reset`.

        Raises EpisodeError: crashed, if no server answers; bad_result, if it is not an OpenEnv server.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = f"openenv:{url}: expected the address of a server, e.g. openenv:http://127.0.0.1:8000"
            raise EpisodeError(message, reason="unknown_environment")
        self._name, self._prompt, self._reset = f"openenv:{url}", prompt, reset
        base = url.rstrip("/")
        self._socket_url = f"ws{base.removeprefix('http')}/ws"
        self._session = ExitStack()
        self._connection: Any = None
        properties = self._fetch(f"{base}/schema").get("action", {}).get("properties", {})
        self._fields = {name: kind for name, kind in properties.items() if name != "metadata"}
        if not self._fields:
            raise EpisodeError(f"{self._name}: its /schema names no field of an action", reason="bad_result")
        self.version = str(self._fetch(f"{base}/metadata").get("version") or "unknown")

    def reset(self, seed: int) -> Observation:
        """Begin an episode in a session of its own."""
        self.close()
        try:
            # a proxy of the user's is left out: the connection goes to the named host or nowhere
            connected = open_socket(self._socket_url, UrlOrigin.LISTED, LIMIT_S)
            connection = connect(
                self._socket_url,
                sock=connected,
                proxy=None,
                max_size=MAX_ANSWER_BYTES,
                additional_headers=trace_headers(),
            )
            self._connection = self._session.enter_context(connection)
        except (OSError, EgressRefused, WebSocketException) as exc:
            raise EpisodeError(f"{self._name}: no session: {exc}; is the server running?", reason="crashed") from exc
        data = self._request("reset", self._reset | {"seed": seed})
        if data.get("done"):
            raise EpisodeError(f"{self._name}: the episode of seed {seed} is over at its reset", reason="bad_result")
        system = "\n".join(part for part in (self._prompt, f"Answer with only {self._action_text()}.") if part)
        return Observation((Message(role="system", content=system), _message(self._text(data))))

    def step(self, action: Action) -> StepResult:
        """Send the action that is written in the text. For one that the server cannot read, show what it expects."""
        try:
            data = self._request("step", self._parse_action(action.text.strip()))
        except ValueError as exc:
            return StepResult(Observation((_message(f"error: {exc}"),)), reward=0.0, ok=False)
        ended = data.get("done", False)
        if ended is True:
            self.close()
        return StepResult(Observation((_message(self._text(data)),)), reward=data.get("reward"), terminated=ended)

    def end_session(self) -> None:
        """End the session; the next `reset` begins another."""
        self.close()

    def close(self) -> None:
        """End the session; the server may serve only one at a time."""
        self._connection = None
        self._session.close()

    def _fetch(self, url: str) -> dict[str, Any]:
        try:
            with new_client(UrlOrigin.LISTED) as client:
                status, body = fetch(client, "GET", url, limit_s=LIMIT_S, most_bytes=MAX_ANSWER_BYTES)
            if status != 200:
                raise ValueError(f"it answers with status {status}")
            document = json_text.parse(body)
        except (AnswerTooLarge, ValueError) as exc:
            raise EpisodeError(f"{self._name}: {url} is not OpenEnv's: {exc}", reason="bad_result") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise EpisodeError(f"{self._name}: {url}: {exc}; is the server running?", reason="crashed") from exc
        if not isinstance(document, dict):
            raise EpisodeError(f"{self._name}: {url}: expected an object, got {document!r:.80}", reason="bad_result")
        return document

    def _request(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an observation. Raises ValueError for an action that the server cannot read."""
        if self._connection is None:
            raise EpisodeError(f"{self._name}: {kind}: the session has ended", reason="bad_result")
        try:
            self._connection.send(json.dumps({"type": kind, "data": data}))
            answer = json_text.parse(self._connection.recv())
        except ConnectionClosed as exc:
            is_too_large = TOO_BIG in (exc.sent and exc.sent.code, exc.rcvd and exc.rcvd.code)
            problem = (
                f"it shows more than {MAX_ANSWER_BYTES} bytes at once"
                if is_too_large
                else f"the session broke off: {exc}"
            )
            raise EpisodeError(
                f"{self._name}: {kind}: {problem}", reason="too_large" if is_too_large else "crashed"
            ) from exc
        except (ValueError, RecursionError) as exc:
            raise EpisodeError(f"{self._name}: {kind}: its answer is no JSON: {exc}", reason="bad_result") from exc
        payload = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(payload, dict):
            raise EpisodeError(f"{self._name}: {kind}: expected a message, got {answer!r:.80}", reason="bad_result")
        if answer.get("type") == "error" and kind == "step" and payload.get("code") in UNUSABLE:
            raise ValueError(f"expected {self._action_text()}")
        if answer.get("type") != "observation":
            problem = f"{payload.get('code')}: {payload.get('message', '')!s:.1000}"
            hint = "; let it serve more sessions at once" if payload.get("code") == "CAPACITY_REACHED" else ""
            raise EpisodeError(f"{self._name}: {kind}: the server says {problem}{hint}", reason="exception")
        return payload

    def _action_text(self) -> str:
        if len(self._fields) == 1:
            field, kind = next(iter(self._fields.items()))
            is_text = kind.get("type") == "string"
            return f"the {field}" if is_text else f"the {field}, as JSON of type {kind.get('type', 'any')}"
        names = ", ".join(f"{name} ({kind.get('type', 'any')})" for name, kind in self._fields.items())
        return f"a JSON object with {names}"

    def _parse_action(self, text: str) -> dict[str, Any]:
        """Return the action that is written in a text. Raises ValueError."""
        if len(self._fields) == 1:
            field, kind = next(iter(self._fields.items()))
            if kind.get("type") == "string":
                return {field: text}
        try:
            value = json_text.parse(text)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"expected {self._action_text()}") from exc
        if len(self._fields) == 1:
            return {field: value}
        if not isinstance(value, dict):
            raise ValueError(f"expected {self._action_text()}")
        return value

    def _text(self, data: dict[str, Any]) -> str:
        observation = data.get("observation")
        if not isinstance(observation, dict):
            message = f"{self._name}: expected an observation, got {observation!r:.80}"
            raise EpisodeError(message, reason="bad_result")
        values = list(observation.values())
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return json.dumps(observation, sort_keys=True, ensure_ascii=False)


def _message(text: str) -> Message:
    return Message(role="user", content=text)
