"""Log in and out on the page.

GET  /login ──► a form, and a link to the issuer that vouches for people, if there is one
POST /login {name, password} ──► Logins.log_in ──► the cookie, and the page that was asked for; or why not
POST /logout ──► the login ends at every gateway, and the browser forgets it
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.http.authentication import (
    LOGGED_IN,
    NOT_STORED,
    LogsPeopleIn,
    address_of,
    logout_decision,
    record_login,
    refusal_decision,
)
from plugins.page.cookie import LoginCookie, is_own_path, refresh_token_of
from plugins.page.forms import read_form
from plugins.page.notice import PREFIX
from plugins.page.render import Renderer
from streams.errors import LoginRefused


class PagePeople(NamedTuple):
    """The login at the server of this page."""

    logins: LogsPeopleIn | None
    """None: only API keys can open the page."""
    cookie: LoginCookie
    issuer: str = ""
    """The OpenID issuer; empty: none."""
    origin: str = ""
    """The URL of the server in browsers, if it is not the server's own name."""


def routes(people: PagePeople, renderer: Renderer) -> list[Route]:
    """Return the routes."""

    def form(request: Request, to: str, failed: str | None = None, status: HTTPStatus = HTTPStatus.OK) -> Response:
        return renderer.html(
            request,
            "login.html",
            status=status,
            next=to,
            failed=failed,
            passwords=people.logins is not None,
            issuer=people.issuer,
        )

    def ask(request: Request) -> Response:
        return form(request, _own_path(request.query_params.get("next", "")))

    async def log_in(request: Request) -> Response:
        sent = await read_form(request)
        to = _own_path(sent.word("next"))
        if people.logins is None:
            return form(request, to, status=HTTPStatus.UNAUTHORIZED)
        try:
            name, password = sent.word("username"), sent.get("password", "")
            pair = await run_in_threadpool(people.logins.log_in, name, password, address_of(request))
        except LoginRefused as exc:
            record_login(request, None, refusal_decision(exc))
            if exc.wait_ms is None:
                return form(request, to, str(exc), HTTPStatus.UNAUTHORIZED)
            answer = form(request, to, str(exc), HTTPStatus.TOO_MANY_REQUESTS)
            answer.headers["Retry-After"] = str(math.ceil(exc.wait_ms / 1000))
            return answer
        record_login(request, pair.user, LOGGED_IN)
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER, NOT_STORED)
        people.cookie.put(answer, pair)
        return answer

    async def log_out(request: Request) -> Response:
        token = refresh_token_of(request)
        if token is not None and people.logins is not None:
            user = await run_in_threadpool(people.logins.log_out, token)
            record_login(request, user, logout_decision(user))
        answer = RedirectResponse(f"{PREFIX}/login", HTTPStatus.SEE_OTHER, NOT_STORED)
        people.cookie.remove(answer)
        return answer

    return [
        Route("/login", ask),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _own_path(path: str) -> str:
    """Return the path to go to after a login; always a path of the page."""
    return path if is_own_path(path) else f"{PREFIX}/"
