"""The request bodies of the Agent Protocol, with langgraph-sdk's additions.

    {agent_id, thread_id, messages or input, …} ──► RunBody ──► ThreadEvent run_requested

Messages are read as on every route; LangChain's `human` and `ai` are `user` and `assistant`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.agents.parameters import MaxTokens, Seed, Stop, Temperature, TopP
from gateway.http.body import Body, PathQuery, Whole
from plugins.threads.acp.thread_access import read_uuid
from schemas.conversation import MessageIn
from schemas.events import Message
from schemas.faults import Ignored, Refused
from streams.errors import CallError

ROLES = {"human": "user", "ai": "assistant", "AIMessage": "assistant", "HumanMessage": "user", "developer": "system"}
"""LangChain's names of roles."""
NO_GRAPH = "an agent here is a model with its thread, and no graph"
NO_HOOKS = "the server sends no requests of its own; join the run, or read `threads`"
NO_SEARCH = "items are found by namespace and fields; there is no index of meanings"
NO_EXPIRY = "items stay until they are deleted"
MOST_LISTED = 1000


def _uuid(text: str) -> str:
    try:
        return read_uuid(text, "it")
    except CallError as exc:
        raise ValueError(exc.message) from exc


Uuid = Annotated[str, AfterValidator(_uuid), Field(json_schema_extra={"format": "uuid"})]
Limit = Annotated[Whole, Field(ge=1, le=MOST_LISTED)]
Offset = Annotated[Whole, Field(ge=0)]
Label = Annotated[str, Field(max_length=128)]
Labels = Annotated[list[Label], Field(max_length=16)]


def _as_message(value: Any) -> Any:
    """Return a message in the form that every other route takes."""
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    kind = fields.pop("type", None)
    role = fields.get("role", kind)
    if role is not None:
        fields["role"] = ROLES.get(role, role) if isinstance(role, str) else role
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        fields["tool_calls"] = [_as_call(call) for call in calls]
    return fields


def _as_call(value: Any) -> Any:
    if not isinstance(value, dict) or "args" not in value:
        return value
    fields = {name: value[name] for name in value if name not in ("args", "type")}
    return fields | {"arguments": value["args"]}


class ThreadMessageIn(MessageIn):
    """A message of a thread."""

    id: Annotated[str | None, Ignored("the server names messages")] = None
    metadata: Annotated[dict[str, Any] | None, Ignored("a run has metadata, and a thread")] = None
    additional_kwargs: Annotated[Any, Ignored("they are a client's own")] = None
    response_metadata: Annotated[Any, Ignored("it is a client's own")] = None
    example: Annotated[Any, Ignored("every message is one")] = None


ThreadMessages = list[Annotated[ThreadMessageIn, BeforeValidator(_as_message)]]


class Configurable(Body):
    """How an agent answers this run."""

    temperature: Temperature = None
    top_p: TopP = None
    max_tokens: MaxTokens = None
    seed: Seed = None
    stop: Stop = None
    thread_id: Annotated[Any, Ignored("the thread is that of the run")] = None


class RunConfig(Body):
    """The configuration of a run."""

    tags: list[str] | None = Field(None, description="recorded with the run")
    recursion_limit: Annotated[Whole, Field(ge=1)] | None = Field(None, description="most answers of the model")
    configurable: Configurable | None = None


class RunCommand(Body):
    """What a client answers to a run that waits."""

    resume: Any = Field(
        description="yes or no to a call that asks a person, or the result of a call of the client's own tool; to "
        "several: an object with the answer to each by its tool_call_id"
    )
    update: Annotated[Any, Refused(NO_GRAPH)] = None
    goto: Annotated[Any, Refused(NO_GRAPH, [])] = None


class MessagesInput(Body):
    """What an agent is given, as LangGraph has it."""

    messages: ThreadMessages


StreamMode = Literal["values", "messages", "updates", "custom"]
STREAM_MODES: tuple[StreamMode, ...] = get_args(StreamMode)


def _modes(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class RunBody(Body):
    """A run that is wanted."""

    agent_id: str | None = Field(None, min_length=1, max_length=200, description="default: the agent `default`")
    assistant_id: str | None = Field(None, min_length=1, max_length=200, description="what langgraph-sdk calls it")
    thread_id: Uuid | None = Field(None, description="default: a run of no thread")
    input: str | ThreadMessages | MessagesInput | None = Field(None, description="a question, or messages")
    messages: ThreadMessages | None = None
    metadata: dict[str, Any] | None = None
    config: RunConfig | None = None
    webhook: Annotated[Any, Refused(NO_HOOKS)] = None
    on_completion: Literal["delete", "keep"] | None = Field(None, description="of the thread; a named one is kept")
    on_disconnect: Literal["cancel", "continue"] | None = None
    if_not_exists: Literal["create", "reject"] | None = Field(None, description="what becomes of a missing thread")
    multitask_strategy: Annotated[
        Literal["reject", "enqueue", "interrupt"] | None, Field(description="what becomes of it on a busy thread")
    ] = None
    stream_mode: Annotated[list[StreamMode] | None, BeforeValidator(_modes)] = None
    stream_resumable: Annotated[bool | None, Ignored("every stream can be joined again")] = None
    stream_subgraphs: Annotated[Any, Refused(NO_GRAPH, False)] = None
    interrupt_before: Annotated[Any, Refused(NO_GRAPH, [])] = None
    interrupt_after: Annotated[Any, Refused(NO_GRAPH, [])] = None
    command: RunCommand | None = Field(None, description="resume the thread's run, which waits")
    checkpoint: Annotated[Any, Refused("PATCH the thread to continue from a checkpoint")] = None
    checkpoint_id: Annotated[Any, Refused("PATCH the thread to continue from a checkpoint")] = None
    checkpoint_during: Annotated[bool | None, Ignored("every state is kept")] = None
    durability: Annotated[str | None, Ignored("a run is in the log before it is acknowledged")] = None
    after_seconds: Annotated[Any, Refused("a run begins when its thread is idle", 0)] = None
    feedback_keys: Annotated[Any, Refused("give feedback by the id of the run", [])] = None
    context: Annotated[Any, Refused("a thread's context is its values", {})] = None

    @model_validator(mode="after")
    def _says_it_once(self) -> RunBody:
        if self.agent_id is not None and self.assistant_id is not None:
            raise ValueError("give either agent_id or assistant_id")
        if self.input is not None and self.messages is not None:
            raise ValueError("give either input or messages")
        if self.command is not None and (self.input is not None or self.messages is not None):
            raise ValueError("give either command or what is new; a run that is resumed has its messages")
        return self

    def on(self, thread_id: str | None) -> RunBody:
        """Return it on the thread that a path names; None: it names none. Raises CallError."""
        if thread_id is not None and self.thread_id is not None:
            raise CallError("invalid", "the path names the thread; leave thread_id out", "thread_id")
        thread = self.thread_id if thread_id is None else read_uuid(thread_id, "thread_id")
        if self.command is not None and thread is None:
            raise CallError("invalid", "command needs thread_id: the thread whose run waits", "command")
        if self.on_completion == "delete" and thread is not None:
            problem = "on_completion is delete, and the run is on a named thread; delete it yourself"
            raise CallError("invalid", problem, "on_completion")
        return self.model_copy(update={"thread_id": thread})

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """The messages that the run begins with."""
        given = self.messages if self.input is None else self.input
        if isinstance(given, str):
            return (Message(role="user", content=given),)
        if isinstance(given, MessagesInput):
            given = given.messages
        return tuple(message.message for message in given or ())

    @property
    def configurable(self) -> Configurable:
        """How the agent is to answer."""
        return (self.config and self.config.configurable) or Configurable()


class RunSearch(Body):
    """Which runs."""

    metadata: dict[str, Any] | None = None
    status: Literal["pending", "error", "success", "timeout", "interrupted"] | None = None
    thread_id: Uuid | None = None
    agent_id: str | None = None
    limit: Limit = 10
    offset: Offset = 0


class ThreadRunsQuery(PathQuery):
    """Which runs of a thread."""

    status: Literal["pending", "error", "success", "timeout", "interrupted"] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED
    offset: Annotated[int, Field(ge=0)] = 0


class AgentSearch(Body):
    """Which agents."""

    name: str | None = None
    metadata: dict[str, Any] | None = None
    limit: Limit = 10
    offset: Offset = 0


class ThreadCreate(Body):
    """A thread that is wanted."""

    thread_id: Uuid | None = Field(None, description="default: a new one")
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Annotated[Any, Refused("threads stay until they are deleted")] = None
    graph_id: Annotated[Any, Refused(NO_GRAPH)] = None
    supersteps: Annotated[Any, Refused(NO_GRAPH, [])] = None


class ThreadSearch(Body):
    """Which threads."""

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    ids: list[Uuid] | None = None
    limit: Limit = 10
    offset: Offset = 0


class CheckpointBody(Body):
    """A state of a thread."""

    checkpoint_id: Uuid


class ThreadPatch(Body):
    """A change of a thread."""

    checkpoint: CheckpointBody | None = Field(None, description="continue from this state")
    metadata: dict[str, Any] | None = Field(None, description="merged into the thread's")
    values: dict[str, Any] | None = Field(None, description="merged into the thread's context")
    messages: ThreadMessages | None = Field(None, description="put after the thread's")
    ttl: Annotated[Any, Refused("threads stay until they are deleted")] = None


class HistoryQuery(PathQuery):
    """Which states of a thread."""

    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 10
    before: str | None = Field(None, description="those before this checkpoint")


class HistoryBody(Body):
    """The same, as langgraph-sdk sends it."""

    limit: Limit = 10
    before: str | dict[str, Any] | None = None
    metadata: Annotated[Any, Refused("states have no metadata of their own", {})] = None
    checkpoint: Annotated[Any, Refused(NO_GRAPH, {})] = None


class ResumeBody(RunCommand):
    """An answer to a run that waits."""


class CancelQuery(PathQuery):
    """How a run is cancelled."""

    wait: bool = False
    action: Literal["interrupt", "rollback"] = "interrupt"


class ItemPut(Body):
    """An item of the store."""

    namespace: Labels
    key: str = Field(min_length=1, max_length=512)
    value: dict[str, Any]
    index: Annotated[Any, Refused(NO_SEARCH, False)] = None
    ttl: Annotated[Any, Refused(NO_EXPIRY)] = None


class ItemDelete(Body):
    """An item that is to go."""

    key: str = Field(min_length=1, max_length=512)
    namespace: Labels | None = None


def _without_operators(fields: dict[str, Any]) -> dict[str, Any]:
    for name, value in fields.items():
        if isinstance(value, dict) and any(operator.startswith("$") for operator in value):
            raise ValueError(f"{name} is compared by {', '.join(value)}; items are found by fields that are equal")
    return fields


class ItemSearch(Body):
    """Which items."""

    namespace_prefix: Labels | None = None
    filter: Annotated[dict[str, Any], AfterValidator(_without_operators)] | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: Annotated[Any, Refused(NO_SEARCH)] = None
    refresh_ttl: Annotated[Any, Ignored(NO_EXPIRY)] = None


class NamespaceSearch(Body):
    """Which namespaces."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[Whole, Field(ge=1)] | None = None
    limit: Limit = 100
    offset: Offset = 0
