"""The door: what a request needs to do, and whether its key may.

    request ──► path, method ──► action ──────────────────────────────┐
            └─► Bearer, x-api-key ──► AccessLog.find ──► KeyLimits ──► decide ──► the application, which sees the key
                                                └──► 401, 503   └──► 429     └──► 403

It stands before the whole application, since calls go past FastAPI's middleware. A path that the table does not name is
closed to all but the key of an admin; only /healthz needs no key.

The routes look for what is a tenant's own (whose.py), and another's does not exist for them. What all tenants share is
changed only with a key of none. JSON-RPC has its method in the body, and jobs.py decides it there.
"""

from __future__ import annotations

import re
from typing import Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import errors, jobs
from gateway.app import DEFAULT_AGENT
from gateway.limits import KeyLimits
from gateway.refusals import refusal
from gateway.whose import opened_by
from streams.access.keys import AccessKey
from streams.access.roles import Action, decide
from streams.errors import LogError
from streams.stages.agents.calls import CallError

_AGENT = r"(?:/agents/(?P<agent>[^/]+)(?:/trajectories/[^/]+)?)?"
_REST = r"(?:/api/v1)?"
TABLE: tuple[tuple[str, str, Action], ...] = (
    ("POST", rf"{_AGENT}/v1/(?:chat/completions|completions|responses|messages|messages/count_tokens)", "chat.call"),
    ("POST", rf"{_AGENT}/v1/feedback", "feedback.give"),
    ("GET", rf"{_AGENT}/v1/models(?:/[^/]+)?", "models.read"),
    ("POST", r"/agents/(?P<agent>[^/]+)/trajectories/[^/]+/(?:begin|end)", "runs.write"),
    ("POST", r"/v1/files", "files.write"),
    ("DELETE", r"/v1/files/[^/]+", "files.write"),
    ("GET", r"/v1/files(?:/[^/]+(?:/content)?)?", "files.read"),
    ("POST", r"/v1/fine_tuning/jobs", "jobs.order"),
    ("POST", r"/v1/fine_tuning/jobs/[^/]+/[^/]+", "jobs.command"),
    ("GET", r"/v1/fine_tuning/jobs(?:/.+)?", "jobs.read"),
    ("POST", rf"{_REST}/finetune/(?:jobs|peft)", "jobs.order"),
    ("GET", rf"{_REST}/(?:finetune/jobs|rl/training)/[^/]+/(?:status|metrics)", "jobs.read"),
    ("POST", rf"{_REST}/rl/environments", "code.run"),
    ("POST", rf"{_REST}/rl/agents", "agents.write"),
    ("POST", "|".join(map(re.escape, jobs.PATHS)), "models.read"),  # what every role may; jobs.py decides each call
    ("GET", r"/openapi\.json", "models.read"),
)
"""Method, path and action. The first that fits counts."""
_ROUTES = [(method, re.compile(path), action) for method, path, action in TABLE]
OPEN = ("/healthz",)
OF_ALL_TENANTS: frozenset[Action] = frozenset({"runs.write", "agents.write", "adapters.promote", "code.run"})
"""What touches that which tenants share."""


class KnowsKeys(Protocol):
    """Who says whose a key is: AccessLog."""

    def find(self, sent: str) -> AccessKey | str:
        """Return the key that a client sent, or why it is none. Raises LogError."""


class Door:
    """An application that is reached with a key only."""

    def __init__(self, app: ASGIApp, keys: KnowsKeys, limits: KeyLimits) -> None:
        self._app, self._keys, self._limits = app, keys, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        found = self._found(Headers(scope=scope), path)
        if not isinstance(found, AccessKey):
            await found(scope, receive, send)
            return
        if (limited := self._limits.begin(found.key_id)) is not None:
            await refusal(429, limited.why, path, retry_after_s=limited.retry_after_s)(scope, receive, send)
            return
        try:
            await (_refusal(found, scope) or self._app)(scope, receive, send)
        finally:
            self._limits.end(found.key_id)

    def _found(self, headers: Headers, path: str) -> AccessKey | JSONResponse:
        """Return the key of a request, or what its client is told for having none."""
        try:
            found = self._keys.find(sent_key(headers))
        except LogError as exc:
            return errors.response(CallError("busy", str(exc)), path)
        if isinstance(found, AccessKey):
            return found
        why = f"{found}. Send a key as `Authorization: Bearer`; `streamward access keys create` makes one"
        return refusal(401, why, path)


def _refusal(found: AccessKey, scope: Scope) -> JSONResponse | None:
    """Return what a key is told that may not; None if it may, and then the routes see it."""
    headers, path = Headers(scope=scope), scope["path"]
    action, agent = wanted(scope["method"], path)
    decision = decide(found, action, agent_id=agent or headers.get("x-agent-id") or DEFAULT_AGENT)
    if not decision.allowed:
        return refusal(403, decision.why, path)
    if found.tenant is not None and action in OF_ALL_TENANTS:
        why = f"key {found.key_id} is of a tenant, and {action} is for keys without one: it is about all of them"
        return refusal(403, why, path)
    opened_by(scope, found)
    return None


def sent_key(headers: Headers) -> str:
    """Return the key of a request; empty if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def wanted(method: str, path: str) -> tuple[Action, str | None]:
    """Return what a request does, and the agent that its path names."""
    method = "GET" if method == "HEAD" else method
    for known, pattern, action in _ROUTES:
        if known == method and (found := pattern.fullmatch(path.rstrip("/"))) is not None:
            return action, found.groupdict().get("agent")
    return "code.run", None
