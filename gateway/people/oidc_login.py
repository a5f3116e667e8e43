"""Log people in through an issuer of OpenID Connect.

    GET /auth/oidc/login ──► a cookie, and 302 to the issuer's page
    GET /auth/oidc/callback?code&state ──► cookie, Issuer.finish ──► Logins.vouched ──► access token, refresh token

The cookie holds the state of one login for ten minutes. Scripts cannot read it, and other sites' requests do not carry
it, except the issuer's redirect back. A login that begins on the page (`?to=page`) ends there, with the tokens in the
page's own cookie, after an intermediate page: browsers do not send that cookie with requests that another site began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.http.errors import apart, json_response
from gateway.http.notice import PREFIX, plain_page
from gateway.http.route import ANYWHERE, PLAIN
from gateway.people.auth import (
    LOGGED_IN,
    NOT_STORED,
    TOKENS,
    TokensAnswer,
    address_of,
    give_tokens,
    record_login,
    refusal_decision,
)
from gateway.people.cookie import LOGIN, LoginCookie
from streams.access.logins import Logins, TokenPair
from streams.access.oidc import CALLBACK, Issuer
from streams.access.roles import Decision
from streams.errors import LoginRefused

COOKIE = "streamward-oidc"
LASTS_S = 600
_COOKIE_PATH = "/auth/oidc"
_TO_PAGE = ":page"
"""The end of the cookie of a login that began on the page."""
TO = {
    "name": "to",
    "in": "query",
    "description": "`page`: the login is for the page, and ends there",
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

    def __init__(self, issuer: Issuer, logins: Logins, login_cookie: LoginCookie) -> None:
        """`login_cookie`: attributes of the page's login cookie."""
        self._issuer, self._logins, self._login_cookie = issuer, logins, login_cookie

    @PLAIN.get("/auth/oidc/login", may="auth.oidc", status=302, parameters=(TO,), refuses=(404, *ANYWHERE))
    async def begin_oidc_login(self, request: Request) -> Response:
        """Send a browser to the issuer."""
        begun = await apart(self._issuer.begin)
        record_login(request, None, Decision(True, "sent to the issuer"))
        suffix = _TO_PAGE if request.query_params.get("to") == "page" else ""
        response = RedirectResponse(begun.url, 302, NOT_STORED)
        response.set_cookie(
            COOKIE,
            begun.kept + suffix,
            LASTS_S,
            path=_COOKIE_PATH,
            secure=self._login_cookie.over_tls,
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
        parameters, cookie = dict(request.query_params), request.cookies.get(COOKIE, "")
        finish = partial(self._finish, parameters, cookie.removesuffix(_TO_PAGE))
        if cookie.endswith(_TO_PAGE):
            response = await self._finish_on_page(request, finish)
        else:
            tokens = await give_tokens(request, finish, address_of(request))
            response = tokens if isinstance(tokens, Response) else json_response(tokens.answer, headers=tokens.headers)
        secure = self._login_cookie.over_tls
        response.delete_cookie(COOKIE, _COOKIE_PATH, secure=secure, httponly=True, samesite="lax")
        return response

    async def _finish_on_page(self, request: Request, finish: Callable[[str], TokenPair]) -> Response:
        try:
            pair = await apart(finish, address_of(request))
        except LoginRefused as exc:
            record_login(request, None, refusal_decision(exc))
            return plain_page("Not logged in", str(exc), 401 if exc.wait_ms is None else 429, to=LOGIN)
        record_login(request, pair.user, LOGGED_IN)
        response = plain_page("Logged in", "The page comes next.", 200, to=f"{PREFIX}/", follow=True)
        self._login_cookie.put(response, pair)
        return response

    def _finish(self, parameters: dict[str, str], cookie: str, address: str) -> TokenPair:
        with self._logins.attempt(None, address):
            return self._logins.log_in_from_issuer(self._issuer.finish(parameters, cookie))
