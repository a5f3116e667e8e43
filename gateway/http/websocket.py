"""A connection upgraded to a WebSocket by uvicorn; it is counted until it ends.

BoundedConnection ── Upgrade: websocket ──► CountedSocket ──► scope `websocket` ──► the application
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

NO_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"this is no handshake of a WebSocket; expected a GET without a body and with short headers\n"
)


class CountedSocket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def __init__(self, ended: Callable[[], None], **of_uvicorn: Any) -> None:
        """`ended` is called once, whichever side closes it."""
        super().__init__(**of_uvicorn)
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._ended()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        """Send the application's message."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True  # also a refusal; uvicorn would report it as never ended

    def data_received(self, data: bytes) -> None:
        """Read the handshake, then frames. uvicorn would not answer an unreadable handshake."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(NO_HANDSHAKE)
            self.transport.close()
