"""The page as a part of the server of agents: at /page/, behind the door where there is one.

    / ──► /page/ ──► made when somebody asks for the first time ──► app.py

Until then nothing of it is imported: a server that nobody looks at has no DuckDB in memory, and one in an image without
it says so. It reads in the server's process, one page at a time, on one processor at most; `streamward page` does that
in a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.notice import PREFIX, plain_page
from gateway.people.cookie import LoginCookie, PageEntrance
from streams.access.access_log import AccessLog
from streams.access.people import Logins
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.views.log_view import LogView
    from streams.tools.views.side_by_side import TokenTexts

HOUR_S = 3600


class PageMount:
    """The page of a server. Close it."""

    def __init__(self, settings: Settings, logins: Logins | None = None, texts: TokenTexts | None = None) -> None:
        """`texts`: the tokenizer of the server's engine."""
        self._settings, self.logins, self._texts = settings, logins, texts
        self._making = asyncio.Lock()
        self._app: ASGIApp | None = None
        self._view: LogView | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with self._making:
            if self._app is None:
                try:
                    await asyncio.to_thread(self._make)
                except ImportError as exc:
                    said = f"this server has no page: {exc}. `streamward page` shows it where everything is installed"
                    await plain_page("No page here", said, 503, to="/openapi.json")(scope, receive, send)
                    return
        assert self._app is not None  # noqa: S101 - made by `_make`
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Release what it has read."""
        if self._view is not None:
            self._view.close()

    def _make(self) -> None:
        from gateway.page.app import LOOPBACK, create_app
        from gateway.page.login import PagePeople
        from streams.tools.views.log_view import LogView

        settings, people = self._settings, None
        hosts: Collection[str] = LOOPBACK
        if settings.serve.auth == "keys":
            issuer = settings.login.oidc_issuer if self.logins is not None else ""
            people = PagePeople(self.logins, cookie_of(settings), issuer, settings.login.public_url)
            hosts = ()
        view = LogView(settings)
        self._view, self._app = view, create_app(view, hosts=hosts, people=people, decides=True, texts=self._texts)


def cookie_of(settings: Settings) -> LoginCookie:
    """Return how browsers keep a login at this server."""
    url = settings.login.public_url or settings.serve.url
    return LoginCookie(over_tls=url.startswith("https://"), lasts_s=int(settings.login.session_h * HOUR_S))


def mount(app: FastAPI, page: ASGIApp) -> None:
    """Add the page to a server, and the way to it."""

    async def to_page(_: Request) -> Response:
        return RedirectResponse(f"{PREFIX}/")

    app.add_route("/", to_page, include_in_schema=False)
    app.mount(PREFIX, page)


def entered(door: ASGIApp, settings: Settings, access: AccessLog, logins: Logins | None) -> ASGIApp:
    """Return a door that the cookie of a login opens for the page as well."""
    return PageEntrance(door, access, logins, cookie_of(settings))
