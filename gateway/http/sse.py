"""Server-sent events: how a stream is framed (HTML standard, section 9.2)."""

from __future__ import annotations

import json
from typing import Any

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies neither cache nor buffer a stream."""
END = b"data: [DONE]\n\n"
"""The last frame of OpenAI's protocols; that of responses is in the Open Responses specification."""


def frame(data: dict[str, Any], event: str | None = None) -> bytes:
    """Return one event; JSON text has no line breaks, so it is one line of data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {text}\n\n".encode()
