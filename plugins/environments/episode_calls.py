"""The model calls of an episode, one for each of its turns.

    messages, tools, Observed ──► POST …/v1/chat/completions ──► the answer's message ──► Action

A call is retried while the server cannot accept it. Its Idempotency-Key is the number of its turn, so one that was
recorded before kill -9 of the server is not sampled again.
"""

from __future__ import annotations

import http
import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.connection_pool import LATER, KeptAlive
from plugins.environments.episodes.environment import Action
from schemas import json_text
from schemas.events import Ending, Observed, ToolCall
from streams.errors import StreamwardError

PAUSE_S = 0.5
"""Delay before a call is retried."""


class CallFailed(StreamwardError):
    """No answer came, which ends the run."""

    def __init__(self, ending: Ending, message: str) -> None:
        super().__init__(message)
        self.ending = ending


class ModelCalls:
    """The calls of one run, in order. For one thread."""

    def __init__(self, server: KeptAlive, run: ProgramRun, time_limit_s: float, stop: threading.Event) -> None:
        """The time limit is for all calls together. Once `stop` is set, no further call is made."""
        self._http, self._run, self._time_limit_s, self._stop = server, run, time_limit_s, stop
        self._deadline = time.monotonic() + time_limit_s
        self._path = f"{urlsplit(run.base_url).path}/v1/chat/completions"
        self._turn = 0

    def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], observed: Observed
    ) -> dict[str, Any]:
        """Return the message that the policy answers with. Raises CallFailed."""
        task = self._run.task
        drawn = {name: value for name, value in asdict(task.sampling).items() if value not in (None, ())}
        body = {"model": task.policy, "messages": messages, **drawn} | ({"tools": tools} if tools else {})
        headers = {
            "Idempotency-Key": f"{self._run.trajectory_id}/{self._turn}",
            "X-Streamward-Observed": json.dumps(asdict(observed)),
        }
        self._turn += 1
        while True:
            left_s = self._deadline - time.monotonic()
            if self._stop.is_set():
                raise CallFailed("cancelled", "it was asked to stop")
            if left_s <= 0:
                raise CallFailed("timeout", f"it ran for {self._time_limit_s:g} s, which is its time limit")
            try:
                answer = self._http.post(self._path, body, left_s, headers)
            except (OSError, http.client.HTTPException):  # it is unreachable, or was killed
                self._stop.wait(PAUSE_S)
                continue
            if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE or answer.status in LATER:
                self._stop.wait(PAUSE_S)
            elif answer.status == http.HTTPStatus.OK:
                return _message(answer.body)
            else:
                raise CallFailed("failed", f"call {self._turn} was refused: {answer.problem}")


def action_of(message: dict[str, Any]) -> Action:
    """Return the policy's message as an environment's action."""
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    return Action(message["content"] or "", calls)


def _message(body: bytes) -> dict[str, Any]:
    """Return the first choice's message. Raises CallFailed if there is none."""
    try:
        message = json_text.parse(body)["choices"][0]["message"]
        action_of(message)
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise CallFailed("failed", f"the server's answer is none of a chat completion: {exc}") from exc
    return dict(message)
