"""The interfaces of threads: paths and errors of the Agent Protocol and of A2A, and paths of their older versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.http.body import Answer
from gateway.http.errors import ACTIONS, REFUSALS, REST, RPC, Dialect
from gateway.http.route import Interface
from schemas.older_forms import OlderForm, OlderPaths
from streams.errors import CallError


class ThreadErrorAnswer(Answer):
    """Why a request has no other answer, as the Agent Protocol has it."""

    code: str
    message: str
    metadata: dict[str, Any]


class AgentProtocolDialect(Dialect):
    """Errors as the Agent Protocol has them: what a request says wrong has status 422."""

    model = ThreadErrorAnswer
    refuses_bodies = (408, 413, 415, 422)
    invalid_status = 422

    def problem(self, error: CallError) -> ThreadErrorAnswer:
        action = error.way_out or ACTIONS[error.kind]
        metadata = {"parameter": error.parameter, "suggested_action": action}
        return ThreadErrorAnswer(code=error.kind, message=error.message, metadata=metadata)

    def refusal(self, status: int, message: str) -> ThreadErrorAnswer:
        return ThreadErrorAnswer(code=REFUSALS[status][0], message=message, metadata={})


OLDER: OlderPaths = (
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
OLDER_A2A: OlderPaths = (
    (
        r"(/a2a/[^/]+)?/\.well-known/agent\.json",
        OlderForm("where A2A 0.2 has a card", "A2A 1.0", "GET /a2a/AGENT/.well-known/agent-card.json"),
    ),
)
PAGE = "threads.md"
ACP = Interface(("/acp",), AgentProtocolDialect(), described_in=PAGE, older=OLDER)
RUNS = replace(ACP, prefixes=(*ACP.prefixes, "/acp/threads/{thread_id}"))
"""Of a run, whose thread the path may name."""
A2A = Interface(("/a2a",), RPC, described_in=PAGE)
A2A_CARDS = Interface(("/a2a",), REST, described_in=PAGE, older=OLDER_A2A)
