"""Answer the calls of agents, each in its own protocol.

    POST …/v1/chat/completions ─┐                                ┌──► JSON, once every turn of it is in the log
         …/v1/completions       ├─► Body ──► ModelCall ──► pieces┤
         …/v1/responses         │            recorder            └──► server-sent events, as it is sampled
         …/v1/messages         ─┘

The agent is in the path (`/agents/AGENT_ID/v1`, `/agents/AGENT_ID/trajectories/TRAJECTORY_ID/v1`) or in the header
X-Agent-ID; without either it is the agent `default`. This module has no state: what the recorder knows is in the log.

Not covered: keys, which the door checks first; without it, any client that reaches the port may call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from gateway.agents import anthropic, chat, completions, responses
from gateway.agents.caller import AGENT_ID, CALL_KEY, CALLS, MESSAGES, Caller, FindsAgents, read_model_call
from gateway.agents.named_prompts import PromptParameter, with_prompt
from gateway.agents.protocol_answers import (
    ChatCompletion,
    MessagesModelCard,
    MessagesModelList,
    ModelCard,
    ModelList,
    ModelMessage,
    ModelResponse,
    TextCompletion,
    TokenCount,
)
from gateway.agents.responses_body import Item, ItemReference, ResponsesBody
from gateway.http import errors, sse
from gateway.http.connection import WHEN_UNREAD
from gateway.http.principal import DEFAULT_AGENT, decide_at_door, may_ask, principal_of, sees, tenant_of
from gateway.http.request_record import RequestRecord, denied, record_of
from gateway.http.route import CONVERSATION, Reply
from schemas.events import Message
from streams.engines.token_stream import ORIGIN
from streams.errors import CallError
from streams.output import moment
from streams.stages.agents.recording.calls import Begun, Done, ModelCall, Piece, PromptScores, ServedModel
from streams.stages.agents.tool_guard import GuardedCall, ToolGuard, text_parts
from streams.stages.tasks.line_steps import LineSteps

T = TypeVar("T")

QUESTION: dict[str, Any] = {"model": "sums", "messages": [{"role": "user", "content": "1 + 1 ="}]}


class AnswersCalls(FindsAgents, Protocol):
    """The recorder of the agents' stage, as the protocols use it."""

    def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first. Raises CallError, before the first piece if the call cannot begin."""

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""

    async def score(self, call: ModelCall, top: int) -> PromptScores:
        """Return how likely a version finds the text of a call, and the `top` likeliest tokens of each place."""

    async def prompt_of(self, call: ModelCall) -> str | None:
        """Return the prompt that a call's agent is registered with. Raises CallError."""

    async def is_continued(self, call: ModelCall) -> bool:
        """Return whether the history of a call begins with a recorded one and its answer."""

    async def conversation(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a recorded turn, its answer included; None if there is no such turn."""

    def note_unread(self, turn_id: str) -> None:
        """Note that a client left without reading an answer: a retry of its call gets it."""

    def model_of(self, name: str) -> str:
        """Return the model of this name."""

    def models(self) -> Sequence[ServedModel]:
        """Return the available models, the policy itself first."""


MODEL_CALL: dict[str, Any] = {
    **CONVERSATION,
    "may": "chat.call",
    "refuses": (403, 404, 409, 500),
    "parameters": (AGENT_ID, CALL_KEY),
    "streams": True,
}


class AgentProtocols:
    """The calls that models answer, and the models."""

    def __init__(
        self,
        recorder: AnswersCalls,
        shared: str = "",
        steps: LineSteps | None = None,
        guard: Callable[[], ToolGuard | None] = lambda: None,
    ) -> None:
        """`shared`: the policy of every tenant; `steps`: find the prompts that calls name; `guard`: decides about the
        calls of tools in an answer, before its client gets them."""
        self._recorder, self._shared, self._steps = recorder, shared, steps or LineSteps()
        self._guard = guard

    @CALLS.post(
        "/chat/completions",
        **MODEL_CALL,
        takes=chat.ChatBody,
        sends={**QUESTION, "max_tokens": 64},
        example=chat.EXAMPLE,
        tools={"ask": "Ask a version of a policy."},
        toolsets=("policy",),
    )
    async def create_chat_completion(self, request: Request, raw: bytes) -> Reply[ChatCompletion] | StreamingResponse:
        """Answer a conversation."""
        body, caller = await read_model_call(request, chat.ChatBody, raw, self._recorder)
        created_s = time.time()
        user = body.safety_identifier or body.user
        call = await self._with_prompt(request, chat.call(body, caller), body.prompt, user)
        begun, pieces = await self._begin(request, call)
        if body.stream:
            return _openai_stream(chat.chunks(body, begun, pieces, created_s), begun)
        answers = await _finish(request, pieces)
        return Reply(chat.completion(begun, answers, created_s, with_logprobs=bool(body.logprobs)), _headers(begun))

    @CALLS.post(
        "/completions",
        **MODEL_CALL,
        takes=completions.CompletionsBody,
        sends={"model": "sums", "prompt": "1 + 1 ="},
        example=completions.EXAMPLE,
    )
    async def create_completion(self, request: Request, raw: bytes) -> Reply[TextCompletion] | StreamingResponse:
        """Continue a text."""
        body, caller = await read_model_call(request, completions.CompletionsBody, raw, self._recorder)
        created_s = time.time()
        if body.echo:
            return await self._score(request, body, caller, created_s)
        begun, pieces = await self._begin(request, completions.call(body, caller))
        if body.stream:
            return _openai_stream(completions.chunks(body, begun, pieces, created_s), begun)
        answers = await _finish(request, pieces)
        return Reply(completions.completion(body, begun, answers, created_s), _headers(begun))

    @CALLS.post("/responses", **MODEL_CALL, takes=ResponsesBody, sends={"model": "sums", "input": "1 + 1 ="})
    async def create_response(self, request: Request, raw: bytes) -> Reply[ModelResponse] | StreamingResponse:
        """Answer a conversation, or continue one that the log has."""
        body, caller = await read_model_call(request, ResponsesBody, raw, self._recorder)
        created_s, conversation = time.time(), await self._conversation(request, body.previous_response_id)
        whole = await self._resolve_items(request, body)
        user = body.safety_identifier or body.user
        call = await self._with_prompt(request, responses.call(whole, caller, conversation), body.prompt, user)
        begun, pieces = await self._begin(request, call)
        if body.stream:
            return _stream(responses.events(body, begun, pieces, created_s), begun, sse.END)
        [done] = await _finish(request, pieces)
        return Reply(responses.response(body, begun, done, created_s), _headers(begun))

    @MESSAGES.post(
        "/messages",
        **MODEL_CALL,
        takes=anthropic.MessagesBody,
        sends={**QUESTION, "max_tokens": 64},
        example=anthropic.EXAMPLE,
    )
    async def create_message(self, request: Request, raw: bytes) -> Reply[ModelMessage] | StreamingResponse:
        """Answer a conversation, as Anthropic has it."""
        body, caller = await read_model_call(request, anthropic.MessagesBody, raw, self._recorder)
        call = await self._with_prompt(request, anthropic.call(body, caller), body.prompt, anthropic.user(body))
        begun, pieces = await self._begin(request, call)
        if body.stream:
            return _stream(anthropic.events(begun, pieces), begun)
        [done] = await _finish(request, pieces)
        return Reply(anthropic.message(begun, done), _headers(begun))

    @MESSAGES.post(
        "/messages/count_tokens",
        **CONVERSATION,
        may="chat.call",
        takes=anthropic.CountTokensBody,
        refuses=(404,),
        parameters=(AGENT_ID,),
        sends=QUESTION,
        example=TokenCount(input_tokens=14),
    )
    async def count_tokens(self, request: Request, raw: bytes) -> TokenCount:
        """Count the tokens of a prompt."""
        body, caller = await read_model_call(request, anthropic.CountTokensBody, raw, self._recorder)
        call = await self._with_prompt(request, anthropic.call(body, caller), body.prompt, None)
        call = self._check_model(request, call)
        return TokenCount(input_tokens=await self._recorder.count_tokens(call))

    @CALLS.get(
        "/models",
        may="models.read",
        refuses=(),
        example=ModelList(
            object="list", data=[ModelCard(id="sums", object="model", created=1767225600, owned_by="streamward")]
        ),
    )
    async def list_models(self, request: Request) -> ModelList | MessagesModelList:
        """List what can be asked for."""
        models = self._models(request)
        if not _speaks_messages(request):
            return ModelList(object="list", data=[_card(model) for model in models])
        first, last = (models[0].name, models[-1].name) if models else (None, None)  # a fleet begins without any
        cards = [_messages_card(model) for model in models]
        return MessagesModelList(data=cards, has_more=False, first_id=first, last_id=last)

    @CALLS.get(
        "/models/{name}",
        may="models.read",
        example=ModelCard(id="sums", object="model", created=1767225600, owned_by="streamward"),
    )
    async def get_model(self, request: Request, name: str) -> ModelCard | MessagesModelCard:
        """Look at one model."""
        models = {model.name: model for model in self._models(request)}
        model = models.get(name) or models.get(self._recorder.model_of(name))
        if model is None:
            raise _no_model(name)
        model = model._replace(name=name)
        return _messages_card(model) if _speaks_messages(request) else _card(model)

    async def _score(
        self, request: Request, body: completions.CompletionsBody, caller: Caller, created_s: float
    ) -> Reply[TextCompletion]:
        """Return how likely the model finds each prompt. Raises CallError, ClientDisconnect."""
        _check_logprobs(request)
        calls = [self._check_model(request, call) for call in completions.scoring_calls(body, caller)]

        async def score() -> list[PromptScores]:
            return [await self._recorder.score(call, max(body.logprobs or 0, 1)) for call in calls]

        answer = completions.scores_answer(
            body, caller.request_digest, await _while_connected(request, score()), created_s
        )
        if (record := record_of(request)) is not None:
            record.prompt_tokens, record.completion_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens
        return Reply(answer, {"x-streamward-model": answer.model})

    def _models(self, request: Request) -> list[ServedModel]:
        """Return the models that a request may see."""
        models, model_of = self._recorder.models(), self._recorder.model_of
        return [model for model in models if may_ask(request, model_of(model.name), self._shared)]

    def _check_model(self, request: Request, call: ModelCall) -> ModelCall:
        """Return the call by the name of its model. Raises CallError if that is another tenant's."""
        model = self._recorder.model_of(call.model)
        if not may_ask(request, model, self._shared):
            raise _no_model(call.model)
        return replace(call, model=model)

    async def _with_prompt(
        self, request: Request, call: ModelCall, prompt: PromptParameter | None, user: str | None
    ) -> ModelCall:
        """Return the call, after the prompt that it or its agent names. Raises CallError for an unusable prompt."""
        if prompt is None:
            name = None if call.agent_id == DEFAULT_AGENT else await self._recorder.prompt_of(call)
            if name is None:
                return call
            return await with_prompt(call, PromptParameter(id=name), self._steps, self._recorder, None, user)
        return await with_prompt(call, prompt, self._steps, self._recorder, tenant_of(request), user)

    async def _begin(self, request: Request, call: ModelCall) -> tuple[Begun, AsyncGenerator[Piece, None]]:
        """Return the call's beginning, and what is still to come. Raises CallError if it cannot begin."""
        if call.with_logprobs:
            _check_logprobs(request)
        pieces = self._recorder.answer(self._check_model(request, call))
        begun = await anext(pieces)
        if not isinstance(begun, Begun):
            raise TypeError(f"an answer begins with Begun, not with {type(begun).__name__}")
        request.scope[WHEN_UNREAD] = partial(self._recorder.note_unread, begun.turn_id)
        if (guard := self._guard()) is not None:
            pieces = _guard_calls(guard, call, begun, pieces)
        record = record_of(request)
        return begun, pieces if record is None else _count_tokens(record, begun, pieces)

    async def _conversation(self, request: Request, response_id: str | None) -> tuple[Message, ...]:
        """Return the conversation that a response continues. Raises CallError if the key may see no such response."""
        if response_id is None:
            return ()
        conversation = await self._visible_messages(request, response_id.removeprefix("resp_"))
        if not conversation:
            raise CallError("not_found", f"there is no response {response_id}", "previous_response_id")
        return conversation

    async def _resolve_items(self, request: Request, body: ResponsesBody) -> ResponsesBody:
        """Return the body with its item references resolved. Raises CallError for one that the key may not see."""
        items: list[Item] = []
        for number, item in enumerate(body.input):
            if isinstance(item, ItemReference):
                messages = await self._visible_messages(request, responses.turn_of_item(item.id))
                recorded = responses.recorded_item(item.id, messages[-1]) if messages else None
                if recorded is None:
                    text = f"there is no item {item.id} in the log; send the item itself"
                    raise CallError("not_found", text, f"input[{number}].id")
                item = recorded
            items.append(item)
        return body.model_copy(update={"input": items})

    async def _visible_messages(self, request: Request, turn_id: str) -> tuple[Message, ...]:
        """Return the messages up to a turn that the key may see, its answer included; none if there is no such turn."""
        agent_id = await self._recorder.agent_of(turn_id)
        if agent_id is None or not sees(principal_of(request), agent_id):
            return ()
        return await self._recorder.conversation(turn_id) or ()


def _check_logprobs(request: Request) -> None:
    """Raise CallError if the sender of a request may not read logprobs."""
    principal, record = principal_of(request), record_of(request)
    if principal is None:
        return
    decision = decide_at_door(principal, "chat.logprobs", None if record is None else record.agent_id)
    if not decision.allowed:
        raise denied(request, "chat.logprobs", decision.why, "logprobs")


def _no_model(name: str) -> CallError:
    return CallError("not_found", f"there is no model {name}; GET /v1/models lists them", "model")


def _speaks_messages(request: Request) -> bool:
    """Return whether a client speaks Anthropic's protocol: it sends its version."""
    return "anthropic-version" in request.headers


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.name, object="model", created=model.created_at // 1000, owned_by="streamward")


def _messages_card(model: ServedModel) -> MessagesModelCard:
    return MessagesModelCard(
        id=model.name, type="model", display_name=model.name, created_at=moment(model.created_at), lifecycle="active"
    )


async def _count_tokens(
    record: RequestRecord, begun: Begun, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of an answer, and record its tokens."""
    record.prompt_tokens, record.completion_tokens = begun.prompt_tokens, 0
    try:
        async for piece in pieces:
            if isinstance(piece, Done):
                record.completion_tokens += len(piece.tokens)
            yield piece
    finally:
        await pieces.aclose()


async def _guard_calls(
    guard: ToolGuard, call: ModelCall, begun: Begun, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of an answer; one that calls a tool which may not be called now is not handed out.

    It is in the log as it was sampled. Raises CallError; a retry of the call asks again.
    """
    try:
        async for piece in pieces:
            if isinstance(piece, Done) and piece.message.tool_calls:
                await errors.apart(_check_calls, guard, call, begun, piece.message)
            yield piece
    finally:
        await pieces.aclose()


def _check_calls(guard: ToolGuard, call: ModelCall, begun: Begun, answer: Message) -> None:
    """Raise CallError if an answer calls a tool that may not be called after what its agent has read."""
    read = text_parts(call.messages)
    for made in answer.tool_calls:
        ruling = guard.decide(
            GuardedCall(
                door="agents",
                agent_id=call.agent_id,
                conversation=begun.trajectory_id,
                call_id=made.id,
                tool_id=made.name,
                name=made.name,
                arguments=made.arguments,
                read=read,
            )
        )
        if ruling.outcome != "allowed":
            raise CallError("permission_denied", ruling.reason, "messages")


async def _finish(request: Request, pieces: AsyncGenerator[Piece, None]) -> list[Done]:
    """Return the whole answer. Raises CallError, and ClientDisconnect as soon as the client hangs up."""

    async def gather() -> list[Done]:
        return [piece async for piece in pieces if isinstance(piece, Done)]

    try:
        return await _while_connected(request, gather())
    finally:
        await pieces.aclose()


async def _while_connected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Return an answer. Raises what it raises, and ClientDisconnect as soon as the client hangs up."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.create_task(answer), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return await answering
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.wait((answering, leaving))


def _headers(begun: Begun) -> dict[str, str]:
    """Return the headers of an answer: the turn, its trajectory, and the parameters that were ignored."""
    headers = {
        "x-request-id": begun.turn_id,
        "request-id": begun.turn_id,
        "x-streamward-trajectory": begun.trajectory_id,
        "x-streamward-model": begun.model,
    }
    headers |= {
        f"x-streamward-{name.removeprefix(ORIGIN).replace('_', '-')}": text for name, text in begun.origin.items()
    }
    return headers | ({"x-streamward-ignored": ", ".join(begun.ignored)} if begun.ignored else {})


def _stream(events: AsyncIterator[dict[str, Any]], begun: Begun, end: bytes = b"") -> StreamingResponse:
    """Stream events that say their own type, and then `end`."""

    async def frames() -> AsyncIterator[bytes]:
        async for event in events:
            yield sse.frame(event, event["type"])
        if end:
            yield end

    return StreamingResponse(frames(), headers=_headers(begun) | sse.HEADERS, media_type=sse.MEDIA_TYPE)


def _openai_stream(chunks: AsyncIterator[dict[str, Any]], begun: Begun) -> StreamingResponse:
    """Stream chunks, and the mark that ends them; one that breaks off ends with the error instead."""

    async def frames() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield sse.frame(chunk)
        except CallError as exc:
            yield sse.frame(errors.OPENAI.problem(exc).model_dump())
        else:
            yield sse.END

    return StreamingResponse(frames(), headers=_headers(begun) | sse.HEADERS, media_type=sse.MEDIA_TYPE)
