"""Rate, token, concurrency and time limits of each key.

    request ──► the bucket of its key ──► a token, or in how many seconds there is one ──► 429, Retry-After
            ├─► requests of its key in progress ──► one more, or 429
            └─► tokens of its key, of prompts and answers ──► none owed, or 429
    receive ──► body within serve.body_s, or 408            the application ──► ends within serve.answer_s, or 504

A stream that has begun is cut off: its status was sent, and its client sees that the last frame is missing. The model's
rows are cancelled, and the turn is recorded as not delivered.

How many tokens a request has is known at its end, so a key may go beyond its limit with the requests that it has begun.

Of several servers one answers, and counts for all (several_servers.py). The next one does not know how full the buckets
were: it counts them as empty when the one before was last seen, so no key gets more than its limit. What a key owes it
knows from the recorded requests, as does a server that starts again.

Not covered: tokens of requests that are not recorded: with serve.requests=off all, and of a killed server those that it
had not ended, since a request is recorded at its end, and those whose event was still in its queue. A key can have
serve.key_at_once of the former, each up to the model's context. Requests
without a valid key have no bucket: they are refused unread. A batch of JSON-RPC is one request. A call in a thread runs
to its end even after its request was answered; a slow reader is limited by serve.answer_s, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import refusal
from gateway.http.route import RouteTable
from streams.access.token_bucket import TokenBucket, spend, take
from streams.errors import CallError
from streams.settings.model import Serve

AT_ONCE_RETRY_S = 1.0
"""Retry-After where another request has to end first, at an unknown time."""


class Refused429(NamedTuple):
    """Why a request has to wait, and how long."""

    why: str
    retry_after_s: float


class KeyLimits:
    """The limits of each key. Runs in one event loop; it has an entry for each valid key that called."""

    def __init__(
        self,
        rule: Serve,
        clock: Callable[[], float] = time.monotonic,
        empty_at: float | None = None,
        spent: Mapping[str, TokenBucket] | None = None,
    ) -> None:
        """`empty_at`: when another server last counted, by `clock`; None: there was none. `spent`: the tokens of keys
        that called before this server started."""
        self._rule, self._clock = rule, clock
        self._new = None if empty_at is None else TokenBucket(0.0, empty_at)
        self._buckets: dict[str, TokenBucket] = {}
        self._at_once: Counter[str] = Counter()
        self._tokens = dict(spent or {})
        if self._new is not None:
            for who, bucket in self._tokens.items():
                self._tokens[who] = min(self._new, spend_tokens(bucket, self._new.at_s, 0, rule))

    def begin(self, who: str) -> Refused429 | None:
        """Begin a request of a key, or return why it has to wait. A request that is not refused ends with `end`."""
        rule = self._rule
        if rule.key_at_once and self._at_once[who] >= rule.key_at_once:
            why = f"{who} has {rule.key_at_once} requests in progress (serve.key_at_once); wait for one of them"
            return Refused429(why, AT_ONCE_RETRY_S)
        if (wait_s := self._owes_s(who)) > 0:
            why = f"{who} has used its {rule.key_tokens_per_min} tokens a minute (serve.key_tokens_per_min)"
            return Refused429(why, wait_s)
        if rule.key_per_s:
            bucket = self._buckets.get(who, self._new)
            self._buckets[who], wait_s = take(bucket, self._clock(), rate=rule.key_per_s, burst=rule.key_burst)
            if wait_s:
                why = f"{who} asks more often than {rule.key_per_s:g} times a second (serve.key_per_s)"
                return Refused429(why, wait_s)
        self._at_once[who] += 1
        return None

    def end(self, who: str, tokens: int = 0) -> None:
        """End a request with so many tokens: it has its answer, or its client has left."""
        self._at_once -= Counter((who,))  # drops those at 0
        if self._rule.key_tokens_per_min and tokens:
            self._tokens[who] = self._spend(who, tokens)

    def _owes_s(self, who: str) -> float:
        """Return in how many seconds a key owes no token any more; 0: it owes none."""
        if not self._rule.key_tokens_per_min or (who not in self._tokens and self._new is None):
            return 0.0
        self._tokens[who] = self._spend(who, 0)
        return max(0.0, -self._tokens[who].tokens) * 60 / self._rule.key_tokens_per_min

    def _spend(self, who: str, tokens: int) -> TokenBucket:
        return spend_tokens(self._tokens.get(who, self._new), self._clock(), tokens, self._rule)


def spend_tokens(bucket: TokenBucket | None, now_s: float, tokens: int, rule: Serve) -> TokenBucket:
    """Return the tokens of a key after a request that ended."""
    return spend(bucket, now_s, tokens, rate=rule.key_tokens_per_min / 60, burst=rule.key_tokens_per_min)


class TimeLimits:
    """An application with a time limit for each request."""

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


class HeldPlace:
    """An application that refuses requests while another server may have taken over the log."""

    def __init__(self, app: ASGIApp, table: RouteTable, is_held: Callable[[], bool]) -> None:
        self._app, self._table, self._is_held = app, table, is_held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._is_held():
            await self._app(scope, receive, send)
            return
        reason = "this server was frozen, and looks whether another answers for its log by now; try again"
        await refusal(503, reason, self._table.dialect(scope["path"]))(scope, receive, send)


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
