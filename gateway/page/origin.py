"""Who may ask for a page, by the name of the machine and the site that the request comes from.

    request ──► under a name that this is asked by? ──► from our own pages, if it changes something? ──► the page

Who asks under a name that is not this machine's is refused where nobody logs in, so that no other site's name can be
pointed at it (DNS rebinding). What changes something has to come from a page of ours: browsers say where a form was
(Sec-Fetch-Site, or Origin), and a form on another site could be sent as well as ours. A program that is no browser says
neither, and has no cookie that came by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.notice import HEADERS
from streams.tools.views.visible_text import visible

READS = ("GET", "HEAD")


class PageGuard:
    """Refuses requests under a foreign name or from a foreign page, and tells browsers what they may do."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], origin: str = "") -> None:
        """`hosts`: the names under which it may be asked; none: any. `origin`: how browsers reach it, if not so."""
        self._app, self._hosts, self._origin = app, hosts, origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts and name not in self._hosts:
            said = f"{visible(host[:80])}: this page answers only as {' or '.join(self._hosts)}\n"
            await PlainTextResponse(said, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, guarded)
        elif scope["method"] not in READS and not is_of_ours(headers, self._origin):
            said = "this was sent from another site's page; nothing was done. Send it from the page itself\n"
            await PlainTextResponse(said, HTTPStatus.FORBIDDEN)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)


def is_of_ours(headers: Headers, origin: str) -> bool:
    """Return whether a request comes from a page of this server, or from a program that is no browser."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (sent := headers.get("origin")) is not None:
        return sent == origin or urlsplit(sent).netloc == headers.get("host", "")
    return "cookie" not in headers
