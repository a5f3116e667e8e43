"""Logins of people: log in, refresh tokens, log out.

    POST /auth/login {username, password} ──► Logins ──► access token, refresh token
    POST /auth/tokens/refresh {refresh_token} ──► the next two          POST /auth/logout {refresh_token} ──► 204
    each of them ──► RequestRecord: the user, or the given name and the reason ──► an event
    GET  /.well-known/jwks.json ──► public keys

An access token is sent as `Authorization: Bearer`, like a machine's key. Answers with tokens may not be cached (RFC
6749 section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.authentication import (
    LOGGED_IN,
    NOT_STORED,
    address_of,
    logout_decision,
    record_login,
    refusal_decision,
)
from gateway.http.body import Answer, SecretBody
from gateway.http.errors import UNAUTHORIZED, ErrorAnswer, ErrorDetails, apart, json_response
from gateway.http.route import ANYWHERE, PLAIN, Reply
from plugins.people.access import users
from plugins.people.logins import passwords
from plugins.people.logins.logins import Logins
from streams.access.credentials import TokenPair
from streams.errors import LoginRefused

MOST_BYTES = 16 * 1024
"""Maximum length of a body here."""


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


class JwksAnswer(Answer):
    """Public keys (RFC 7517)."""

    keys: list[dict[str, str]]


TOKENS = TokensAnswer(access_token="eyJ…", token_type="Bearer", expires_in=900, refresh_token="swr_…")  # noqa: S106


class PasswordLogins:
    """The routes that log people in and out."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    @PLAIN.post(
        "/auth/login",
        may="auth.login",
        refuses=(401, 429, *ANYWHERE),
        max_bytes=MOST_BYTES,
        sends={"username": "ann", "password": "correct horse battery staple"},
        example=TOKENS,
    )
    async def log_in(self, request: Request, body: LoginBody) -> Response | Reply[TokensAnswer]:
        """Log in with a password."""
        return await give_tokens(request, self._logins.log_in, body.username, body.password, address_of(request))

    @PLAIN.post(
        "/auth/tokens/refresh",
        may="auth.refresh",
        refuses=(401, *ANYWHERE),
        max_bytes=MOST_BYTES,
        sends={"refresh_token": "swr_…"},
        example=TOKENS,
    )
    async def refresh_tokens(self, request: Request, body: RefreshBody) -> Response | Reply[TokensAnswer]:
        """Exchange a refresh token for the next tokens. One that is used twice ends the login."""
        return await give_tokens(request, self._logins.refresh, body.refresh_token)

    @PLAIN.post(
        "/auth/logout",
        may="auth.logout",
        status=204,
        refuses=ANYWHERE,
        max_bytes=MOST_BYTES,
        sends={"refresh_token": "swr_…"},
    )
    async def log_out(self, request: Request, body: RefreshBody) -> None:
        """End a login, if it has not ended."""
        user = await apart(self._logins.log_out, body.refresh_token)
        record_login(request, user, logout_decision(user))

    @PLAIN.get("/.well-known/jwks.json", may=None, refuses=())
    async def list_public_keys(self) -> Reply[JwksAnswer]:
        """Return the keys that verify access tokens (RFC 7517)."""
        return Reply(JwksAnswer(keys=self._logins.public_keys()), {"Cache-Control": "public, max-age=60"})


async def give_tokens(
    request: Request, call: Callable[..., TokenPair], *arguments: str
) -> Response | Reply[TokensAnswer]:
    """Return the tokens of a login, or the refusal, and record either. Raises CallError without a broker."""
    try:
        pair = await apart(call, *arguments)
    except LoginRefused as exc:
        record_login(request, None, refusal_decision(exc))
        return _refusal(exc)
    record_login(request, pair.user, LOGGED_IN)
    answer = TokensAnswer(
        access_token=pair.access_token,
        token_type="Bearer",  # noqa: S106 - its type
        expires_in=pair.expires_in_s,
        refresh_token=pair.refresh_token,
    )
    return Reply(answer, NOT_STORED)


def _refusal(error: LoginRefused) -> Response:
    """Return a 401, or a 429 if the request may be retried later."""
    details = ErrorDetails(message=str(error), type="authentication_error", param=None, code="login_refused")
    if error.wait_ms is None:
        return json_response(ErrorAnswer(error=details), 401, NOT_STORED | UNAUTHORIZED)
    details = ErrorDetails(message=str(error), type="rate_limit_error", param=None, code="too_many_attempts")
    wait = {"Retry-After": str(math.ceil(error.wait_ms / 1000))}
    return json_response(ErrorAnswer(error=details), 429, NOT_STORED | wait)
