"""Threads of the Agent Protocol: conversations that outlive the server's processes.

POST /acp/threads · GET, PATCH, DELETE /acp/threads/{id} · …/copy · …/history · POST /acp/threads/search
    ──► ThreadEvent ──► threads ──► own fold has passed it ──► the thread as it is then
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.agents.caller import subject_of
from gateway.http.principal import actor_of
from gateway.http.route import CONVERSATION
from plugins.agents.registry.agent_log import object_of
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.acp.thread_access import check_thread, own_agent, thread_name
from plugins.threads.acp.thread_answers import ThreadAnswer, list_response, state_answer, thread_answer
from plugins.threads.acp.thread_bodies import HistoryBody, HistoryQuery, ThreadCreate, ThreadPatch, ThreadSearch
from plugins.threads.acp.thread_interfaces import ACP
from plugins.threads.acp.thread_views import ThreadViews
from plugins.threads.log.thread_state import ThreadState
from schemas import json_text
from schemas.events import ThreadEvent
from streams.errors import CallError
from streams.kafka import times

USER = "user_id"
"""Key of the person in the metadata of threads and runs."""
LISTED = "POST /acp/threads/search lists threads"
"""Where the ids of threads are found."""


class AcpThreads:
    """The threads of a server."""

    def __init__(self, runs: ThreadRuns, views: ThreadViews) -> None:
        self._runs, self._views = runs, views

    @ACP.post("/threads", may="chat.call", refuses=(409,))
    async def acp_create_thread(self, request: Request, body: ThreadCreate) -> ThreadAnswer:
        """Create a thread."""
        thread_id = body.thread_id or str(uuid.uuid4())
        name = thread_name(request, thread_id)
        is_new = body.thread_id is None or await self._views.find(request, name) is None
        if is_new:
            labels = json_text.one_line(body.metadata or {})
            event = thread_event(request, name, "created", agent_id=own_agent(request), labels=labels)
            state, refusal = await self._runs.append(event)
            check_thread(request, state, thread_id)
            is_new = refusal is None
        if not is_new and body.if_exists != "do_nothing":
            raise CallError("conflict", f"there is a thread {thread_id} already; use if_exists: do_nothing")
        return thread_answer(request, await self._views.get(request, thread_id))

    @ACP.post("/threads/search", may="chat.call", refuses=())
    async def acp_search_threads(self, request: Request, body: ThreadSearch) -> Response:
        """List threads, the newest first."""
        states = await self._views.search(request, partial(_fits, body=body), body.offset, body.limit)
        return list_response(thread_answer(request, state) for state in states)

    @ACP.get("/threads/{thread_id}", may="chat.call", ids=LISTED)
    async def acp_get_thread(self, request: Request, thread_id: str) -> ThreadAnswer:
        """Look at a thread."""
        return thread_answer(request, await self._views.get(request, thread_id))

    @ACP.patch("/threads/{thread_id}", **CONVERSATION, may="chat.call", ids=LISTED)
    async def acp_patch_thread(self, request: Request, thread_id: str, body: ThreadPatch) -> ThreadAnswer:
        """Change a thread."""
        state = await self._views.get(request, thread_id)
        await self._views.keep(request, state.thread_id)
        changed = thread_event(
            request,
            state.thread_id,
            "changed",
            of=state,
            labels=None if body.metadata is None else json_text.one_line(body.metadata),
            values=None if body.values is None else json_text.one_line(body.values),
            checkpoint=None if body.checkpoint is None else body.checkpoint.checkpoint_id,
            messages=tuple(message.message for message in body.messages or ()),
        )
        after, refusal = await self._runs.append(changed)
        if refusal is not None:
            raise CallError("not_found" if "no checkpoint" in refusal else "conflict", refusal, "checkpoint")
        return thread_answer(request, check_thread(request, after, thread_id))

    @ACP.delete("/threads/{thread_id}", may="chat.call", ids=LISTED, status=204)
    async def acp_delete_thread(self, request: Request, thread_id: str) -> None:
        """Delete a thread. A run in progress on it is cancelled."""
        state = await self._views.get(request, thread_id)
        await self._views.forget(request, state.thread_id)
        await self._runs.append(thread_event(request, state.thread_id, "deleted", of=state))

    @ACP.post("/threads/{thread_id}/copy", may="chat.call", ids=LISTED, refuses=(404,))
    async def acp_copy_thread(self, request: Request, thread_id: str) -> ThreadAnswer:
        """Create a thread with the messages, the metadata and the context of another one."""
        state = await self._views.get(request, thread_id)
        copy_id = str(uuid.uuid4())
        copied = thread_event(
            request,
            thread_name(request, copy_id),
            "created",
            of=state,
            agent_id=state.agent_id,
            labels=json_text.one_line(dict(state.labels)),
            values=json_text.one_line(dict(state.values)),
            messages=tuple(message.message for message in state.messages),
        )
        after, _ = await self._runs.append(copied)
        return thread_answer(request, check_thread(request, after, copy_id))

    @ACP.get("/threads/{thread_id}/history", may="chat.call", ids=LISTED)
    async def acp_get_thread_history(self, request: Request, thread_id: str, query: HistoryQuery) -> Response:
        """List the states of a thread, the newest first."""
        return self._history(await self._views.get(request, thread_id), query.limit, query.before)

    @ACP.post("/threads/{thread_id}/history", may="chat.call", ids=LISTED, refuses=(404,))
    async def acp_post_thread_history(self, request: Request, thread_id: str, body: HistoryBody) -> Response:
        """List the states of a thread, the newest first, as langgraph-sdk asks for them."""
        before = body.before if not isinstance(body.before, dict) else body.before.get("checkpoint_id")
        return self._history(await self._views.get(request, thread_id), body.limit, before)

    def _history(self, state: ThreadState, limit: int, before: str | None) -> Response:
        states = list(state.head.line())
        if before is not None:
            ids = [checkpoint.checkpoint_id for checkpoint in states]
            states = states[ids.index(before) + 1 :] if before in ids else []
        return list_response(state_answer(checkpoint) for checkpoint in states[:limit])


def thread_event(
    request: Request, thread: str, kind: Any, /, of: ThreadState | None = None, **fields: Any
) -> ThreadEvent:
    """Return an event about a thread; `of`: the one that it changes.

    It is of the user that its metadata names, else of the one that the thread was made for, else of the caller.
    """
    about: dict[str, Any] = {"thread_id": thread, "kind": kind, "actor": actor_of(request)}
    person = object_of(fields.get("labels")).get(USER)
    person = person if isinstance(person, str) and person else None
    known = None if of is None or person is not None else of.subject
    about["subject"] = known or subject_of(request, person)
    return ThreadEvent(event_id=str(uuid.uuid4()), created_at=times.now_ms(), **about, **fields)


def _fits(state: ThreadState, body: ThreadSearch) -> bool:
    if body.status is not None and state.status != body.status:
        return False
    if body.ids is not None and state.thread_id.rpartition(".")[2] not in body.ids:
        return False
    fields = ((body.metadata, state.labels), (body.values, state.values))
    return all(have.get(name) == value for want, have in fields for name, value in (want or {}).items())
