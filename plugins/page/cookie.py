"""Browser logins: a cookie with the tokens of a login, in place of a header.

    cookie ──► access token still good? ──► Authorization: Bearer ──► the door ──► the page
                └─ no: refresh token ──► Logins.refresh, once ──► the next two, as a cookie with the answer
    401 ──► a redirect to the form that logs in         403, 429, 503 ──► the reason as a page

The cookie is limited to the page's paths, so a browser that sends it unasked cannot reach the machines' routes; scripts
cannot read it, and requests from other sites do not carry it (SameSite=Strict).

A refresh token is good for one exchange, and a browser sends several requests at once: later requests with the same one
get the tokens of the first for a short time. Not covered: gateways do not share this; if two windows refresh at two
gateways at the same moment, one has to log in again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.authentication import Authentication, FindsPrincipals, LogsPeopleIn
from gateway.http.route import Interface, Route
from plugins.page.notice import PREFIX, plain_page
from streams.access.credentials import TokenPair
from streams.errors import LogError, LoginRefused

COOKIE = "streamward-login"
LOGIN, LOGOUT = f"{PREFIX}/login", f"{PREFIX}/logout"
OPEN = ("/", LOGIN, LOGOUT)
STATIC = f"{PREFIX}/static/"
PAGE = Interface(described_in="page.md")
PAGE_ROUTES = (
    Route("GET", "/", PAGE, may=None),
    Route("GET", LOGIN, PAGE, may=None),
    Route("POST", LOGIN, PAGE, may="auth.login"),
    Route("GET", LOGOUT, PAGE, may=None),
    Route("POST", LOGOUT, PAGE, may="auth.logout"),
    Route("GET", STATIC + "{path:path}", PAGE, may=None),
    Route("GET", PREFIX, PAGE, may="log.read"),
    Route("GET", PREFIX + "/{path:path}", PAGE, may="log.read"),
    Route("POST", PREFIX + "/{path:path}", PAGE, may="log.read"),  # every role may; the page checks each form
)
"""The page's route for the door; the page itself is mounted."""
KEPT_S = 60.0
"""Time for which the answer to a refresh is kept for requests with the previous token."""
EXPLAINED = {403: "Not allowed", 429: "Too much at once", 503: "Not now"}
BROWSERS_ACCEPT = "text/html"


class LoginCookie(NamedTuple):
    """Attributes of a login's cookie."""

    over_tls: bool
    """Whether browsers use https; the cookie is then sent over https only."""
    lasts_s: int

    @classmethod
    def of(cls, auth: Authentication) -> LoginCookie:
        """Return the cookie of a server."""
        return cls(over_tls=auth.over_tls, lasts_s=auth.session_s)

    def put(self, answer: Response, pair: TokenPair) -> None:
        """Set the cookie with the tokens of a login."""
        answer.set_cookie(
            COOKIE, f"{pair.access_token}:{pair.refresh_token}", self.lasts_s, path=PREFIX, secure=self.over_tls,
            httponly=True, samesite="strict",
        )  # fmt: skip

    def remove(self, answer: Response) -> None:
        """Delete the cookie."""
        answer.delete_cookie(COOKIE, PREFIX, secure=self.over_tls, httponly=True, samesite="strict")

    def welcome(self, pair: TokenPair) -> Response:
        """Answer a browser that comes back from an issuer.

        It is sent to the page by an intermediate one: no browser sends this cookie with a request that another site
        began.
        """
        answer = plain_page("Logged in", "The page comes next.", 200, to=f"{PREFIX}/", follow=True)
        self.put(answer, pair)
        return answer

    def refuse(self, error: LoginRefused) -> Response:
        """Answer a browser that the issuer did not let in."""
        return plain_page("Not logged in", str(error), 401 if error.wait_ms is None else 429, to=LOGIN)


def refresh_token_of(request: Request) -> str | None:
    """Return the refresh token in a browser's cookie."""
    return request.cookies.get(COOKIE, "").partition(":")[2] or None


def is_own_path(path: str) -> bool:
    """Return whether a path is a local path of the page, not a URL of another site.

    >>> is_own_path("/page/tasks/1?a=b"), is_own_path("/page//evil.example"), is_own_path("//evil.example/page/")
    (True, False, False)
    """
    return path.startswith(PREFIX + "/") and "//" not in path and "\\" not in path and path.isprintable()


class PageEntrance:
    """An application that accepts the cookie of a login on its page."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: FindsPrincipals,
        logins: LogsPeopleIn | None,
        cookie: LoginCookie,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`logins`: None: people cannot log in."""
        self._app, self._tokens, self._logins, self._cookie, self._clock = app, tokens, logins, cookie, clock
        self._one_at_a_time = asyncio.Lock()
        self._next: dict[bytes, tuple[float, TokenPair]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path + "/").startswith(PREFIX + "/") or path in OPEN:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "authorization" in headers or "x-api-key" in headers or path.startswith(STATIC):
            await self._app(scope, receive, send)
            return
        cookie_response = Response()
        sent = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        if sent is not None and self._logins is not None:
            try:
                access = await self._access_token(sent, self._logins, cookie_response)
            except LogError as exc:
                await plain_page(EXPLAINED[503], str(exc), 503, to=path)(scope, receive, send)
                return
            bearer = (b"authorization", f"Bearer {access}".encode("latin-1", "replace"))
            scope = {**scope, "headers": [*scope["headers"], bearer]}
        await self._app(scope, receive, _ForBrowsers(scope, headers, send, cookie_response).send)

    async def _access_token(self, sent: str, logins: LogsPeopleIn, cookie_response: Response) -> str:
        """Return a valid access token, if the cookie gives one; the next cookie is set on `cookie_response`."""
        access, _, refresh = sent.partition(":")
        if not isinstance(self._tokens.find(access), str):
            return access
        async with self._one_at_a_time:
            pair = await self._next_pair(refresh, logins)
        if pair is None:
            self._cookie.remove(cookie_response)
            return access
        self._cookie.put(cookie_response, pair)
        return pair.access_token

    async def _next_pair(self, refresh: str, logins: LogsPeopleIn) -> TokenPair | None:
        now, name = self._clock(), hashlib.sha256(refresh.encode()).digest()
        self._next = {key: answer for key, answer in self._next.items() if now - answer[0] < KEPT_S}
        if name in self._next:
            return self._next[name][1]
        try:
            pair = await asyncio.to_thread(logins.refresh, refresh)
        except LoginRefused:
            return None
        self._next[name] = now, pair
        return pair


class _ForBrowsers:
    """Sends the door's refusals to a browser as pages, and the next cookie."""

    def __init__(self, scope: Scope, headers: Headers, send: Send, cookie_response: Response) -> None:
        self._scope, self._headers, self._send = scope, headers, send
        self._cookies = cookie_response.headers.getlist("set-cookie")
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for cookie in self._cookies:
                headers.append("set-cookie", cookie)
            is_json = headers.get("content-type", "").startswith("application/json")
            if is_json and message["status"] in (401, *EXPLAINED):
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._explain(self._start)
            return
        await self._send(message)

    async def _explain(self, start: Message) -> None:
        status, path = start["status"], self._scope["path"]
        answer: Response
        if status == 401:
            answer = self._to_login(path)
        elif BROWSERS_ACCEPT in self._headers.get("accept", ""):
            message = json.loads(self._body)["error"]["message"]
            answer = plain_page(EXPLAINED[status], message, status, to=f"{PREFIX}/")
        else:
            answer = Response(self._body, status, media_type="application/json")
        headers = MutableHeaders(scope=start)
        for name in ("retry-after", "set-cookie"):
            for value in headers.getlist(name):
                answer.headers.append(name, value)
        await answer(self._scope, _disconnect, self._send)

    def _to_login(self, path: str) -> Response:
        query = self._scope.get("query_string", b"").decode("latin-1")
        target = path + (f"?{query}" if query else "")
        form = LOGIN + (f"?next={quote(target, safe='')}" if self._scope["method"] == "GET" else "")
        if "hx-request" in self._headers:
            return Response(status_code=401, headers={"HX-Redirect": LOGIN})
        if BROWSERS_ACCEPT in self._headers.get("accept", "") or self._scope["method"] == "POST":
            return RedirectResponse(form, 303, {"Cache-Control": "no-store"})
        return Response(self._body, 401, {"WWW-Authenticate": 'Bearer realm="streamward"'}, "application/json")


async def _disconnect() -> Message:
    return {"type": "http.disconnect"}
