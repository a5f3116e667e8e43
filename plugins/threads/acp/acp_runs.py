"""Runs of the Agent Protocol: an agent answers a thread; clients wait for the answer, stream it, or rejoin its stream.

    POST /acp/runs, …/wait, …/stream ──► run_requested ──► threads ──► acknowledged ──► ThreadRuns
    GET  /acp/runs/{id}, …/wait, …/stream · POST …/resume, …/cancel · DELETE · POST /acp/runs/search

The same below /acp/threads/{id}, where langgraph-sdk looks for it. A run on a thread that is busy is refused,
waits, or interrupts the other, as `multitask_strategy` says (default: refused).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.http import sse
from gateway.http.principal import actor_of
from gateway.http.route import CONVERSATION, Reply
from plugins.agents.registry.agent_log import object_of
from plugins.threads.acp.acp_threads import LISTED
from plugins.threads.acp.requested_runs import RequestedRuns, sees_run
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.acp.run_frames import (
    BEFORE,
    DEFAULT_MODES,
    StreamPlace,
    metadata_frame,
    place_of,
    resumed_place,
    run_values,
)
from plugins.threads.acp.thread_access import id_of, read_uuid, thread_name
from plugins.threads.acp.thread_answers import (
    RunResult,
    ThreadRunAnswer,
    agent_name,
    list_response,
    run_answer,
    run_result,
)
from plugins.threads.acp.thread_bodies import (
    STREAM_MODES,
    CancelQuery,
    ResumeBody,
    RunBody,
    RunSearch,
    ThreadRunsQuery,
)
from plugins.threads.acp.thread_interfaces import ACP, RUNS
from plugins.threads.log.thread_log import run_event
from plugins.threads.log.thread_state import RunState
from streams.errors import CallError

RUNS_LISTED = "POST /acp/runs/search lists runs"
"""Where the ids of runs are found."""
NEW_RUN: dict[str, Any] = {**CONVERSATION, "may": "chat.call", "refuses": (404, 409)}
TOOLSETS = ("log", "policy")
"""The sets of MCP by which an assistant runs agents."""


class AcpRuns:
    """The runs of a server."""

    def __init__(self, runs: ThreadRuns, requested: RequestedRuns) -> None:
        self._runs, self._requested = runs, requested

    # --- new runs -----------------------------------------------------------------------------------------------------

    @RUNS.post("/runs", **NEW_RUN)
    async def acp_create_run(self, request: Request, body: RunBody) -> Reply[ThreadRunAnswer]:
        """Request a run, and do not wait for it."""
        run = await self._requested.request(request, body)
        return Reply(run_answer(request, run), _headers(run))

    @ACP.post(
        "/runs/wait",
        **NEW_RUN,
        sends={"agent_id": "concierge", "input": "A room, if it is hot"},
        tools={"run_agent": ""},
        toolsets=TOOLSETS,
    )
    async def acp_create_and_wait_run(self, request: Request, body: RunBody) -> Reply[RunResult]:
        """Request a run of an agent, and wait until it has ended, or waits for an answer: see requires_action."""
        run = await self._wait_new(request, await self._requested.request(request, body), body)
        return Reply(run_result(request, run), _headers(run, "wait"))

    @RUNS.post("/runs/stream", **NEW_RUN, streams=True)
    async def acp_create_and_stream_run(self, request: Request, body: RunBody) -> StreamingResponse:
        """Request a run, and stream what it does."""
        run = await self._requested.request(request, body)
        after = BEFORE if run.steps.resumed_at is None else resumed_place(run)
        modes = tuple(body.stream_mode or DEFAULT_MODES)
        return self._stream(request, run, modes, after, cancels=body.on_disconnect != "continue")

    @ACP.post("/threads/{thread_id}/runs/wait", **NEW_RUN, ids=LISTED)
    async def acp_create_and_wait_thread_run(self, request: Request, thread_id: str, body: RunBody) -> Response:
        """Request a run on a thread, and wait until it has ended."""
        run = await self._wait_new(request, await self._requested.request(request, body), body)
        return _values(run)

    # --- existing runs ------------------------------------------------------------------------------------------------

    @ACP.post("/runs/search", may="chat.call", refuses=(404,))
    async def acp_search_runs(self, request: Request, body: RunSearch) -> Response:
        """List runs, the newest first."""
        threads = await self._runs.open()
        runs = [run for state in threads.threads() for run in state.runs.values() if sees_run(request, run)]
        thread = None if body.thread_id is None else thread_name(request, body.thread_id)
        wanted = (body.metadata or {}).items()
        chosen = [
            run
            for run in sorted(runs, key=lambda run: (-run.request.created_at, run.run_id))
            if body.status in (None, run.status)
            and thread in (None, run.thread_id)
            and body.agent_id in (None, agent_name(request, run.agent_id))
            and all(object_of(run.request.labels).get(name) == value for name, value in wanted)
        ]
        return list_response(run_answer(request, run) for run in chosen[body.offset : body.offset + body.limit])

    @RUNS.get("/runs/{run_id}", may="chat.call", ids=RUNS_LISTED)
    async def acp_get_run(self, request: Request, run_id: str) -> ThreadRunAnswer:
        """Look at a run."""
        return run_answer(request, await self._requested.find(request, run_id))

    @RUNS.delete("/runs/{run_id}", may="chat.call", ids=RUNS_LISTED, status=204)
    async def acp_delete_run(self, request: Request, run_id: str) -> None:
        """Delete a run; one in progress is cancelled. What it said stays in its thread."""
        run = await self._requested.find(request, run_id)
        await self._runs.append(run_event(run, "run_deleted", actor_of(request)))

    @ACP.get("/runs/{run_id}/wait", may="chat.call", ids=RUNS_LISTED, tools={"wait_run": ""}, toolsets=TOOLSETS)
    async def acp_wait_run(self, request: Request, run_id: str) -> RunResult:
        """Wait until a run has ended, or waits for an answer."""
        run = await self._requested.find(request, run_id)
        return run_result(request, await self._runs.wait(run.run_id))

    @RUNS.get("/runs/{run_id}/stream", may="chat.call", ids=RUNS_LISTED, streams=True)
    async def acp_stream_run(self, request: Request, run_id: str) -> StreamingResponse:
        """Stream what a run does; after `Last-Event-ID`, if that is sent, else from its beginning."""
        run = await self._requested.find(request, run_id)
        query = request.query_params
        modes = tuple(mode for mode in query.getlist("stream_mode") if mode) or ("values", "messages")
        if unknown := [mode for mode in modes if mode not in STREAM_MODES]:
            expected = ", ".join(STREAM_MODES)
            raise CallError("invalid", f"stream_mode is {unknown[0][:80]!r}; expected one of {expected}", "stream_mode")
        after, cancels = place_of(request.headers.get("last-event-id")), query.get("cancel_on_disconnect") == "true"
        return self._stream(request, run, modes, after, cancels=cancels)

    @RUNS.post("/runs/{run_id}/cancel", may="chat.call", ids=RUNS_LISTED, status=204, refuses=(404,))
    async def acp_cancel_run(self, request: Request, run_id: str, query: CancelQuery) -> None:
        """Cancel a run. One that has ended stays as it is."""
        run = await self._requested.find(request, run_id)
        await self._runs.cancel(run.run_id, actor_of(request), rolled_back=query.action == "rollback")

    @ACP.post(
        "/runs/{run_id}/resume",
        may="chat.call",
        ids=RUNS_LISTED,
        refuses=(404, 409),
        sends={"resume": "yes"},
        tools={"resume_run": ""},
        toolsets=TOOLSETS,
    )
    async def acp_resume_run(self, request: Request, run_id: str, body: ResumeBody) -> ThreadRunAnswer:
        """Answer a run that waits: yes or no to its calls, or the results of the client's own tools."""
        run = await self._requested.find(request, run_id)
        return run_answer(request, await self._requested.resume(request, run, body.resume))

    @ACP.get("/threads/{thread_id}/runs", may="chat.call", ids=LISTED)
    async def acp_list_thread_runs(self, request: Request, thread_id: str, query: ThreadRunsQuery) -> Response:
        """List the runs of a thread, the newest first."""
        thread = read_uuid(thread_id, "thread_id")
        return await self.acp_search_runs(request, RunSearch(thread_id=thread, **query.model_dump()))

    @ACP.get("/threads/{thread_id}/runs/{run_id}/join", may="chat.call", ids=RUNS_LISTED)
    async def acp_join_thread_run(self, request: Request, thread_id: str, run_id: str) -> Response:
        """Wait until a run of a thread has ended."""
        run = await self._requested.find(request, run_id)
        return _values(await self._runs.wait(run.run_id))

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _wait_new(self, request: Request, run: RunState, body: RunBody) -> RunState:
        """Return a new run once it has ended. If its client hangs up it is cancelled, unless it said otherwise."""

        async def wait_for_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        waiting = asyncio.create_task(self._runs.wait(run.run_id))
        leaving = asyncio.create_task(wait_for_disconnect())
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                if body.on_disconnect != "continue":
                    self._runs.leave(run.run_id, actor_of(request))
                raise ClientDisconnect
            return await waiting
        finally:
            waiting.cancel()
            leaving.cancel()

    def _stream(
        self, request: Request, run: RunState, modes: tuple[str, ...], after: StreamPlace, *, cancels: bool = False
    ) -> StreamingResponse:
        actor = actor_of(request)

        async def events() -> AsyncIterator[bytes]:
            whole = False
            if after != BEFORE and request.method == "POST":  # a run that was resumed
                yield metadata_frame(run).encode()
            try:
                async with aclosing(self._runs.stream(run.run_id, modes, after)) as frames:
                    async for frame in frames:
                        yield frame
                whole = True
            except CallError:  # deleted meanwhile, or the log cannot be read: the stream has no end
                whole = True
            finally:
                if cancels and not whole:
                    self._runs.leave(run.run_id, actor)

        headers = sse.HEADERS | _headers(run, "stream")
        return StreamingResponse(events(), headers=headers, media_type=sse.MEDIA_TYPE)


def _values(run: RunState) -> Response:
    """Return the outcome of a run in langgraph-sdk's form: the context of its thread, with the messages in it."""
    return JSONResponse(run_values(run), headers=_headers(run, "join"))


def _headers(run: RunState, action: str = "") -> dict[str, str]:
    """Return the paths of a run and of its stream.

    Both are relative to /acp, as langgraph-sdk expects; a full URL would name this server, not a proxy in front of it.
    """
    path = f"/runs/{run.run_id}"
    if not run.request.stateless:
        path = f"/threads/{id_of(run.thread_id)}{path}"
    place = {"content-location": path, "x-streamward-trajectory": run.run_id}
    if action:
        place["location"] = f"{path if action == 'join' else f'/runs/{run.run_id}'}/{action}"
    return place
