"""People at the door: they log in, stay so, and log out.

    POST /auth/login {username, password} ──► Logins ──► access token, refresh token
    POST /auth/tokens/refresh {refresh_token} ──► the next two          POST /auth/logout {refresh_token} ──► 204
    each of them ──► Asked: who, or whom it names and why not ──► an event
    GET  /auth/permissions ──► who asks, and what they may              GET /.well-known/jwks.json ──► public keys

An access token is sent as `Authorization: Bearer`, where machines send their key. Answers with tokens may not be stored
on the way (RFC 6749 section 5.1). Without `login.signing_key` there are only the permissions.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.http.body import SecretBody, read, sent
from gateway.http.errors import apart
from gateway.http.openapi import ANYWHERE, Answer, described, requested
from gateway.http.principal import principal_of
from gateway.http.request_record import asked_of
from schemas.events import AccessRole
from streams.access import passwords, roles, users
from streams.access.people import Logins, TokenPair
from streams.access.roles import Action, Decision
from streams.access.users import User
from streams.errors import LoginRefused

LOGINS = {
    "/auth/login": "auth.login",
    "/auth/tokens/refresh": "auth.refresh",
    "/auth/logout": "auth.logout",
    "/auth/oidc/login": "auth.oidc",
    "/auth/oidc/callback": "auth.oidc",
}
"""What logs people in and out; their events have it as action."""
OPEN = (*LOGINS, "/.well-known/jwks.json")
"""What needs no key: who comes here has none yet, or shows a refresh token."""
MOST_BYTES = 16 * 1024
"""No body here is longer."""
LOGGED_IN = Decision(True, "logged in")
NOT_STORED = {"Cache-Control": "no-store"}


class LoginBody(SecretBody):
    """Who somebody is."""

    username: str = Field(min_length=1, max_length=users.LONGEST)
    password: str = Field(min_length=1, max_length=passwords.MOST)


class RefreshBody(SecretBody):
    """A login that continues, or ends."""

    refresh_token: str = Field(min_length=1, max_length=200)


class TokensAnswer(Answer):
    """What a login gives."""

    access_token: str
    token_type: Literal["Bearer"]
    expires_in: int = Field(description="seconds")
    refresh_token: str


class PermissionsAnswer(Answer):
    """Who asks, and what they may do."""

    who: str
    roles: list[AccessRole]
    tenant: str | None
    agent_id: str | None
    actions: list[Action]


class JwksAnswer(Answer):
    """Public keys (RFC 7517)."""

    keys: list[dict[str, str]]


BODIES = (LoginBody, RefreshBody)


def routes(logins: Logins | None) -> APIRouter:
    """Return the routes; None: people cannot log in."""
    router = APIRouter()

    @router.get("/auth/permissions", **described(name="get_permissions", answer=PermissionsAnswer, refuses=()))
    async def permissions(request: Request) -> JSONResponse:
        """Return who asks, and what they may do."""
        asks = principal_of(request)
        assert asks is not None, "these routes stand behind the door"  # noqa: S101
        return JSONResponse(_permissions(asks), headers=NOT_STORED)

    if logins is not None:
        _add_logins(router, logins)
    return router


def _add_logins(router: APIRouter, logins: Logins) -> None:
    @router.post(
        "/auth/login", **requested(LoginBody, name="log_in", answer=TokensAnswer, refuses=(401, 429, *ANYWHERE))
    )
    async def log_in(request: Request) -> Response:
        """Log in with a password."""
        body = read(LoginBody, await sent(request, MOST_BYTES))
        return await answered(request, logins.log_in, body.username, body.password, address_of(request))

    @router.post(
        "/auth/tokens/refresh",
        **requested(RefreshBody, name="refresh_tokens", answer=TokensAnswer, refuses=(401, *ANYWHERE)),
    )
    async def refresh(request: Request) -> Response:
        """Exchange a refresh token for the next tokens. One that is used twice ends the login."""
        body = read(RefreshBody, await sent(request, MOST_BYTES))
        return await answered(request, logins.refresh, body.refresh_token)

    @router.post("/auth/logout", **requested(RefreshBody, name="log_out", answer=None, status=204, refuses=ANYWHERE))
    async def log_out(request: Request) -> Response:
        """End a login, if it has not ended."""
        body = read(RefreshBody, await sent(request, MOST_BYTES))
        user = await apart(logins.log_out, body.refresh_token)
        noted(request, user, logged_out(user))
        return Response(status_code=204)

    @router.get("/.well-known/jwks.json", **described(name="list_public_keys", answer=JwksAnswer, refuses=()))
    async def public_keys() -> JSONResponse:
        """Return the keys that verify access tokens (RFC 7517)."""
        return JSONResponse({"keys": logins.public_keys()}, headers={"Cache-Control": "public, max-age=60"})


def address_of(request: Request) -> str:
    """Return where a request comes from."""
    return "unknown" if request.client is None else request.client.host


async def answered(request: Request, call: Any, *given: str) -> Response:
    """Return the tokens that a call gives, or why it refuses; note who it was. Raises CallError without a broker."""
    try:
        pair: TokenPair = await apart(call, *given)
    except LoginRefused as exc:
        noted(request, None, refusal_of(exc))
        return refused(exc)
    noted(request, pair.user, LOGGED_IN)
    body = {
        "access_token": pair.access_token,
        "token_type": "Bearer",
        "expires_in": pair.expires_in_s,
        "refresh_token": pair.refresh_token,
    }
    return JSONResponse(body, headers=NOT_STORED)


def refusal_of(exc: LoginRefused) -> Decision:
    """Return why nobody logged in."""
    return Decision(False, str(exc) if exc.about is None else f"{exc.about}: {exc}")


def logged_out(user: User | None) -> Decision:
    """Return what ended, if anything did."""
    return Decision(True, "there was no such login" if user is None else "logged out")


def noted(request: Request, user: User | None, decision: Decision) -> None:
    """Note for the event of a request who logged in or out, or why nobody did."""
    if (asked := asked_of(request)) is not None:
        asked.principal, asked.decision = user, decision


def refused(why: LoginRefused) -> JSONResponse:
    """Return a 401; or a 429, if it may be sent again later."""
    kind, code, status = "authentication_error", "login_refused", 401
    headers = {"WWW-Authenticate": 'Bearer realm="streamward"'}
    if why.wait_ms is not None:
        kind, code, status = "rate_limit_error", "too_many_attempts", 429
        headers = {"Retry-After": str(math.ceil(why.wait_ms / 1000))}
    error = {"message": str(why), "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status, headers | NOT_STORED)


def _permissions(asks: roles.Principal) -> dict[str, Any]:
    may = roles.allowed(asks)
    return {
        "who": asks.who,
        "roles": list(asks.roles),
        "tenant": asks.tenant,
        "agent_id": asks.agent_id,
        "actions": [action for action in roles.ACTIONS if action in may],
    }
