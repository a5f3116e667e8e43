"""Answer the calls of agents over HTTP, in the protocol that each speaks.

    POST …/v1/chat/completions ─┐                                ┌──► JSON, once every turn of it is in the log
         …/v1/completions       ├─► Body ──► ModelCall ──► pieces┤
         …/v1/responses         │            recorder            └──► server-sent events, as it is sampled
         …/v1/messages         ─┘
         …/v1/feedback ──► feedback.py ──► a reward

Who calls is in the path (`/agents/AGENT_ID/v1`, `/agents/AGENT_ID/trajectories/TRAJECTORY_ID/v1`) or in the header
X-Agent-ID; without either it is the agent `default`. Nothing is kept here: what the recorder knows is in the log.

Not covered: keys, which door.py asks for before anything comes here; without it, whoever reaches the port may call.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from gateway.agents import answers, anthropic, chat, completions, feedback, observation_header as observed, responses
from gateway.agents.responses_body import ResponsesBody
from gateway.http import errors, sse
from gateway.http.body import Caller, Read, read_call, sent
from gateway.http.openapi import AGENT_ID, CALL_KEY, Answer, describe, described, requested
from gateway.http.principal import may_ask, principal_of, sees, tenant_of
from gateway.http.request_record import asked_of, counted
from schemas.events import Message
from streams.access.tenants.tenant_names import is_of, named
from streams.errors import CallError
from streams.stages.agents.recording.calls import Begun, Done, ModelCall, Piece, ServedModel

PREFIXES = ("/v1", "/agents/{agent_id}/v1", "/agents/{agent_id}/trajectories/{trajectory_id}/v1")
BODIES = (
    chat.ChatBody,
    completions.CompletionsBody,
    ResponsesBody,
    anthropic.MessagesBody,
    anthropic.CountTokensBody,
    feedback.FeedbackBody,
)
DEFAULT_AGENT = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""What an agent or a trajectory may be called: it is in keys of the log, in paths and in file names."""
LARGE_BYTES = 128 * 1024
"""A longer body is read in a thread; for a shorter one, going there and back costs more than it saves."""


class AnswersCalls(feedback.FindsAnswers, Protocol):
    """What the protocols are translated for: the recorder of the agents' stage."""

    def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first. Raises CallError, before the first piece if the call cannot begin."""

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""

    async def conversation(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a recorded turn, its answer included; None if there is no such turn."""

    async def agent_of(self, name: str) -> str | None:
        """Return whose a turn or a trajectory is; None if there is none of this id."""

    def models(self) -> Sequence[ServedModel]:
        """Return what can be asked for, the policy itself first."""


class Application(FastAPI):
    """Takes calls past FastAPI's middleware, which does nothing for them and a tenth of the work of answering one."""

    def __init__(self, router: APIRouter, **described: Any) -> None:
        super().__init__(**described, docs_url=None, redoc_url=None)
        calls = [
            Route(prefix + route.path, _explained(route.endpoint), methods=["POST"])
            for prefix, route in itertools.product(reversed(PREFIXES), router.routes)
            if isinstance(route, APIRoute) and route.methods == {"POST"}
        ]
        self._calls = Router(calls, redirect_slashes=False, default=super().__call__)
        for prefix in PREFIXES:  # to be described, and for what is asked now and then
            self.include_router(router, prefix=prefix, include_in_schema=prefix == PREFIXES[0])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._calls(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    recorder: AnswersCalls,
    give_feedback: feedback.WritesFeedback,
    *,
    version: str,
    max_body_bytes: int,
    shared: str = "",
) -> Application:
    """Return the application; a request with a longer body is refused. `shared` is the policy of every tenant."""
    router = _routes(recorder, max_body_bytes, shared)
    _add_feedback(router, feedback.FeedbackBox(recorder, give_feedback), max_body_bytes)
    app = Application(router, title="Streamward", version=version)

    @app.get("/healthz", **described(name="get_health", answer=answers.HealthAnswer, refuses=()))
    async def healthz() -> Response:
        """Say that the server answers."""
        return JSONResponse({"status": "ok"})

    @app.exception_handler(CallError)
    @app.exception_handler(ClientDisconnect)
    async def refused(request: Request, problem: CallError | ClientDisconnect) -> Response:
        return _refusal(request, problem)

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, exc: HTTPException) -> Response:
        answer = errors.response(CallError("not_found", f"{request.method} {request.url.path}: {exc.detail}"), "")
        answer.status_code = exc.status_code
        answer.headers.update(exc.headers or {})  # Allow, of a method that a path does not have
        return answer

    describe(app, BODIES)
    return app


def _explained(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint with an answer for each call that it refuses."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (CallError, ClientDisconnect) as exc:
            return _refusal(request, exc)

    return answered


def _refusal(request: Request, problem: CallError | ClientDisconnect) -> Response:
    if isinstance(problem, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    return errors.response(problem, request.url.path)


def _call(body: type[Read], name: str, answer: type[Answer]) -> dict[str, Any]:
    """Return what the route of a call says of itself."""
    return requested(
        body, name=name, answer=answer, refuses=(404, 409, 500), parameters=(AGENT_ID, CALL_KEY), call=True
    )


def _routes(recorder: AnswersCalls, max_body_bytes: int, shared: str) -> APIRouter:
    router = APIRouter()

    def of(request: Request, call: ModelCall) -> ModelCall:
        """Return the call. Raises CallError if its model is another tenant's."""
        if not may_ask(request, call.model, shared):
            raise CallError("not_found", f"there is no model {call.model}; GET /v1/models lists them", "model")
        return call

    def known(request: Request) -> list[ServedModel]:
        return [model for model in recorder.models() if may_ask(request, model.name, shared)]

    @router.post("/chat/completions", **_call(chat.ChatBody, "create_chat_completion", answers.ChatCompletion))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body, caller = await _received(request, recorder, chat.ChatBody, max_body_bytes)
        at, asked = time.time(), chat.call(body, caller)
        begun, pieces = await _begun(request, recorder, of(request, asked))
        if body.stream:
            return _openai_stream(chat.chunks(body, begun, pieces, at), asked, begun)
        whole = chat.completion(begun, await _answers(request, pieces), at, with_logprobs=bool(body.logprobs))
        return JSONResponse(whole, headers=_headers(begun))

    @router.post("/completions", **_call(completions.CompletionsBody, "create_completion", answers.TextCompletion))
    async def text_completions(request: Request) -> Response:
        """Continue a text."""
        body, caller = await _received(request, recorder, completions.CompletionsBody, max_body_bytes)
        at, asked = time.time(), completions.call(body, caller)
        begun, pieces = await _begun(request, recorder, of(request, asked))
        if body.stream:
            return _openai_stream(completions.chunks(body, begun, pieces, at), asked, begun)
        whole = completions.completion(body, begun, await _answers(request, pieces), at)
        return JSONResponse(whole, headers=_headers(begun))

    @router.post("/responses", **_call(ResponsesBody, "create_response", answers.ModelResponse))
    async def one_response(request: Request) -> Response:
        """Answer a conversation, or continue one that the log has."""
        body, caller = await _received(request, recorder, ResponsesBody, max_body_bytes)
        at, before = time.time(), await _before(request, recorder, body.previous_response_id)
        asked = responses.call(body, caller, before)
        begun, pieces = await _begun(request, recorder, of(request, asked))
        if body.stream:
            return _stream(responses.events(body, begun, pieces, at), asked, begun, sse.END)
        [done] = await _answers(request, pieces)
        return JSONResponse(responses.response(body, begun, done, at), headers=_headers(begun))

    @router.post("/messages", **_call(anthropic.MessagesBody, "create_message", answers.ModelMessage))
    async def one_message(request: Request) -> Response:
        """Answer a conversation, as Anthropic has it."""
        body, caller = await _received(request, recorder, anthropic.MessagesBody, max_body_bytes)
        asked = anthropic.call(body, caller)
        begun, pieces = await _begun(request, recorder, of(request, asked))
        if body.stream:
            return _stream(anthropic.events(begun, pieces), asked, begun)
        [done] = await _answers(request, pieces)
        return JSONResponse(anthropic.message(begun, done), headers=_headers(begun))

    @router.post(
        "/messages/count_tokens",
        **requested(
            anthropic.CountTokensBody,
            name="count_tokens",
            answer=answers.TokenCount,
            refuses=(404,),
            parameters=[AGENT_ID],
        ),
    )
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a prompt."""
        body, caller = await _received(request, recorder, anthropic.CountTokensBody, max_body_bytes)
        return JSONResponse({"input_tokens": await recorder.count_tokens(of(request, anthropic.call(body, caller)))})

    @router.get(
        "/models",
        **described(name="list_models", answer=answers.ModelList | answers.MessagesModelList, refuses=()),
    )
    async def models(request: Request) -> Response:
        """List what can be asked for."""
        return JSONResponse(_listed(request, known(request)))

    @router.get(
        "/models/{name}",
        **described(name="get_model", answer=answers.ModelCard | answers.MessagesModelCard, refuses=(404,)),
    )
    async def one_model(request: Request, name: str) -> Response:
        """Look at one model."""
        found = [model for model in known(request) if model.name == name]
        if not found:
            raise CallError("not_found", f"there is no model {name}; GET /v1/models lists them", "model")
        return JSONResponse(_listed(request, found)["data"][0])

    return router


def _add_feedback(router: APIRouter, box: feedback.FeedbackBox, max_body_bytes: int) -> None:
    @router.post(
        "/feedback",
        **requested(
            feedback.FeedbackBody, name="give_feedback", answer=answers.RecordedFeedback, parameters=[AGENT_ID]
        ),
    )
    async def give(request: Request) -> Response:
        """Say what you think of an answer."""
        body, caller = await _received(request, box.answers, feedback.FeedbackBody, max_body_bytes)
        return JSONResponse(await box.take(body, caller.agent_id, partial(sees, principal_of(request))))


async def _received(
    request: Request, knows: feedback.FindsAnswers, model: type[Read], most: int
) -> tuple[Read, Caller]:
    """Return the body and who sent it. Raises CallError."""
    raw = await sent(request, most)
    if len(raw) > LARGE_BYTES:  # the event loop has other calls to answer between the steps
        body, digest = await asyncio.to_thread(read_call, model, raw)
    else:
        body, digest = read_call(model, raw)
    caller = _caller(request, digest)
    return body, caller if (tenant := tenant_of(request)) is None else await _of_tenant(tenant, caller, knows)


def _caller(request: Request, digest: str) -> Caller:
    """Return who calls. Raises CallError if path and header disagree, or a name cannot be one."""
    path, header = request.path_params.get("agent_id"), request.headers.get("x-agent-id")
    if path is not None and header is not None and path != header:
        raise CallError("conflict", f"the path says agent {path}, X-Agent-ID says {header}; send one of them")
    agent_id, trajectory_id = path or header or DEFAULT_AGENT, request.path_params.get("trajectory_id")
    for what, name in (("agent", agent_id), ("trajectory", trajectory_id)):
        if name is not None and not NAME.fullmatch(name):
            raise CallError("invalid", f"{name!r} is no name of an {what}; it has to match {NAME.pattern}")
    # the clients' generator sends how often it tried: then the same body is the same call
    tried_before = request.headers.get("x-stainless-retry-count", "0") != "0"
    return Caller(
        agent_id=agent_id,
        trajectory_id=trajectory_id,
        request_digest=digest,
        retry_key=request.headers.get("idempotency-key") or (digest if tried_before else None),
        observed=observed.of_header(request.headers.get(observed.HEADER)),
    )


async def _of_tenant(tenant: str, caller: Caller, knows: feedback.FindsAnswers) -> Caller:
    """Return who calls by the names that the log has for a tenant's agents and trajectories. Raises CallError.

    A trajectory that the server named, and told the tenant, has no tenant in its name; it is known by its agent.
    """
    agent_id, trajectory_id = named(tenant, caller.agent_id), caller.trajectory_id
    if trajectory_id is not None:
        owner = await knows.agent_of(trajectory_id)
        if owner is None or not is_of(tenant, owner):
            trajectory_id = named(tenant, trajectory_id)
    for name in (agent_id, trajectory_id or agent_id):
        if not NAME.fullmatch(name):
            raise CallError("invalid", f"{name!r} is too long: with the tenant's name it has to match {NAME.pattern}")
    return caller._replace(agent_id=agent_id, trajectory_id=trajectory_id)


async def _before(request: Request, recorder: AnswersCalls, response_id: str | None) -> tuple[Message, ...]:
    """Return the conversation that a response continues. Raises CallError if the key may see no such response."""
    if response_id is None:
        return ()
    turn_id, found = response_id.removeprefix("resp_"), None
    agent_id = await recorder.agent_of(turn_id)
    if agent_id is not None and sees(principal_of(request), agent_id):
        found = await recorder.conversation(turn_id)
    if found is None:
        raise CallError("not_found", f"there is no response {response_id}", "previous_response_id")
    return found


async def _begun(
    request: Request, recorder: AnswersCalls, call: ModelCall
) -> tuple[Begun, AsyncGenerator[Piece, None]]:
    """Return the call's beginning, and what is still to come. Raises CallError if it cannot begin."""
    pieces = recorder.answer(call)
    first = await anext(pieces)
    if not isinstance(first, Begun):
        raise TypeError(f"an answer begins with Begun, not with {type(first).__name__}")
    noted = asked_of(request)
    return first, pieces if noted is None else counted(noted, first, pieces)


async def _answers(request: Request, pieces: AsyncGenerator[Piece, None]) -> list[Done]:
    """Return the whole answer. Raises CallError, and ClientDisconnect as soon as the client hangs up."""

    async def gather() -> list[Done]:
        return [piece async for piece in pieces if isinstance(piece, Done)]

    async def hangs_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gathered, left = asyncio.create_task(gather()), asyncio.create_task(hangs_up())
    try:
        await asyncio.wait((gathered, left), return_when=asyncio.FIRST_COMPLETED)
        if not gathered.done():
            raise ClientDisconnect
        return await gathered
    finally:
        gathered.cancel()
        left.cancel()
        await asyncio.wait((gathered, left))
        await pieces.aclose()


def _headers(begun: Begun) -> dict[str, str]:
    """Return what an answer says beside its body: the turn, its trajectory, and the parameters that were ignored."""
    headers = {
        "x-request-id": begun.turn_id,
        "request-id": begun.turn_id,
        "x-streamward-trajectory": begun.trajectory_id,
        "x-streamward-model": begun.model,
    }
    return headers | ({"x-streamward-ignored": ", ".join(begun.ignored)} if begun.ignored else {})


def _stream(
    events: AsyncIterator[dict[str, Any]], call: ModelCall, begun: Begun, end: bytes = b""
) -> StreamingResponse:
    """Stream events that say their own type, and then `end`."""

    async def frames() -> AsyncIterator[bytes]:
        async for event in events:
            yield sse.frame(event, event["type"])
        if end:
            yield end

    return StreamingResponse(frames(), headers=_headers(begun) | sse.HEADERS, media_type=sse.MEDIA_TYPE)


def _openai_stream(chunks: AsyncIterator[dict[str, Any]], call: ModelCall, begun: Begun) -> StreamingResponse:
    """Stream chunks, and the mark that ends them; one that breaks off ends with the error instead."""

    async def frames() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield sse.frame(chunk)
        except CallError as exc:
            yield sse.frame(errors.openai(exc))
        else:
            yield sse.END

    return StreamingResponse(frames(), headers=_headers(begun) | sse.HEADERS, media_type=sse.MEDIA_TYPE)


def _listed(request: Request, models: Sequence[ServedModel]) -> dict[str, Any]:
    """Return models as the client's protocol has them: Anthropic's sends its version."""
    if "anthropic-version" not in request.headers:
        data = [
            {"id": model.name, "object": "model", "created": model.created_at // 1000, "owned_by": "streamward"}
            for model in models
        ]
        return {"object": "list", "data": data}
    data = [
        {
            "id": model.name,
            "type": "model",
            "display_name": model.name,
            "created_at": datetime.fromtimestamp(model.created_at / 1000, UTC).isoformat(),
            "lifecycle": "active",
        }
        for model in models
    ]
    first, last = (models[0].name, models[-1].name) if models else (None, None)  # a fleet begins without any
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}
