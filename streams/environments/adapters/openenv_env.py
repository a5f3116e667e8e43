"""An environment behind a server of OpenEnv, over its WebSocket: one connection is one session.

    GET /schema, /metadata ──► {"type": "reset", "data": {"seed"}} ──► {"type": "step", "data": action} ──► … ──► close

A message is the JSON that OpenEnv's own client sends (openenv/core/env_client.py); that package is not needed here, and
takes seconds to import. Where an action has one field, what the policy writes is that field; else it is a JSON object.

Not covered: an environment that ignores its seed. The server does not tell, so `environments try` finds it out.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from schemas import json_text
from schemas.events import Message
from streams.environments.episodes.environment import Action, EpisodeError, Shown, StepResult
from streams.processes.worker_pipe import MAX_ANSWER_BYTES

TOO_BIG = 1009
"""What a WebSocket is closed with for a message over the limit (RFC 6455, section 7.4.1)."""
UNUSABLE = ("VALIDATION_ERROR", "INVALID_JSON")
"""Errors of a server that are about the action, and leave the episode where it was."""


class OpenEnvEnvironment:
    """Talks to the server at `url`."""

    def __init__(self, url: str, prompt: str = "", **reset: Any) -> None:
        """`prompt` is shown first; what else is in the settings is handed to the environment's `reset`.

        Raises EpisodeError: crashed, if no server answers; bad_result, if what answers is none of OpenEnv's.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            what = f"openenv:{url}: expected the address of a server, e.g. openenv:http://127.0.0.1:8000"
            raise EpisodeError(what, reason="unknown_environment")
        self._name, self._prompt, self._reset = f"openenv:{url}", prompt, reset
        base = url.rstrip("/")
        self._socket_url = f"ws{base.removeprefix('http')}/ws"
        self._session = ExitStack()
        self._connection: Any = None
        properties = self._fetched(f"{base}/schema").get("action", {}).get("properties", {})
        self._fields = {name: kind for name, kind in properties.items() if name != "metadata"}
        if not self._fields:
            raise EpisodeError(f"{self._name}: its /schema names no field of an action", reason="bad_result")
        self.version = str(self._fetched(f"{base}/metadata").get("version") or "unknown")

    def reset(self, seed: int) -> Shown:
        """Begin an episode in a session of its own."""
        self.close()
        try:
            # a proxy of the user's is left out: the connection goes to the named host or nowhere
            connection = connect(self._socket_url, proxy=None, max_size=MAX_ANSWER_BYTES)
            self._connection = self._session.enter_context(connection)
        except (OSError, WebSocketException) as exc:
            raise EpisodeError(f"{self._name}: no session: {exc}; is the server running?", reason="crashed") from exc
        data = self._asked("reset", self._reset | {"seed": seed})
        if data.get("done"):
            raise EpisodeError(f"{self._name}: the episode of seed {seed} is over at its reset", reason="bad_result")
        system = "\n".join(part for part in (self._prompt, f"Answer with only {self._expected()}.") if part)
        return Shown((Message(role="system", content=system), _message(self._text(data))))

    def step(self, action: Action) -> StepResult:
        """Send the action that the text says. One that the server cannot read is answered by what it expects."""
        try:
            data = self._asked("step", self._written(action.text.strip()))
        except ValueError as exc:
            return StepResult(Shown((_message(f"error: {exc}"),)), reward=0.0, ok=False)
        ended = data.get("done", False)
        if ended is True:
            self.close()
        return StepResult(Shown((_message(self._text(data)),)), reward=data.get("reward"), terminated=ended)

    def close(self) -> None:
        """End the session; the server may serve only one at a time."""
        self._connection = None
        self._session.close()

    def _fetched(self, url: str) -> dict[str, Any]:
        try:
            answer = httpx.get(url, timeout=10.0, trust_env=False)
            answer.raise_for_status()
            found = answer.json()
        except (httpx.HTTPStatusError, ValueError) as exc:
            raise EpisodeError(f"{self._name}: {url} is not OpenEnv's: {exc}", reason="bad_result") from exc
        except httpx.HTTPError as exc:
            raise EpisodeError(f"{self._name}: {url}: {exc}; is the server running?", reason="crashed") from exc
        if not isinstance(found, dict):
            raise EpisodeError(f"{self._name}: {url}: expected an object, got {found!r:.80}", reason="bad_result")
        return found

    def _asked(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an observation. Raises ValueError for an action that the server cannot read."""
        if self._connection is None:
            raise EpisodeError(f"{self._name}: {kind}: the session has ended", reason="bad_result")
        try:
            self._connection.send(json.dumps({"type": kind, "data": data}))
            answer = json_text.parse(self._connection.recv())
        except ConnectionClosed as exc:
            big = TOO_BIG in (exc.sent and exc.sent.code, exc.rcvd and exc.rcvd.code)
            what = f"it shows more than {MAX_ANSWER_BYTES} bytes at once" if big else f"the session broke off: {exc}"
            raise EpisodeError(f"{self._name}: {kind}: {what}", reason="too_large" if big else "crashed") from exc
        except (ValueError, RecursionError) as exc:
            raise EpisodeError(f"{self._name}: {kind}: its answer is no JSON: {exc}", reason="bad_result") from exc
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(found, dict):
            raise EpisodeError(f"{self._name}: {kind}: expected a message, got {answer!r:.80}", reason="bad_result")
        if answer.get("type") == "error" and kind == "step" and found.get("code") in UNUSABLE:
            raise ValueError(f"expected {self._expected()}")
        if answer.get("type") != "observation":
            said = f"{found.get('code')}: {found.get('message', '')!s:.1000}"
            hint = "; let it serve more sessions at once" if found.get("code") == "CAPACITY_REACHED" else ""
            raise EpisodeError(f"{self._name}: {kind}: the server says {said}{hint}", reason="exception")
        return found

    def _expected(self) -> str:
        if len(self._fields) == 1:
            field, kind = next(iter(self._fields.items()))
            is_text = kind.get("type") == "string"
            return f"the {field}" if is_text else f"the {field}, as JSON of type {kind.get('type', 'any')}"
        names = ", ".join(f"{name} ({kind.get('type', 'any')})" for name, kind in self._fields.items())
        return f"a JSON object with {names}"

    def _written(self, text: str) -> dict[str, Any]:
        """Return the action that a text says. Raises ValueError."""
        if len(self._fields) == 1:
            field, kind = next(iter(self._fields.items()))
            if kind.get("type") == "string":
                return {field: text}
        try:
            given = json_text.parse(text)
        except (ValueError, RecursionError) as exc:
            raise ValueError(f"expected {self._expected()}") from exc
        if len(self._fields) == 1:
            return {field: given}
        if not isinstance(given, dict):
            raise ValueError(f"expected {self._expected()}")
        return given

    def _text(self, data: dict[str, Any]) -> str:
        observation = data.get("observation")
        if not isinstance(observation, dict):
            what = f"{self._name}: expected an observation, got {observation!r:.80}"
            raise EpisodeError(what, reason="bad_result")
        values = list(observation.values())
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return json.dumps(observation, sort_keys=True, ensure_ascii=False)


def _message(text: str) -> Message:
    return Message(role="user", content=text)
