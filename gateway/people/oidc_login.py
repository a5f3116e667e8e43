"""People at the door whom an issuer of OpenID Connect vouches for.

    GET /auth/oidc/login ──► a cookie, and 302 to the issuer's page
    GET /auth/oidc/callback?code&state ──► cookie, Issuer.finish ──► Logins.vouched ──► access token, refresh token

The cookie holds what belongs to this one login, for ten minutes. Scripts cannot read it, and no other site's requests
bring it but the issuer's way back. Who begins on the page (`?to=page`) has the tokens as the page's own cookie in the
end, and goes there; by way of a page of ours, as a browser sends that cookie to no request that another site began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from gateway.http.errors import apart
from gateway.http.notice import PREFIX, plain_page
from gateway.http.openapi import ANYWHERE, described
from gateway.people.auth import LOGGED_IN, NOT_STORED, TokensAnswer, address_of, answered, noted, refusal_of
from gateway.people.cookie import LOGIN, LoginCookie
from streams.access.oidc import CALLBACK, Issuer
from streams.access.people import Logins, TokenPair
from streams.access.roles import Decision
from streams.errors import LoginRefused

COOKIE = "streamward-oidc"
LASTS_S = 600
_COOKIE_PATH = "/auth/oidc"
_TO_PAGE = ":page"
"""Behind what the cookie holds of a login that was begun on the page."""
TO = {
    "name": "to",
    "in": "query",
    "description": "`page`: the login is for the page, and ends there",
    "schema": {"type": "string"},
}
BROUGHT = [
    {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
    for name, what in (("code", "of the issuer"), ("state", "of the login that began"), ("error", "of the issuer"))
]
"""What a browser comes back with."""


def routes(issuer: Issuer, logins: Logins, kept: LoginCookie) -> APIRouter:
    """Return the routes; `kept`: how a browser keeps the login on the page."""
    router, over_tls = APIRouter(), kept.over_tls

    @router.get(
        "/auth/oidc/login",
        response_class=RedirectResponse,
        **described(name="begin_oidc_login", answer=None, status=302, parameters=[TO], refuses=ANYWHERE),
    )
    async def begin(request: Request) -> Response:
        """Send a browser to the issuer."""
        begun = await apart(issuer.begin)
        noted(request, None, Decision(True, "sent to the issuer"))
        to = _TO_PAGE if request.query_params.get("to") == "page" else ""
        answer = RedirectResponse(begun.url, 302, NOT_STORED)
        answer.set_cookie(
            COOKIE, begun.kept + to, LASTS_S, path=_COOKIE_PATH, secure=over_tls, httponly=True, samesite="lax"
        )
        return answer

    @router.get(
        CALLBACK,
        **described(
            name="finish_oidc_login", answer=TokensAnswer, parameters=BROUGHT, refuses=(401, 429, *ANYWHERE), page=True
        ),
    )
    async def finish(request: Request) -> Response:
        """Log in whom the issuer vouches for."""
        sent, cookie = dict(request.query_params), request.cookies.get(COOKIE, "")
        finished = partial(_finished, issuer, logins, sent, cookie.removesuffix(_TO_PAGE))
        if cookie.endswith(_TO_PAGE):
            answer = await _on_page(request, finished, kept)
        else:
            answer = await answered(request, finished, address_of(request))
        answer.delete_cookie(COOKIE, _COOKIE_PATH, secure=over_tls, httponly=True, samesite="lax")
        return answer

    return router


async def _on_page(request: Request, finished: Callable[[str], TokenPair], kept: LoginCookie) -> Response:
    try:
        pair: TokenPair = await apart(finished, address_of(request))
    except LoginRefused as exc:
        noted(request, None, refusal_of(exc))
        return plain_page("Not logged in", str(exc), 401 if exc.wait_ms is None else 429, to=LOGIN)
    noted(request, pair.user, LOGGED_IN)
    answer = plain_page("Logged in", "The page comes next.", 200, to=f"{PREFIX}/", follow=True)
    kept.put(answer, pair)
    return answer


def _finished(issuer: Issuer, logins: Logins, sent: dict[str, str], cookie: str, address: str) -> TokenPair:
    with logins.attempt(f"oidc {address}", address):
        return logins.vouched(issuer.finish(sent, cookie))
