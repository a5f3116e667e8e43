"""Begin and end the runs of agents on tasks, for whoever starts their processes (`streamward agents run`).

    POST /agents/AGENT_ID/trajectories/TRAJECTORY_ID/begin ──► started, acknowledged ──┐
                                                 …/end ──► ended, response, both too ──┴─► what is known of the run

Both may be sent again until there is an answer. Between them the process calls /agents/…/TRAJECTORY_ID/v1.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.agents.observation_header import ObservedBody
from gateway.http.body import Body, read, sent
from gateway.http.openapi import requested
from gateway.jobs.answers import RunAnswer
from schemas.events import MAX_GROUP_SIZE, Ending, Observed, Purpose, Sampling
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.task_runs import RunOrder
from streams.stages.agents.runs.run_end import RunEnd


class BeginsAndEnds(Protocol):
    """The runs of a server: `ServedRuns`."""

    async def begin(self, order: RunOrder) -> Conversation:
        """Return the run once its beginning is in the log. Raises CallError."""

    async def end(self, agent_id: str, trajectory_id: str, end: RunEnd) -> Conversation:
        """Return the run once its end and its response are in the log. Raises CallError."""


class SamplingBody(Body):
    """How the tokens of a task are drawn."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None = None
    stop: list[str] = Field([])


class BeginBody(Body):
    """A slot of an attempt at a task."""

    task_id: str
    sampling_id: str
    slot: int = Field(ge=0, lt=MAX_GROUP_SIZE)
    group_size: int = Field(ge=1, le=MAX_GROUP_SIZE)
    policy: str
    purpose: Purpose
    sampling: SamplingBody
    adapter_version: int | None = None
    max_turns: int | None = None
    metadata: dict[str, str] = Field({})
    traceparent: str | None = None
    observed: ObservedBody | None = None


class EndBody(Body):
    """How a run ended."""

    ending: Ending
    reason: Annotated[str, Field(max_length=1000)]
    observed: ObservedBody | None = None
    success: bool | None = None


BODIES = (BeginBody, EndBody)


def routes(runs: BeginsAndEnds, *, max_body_bytes: int) -> APIRouter:
    """Return the routes; a request with a longer body is refused."""
    router = APIRouter(prefix="/agents/{agent_id}/trajectories/{trajectory_id}")

    @router.post("/begin", **requested(BeginBody, name="begin_run", answer=RunAnswer))
    async def begin(request: Request, agent_id: str, trajectory_id: str) -> JSONResponse:
        """Begin the run of an agent on a task."""
        body = read(BeginBody, await sent(request, max_body_bytes))
        drawn = {**body.sampling.model_dump(), "stop": tuple(body.sampling.stop)}
        asked = {**body.model_dump(), "sampling": Sampling(**drawn), "observed": _event(body.observed)}
        return _known(await runs.begin(RunOrder(agent_id=agent_id, trajectory_id=trajectory_id, **asked)))

    @router.post("/end", **requested(EndBody, name="end_run", answer=RunAnswer))
    async def end(request: Request, agent_id: str, trajectory_id: str) -> JSONResponse:
        """End it, and record its response."""
        body = read(EndBody, await sent(request, max_body_bytes))
        end = RunEnd(body.ending, body.reason, observed=_event(body.observed), success=body.success)
        return _known(await runs.end(agent_id, trajectory_id, end))

    return router


def _event(body: ObservedBody | None) -> Observed | None:
    return None if body is None else body.event


def _known(run: Conversation) -> JSONResponse:
    began, end = run.began, run.end
    return JSONResponse(
        {
            "trajectory_id": run.trajectory_id,
            "adapter_version": run.adapter_version,
            "metadata": {} if began is None else began.metadata,
            "ending": None if end is None else end.ending,
            "turns": None if end is None else end.turns,
        }
    )
