"""Log people in through an issuer of OpenID Connect.

    GET /auth/oidc/login ──► a cookie, and 302 to the issuer's page
    GET /auth/oidc/callback?code&state ──► cookie, Issuer.finish ──► Logins.vouched ──► access token, refresh token

The cookie holds the state of one login for ten minutes. Scripts cannot read it, and other sites' requests do not carry
it, except the issuer's redirect back. The answer has the tokens, unless the login began for a part of the server
(`?to=NAME`): then that part answers the browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.http.authentication import (
    LOGGED_IN,
    NOT_STORED,
    LoginLanding,
    address_of,
    record_login,
    refusal_decision,
)
from gateway.http.errors import apart, json_response
from gateway.http.route import ANYWHERE, PLAIN
from plugins.people.logins.logins import Logins
from plugins.people.logins.oidc import CALLBACK, Issuer
from plugins.people.rooms.password_logins import TOKENS, TokensAnswer, give_tokens
from streams.access.credentials import TokenPair
from streams.access.roles import Decision
from streams.errors import LoginRefused

COOKIE = "streamward-oidc"
LASTS_S = 600
_COOKIE_PATH = "/auth/oidc"
_TO = ":"
"""In the cookie of a login that began for a part of the server: what is before that part's name."""
TO = {
    "name": "to",
    "in": "query",
    "description": "name of the part of the server where the login ends; without it the answer has the tokens",
    "schema": {"type": "string"},
}
CALLBACK_PARAMETERS = [
    {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}
    for name, description in (
        ("code", "of the issuer"),
        ("state", "of the login that began"),
        ("error", "of the issuer"),
    )
]
"""The parameters that a browser brings back."""


class OidcLogins:
    """The routes to an issuer and back."""

    def __init__(
        self, issuer: Issuer, logins: Logins, *, over_tls: bool, landings: Mapping[str, LoginLanding] | None = None
    ) -> None:
        """`over_tls`: whether browsers use https. `landings`: by the names that `?to=` has for them."""
        self._issuer, self._logins, self._over_tls, self._landings = issuer, logins, over_tls, landings or {}

    @PLAIN.get("/auth/oidc/login", may="auth.oidc", status=302, parameters=(TO,), refuses=(404, *ANYWHERE))
    async def begin_oidc_login(self, request: Request) -> Response:
        """Send a browser to the issuer."""
        begun = await apart(self._issuer.begin)
        record_login(request, None, Decision(True, "sent to the issuer"))
        to = request.query_params.get("to", "")
        response = RedirectResponse(begun.url, 302, NOT_STORED)
        response.set_cookie(
            COOKIE,
            begun.kept + (f"{_TO}{to}" if to in self._landings else ""),
            LASTS_S,
            path=_COOKIE_PATH,
            secure=self._over_tls,
            httponly=True,
            samesite="lax",
        )
        return response

    @PLAIN.get(
        CALLBACK,
        may="auth.oidc",
        answers=TokensAnswer,
        parameters=CALLBACK_PARAMETERS,
        refuses=(401, 404, 429, *ANYWHERE),
        page=True,
        example=TOKENS,
    )
    async def finish_oidc_login(self, request: Request) -> Response:
        """Log in whom the issuer vouches for."""
        kept, _, to = request.cookies.get(COOKIE, "").partition(_TO)
        finish = partial(self._finish, dict(request.query_params), kept, address_of(request))
        if (landing := self._landings.get(to)) is None:
            tokens = await give_tokens(request, finish)
            response = tokens if isinstance(tokens, Response) else json_response(tokens.answer, headers=tokens.headers)
        else:
            try:
                pair = await apart(finish)
                record_login(request, pair.user, LOGGED_IN)
                response = landing.welcome(pair)
            except LoginRefused as exc:
                record_login(request, None, refusal_decision(exc))
                response = landing.refuse(exc)
        response.delete_cookie(COOKIE, _COOKIE_PATH, secure=self._over_tls, httponly=True, samesite="lax")
        return response

    def _finish(self, parameters: dict[str, str], cookie: str, address: str) -> TokenPair:
        with self._logins.attempt(None, address):
            return self._logins.log_in_from_issuer(self._issuer.finish(parameters, cookie))
