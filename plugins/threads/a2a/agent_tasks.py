"""The JSON-RPC binding of A2A: a message begins a task of an agent, and a task can be read, joined and cancelled.

    POST /a2a/{agent_id} ──► jsonrpc.py ──► SendMessage, … ──► RequestedRuns ──► threads ──► ThreadRuns ──► task

A context is a thread, and a task is a run on it, by whichever protocol it was requested. A task of a busy context is
submitted, and begins when the one before it has ended. The id of a task is derived from that of its message, so a
message that is sent again gets the task that it began. A client that hangs up cancels no task.

Not covered: push notifications, gRPC and HTTP+JSON, which the card does not promise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.http import jsonrpc, sse
from gateway.http.body import checked
from gateway.http.errors import ACTIONS
from gateway.http.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError, RpcMethod
from gateway.http.principal import actor_of
from plugins.threads.a2a.agent_cards import PROTOCOL_VERSION, callable_agent
from plugins.threads.a2a.task_answers import SentState, new_events, task_answer, task_state
from plugins.threads.a2a.task_bodies import (
    A2aCall,
    A2aParameters,
    CancelTaskParameters,
    ListTasksParameters,
    SendMessageParameters,
    SentMessage,
    TaskParameters,
)
from plugins.threads.acp.known_agents import LISTED, AvailableAgent, KnownAgents
from plugins.threads.acp.requested_runs import RequestedRuns, RunOrigin
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.acp.thread_access import thread_name
from plugins.threads.acp.thread_bodies import RunBody
from plugins.threads.acp.thread_interfaces import A2A
from plugins.threads.log.thread_state import RunState
from schemas.events import derive_id
from schemas.older_forms import OlderForm
from streams.access.credentials import mask
from streams.errors import CallError

NO_PUSH = "the server sends no requests of its own; stream the task, or get it"
PUSH_METHODS = tuple(
    f"{verb}TaskPushNotificationConfig{plural}"
    for verb, plural in (("Create", ""), ("Get", ""), ("List", "s"), ("Delete", ""))
)
A2A_METHOD = OlderForm("a method of A2A 0.3 or older", "A2A 1.0", "use a client of A2A 1.0, whose method is {method}")
A2A_HEADER = OlderForm("A2A {version}", "A2A 1.0", "use a client of A2A 1.0, which sends the header A2A-Version: 1.0")
A2A_METHODS = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/send": "SendMessage",
    "tasks/sendSubscribe": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotification/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotification/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
"""Methods of A2A 0.2 and 0.3, with their present names."""

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN = "a2a-protocol.org"
"""An error has the protocol's code, and a google.rpc.ErrorInfo with its reason."""


class TaskError(NamedTuple):
    """A kind of error."""

    code: int
    reason: str


TASK_NOT_FOUND = TaskError(-32001, "TASK_NOT_FOUND")
TASK_NOT_CANCELABLE = TaskError(-32002, "TASK_NOT_CANCELABLE")
PUSH_NOT_SUPPORTED = TaskError(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED = TaskError(-32004, "UNSUPPORTED_OPERATION")
CONTENT_NOT_SUPPORTED = TaskError(-32005, "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD = TaskError(-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
VERSION_NOT_SUPPORTED = TaskError(-32009, "VERSION_NOT_SUPPORTED")
INVALID = TaskError(INVALID_PARAMS, "INVALID_PARAMS")
INTERNAL = TaskError(INTERNAL_ERROR, "INTERNAL_ERROR")

P = TypeVar("P", bound=A2aParameters)


class A2aTasks:
    """The tasks of a server's agents."""

    def __init__(self, runs: ThreadRuns, requested: RequestedRuns, agents: KnownAgents) -> None:
        self._runs, self._requested, self._agents = runs, requested, agents

    @A2A.post("/{agent_id}", may="chat.call", takes=A2aCall, streams=True, ids=LISTED)
    async def a2a_call_agent(self, request: Request, agent_id: str, raw: bytes) -> Response:
        """Call a method of A2A."""
        agent = await callable_agent(self._agents, request, agent_id)
        methods = AgentMethods(self._runs, self._requested, request, agent).table()
        outcome = await jsonrpc.answer(raw, methods, batches=False)
        if outcome is None:
            return Response(status_code=204)
        assert isinstance(outcome, dict)  # noqa: S101 - of one request
        if isinstance(events := outcome.get("result"), AsyncIterator):
            return StreamingResponse(_frames(events, outcome["id"]), headers=sse.HEADERS, media_type=sse.MEDIA_TYPE)
        return JSONResponse(outcome)


class AgentMethods:
    """The methods of one request to an agent."""

    def __init__(self, runs: ThreadRuns, requested: RequestedRuns, request: Request, agent: AvailableAgent) -> None:
        self._runs, self._requested, self._request, self._agent = runs, requested, request, agent

    def table(self) -> dict[str, RpcMethod]:
        """Return what can be called."""
        return {
            "SendMessage": self._method(SendMessageParameters, self._send),
            "SendStreamingMessage": self._method(SendMessageParameters, self._send_streaming),
            "GetTask": self._method(TaskParameters, self._get),
            "ListTasks": self._method(ListTasksParameters, self._list),
            "CancelTask": self._method(CancelTaskParameters, self._cancel),
            "SubscribeToTask": self._method(CancelTaskParameters, self._subscribe),
            "GetExtendedAgentCard": _refusal(NO_EXTENDED_CARD, "there is one card, and it is that of your key"),
            **dict.fromkeys(PUSH_METHODS, _refusal(PUSH_NOT_SUPPORTED, NO_PUSH)),
            **{
                name: _refusal(VERSION_NOT_SUPPORTED, A2A_METHOD.text.format(method=now))
                for name, now in A2A_METHODS.items()
            },
        }

    def _method(self, model: type[P], call: Callable[[P], Awaitable[Any]]) -> RpcMethod:
        """Return a method that is called with its parameters, by a client of this version."""

        async def call_method(parameters: dict[str, Any]) -> Any:
            self._check_version()
            try:
                return await call(checked(model, parameters))
            except CallError as exc:
                raise from_call_error(exc) from exc

        return RpcMethod(call_method)

    def _check_version(self) -> None:
        version = self._request.headers.get("a2a-version") or "0.3"  # as the protocol reads no header
        if version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
            raise task_error(VERSION_NOT_SUPPORTED, A2A_HEADER.text.format(version=version[:20]))

    async def _send(self, parameters: SendMessageParameters) -> dict[str, Any]:
        run = await self._begin(parameters)
        if not parameters.configuration.return_immediately:
            run = await self._runs.wait(run.run_id)
        return {"task": task_answer(run, history_length=parameters.configuration.history_length)}

    async def _send_streaming(self, parameters: SendMessageParameters) -> AsyncIterator[dict[str, Any]]:
        return self._events(await self._begin(parameters), parameters.configuration.history_length)

    async def _begin(self, parameters: SendMessageParameters) -> RunState:
        """Return the task that a message begins, or began when it was sent before."""
        message = parameters.message
        if parameters.configuration.push is not None:
            raise task_error(PUSH_NOT_SUPPORTED, NO_PUSH)
        if message.task_id is not None:
            return await self._resume(message)
        if not all(part.is_text for part in message.parts):
            raise task_error(CONTENT_NOT_SUPPORTED, "message.parts has more than text; this agent reads nothing else")
        if not parameters.configuration.takes_text:
            raise task_error(CONTENT_NOT_SUPPORTED, "acceptedOutputModes has no text/plain, which this agent answers")
        names = (self._agent.logged, actor_of(self._request), message.context_id or "", message.message_id)
        body = RunBody(
            agent_id=self._agent.agent_id,
            thread_id=message.context_id or derive_id("a2a context", *names),
            input=message.text,
            metadata=parameters.metadata,
            if_not_exists="create",
            multitask_strategy="enqueue",
        )
        origin = RunOrigin(derive_id("a2a task", *names), message.message_id)
        return await self._requested.request(self._request, body, origin)

    async def _resume(self, message: SentMessage) -> RunState:
        """Return a task that waits, with what a message answers to it."""
        run = await self._find(message.task_id or "")
        event_id = derive_id("a2a answer", run.run_id, actor_of(self._request), message.message_id)
        if not run.waiting and not await self._requested.has_answer(run, event_id):
            problem = f"task {run.run_id} takes no further message; send it with the contextId alone"
            raise task_error(UNSUPPORTED, problem)
        if len(message.parts) != 1 or message.parts[0].answer is None:
            raise task_error(CONTENT_NOT_SUPPORTED, f"task {run.run_id} waits for an answer in one part, text or data")
        return await self._requested.resume(self._request, run, message.parts[0].answer, event_id)

    async def _get(self, parameters: TaskParameters) -> dict[str, Any]:
        return task_answer(await self._find(parameters.task_id), history_length=parameters.history_length)

    async def _list(self, parameters: ListTasksParameters) -> dict[str, Any]:
        """List tasks, the one that changed last first."""
        threads = await self._runs.open()
        thread = None if parameters.context_id is None else thread_name(self._request, parameters.context_id)
        runs = [
            run
            for state in threads.threads()
            for run in state.runs.values()
            if self._is_own(run)
            and thread in (None, run.thread_id)
            and parameters.status in (None, task_state(run))
            and run.updated_at >= (parameters.changed_after or 0)
        ]
        ordered = sorted(runs, key=_order)
        after = _read_token(parameters.page_token)
        page = [run for run in ordered if after is None or _order(run) > after][: parameters.page_size]
        is_last = not page or page[-1] is ordered[-1]
        return {
            "tasks": [
                task_answer(run, history_length=parameters.history_length, artifacts=parameters.include_artifacts)
                for run in page
            ],
            "nextPageToken": "" if is_last else f"{page[-1].updated_at}.{page[-1].run_id}",
            "pageSize": parameters.page_size,
            "totalSize": len(ordered),
        }

    async def _cancel(self, parameters: CancelTaskParameters) -> dict[str, Any]:
        run = await self._find(parameters.task_id)
        was_open = run.is_open
        if was_open:
            await self._runs.cancel(run.run_id, actor_of(self._request))
            run = await self._find(parameters.task_id)
        if not was_open or run.status != "interrupted":
            raise task_error(TASK_NOT_CANCELABLE, f"task {run.run_id} has ended: {task_state(run)}")
        return task_answer(run)

    async def _subscribe(self, parameters: CancelTaskParameters) -> AsyncIterator[dict[str, Any]]:
        run = await self._find(parameters.task_id)
        if not run.is_open:
            problem = f"task {run.run_id} has ended: {task_state(run)}; GetTask has its answer"
            raise task_error(UNSUPPORTED, problem)
        return self._events(run)

    async def _events(self, run: RunState, history_length: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the task, and what becomes of it until it has ended."""
        sent: SentState | None = None
        async with aclosing(self._runs.changes(run.run_id)) as changes:
            async for current, text in changes:
                events, sent = new_events(current, text, sent, history_length)
                for event in events:
                    yield event

    async def _find(self, task_id: str) -> RunState:
        """Return a task of this agent. Raises RpcError."""
        try:
            run = await self._requested.find(self._request, task_id)
        except CallError as exc:
            if exc.kind not in ("not_found", "invalid"):
                raise
            raise task_error(TASK_NOT_FOUND, f"there is no task {task_id[:80]}") from exc
        if not self._is_own(run):
            raise task_error(TASK_NOT_FOUND, f"there is no task {task_id[:80]}")
        return run

    def _is_own(self, run: RunState) -> bool:
        return run.agent_id == self._agent.logged and not run.request.stateless


def _refusal(error: TaskError, message: str) -> RpcMethod:
    """Return a method that answers with an error alone."""

    async def refuse(_: dict[str, Any]) -> NoReturn:
        raise task_error(error, message)

    return RpcMethod(refuse)


def _order(run: RunState) -> tuple[int, str]:
    return -run.updated_at, run.run_id


def _read_token(token: str) -> tuple[int, str] | None:
    """Return the last task of the page before; None: there is none. Raises RpcError."""
    if not token:
        return None
    updated_at, _, run_id = token.partition(".")
    if not updated_at.isdecimal() or not run_id:
        raise task_error(INVALID, "pageToken is none of this server's; send nextPageToken as it was given")
    return -int(updated_at), run_id


async def _frames(events: AsyncIterator[dict[str, Any]], request_id: Any) -> AsyncIterator[bytes]:
    """Yield the events of a stream, each as a response to the request."""
    try:
        async for event in events:
            yield sse.frame({"jsonrpc": "2.0", "id": request_id, "result": event})
    except CallError as exc:  # it was deleted meanwhile, or the log cannot be read
        yield sse.frame(jsonrpc.refusal(request_id, from_call_error(exc)))


def task_error(error: TaskError, message: str, **metadata: str) -> RpcError:
    """Return an error. A key or token that it repeats is cut short in it."""
    info: dict[str, object] = {"@type": ERROR_INFO, "reason": error.reason, "domain": DOMAIN}
    if metadata:
        info["metadata"] = {name: mask(text) for name, text in metadata.items()}
    return RpcError(error.code, mask(message), [info])


def from_call_error(error: CallError) -> RpcError:
    """Return the error of a call that runs have refused."""
    kind = INTERNAL if error.kind in ("busy", "internal") else INVALID
    metadata = {"suggested_action": error.way_out or ACTIONS[error.kind]}
    if error.parameter is not None:
        metadata["parameter"] = error.parameter
    return task_error(kind, error.message, **metadata)
