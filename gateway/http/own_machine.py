"""A server without keys answers only this machine's programs and pages, under this machine's names.

    request ──► Host is one of LOOPBACK? ──► no Origin, or one of LOOPBACK? ──► the application
                         └──► 421                        └──► 403

A browser sends requests for any page, to whatever address a name resolves to (DNS rebinding). It also sends that name
and the page's origin, so both are compared, on every path: otherwise a foreign page could submit tasks, promote
versions, and read the log. A proxy's X-Forwarded-Host is not read.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import refusal
from gateway.http.route import RouteTable
from streams.tools.views.visible_text import visible

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine, as a Host has them."""
WAY_OUT = "a server without keys is for this machine alone; with serve.auth=keys it can be asked from anywhere"


class OwnMachine:
    """An application that answers requests of this machine only."""

    def __init__(self, app: ASGIApp, table: RouteTable) -> None:
        self._app, self._table = app, table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # a WebSocket's handshake is an HTTP request
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origins = headers.get("host", ""), headers.getlist("origin")
        foreign = next((origin for origin in origins if not is_local_origin(origin)), None)
        if host_name(host) not in LOOPBACK:
            status, problem = 421, f"the Host {visible(host[:80])!r} is not one of {', '.join(LOOPBACK)}"
        elif foreign is not None:
            status, problem = 403, f"the Origin {visible(foreign[:80])!r} is no page of this machine"
        else:
            await self._app(scope, receive, send)
            return
        response = refusal(status, f"{problem}: {WAY_OUT}", self._table.dialect(scope["path"]))
        await response(scope, receive, send)


def host_name(host: str) -> str:
    """Return the name in a Host, without its port."""
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and not port.endswith("]") else host.lower()


def is_local_origin(origin: str) -> bool:
    """Return whether an Origin is a page that this machine serves, on any port."""
    try:
        parts = urlsplit(origin)
    except ValueError:  # [::1 without its end
        return False
    return parts.scheme in ("http", "https") and host_name(parts.netloc) in LOOPBACK
