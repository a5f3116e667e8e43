"""The record that the door keeps of a request, and its event.

    the door: principal, action, allowed or why not ─┐
    routes: tokens; of JSON-RPC each call ───────────┴─► RequestRecord ──► RequestEvent, one for each call

It contains no body, no query and no key from a path.
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

from schemas import key_source
from schemas.events import ANONYMOUS, AccessRole, RequestEvent, derive_id
from streams.access.credentials import mask
from streams.access.roles import Action, Decision, Principal, allowed_to
from streams.errors import CallError

RECORD = "streamward.request_record"
"""Where it is in a scope of ASGI."""
CLIENT_LEFT = 499
"""The status of a request whose client left before the answer began."""
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
    """The right that it needs; for a login, its kind."""
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
    persons: set[str] = field(default_factory=set)
    """Those whose sealed words were opened for it."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def tokens(self) -> int:
        """Those of prompt and answer."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    @classmethod
    def of(cls, scope: Scope, action: str, agent_id: str | None) -> RequestRecord:
        """Return the record of a scope, and store it there."""
        trace = Headers(scope=scope).get("traceparent", "")
        record = cls(
            method=scope["method"],
            path=scope["path"],
            action=action,
            agent_id=agent_id,
            traceparent=trace if TRACEPARENT.fullmatch(trace) else None,
            persons=key_source.collect_reads(),
        )
        scope[RECORD] = record
        return record

    def watching(self, send: Send) -> Send:
        """Wrap `send`, so that the status of the answer is recorded."""

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
                metadata=key_source.reads_metadata(self.persons),
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
    """Return the role that allows an action; if none does, the last one."""
    return next((role for role in asks.roles if action in allowed_to(role)), asks.roles[-1])


def record_of(request: HTTPConnection) -> RequestRecord | None:
    """Return the record of a request; None where there is no door."""
    record: RequestRecord | None = request.scope.get(RECORD)
    return record


def denied(request: HTTPConnection, action: Action, why: str, parameter: str | None = None) -> CallError:
    """Return the error for something in a body that its sender may not use; it is recorded as the door's are."""
    record = record_of(request)
    if record is not None:
        record.action, record.decision = action, Decision(False, why)
    return CallError("permission_denied", why, parameter)


def _plain(text: str) -> str:
    """Return a text that may be stored: without keys, and not too long."""
    return mask(text.encode(errors="replace").decode())[:LONGEST]
