"""Answer requests only under this machine's names, and accept forms only from our own pages.

    request ──► for one of our names? ──► from our own pages, if it changes something? ──► the page

Without a login, requests for other host names are refused, so that no other site can point its name at the page (DNS
rebinding). A request that changes something must come from our own page: browsers send the origin of a form
(Sec-Fetch-Site, or Origin), so a form on another site is refused. Programs other than browsers send neither, and attach
no cookie unasked.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.own_machine import host_name
from plugins.page.notice import HEADERS
from streams.tools.views.visible_text import visible

READS = ("GET", "HEAD")


class PageGuard:
    """Refuses requests for a foreign name or from a foreign page, and sends browsers their restrictions."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], origin: str = "") -> None:
        """`hosts`: our names; empty: any. `origin`: the URL in browsers, if its name is another."""
        self._app, self._hosts, self._origin = app, hosts, origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts and host_name(host) not in self._hosts:
            reason = f"{visible(host[:80])}: this page answers only as {' or '.join(self._hosts)}\n"
            await PlainTextResponse(reason, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send_guarded)
        elif scope["method"] not in READS and not is_of_ours(headers, self._origin):
            reason = "this was sent from another site's page; nothing was done. Send it from the page itself\n"
            await PlainTextResponse(reason, HTTPStatus.FORBIDDEN)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)


def is_of_ours(headers: Headers, origin: str) -> bool:
    """Return whether a request comes from a page of this server, or from a program other than a browser."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (sent := headers.get("origin")) is not None:
        return sent == origin or urlsplit(sent).netloc == headers.get("host", "")
    return "cookie" not in headers
