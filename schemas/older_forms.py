"""Recognise clients of older protocol versions, and answer them with a helpful sentence.

a path without a route ──► older_path ──► the sentence of its error
a method, a header, a field, a role of an older version ──► sentence ──► the error of its own protocol
"""

from __future__ import annotations

import re
from typing import NamedTuple


class OlderForm(NamedTuple):
    """A form of an older version."""

    got: str
    spoken: str
    way_out: str

    @property
    def text(self) -> str:
        """The sentence that a client reads."""
        return f"this is {self.got}, and this server speaks {self.spoken}: {self.way_out}"


FUNCTIONS = OlderForm(
    "OpenAI's form of calls before `tools`",
    "the one with `tools`, `tool_choice` and `tool_calls`",
    'send each function as {"type": "function", "function": …}, and results with role `tool` and `tool_call_id`',
)
A2A_METHOD = OlderForm("a method of A2A 0.3 or older", "A2A 1.0", "use a client of A2A 1.0, whose method is {method}")
A2A_HEADER = OlderForm("A2A {version}", "A2A 1.0", "use a client of A2A 1.0, which sends the header A2A-Version: 1.0")
MCP_HEADER = OlderForm(
    "MCP {version}", "MCP {versions}", "send one of these as mcp-protocol-version, and as protocolVersion of initialize"
)
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
RESPONSES = ("OpenAI's Responses API", "send the conversation to POST /v1/responses; /acp has threads with a memory")
PATHS: tuple[tuple[str, OlderForm], ...] = (
    (r".*/v1/(assistants|threads)(/.*)?", OlderForm("OpenAI's Assistants API", *RESPONSES)),
    (
        r".*/v1/(engines/.+|edits|answers|classifications|search)",
        OlderForm("OpenAI's API of engines", "the one of models", "name the model in POST /v1/completions"),
    ),
    (
        r".*/v1/fine-tunes(/.*)?",
        OlderForm("OpenAI's API of fine-tunes", "the one of fine-tuning jobs", "POST /v1/fine_tuning/jobs"),
    ),
    (
        r".*/v1/complete",
        OlderForm("Anthropic's Text Completions API", "its Messages API", "send messages to POST /v1/messages"),
    ),
    (
        r"(/a2a/[^/]+)?/\.well-known/agent\.json",
        OlderForm("where A2A 0.2 has a card", "A2A 1.0", "GET /a2a/AGENT/.well-known/agent-card.json"),
    ),
    (
        r"(/mcp(/.+)?)?/(sse|messages)",
        OlderForm("MCP 2024-11-05 over HTTP and SSE", "MCP over streamable HTTP", "send requests to POST /mcp"),
    ),
    (
        r"/acp/(assistants(/.*)?|threads/(count|prune|[^/]+/state(/.*)?)|runs/(batch|cancel|crons(/.*)?))",
        OlderForm(
            "LangGraph's own API",
            "the Agent Protocol 0.1.6",
            "POST /acp/agents/search lists agents, GET /acp/threads/THREAD has a thread's messages and values",
        ),
    ),
    (
        r"(/acp)?/(ap/v1/)?agent/tasks(/.*)?",
        OlderForm(
            "the Agent Protocol of the AI Engineer Foundation",
            "LangChain's Agent Protocol 0.1.6",
            "request a run with POST /acp/runs",
        ),
    ),
)
"""Patterns of paths that have no route here, each with its older form."""


def older_path(path: str) -> OlderForm | None:
    """Return the older form with this path, if any."""
    return next((form for pattern, form in PATHS if re.fullmatch(pattern, path)), None)
