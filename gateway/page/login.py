"""People log in and out on the page.

GET  /login ──► a form, and a link to the issuer that vouches for people, if there is one
POST /login {name, password} ──► Logins.log_in ──► the cookie, and on to where one wanted to go; or why not
POST /logout ──► the login ends at every gateway, and the browser forgets it
"""

from __future__ import annotations

import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.http.notice import PREFIX
from gateway.page.forms import posted
from gateway.people.auth import LOGGED_IN, NOT_STORED, address_of, logged_out, noted, refusal_of
from gateway.people.cookie import LoginCookie, is_own_path, refresh_token_of
from streams.access import passwords, users
from streams.access.people import WRONG, Logins
from streams.errors import LoginRefused

Renders = Callable[[Request, str, dict[str, Any], HTTPStatus], Response]


class PagePeople(NamedTuple):
    """How people log in at the server whose page this is."""

    logins: Logins | None
    """None: nobody can, and keys alone open."""
    cookie: LoginCookie
    issuer: str = ""
    """Who vouches for people; empty: nobody does."""
    origin: str = ""
    """How browsers reach the server, if not by its own name."""


def routes(people: PagePeople, html: Renders) -> list[Route]:
    """Return the routes."""

    def form(request: Request, to: str, failed: str | None = None, status: HTTPStatus = HTTPStatus.OK) -> Response:
        said = {"next": to, "failed": failed, "passwords": people.logins is not None, "issuer": people.issuer}
        return html(request, "login.html", said, status)

    def ask(request: Request) -> Response:
        return form(request, _where(request.query_params.get("next", "")))

    async def log_in(request: Request) -> Response:
        sent = await posted(request)
        to = _where(sent.word("next"))
        if people.logins is None:
            return form(request, to, status=HTTPStatus.UNAUTHORIZED)
        try:
            name, password = sent.word("username"), sent.get("password", "")
            if len(name) > users.LONGEST or len(password) > passwords.MOST:
                raise LoginRefused(WRONG)
            pair = await run_in_threadpool(people.logins.log_in, name, password, address_of(request))
        except LoginRefused as exc:
            noted(request, None, refusal_of(exc))
            late = exc.wait_ms is not None
            answer = form(request, to, str(exc), HTTPStatus.TOO_MANY_REQUESTS if late else HTTPStatus.UNAUTHORIZED)
            if exc.wait_ms is not None:
                answer.headers["Retry-After"] = str(math.ceil(exc.wait_ms / 1000))
            return answer
        noted(request, pair.user, LOGGED_IN)
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER, NOT_STORED)
        people.cookie.put(answer, pair)
        return answer

    async def log_out(request: Request) -> Response:
        token = refresh_token_of(request)
        if token is not None and people.logins is not None:
            user = await run_in_threadpool(people.logins.log_out, token)
            noted(request, user, logged_out(user))
        answer = RedirectResponse(f"{PREFIX}/login", HTTPStatus.SEE_OTHER, NOT_STORED)
        people.cookie.remove(answer)
        return answer

    return [
        Route("/login", ask),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _where(wanted: str) -> str:
    """Return where to go after a login: a path of the page, whatever was asked for."""
    return wanted if is_own_path(wanted) else f"{PREFIX}/"
