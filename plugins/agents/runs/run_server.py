"""Begin and end runs at the server of agents, retrying while it is unreachable; or let it answer them.

    AgentRunner ──► POST …/begin, …/end ──► `streamward serve` ──► KnownRun: the run in the log
                └─► POST …/act, until it has ended ──► the server calls the agent's tools ──► RunProgress

All requests are idempotent, so each is repeated until it is answered or refused. Once the process should stop, it
waits only a little longer for an unreachable server: a run without an end is ended by the next process that reads its
task.
"""

from __future__ import annotations

import http
import http.client
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.connection_pool import LATER, KeptAlive
from schemas import json_text
from schemas.events import AgentProgram, Ending, Observed, Purpose, RunEnding, Task, derive_id
from streams.errors import RefusedError, ServerUnavailable
from streams.observability.metrics import OFF, Meter
from streams.stages.agents.recording.run_end import TrajectoryEnd

ANSWER_S = 120.0
"""How long one request may take; the server itself gives up before."""
LOOK_S = 10.0
"""How long a look at a run may take."""
PAUSE_S = 0.5
"""Delay before a request is repeated."""
STOPPING_S = 30.0
"""How long to wait for an unreachable server once the process should stop."""
SERVER = "server"
"""Name of the readiness condition."""
MAX_REASON = 1000
"""Longest reason for an end, in characters."""
LIMITS: tuple[RunEnding, ...] = ("max_turns", "max_tokens", "budget")
OTHER_ENDS: Mapping[str, Ending] = {"timeout": "timeout", "interrupted": "cancelled"}

A = TypeVar("A")

log = logging.getLogger("streamward.agents")


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The state of a run in the log."""

    trajectory_id: str
    adapter_version: int
    metadata: dict[str, str]
    """Its start as recorded, whichever process sent it."""
    ending: Ending | None
    turns: int | None
    error: str | None
    """Why its response failed."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a run that the server answers has come to."""

    ending: RunEnding | None
    error: str | None
    answer: str | None
    """The turn with its answer."""
    waits_for: list[str]

    def end(self, purpose: Purpose) -> TrajectoryEnd:
        """Return the end of the task's run. One that learns from it has done all that it may, as an episode has."""
        is_done = self.ending == "success" or (self.ending in LIMITS and purpose != "serve")
        ending: Ending = "completed" if is_done else OTHER_ENDS.get(self.ending or "", "failed")
        return TrajectoryEnd(ending, self.error or self.ending or "", answer=self.answer)


def trajectories_url(server: str, agent_id: str) -> str:
    """Return the server's URL for the runs of an agent; append a run's id."""
    return f"{server.rstrip('/')}/agents/{quote(agent_id, safe='')}/trajectories"


class AgentServer:
    """The server at one address, for the runs of one agent. Any number of threads may use it."""

    def __init__(
        self,
        url: str,
        agent_id: str,
        stop: threading.Event,
        meter: Meter = OFF,
        key: SecretStr | None = None,
        program: AgentProgram | None = None,
    ) -> None:
        """The condition `server` of `meter` fails while it is unreachable. Raises SettingsError for a wrong `url`."""
        self.url, self._stop, self._program = trajectories_url(url, agent_id), stop, program
        self._http, self._path = KeptAlive(self.url, key), urlsplit(self.url).path
        self._is_unreachable, self._meter = False, meter
        meter.ready(SERVER)

    def begin(
        self, task: Task, sampling_id: str, slot: int, metadata: dict[str, str], observed: Observed | None = None
    ) -> KnownRun:
        """Return the run of this slot, begun now or before. Raises as `end`."""
        order = self._order(task, sampling_id, slot, metadata, observed)
        return self._post(KnownRun, derive_id(sampling_id, slot), "begin", order)

    def has_ended(self, trajectory_id: str, *order: Any) -> bool:
        """Return whether a run that was begun with this order has ended; False also while the server is unreachable.

        Raises RefusedError.
        """
        answer = self._try(KnownRun, trajectory_id, "begin", self._order(*order), LOOK_S)
        return isinstance(answer, KnownRun) and answer.ending is not None

    def _order(
        self, task: Task, sampling_id: str, slot: int, metadata: dict[str, str], observed: Observed | None = None
    ) -> dict[str, Any]:
        return {
            "task_id": task.task_id,
            "subject": task.subject,
            "sampling_id": sampling_id,
            "slot": slot,
            "group_size": task.group_size,
            "policy": task.policy,
            "purpose": task.purpose,
            "sampling": asdict(task.sampling),
            "adapter_version": task.adapter_version,
            "max_turns": task.max_turns,
            "metadata": metadata,
            "traceparent": task.traceparent,
            "observed": None if observed is None else asdict(observed),
            "program": None if self._program is None else asdict(self._program),
            "prompt_version": None if task.prompt_version is None else str(task.prompt_version),
            "fork": None if task.fork is None else {**asdict(task.fork), "token_ids": list(task.fork.token_ids)},
        }

    def end(self, trajectory_id: str, end: TrajectoryEnd) -> KnownRun:
        """Return the run once it has ended, in this way or as reported earlier. Raises RefusedError for a permanent
        failure, ServerUnavailable if the process should stop meanwhile.
        """
        body = {
            "ending": end.ending,
            "reason": end.reason[:MAX_REASON],
            "observed": None if end.observed is None else asdict(end.observed),
            "success": end.success,
            "answer": end.answer,
            "answer_rule": end.answer_rule,
            "output": end.output,
        }
        return self._post(KnownRun, trajectory_id, "end", body)

    def act(self, run: ProgramRun, stop: threading.Event, limit_s: float) -> TrajectoryEnd:
        """Return how a run ends that the server answers, after `limit_s` at most. Raises ServerUnavailable."""
        limit, waits = time.monotonic() + limit_s, list[str]()
        try:
            while True:
                is_late = time.monotonic() >= limit
                progress = self._post(RunProgress, run.trajectory_id, "act", {"cancel": is_late or stop.is_set()})
                if progress.ending is not None and is_late:
                    waited = f"; it waited for {', '.join(waits)}" if waits else ""
                    return TrajectoryEnd("timeout", f"it has no answer after {limit_s:g} s{waited}")
                if progress.ending is not None:
                    return progress.end(run.task.purpose)
                if progress.waits_for and progress.waits_for != waits:
                    log.info("run %s waits for %s", run.trajectory_id, ", ".join(progress.waits_for))
                waits = progress.waits_for
                time.sleep(PAUSE_S if waits else 0)
        except RefusedError as exc:
            return TrajectoryEnd("failed", str(exc))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _post(self, kind: type[A], trajectory_id: str, action: str, body: dict[str, Any]) -> A:
        limit: float | None = None
        while isinstance(answer := self._try(kind, trajectory_id, action, body, ANSWER_S), str):
            self._note_answer(False, answer)
            if self._stop.is_set():
                limit = limit or time.monotonic() + STOPPING_S
                if time.monotonic() >= limit:
                    raise ServerUnavailable(f"{self.url} did not {action} run {trajectory_id}: {answer}", lost=False)
            time.sleep(PAUSE_S)
        self._note_answer(True, "")
        return answer

    def _try(self, kind: type[A], trajectory_id: str, action: str, body: dict[str, Any], limit_s: float) -> A | str:
        """Return the run, or why the server does not answer now. Raises RefusedError."""
        try:
            answer = self._http.post(f"{self._path}/{trajectory_id}/{action}", body, limit_s)
            if answer.status == http.HTTPStatus.OK:
                return kind(**json_text.parse(answer.body))
        except (OSError, http.client.HTTPException, ValueError, TypeError) as exc:
            return str(exc)
        if answer.status < 500 and answer.status not in LATER:
            raise RefusedError(f"the server does not {action} run {trajectory_id}: {answer.problem}")
        return answer.problem

    def _note_answer(self, answers: bool, problem: str) -> None:
        """Log once that the server is unreachable, and once that it is back."""
        if answers and self._is_unreachable:
            log.info("%s answers again", self.url)
            self._meter.ready(SERVER)
        elif not answers and not self._is_unreachable:
            self._meter.not_ready(SERVER, f"{self.url} does not answer: {problem}")
            log.warning("%s does not answer, and is asked again: %s. Does `streamward serve` run?", self.url, problem)
        self._is_unreachable = not answers
