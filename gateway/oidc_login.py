"""People at the door whom an issuer of OpenID Connect vouches for.

    GET /auth/oidc/login ──► a cookie, and 302 to the issuer's page
    GET /auth/oidc/callback?code&state ──► cookie, Issuer.finish ──► Logins.vouched ──► access token, refresh token

The cookie holds what belongs to this one login, for ten minutes. Scripts cannot read it, and no other site's requests
bring it but the issuer's way back.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from gateway.auth import NOT_STORED, address_of, answered, noted
from gateway.errors import apart
from gateway.openapi import described
from streams.access.oidc import CALLBACK, Issuer
from streams.access.people import Logins, TokenPair
from streams.access.roles import Decision

COOKIE = "streamward-oidc"
LASTS_S = 600
_COOKIE_PATH = "/auth/oidc"


def routes(issuer: Issuer, logins: Logins, *, over_tls: bool) -> APIRouter:
    """Return the routes; `over_tls`: browsers come by https, and send the cookie by nothing else."""
    router = APIRouter()

    @router.get("/auth/oidc/login", **described())
    async def begin(request: Request) -> Response:
        """Send a browser to the issuer."""
        begun = await apart(issuer.begin)
        noted(request, None, Decision(True, "sent to the issuer"))
        answer = RedirectResponse(begun.url, 302, NOT_STORED)
        answer.set_cookie(
            COOKIE, begun.kept, LASTS_S, path=_COOKIE_PATH, secure=over_tls, httponly=True, samesite="lax"
        )
        return answer

    @router.get(CALLBACK, **described())
    async def finish(request: Request) -> Response:
        """Log in whom the issuer vouches for."""
        sent, cookie = dict(request.query_params), request.cookies.get(COOKIE, "")
        answer = await answered(request, partial(_finished, issuer, logins, sent, cookie), address_of(request))
        answer.delete_cookie(COOKIE, _COOKIE_PATH, secure=over_tls, httponly=True, samesite="lax")
        return answer

    return router


def _finished(issuer: Issuer, logins: Logins, sent: dict[str, str], cookie: str, address: str) -> TokenPair:
    with logins.attempt(f"oidc {address}", address):
        return logins.vouched(issuer.finish(sent, cookie))
