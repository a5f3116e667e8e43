"""The door: what a request needs to do, and whether its key, or the person who logged in, may.

    request ──► path, method ──► action ──────────────────────────────┐
            └─► Bearer, x-api-key ──► AccessLog.find ──► KeyLimits ──► decide ──► the application, which sees the key
                                                └──► 401, 503   └──► 429     └──► 403
    answered, or refused ──► Asked ──► RequestLog          who logs in or out ──► Asked, noted by auth.py ──► RequestLog

It stands before the whole application, since calls go past FastAPI's middleware. A path that the table does not name is
closed to all but an admin; only /healthz and what logs people in (auth.py, page/entrance.py) need no key.

The routes look for what is a tenant's own (whose.py), and another's does not exist for them. What all tenants share is
changed only with a key of none. JSON-RPC has its method in the body, and jobs.py decides it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.agents.routes import DEFAULT_AGENT
from gateway.http.limits import KeyLimits
from gateway.http.principal import opened_by
from gateway.http.request_record import Asked
from gateway.jobs import rpc as jobs
from gateway.people import auth, cookie as entrance
from schemas.events import RequestEvent
from streams.access.keys import AccessKey
from streams.access.roles import Action, Decision, Principal, decide
from streams.access.users import User
from streams.errors import LogError
from streams.kafka import times

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
    ("POST", rf"{_REST}/tasks", "tasks.submit"),
    ("POST", rf"{_REST}/rewards", "rewards.give"),
    ("POST", rf"{_REST}/score", "scores.try"),  # what runs code is decided in log_rest.py, here and in tasks
    ("GET", rf"{_REST}/groups/[^/]+", "groups.read"),
    ("POST", rf"{_REST}/query", "log.query"),
    ("GET", rf"{_REST}/adapters", "adapters.read"),
    ("POST", rf"{_REST}/adapters/[^/]+/(?:promote|reject|rollback)", "adapters.promote"),
    ("POST", "|".join(map(re.escape, jobs.PATHS)), "models.read"),  # what every role may; jobs.py decides each call
    ("GET", r"/openapi\.json", "models.read"),
    ("GET", r"/auth/permissions", "models.read"),
    ("GET", r"/page(?:/.*)?", "log.read"),
    ("POST", r"/page/.+", "log.read"),  # what every role may; the page decides what each form asks for
)
"""Method, path and action. The first that fits counts."""
_ROUTES = [(method, re.compile(path), action) for method, path, action in TABLE]
OPEN = ("/healthz", *auth.OPEN, *entrance.OPEN)
OF_ALL_TENANTS: frozenset[Action] = frozenset({"runs.write", "agents.write", "log.query", "code.run"})
"""What touches that which tenants share, or reads what all of them wrote."""


class KnowsKeys(Protocol):
    """Who says whose a key or a token is: AccessLog."""

    def find(self, sent: str) -> AccessKey | User | str:
        """Return whose key or access token it is, or why it is none. Raises LogError."""


class RecordsRequests(Protocol):
    """Who writes what was asked: RequestLog."""

    def why_not(self) -> str | None:
        """Return why nothing may be answered now; None if it may."""

    def write(self, events: Iterable[RequestEvent]) -> None:
        """Take events, without waiting."""


class Door:
    """An application that is reached with a key or an access token only."""

    def __init__(
        self, app: ASGIApp, keys: KnowsKeys, limits: KeyLimits, requests: RecordsRequests | None = None
    ) -> None:
        self._app, self._keys, self._limits, self._requests = app, keys, limits, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        login = _login(scope)
        if scope["type"] != "http" or (login is None and _is_open(scope["path"])):
            await self._app(scope, receive, send)
            return
        if login is not None:
            asked = Asked.of(scope, login, None)
            refused = self._unwritten(asked)
        else:
            headers = Headers(scope=scope)
            action, agent = wanted(scope["method"], scope["path"])
            asked = Asked.of(scope, action, agent or headers.get("x-agent-id"))
            refused = self._unwritten(asked) or self._refusal(asked, action, sent_key(headers))
        if asked.decision.allowed and asked.principal is not None:
            opened_by(scope, asked.principal)
        try:
            await (refused or self._app)(scope, receive, asked.watching(send))
        finally:
            if asked.in_progress and asked.principal is not None:
                self._limits.end(asked.principal.who)
            if self._requests is not None:
                self._requests.write(asked.events(times.now_ms()))

    def _unwritten(self, asked: Asked) -> JSONResponse | None:
        """Return what a client is told whose request has to leave an event and cannot; None otherwise."""
        why = None if self._requests is None else self._requests.why_not()
        return None if why is None else asked.refused(503, why)

    def _refusal(self, asked: Asked, action: Action, sent: str) -> JSONResponse | None:
        """Return what its client is told that gets no answer, None if it gets one; note whose it is, and why."""
        try:
            found = self._keys.find(sent)
        except LogError as exc:
            return asked.refused(503, str(exc))
        if isinstance(found, str):
            why = f"{found}. Send a key as `Authorization: Bearer`; `streamward access keys create` makes one"
            return asked.refused(401, why)
        asked.principal = found
        if (limited := self._limits.begin(found.who)) is not None:
            return asked.refused(429, limited.why, limited.retry_after_s)
        asked.in_progress = True
        asked.decision = decided(found, action, asked.agent_id or DEFAULT_AGENT)
        return None if asked.decision.allowed else asked.refused(403, asked.decision.why)


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(entrance.OPEN_FILES)


def _login(scope: Scope) -> str | None:
    """Return what a request is that logs somebody in or out; None for all others."""
    if scope["type"] != "http":
        return None
    on_page = entrance.LOGINS.get(scope["path"]) if scope["method"] == "POST" else None
    return auth.LOGINS.get(scope["path"]) or on_page


def decided(asks: Principal, action: Action, agent_id: str) -> Decision:
    """Return whether somebody may do something as an agent, and why."""
    decision = decide(asks, action, agent_id=agent_id)
    if decision.allowed and asks.tenant is not None and action in OF_ALL_TENANTS:
        why = f"{asks.who} is of a tenant, and {action} is for keys and people without one: it is about all of them"
        return Decision(False, why)
    return decision


def sent_key(headers: Headers) -> str:
    """Return the key or token of a request; empty if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def wanted(method: str, path: str) -> tuple[Action, str | None]:
    """Return what a request does, and the agent that its path names."""
    method = "GET" if method == "HEAD" else method
    for known, pattern, action in _ROUTES:
        if known == method and (found := pattern.fullmatch(path.rstrip("/"))) is not None:
            return action, found.groupdict().get("agent")
    return "code.run", None
