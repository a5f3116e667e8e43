"""How long a request may take: to be sent, and to be answered.

    receive ──► body within serve.body_s, or 408            the application ──► ends within serve.answer_s, or 504

A stream that has begun ends where it is: its status was sent, and its client sees that the last frame is missing. The
model's rows are cancelled then, and its turn is recorded as not delivered.

Not covered: what runs in a thread continues to its end, unheeded; a client that reads slowly has
serve.answer_s, too.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import refusal
from gateway.http.route import RouteTable
from streams.errors import CallError
from streams.settings.model import Serve


class TimeLimits:
    """An application whose requests end."""

    def __init__(self, app: ASGIApp, table: RouteTable, rule: Serve) -> None:
        self._app, self._table, self._rule = app, table, rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BodyWithin(receive, self._rule.body_s)
        begun = False

        async def sends(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        deadline = asyncio.timeout(self._rule.answer_s or None)
        try:
            async with deadline:
                await self._app(scope, body.receive, sends)
        except TimeoutError:
            if not deadline.expired():
                raise
            if not begun:
                reason = (
                    f"there is no answer after {self._rule.answer_s:g} s (serve.answer_s); ask for less, or try again"
                )
                response = refusal(504, reason, self._table.dialect(scope["path"]))
                response.headers["Connection"] = "close"
                await response(scope, receive, send)


class _BodyWithin:
    """The body of one request, which has to arrive in time."""

    def __init__(self, receive: Receive, within_s: float) -> None:
        self._receive, self._within_s = receive, within_s
        self._until = asyncio.get_running_loop().time() + within_s
        self._whole = False

    async def receive(self) -> Message:
        """Return the next message. Raises CallError if the body is late."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError as exc:
            problem = f"the body did not arrive within {self._within_s:g} s (serve.body_s)"
            raise CallError("request_timeout", f"{problem}; send it faster, or less") from exc
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message
