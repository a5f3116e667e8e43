"""The record that the door keeps of a request, and its event.

    the door: principal, action, allowed or why not ─┐
    routes: tokens; of JSON-RPC each call ───────────┴─► RequestRecord ──► RequestEvent, one for each call

Nothing of a body is in it, nor a query, nor a key in a path.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Scope, Send

from schemas.events import ANONYMOUS, AccessRole, RequestEvent, derive_id
from streams.access.keys import mask
from streams.access.roles import ALLOWED, Action, Decision, Principal
from streams.errors import CallError

RECORD = "streamward.request_record"
"""Where it is in a scope of ASGI."""
CLIENT_LEFT = 499
"""The status of an answer that was never begun: its client had left."""
UNDECIDED = Decision(False, "it was not looked at")
LONGEST = 500
"""Characters of a path or a reason."""
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_START, _NUMBERS = uuid.uuid4().hex, count()


class RecordedCall(NamedTuple):
    """One call of a request in JSON-RPC."""

    method: str
    action: str
    decision: Decision
    about: str = ""
    """The job that it names."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, until now."""

    method: str
    path: str
    action: str
    """What a role has to allow; of a login, its kind."""
    agent_id: str | None
    traceparent: str | None
    principal: Principal | None = None
    decision: Decision = UNDECIDED
    status: int = CLIENT_LEFT
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    in_progress: bool = False
    """Whether it counts as one of its key's."""
    calls: list[RecordedCall] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, scope: Scope, action: str, agent_id: str | None) -> RequestRecord:
        """Return what a scope says; the request finds it there again."""
        trace = Headers(scope=scope).get("traceparent", "")
        record = cls(
            method=scope["method"],
            path=scope["path"],
            action=action,
            agent_id=agent_id,
            traceparent=trace if TRACEPARENT.fullmatch(trace) else None,
        )
        scope[RECORD] = record
        return record

    def watching(self, send: Send) -> Send:
        """Return what sends an answer and records its status."""

        async def sends(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = int(message["status"])  # Starlette's is an enum where a route gives one
            await send(message)

        return sends

    def events(self, now_ms: int) -> Iterator[RequestEvent]:
        """Yield its event, or one for each call in it."""
        number, asks = next(_NUMBERS), self.principal
        for place, call in enumerate(self.calls or [RecordedCall(self.method, self.action, self.decision)]):
            yield RequestEvent(
                event_id=derive_id("request", _START, number, place),
                subject_id=ANONYMOUS if asks is None else asks.subject_id,
                created_at=now_ms,
                traceparent=self.traceparent,
                role=None if asks is None else _role(asks, call.action),
                tenant=None if asks is None else asks.tenant,
                agent_id=None if self.agent_id is None else _plain(self.agent_id),
                action=call.action,
                method=_plain(call.method),
                resource=_plain(f"{self.path} {call.about}".rstrip()),
                allowed=call.decision.allowed,
                reason=_plain(call.decision.why),
                status=self.status,
                duration_ms=int(1000 * (time.monotonic() - self.began_s)),
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
            )


def _role(asks: Principal, action: str) -> AccessRole:
    """Return the role that allows an action, or of several that do not the last."""
    return next((role for role in asks.roles if action in ALLOWED[role]), asks.roles[-1])


def record_of(request: HTTPConnection) -> RequestRecord | None:
    """Return the record of a request; None where there is no door."""
    record: RequestRecord | None = request.scope.get(RECORD)
    return record


def denied(request: HTTPConnection, action: Action, why: str, parameter: str | None = None) -> CallError:
    """Return the error for what a body names and its sender may not, and record it as the door records its own."""
    record = record_of(request)
    if record is not None:
        record.action, record.decision = action, Decision(False, why)
    return CallError("permission_denied", why, parameter)


def _plain(text: str) -> str:
    """Return a text that may be kept: no key in it, and not too long."""
    return mask(text.encode(errors="replace").decode())[:LONGEST]
