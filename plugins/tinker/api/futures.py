"""Results of calls, which clients ask for by the calls' ids.

    retrieve_future ──► the result; a failure {error, category}; none within POLL_S: 408, ask again
    retrieve_futures ──► ids of a sampling session's calls that have ended since a cursor
    cancel_future ──► an event; the worker leaves out what it has not begun

A future is a call in the log, so it outlives the server. The cursor counts the results of a sampling session in the
order of their partition, which every server reads alike.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import apart, json_response
from plugins.tinker.api.api_answers import CompletionsAnswer, EndedRequest, PendingAnswer
from plugins.tinker.api.bodies import FutureBody, FuturesBody
from plugins.tinker.api.call_log import CallLog, OpenCalls
from plugins.tinker.api.call_results import json_of, result_response
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.tenant_calls import TenantCalls, request_text
from plugins.tinker.calls.call_state import CallState
from schemas.events import TrainingCall
from streams.settings.model import Settings

POLL_S = 25.0
"""How long a request waits for a result; the SDK gives up after 45 s, and asks again."""
PENDING = 408
"""The status of what has no result yet: the SDK asks again at once, without a word."""
ID_OF_OTHERS = "a request's id is in the answer to it"
CLIENT_IDS = 1_000_000_000
"""The seq_ids of a sampling session's client: its number times this, and more."""


class TinkerFutures:
    """The routes of results."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.post("/retrieve_future", may=TRAIN, ids=ID_OF_OTHERS, answers={})
    async def tinker_retrieve_future(self, request: Request, body: FutureBody) -> Response:
        """Return the result of a call, once there is one."""
        log, call = await apart(self._find_call, request, body.request_id)
        if call.kind == "create_custom_loss":  # it is done when it is in the log
            return json_of({"type": call.kind, "loss_id": call.call_id})
        await log.wait(body.request_id, POLL_S, lambda state: not state.is_pending(body.request_id))
        result = await apart(log.result, body.request_id)
        if result is None:
            pending = PendingAnswer(type="try_again", request_id=body.request_id, queue_state="active")
            return json_response(pending, PENDING)
        return result_response(result, accept=request.headers.get("accept", ""))

    @TINKER.post("/retrieve_futures", may=TRAIN, ids=ID_OF_OTHERS)
    async def tinker_retrieve_futures(self, request: Request, body: FuturesBody) -> CompletionsAnswer:
        """Return which calls of a sampling session have ended since the last time, once one has."""
        target, name = body.target, body.target.sampling_session_id
        log = await apart(self._find_sampler, request, name)
        until = time.monotonic() + min(POLL_S, POLL_S if body.timeout is None else body.timeout)
        while True:
            completions, cursor = await apart(completions_of, log, name, target.cloned_sampler_id, body.prev_cursor)
            remaining_s = until - time.monotonic()
            if completions or remaining_s <= 0:
                return CompletionsAnswer(completions=completions, cursor=cursor)
            await log.wait(name, remaining_s, partial(has_more, name, cursor))

    @TINKER.post("/cancel_future", may=TRAIN, ids=ID_OF_OTHERS, answers={})
    def tinker_cancel_future(self, request: Request, body: FutureBody) -> Response:
        """Cancel a call that has not begun."""
        calls = TenantCalls(self._calls.log, request)
        call = calls.call(body.request_id)
        if not calls.log.has_result(body.request_id):
            content: dict[str, Any] = {"request_ids": [body.request_id]}
            name = f"{body.request_id}:cancel"
            calls.submit(
                calls.new_call(
                    "cancel",
                    name,
                    call.session_id,
                    content,
                    model=call.model,
                    tenant=call.tenant,
                    request=request_text(content),
                )
            )
        return Response(status_code=204)

    def _find_call(self, request: Request, call_id: str) -> tuple[CallLog, TrainingCall]:
        log = self._calls.log
        return log, TenantCalls(log, request).call(call_id)

    def _find_sampler(self, request: Request, name: str) -> CallLog:
        log = self._calls.log
        TenantCalls(log, request).sampler(name)
        return log


def has_more(sampler: str, cursor: int, state: CallState) -> bool:
    """Return whether calls of a sampling session ended after a cursor."""
    return len(state.samplers[sampler].ended) > cursor


def completions_of(log: CallLog, sampler: str, client: int, cursor: int) -> tuple[list[EndedRequest], int]:
    """Return the calls of a client of a sampling session that ended after a cursor, and the next cursor."""
    with log.state() as state:
        results = state.samplers[sampler].ended
        newer = results[cursor:]
        ended = [(call_id, state.results[call_id].error is not None) for call_id in newer]
    own = [
        EndedRequest(state="failed" if failed else "finished", request_id=call_id)
        for call_id, failed in ended
        if int(call_id.rpartition(":")[2]) // CLIENT_IDS == client
    ]
    return own, cursor + len(newer)
