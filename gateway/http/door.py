"""The door: which right a request needs, and whether its key or logged-in user has it.

    request ──► method, path ──► RouteTable ──► action ───────────────┐
            └─► Bearer, x-api-key ──► Authentication ──► KeyLimits ──► decide ──► the application, which sees the key
                                    unknown ──► read on, once    └──► 429     └──► 403
                                                └──► 401, 503
    answered, or refused ──► RequestRecord ──► its event

It wraps the whole application, since calls bypass Starlette's middleware. A path that is not in the table is open to
admins only; routes need a key unless they declare otherwise. Logins and logouts leave an event, too.

An unknown key may have been created a moment ago by another process: before it is refused, the log is read to its end.
Only one such reading runs at a time, however many unknown keys are sent.

Each route finds only the tenant's own data (principal.py); other tenants' data is "not found". Data that all tenants
share is changed only with a key without a tenant. A key that is bound to an agent has the rights that roles.py gives
agents; the header that names an agent must agree with it, and adds no rights. JSON-RPC has its method in the body;
jobs/rpc.py checks it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http import errors
from gateway.http.authentication import FindsPrincipals, RecordsRequests
from gateway.http.limits import KeyLimits
from gateway.http.principal import decide_at_door, set_principal
from gateway.http.request_record import RequestRecord
from gateway.http.route import LOGIN_ACTIONS, RouteTable
from streams.access.credentials import UNKNOWN
from streams.access.roles import Action, Decision, Principal
from streams.egress import within_trace
from streams.errors import LogError
from streams.kafka import times

READ_S = 1.0
"""Maximum time that a request with an unknown key waits for the log to be read."""
UNLISTED: Action = "code.run"
"""The action of a path without a route; admins only."""


class Door:
    """An application that needs a key or an access token."""

    def __init__(
        self,
        app: ASGIApp,
        table: RouteTable,
        keys: FindsPrincipals,
        limits: KeyLimits,
        requests: RecordsRequests | None = None,
    ) -> None:
        self._app, self._table, self._keys, self._limits, self._requests = app, table, keys, limits, requests
        self._prefixes = table.key_prefixes
        self._reading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/") or "/"
        match = self._table.find(scope["method"], path)
        route = self._table.at(path) if match is None else match.route
        is_closed = route is None or (match is None and not route.is_open)  # an open path has no other action
        may = UNLISTED if route is None or is_closed else route.may
        if match is None and self._table.older_form(path) is not None:  # whose client is told what is spoken here
            may = "models.read"
        if may is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        agent_id = None if match is None else match.parameters.get("agent_id")
        if may in LOGIN_ACTIONS:
            record = RequestRecord.of(scope, may, None)
            refusal = self._unwritable(record)
        else:
            record = RequestRecord.of(scope, may, agent_id or headers.get("x-agent-id"))
            refusal = self._unwritable(record) or await self._refusal(
                record, cast(Action, may), self._sent_key(headers)
            )
        if record.decision.allowed and record.principal is not None:
            set_principal(scope, record.principal)
        await self._answer(record, refusal or self._app, scope, receive, send)

    async def _answer(self, record: RequestRecord, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with within_trace(record.traceparent):
                await app(scope, receive, record.watching(send))
        finally:
            if record.in_progress and record.principal is not None:
                self._limits.end(record.principal.who, record.tokens)
            if self._requests is not None:
                self._requests.write(record.events(times.now_ms()))

    def _unwritable(self, record: RequestRecord) -> Response | None:
        """Return the refusal of a request whose event is required and cannot be written; None otherwise."""
        reason = None if self._requests is None else self._requests.why_not()
        return None if reason is None else self._refuse(record, 503, reason)

    async def _refusal(self, record: RequestRecord, action: Action, secret: str) -> Response | None:
        """Return the refusal of a request, None if it may continue; note its principal and the reason."""
        try:
            principal = await self._find(secret)
        except LogError as exc:
            return self._refuse(record, 503, str(exc))
        if isinstance(principal, str):
            advice = f"Send a key as `Authorization: Bearer`; {self._keys.advice}"
            return self._refuse(record, 401, f"{principal}. {advice}")
        record.principal = principal
        if (limit := self._limits.begin(principal.who)) is not None:
            return self._refuse(record, 429, limit.why, limit.retry_after_s)
        record.in_progress = True
        record.decision = decide_at_door(principal, action, record.agent_id)
        return None if record.decision.allowed else self._refuse(record, 403, record.decision.why)

    def _sent_key(self, headers: Headers) -> str:
        """Return the key or token of a request, without the prefix that its client requires; empty if it has none."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return next((token.removeprefix(prefix) for prefix in self._prefixes if token.startswith(prefix)), token)

    async def _find(self, secret: str) -> Principal | str:
        """Return the owner of a key, or why it is invalid. Raises LogError as `FindsPrincipals.find`."""
        found = self._keys.find(secret)
        for _ in range(2):  # the first reading may have begun before this key was created
            if found != UNKNOWN:
                break
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_on())
            await asyncio.wait([self._reading], timeout=READ_S)
            found = self._keys.find(secret)
        return found

    async def _read_on(self) -> None:
        with suppress(LogError):  # `find` raises it
            await asyncio.to_thread(self._keys.catch_up)

    def _refuse(self, record: RequestRecord, status: int, reason: str, retry_after_s: float | None = None) -> Response:
        record.decision = Decision(False, reason)
        return errors.refusal(status, reason, self._table.dialect(record.path), retry_after_s=retry_after_s)
