"""Short pages without a template, for browsers that have not reached the page itself."""

from __future__ import annotations

from html import escape

from starlette.responses import HTMLResponse

from streams.tools.views.visible_text import visible

PREFIX = "/page"
"""Where the page is in the server of agents."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with every answer: a browser may load only from here, and run no inline scripts (W3C CSP Level 3)."""


def plain_page(title: str, text: str, status: int, *, to: str, follow: bool = False) -> HTMLResponse:
    """Return a page with a link; `follow`: the browser goes there by itself."""
    target = escape(to, quote=True)
    refresh = f'<meta http-equiv="refresh" content="0;url={target}">' if follow else ""
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)} · Streamward</title>{refresh}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="{PREFIX}/static/icon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{PREFIX}/static/page.css"></head><body><main><h1>{escape(title)}</h1>'
        f'<p class="said">{escape(visible(text))}</p><p><a href="{target}">Go on</a></p></main></body></html>',
        status,
        HEADERS,
    )
