"""The parameters of A2A's methods, as JSON has them.

{message: {messageId, role, parts, contextId}, configuration} ──► SendMessageParameters ──► text, context

What the protocol has and this server has not is refused by its name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.http.body import Body, Whole
from plugins.threads.acp.thread_bodies import Uuid
from schemas.faults import Ignored, Refused

NO_EXTENSIONS = "the card names no extension"
NO_REFERENCES = "send the message with the contextId of the task: the agent reads its messages"
MOST_TASKS = 100
"""Most tasks of one list, as the protocol has it."""
TaskState = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
]
"""Those that a task may have here; an agent rejects nothing."""


def _milliseconds(value: object) -> int:
    """Return a moment as the log has it."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError as exc:
        raise ValueError("expected a moment such as 2026-11-26T12:00:00Z") from exc
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


class A2aCall(Body):
    """A request in JSON-RPC."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] | None = None
    id: str | float | None = None


class A2aParameters(Body):
    """Of one method."""

    tenant: Annotated[str | None, Refused("the key says which tenant it is", "")] = None


class MessagePart(Body):
    """A part of a message: text, or an answer to the calls that a task waits for."""

    text: str | None = None
    raw: Any = None
    url: Any = None
    data: Any = None
    media_type: str = Field("text/plain", alias="mediaType")
    filename: Annotated[str | None, Ignored("the agent reads the text alone")] = None
    metadata: Annotated[dict[str, Any] | None, Ignored("a task has metadata")] = None

    @property
    def answer(self) -> Any:
        """What it answers to the calls that a task waits for."""
        return self.data if self.text is None else self.text

    @property
    def is_text(self) -> bool:
        """Whether the agent can read it."""
        return self.text is not None and self.media_type.startswith("text/")


class SentMessage(Body):
    """A message of a user."""

    message_id: str = Field(alias="messageId", min_length=1, max_length=200)
    role: Literal["ROLE_USER"]
    parts: list[MessagePart] = Field(min_length=1)
    context_id: Uuid | None = Field(None, alias="contextId")
    task_id: str | None = Field(None, alias="taskId")
    metadata: Annotated[dict[str, Any] | None, Ignored("a task has metadata")] = None
    extensions: Annotated[Any, Refused(NO_EXTENSIONS, [])] = None
    reference_task_ids: Annotated[Any, Refused(NO_REFERENCES, []), Field(alias="referenceTaskIds")] = None

    @property
    def text(self) -> str:
        """What it says."""
        return "\n".join(part.text or "" for part in self.parts)


class SendConfiguration(Body):
    """How a message is answered."""

    accepted_output_modes: list[str] = Field([], alias="acceptedOutputModes")
    push: Any = Field(None, alias="taskPushNotificationConfig")
    history_length: Annotated[Whole, Field(ge=0)] | None = Field(None, alias="historyLength")
    return_immediately: bool = Field(False, alias="returnImmediately")

    @property
    def takes_text(self) -> bool:
        """Whether the client reads what agents here answer."""
        modes = self.accepted_output_modes
        return not modes or any(mode in ("text/plain", "text/*", "*/*", "text") for mode in modes)


class SendMessageParameters(A2aParameters):
    """Of SendMessage and SendStreamingMessage."""

    message: SentMessage
    configuration: SendConfiguration = SendConfiguration()
    metadata: dict[str, Any] | None = None


class TaskParameters(A2aParameters):
    """Of GetTask."""

    task_id: str = Field(alias="id")
    history_length: Annotated[Whole, Field(ge=0)] | None = Field(None, alias="historyLength")


class CancelTaskParameters(A2aParameters):
    """Of CancelTask and SubscribeToTask."""

    task_id: str = Field(alias="id")
    metadata: Annotated[dict[str, Any] | None, Ignored("the event of a cancelled run has none")] = None


class ListTasksParameters(A2aParameters):
    """Of ListTasks."""

    context_id: Uuid | None = Field(None, alias="contextId")
    status: TaskState | None = None
    page_size: Annotated[Whole, Field(ge=1, le=MOST_TASKS)] = Field(50, alias="pageSize")
    page_token: str = Field("", alias="pageToken", max_length=100)
    history_length: Annotated[Whole, Field(ge=0)] | None = Field(None, alias="historyLength")
    changed_after: Annotated[int, BeforeValidator(_milliseconds)] | None = Field(None, alias="statusTimestampAfter")
    include_artifacts: bool = Field(False, alias="includeArtifacts")
