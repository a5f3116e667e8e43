"""The page as a part of the server of agents: at /page/, protected by the server's door if there is one.

    /, /page ──► /page/ ──► made for its first request ──► app.py

It is imported on its first request: a server without visitors has no DuckDB in memory, and in an image without DuckDB
the page reports that. It reads in the server's process, one page at a time, on one core at most; `streamward page`
reads in a separate process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.authentication import Authentication, LoginLanding
from gateway.http.own_machine import LOOPBACK
from gateway.log.server_part import ServerBase, ServerPart
from plugins.page.cookie import PAGE_ROUTES, LoginCookie, PageEntrance
from plugins.page.notice import PREFIX, plain_page
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.views.log_view import LogView
    from streams.tools.views.side_by_side import TokenTexts


class PageMount:
    """The page of a server. Close it."""

    def __init__(
        self,
        settings: Settings,
        authentication: Callable[[], Authentication | None] = lambda: None,
        texts: TokenTexts | None = None,
    ) -> None:
        """`authentication`: of the server, once it answers; `texts`: the tokenizer of its engine."""
        self._settings, self._authentication, self._texts = settings, authentication, texts
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
                    reason = f"this server has no page: {exc}. `streamward page` shows it where everything is installed"
                    await plain_page("No page here", reason, 503, to="/openapi.json")(scope, receive, send)
                    return
        assert self._app is not None  # noqa: S101 - made by `_make`
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Close its view of the log."""
        if self._view is not None:
            self._view.close()

    def _make(self) -> None:
        from plugins.page.app import create_app
        from plugins.page.login import PagePeople
        from streams.tools.views.log_view import LogView

        settings, people = self._settings, None
        hosts: Collection[str] = LOOPBACK
        if (auth := self._authentication()) is not None:
            cookie = LoginCookie.of(auth)
            people = PagePeople(auth.logins, cookie, auth.issuer, auth.public_url)
            hosts = ()
        view = LogView(settings)
        self._view, self._app = view, create_app(view, hosts=hosts, people=people, decides=True, texts=self._texts)


class PagePart(ServerPart):
    """The page at /page/, to which / and /page lead."""

    ROUTES = PAGE_ROUTES

    def __init__(self, base: ServerBase) -> None:
        self._base, self._page = base, PageMount(base.settings, lambda: base.authentication, base.rendering)

    def __exit__(self, *exc: object) -> None:
        self._page.close()

    def add_to(self, app: Starlette) -> None:
        mount(app, self._page)

    def in_front(self, app: ASGIApp) -> ASGIApp:
        if (auth := self._base.authentication) is None:
            return app
        return PageEntrance(app, auth.principals, auth.logins, LoginCookie.of(auth))

    def landings(self, auth: Authentication) -> Mapping[str, LoginLanding]:
        return {"page": LoginCookie.of(auth)}


def mount(app: Starlette, page: ASGIApp) -> None:
    """Add the page to a server, with redirects to it."""

    async def to_page(_: Request) -> Response:
        return RedirectResponse(f"{PREFIX}/")

    for path in ("/", PREFIX):
        app.add_route(path, to_page, include_in_schema=False)
    app.mount(PREFIX, page)
