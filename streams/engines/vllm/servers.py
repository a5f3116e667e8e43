"""Requests to one of several vLLM servers over HTTP, retried if that may help.

    a task ──► the server its prompt hashes to (rendezvous), or the least busy one ──► at most N in flight ──► answer
                  ▲                                                                                             │
                  └── not now (no connection, 429, 503: paused) ── not so (500, a bad answer: another try) ◄────┘

The same prompt goes to the same server, which has its beginning in its prefix cache; when a server leaves, only its
own prompts move. A server that does not answer is paused and asked again later, up to a limit. `Retry-After` sets the
pause: nothing is sent to the server meanwhile, which is the back-pressure.

List the servers themselves: a proxy in front of several looks like one server, and forgets which of them loaded an
adapter.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2

from streams.egress.http_client import AnswerTooLarge, RequestDeadline, bearer, body_of, lines_of, new_client
from streams.egress.retry_budget import budget_of
from streams.errors import (
    BadAnswer,
    RequestRejected,
    ServerError,
    ServerUnavailable,
    SettingsError,
    StreamwardError,
    WrongModel,
)
from streams.observability.trace_context import Context, http_headers_of
from streams.settings.model import Policy

T = TypeVar("T")
log = logging.getLogger("streamward.vllm")

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
LONGEST_RETRY_AFTER_S = 60.0
FAR_OFF = 4
"""A server with this many more tasks in flight than the least busy one loses its prompt to that."""
HEALTH_TIMEOUT_S = 5.0
CONNECT_S = 5.0
"""Time limit for a connection, which a reachable machine accepts at once, however busy its server is."""
BUSY = {429, 502, 503, 504}
BYTES_PER_TOKEN = 1024
"""Most bytes of an answer for each token of prompt and choices: an event of a stream, or an id with its logprob."""
BYTES_BESIDE = 1024 * 1024
"""Most bytes of what else is in an answer."""


class VllmServer:
    """One server, and the facts verified about it. Hold `lock` while verifying."""

    def __init__(self, url: str, client: httpx2.Client, max_concurrent: int, timeout_s: float) -> None:
        self.url = url
        self.lock = threading.Lock()
        self.in_flight = 0
        self.paused_until, self.falls = 0.0, 0
        self.loaded_here: set[str] = set()  # adapters that it loaded from this agent's folder
        self.forget()
        self._client, self._timeout_s = client, timeout_s
        self._places, self._counting = threading.BoundedSemaphore(max_concurrent), threading.Lock()
        self._turns = threading.Condition()
        self._answers, self._is_alone = 0, False

    def forget(self) -> None:
        """Forget all verified facts: it may be another process now."""
        self.base: str | None = None
        """Its name for the base model; None: not verified yet."""
        self.base_logprobs: list[float] = []  # of the probe
        self.is_processed = False
        self.verified: set[str] = set()
        self.unfit: dict[str, str] = {}  # why, by adapter; "" is the base

    @property
    def reports_unprocessed(self) -> bool:
        """Whether it is known to report logprobs before temperature and top_p."""
        return self.base is not None and not self.is_processed

    def is_paused(self) -> bool:
        """Return whether it is paused."""
        return self.paused_until > time.monotonic()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of its places. Raises ServerUnavailable if it was paused while this waited."""
        with self._counting:
            self.in_flight += 1  # waiting ones count too, so that the next one goes elsewhere
        try:
            with self._places:
                if self.is_paused():
                    raise ServerUnavailable(f"{self.url} was paused", lost=False, wait_s=0.0)
                yield
        finally:
            with self._counting:
                self.in_flight -= 1

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count as an answer in progress, once no thread holds the server `alone`."""
        with self._turns:
            self._turns.wait_for(lambda: not self._is_alone)
            self._answers += 1
        try:
            yield
        finally:
            with self._turns:
                self._answers -= 1
                self._turns.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let the answers in progress end, and hold new ones.

        vLLM 0.32.0 exits on a CPU when a request for the logprobs of a prompt shares a step with an adapter's answers.
        """
        with self._turns:
            self._turns.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._turns.wait_for(lambda: self._answers == 0)
        try:
            yield
        finally:
            with self._turns:
                self._is_alone = False
                self._turns.notify_all()

    def pause(self, error: ServerUnavailable) -> None:
        """Send nothing to it for a while."""
        if error.wait_s == 0.0:
            return  # it is paused already
        now = time.monotonic()
        if self.paused_until <= now:  # requests that fail together count as one failure
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self.falls) if error.wait_s is None else error.wait_s
            self.falls = min(self.falls + 1, 10)
            self.paused_until = now + pause_s
            log.warning("%s; asking it again in %.3g s", error, pause_s)
        if error.lost:
            self.forget()

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        trace: Context | None = None,
    ) -> Any:
        """Return its answer, decoded if it is JSON. `timeout_s` defaults to policy.server_timeout_s.

        `trace` is passed on to a server that is traced too. Raises ModelServerError, in any of its branches except
        WrongModel; SettingsError if it requires another key.
        """
        limit_s = timeout_s or self._timeout_s
        request: dict[str, Any] = {"json": body, "headers": http_headers_of(trace)}
        with (
            self._in_time(path, limit_s) as (_, limits),
            self._client.stream(method, self.url + path, **limits, **request) as response,
        ):
            content = body_of(response, most_bytes(body or {}))
        self._check(response, content, path)
        if "json" not in response.headers.get("content-type", ""):
            return content.decode(errors="replace")
        return self._decode(content, path)

    def stream(
        self, path: str, body: dict[str, Any], begun: Callable[[RequestDeadline], None], trace: Context | None = None
    ) -> Generator[Any, None, None]:
        """Yield the events of a streamed answer as they come; close it early, and the server stops.

        `begun` gets a function that ends the request from another thread. Raises as `ask` does, and BadAnswer if the
        answer breaks off.
        """
        request: dict[str, Any] = {"json": body, "headers": http_headers_of(trace)}
        with self._in_time(path, self._timeout_s) as (deadline, limits):
            begun(deadline)
            with self._client.stream("POST", self.url + path, **limits, **request) as response:
                is_answer = response.status_code == 200
                self._check(response, b"" if is_answer else body_of(response, BYTES_BESIDE), path)
                for line in lines_of(response, most_bytes(body)):
                    data = line.strip().removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if data:
                        yield self._decode(data, path)
        raise BadAnswer(f"{self.url}{path} ended its answer in the middle")

    @contextmanager
    def _in_time(self, path: str, limit_s: float) -> Iterator[tuple[RequestDeadline, dict[str, Any]]]:
        """Yield the deadline of a request, and its arguments for httpx2. Raises ServerUnavailable."""
        try:
            with RequestDeadline(limit_s) as deadline:
                timeout = httpx2.Timeout(limit_s, connect=min(CONNECT_S, limit_s))
                yield deadline, {"timeout": timeout, "extensions": deadline.extensions}
        except httpx2.TimeoutException as exc:
            message = f"{self.url}{path} did not answer within {limit_s:g} s; policy.server_timeout_s sets how long"
            raise ServerUnavailable(f"{message} ({type(exc).__name__})", lost=True) from exc
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ServerUnavailable(
                f"{self.url}{path} cannot be reached: {exc or type(exc).__name__}", lost=True
            ) from exc
        except AnswerTooLarge as exc:
            raise BadAnswer(f"{self.url}{path} sent {exc}, and no answer to this request is so long") from exc

    def _check(self, response: httpx2.Response, content: bytes, path: str) -> None:
        """Raise the error for an unsuccessful response, whose body is `content`."""
        if response.status_code == 200:
            self.falls = 0
            return
        message = _message(content)
        error = f"{self.url}{path} answered HTTP {response.status_code}: {message}"
        if response.status_code in (401, 403):
            raise SettingsError(f"{error}; check policy.server_key")
        if response.status_code in BUSY:
            raise ServerUnavailable(error, lost=False, wait_s=_retry_after_s(response))
        if response.status_code < 500:
            raise RequestRejected(error, response.status_code, message)
        if self._is_healthy():
            raise ServerError(error)
        raise ServerUnavailable(f"{error}; and its /health fails", lost=True)

    def _decode(self, content: bytes, path: str) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as exc:
            start = content[:100].decode(errors="replace")
            raise BadAnswer(f"{self.url}{path} sent no JSON but {start!r}") from exc

    def _is_healthy(self) -> bool:
        try:
            with RequestDeadline(HEALTH_TIMEOUT_S) as deadline:
                response = self._client.get(
                    self.url + "/health", timeout=HEALTH_TIMEOUT_S, extensions=deadline.extensions
                )
            return response.status_code == 200
        except httpx2.HTTPError:
            return False


class VllmServers:
    """All servers of a policy. Threads share it."""

    def __init__(self, policy: Policy) -> None:
        key = policy.server_key.get_secret_value() if policy.server_key else None
        self._client = new_client(headers=bearer(key, "policy.server_key"))
        self.servers = [
            VllmServer(url, self._client, policy.max_concurrent, policy.server_timeout_s) for url in policy.server_urls
        ]
        self._retries = policy.server_retries
        self._outage_s = policy.server_timeout_s * (policy.server_retries + 1)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self, key: bytes, job: Callable[[VllmServer], T]) -> T:
        """Return the result of `job` on the server that `key` belongs to, or on another one.

        On ServerUnavailable it waits, up to the time limit of all attempts. ServerError and BadAnswer are retried,
        elsewhere if possible. On WrongModel it uses the other servers. Raises the last of these if all attempts fail
        (StreamwardError for ServerUnavailable), and any other error of `job`.
        """
        deadline = time.monotonic() + self._outage_s
        tries, avoided, unfit = 0, None, list[VllmServer]()
        last: StreamwardError | None = None
        while True:
            server = self._pick(key, avoided, unfit)
            if server is None:
                due = min(server.paused_until for server in self.servers if server not in unfit)
                if due > deadline:
                    raise StreamwardError(
                        f"no server in policy.servers could be asked for {self._outage_s:g} s: {last}; start them, or "
                        "raise policy.server_timeout_s"
                    ) from last
                time.sleep(max(0.001, due - time.monotonic()))
                continue
            try:
                with server.place():
                    return job(server)
            except ServerUnavailable as exc:
                last = exc if exc.wait_s != 0.0 else last
                server.pause(exc)
            except WrongModel as exc:
                unfit.append(server)
                if len(unfit) == len(self.servers):
                    raise
                last = exc
            except (ServerError, BadAnswer) as exc:
                tries, avoided, last = tries + 1, server, exc
                if tries > self._retries:
                    raise
                log.warning("%s; try %d of %d", exc, tries + 1, self._retries + 1)
                time.sleep(budget_of(server.url).pause_s(tries, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    def _pick(self, key: bytes, avoided: VllmServer | None, unfit: list[VllmServer]) -> VllmServer | None:
        """Return the server for a request, None if all usable ones are paused."""
        now = time.monotonic()
        usable = [server for server in self.servers if server not in unfit and server.paused_until <= now]
        usable = [server for server in usable if server is not avoided] or usable
        if not usable:
            return None
        chosen = max(usable, key=lambda server: rendezvous(key, server.url))
        least = min(usable, key=lambda server: server.in_flight)
        return least if chosen.in_flight - least.in_flight >= FAR_OFF else chosen


def most_bytes(body: dict[str, Any]) -> int:
    """Return how long an answer to a request may be."""
    tokens: int = (len(body.get("prompt", ())) + body.get("max_tokens", 0)) * body.get("n", 1)
    return BYTES_BESIDE + BYTES_PER_TOKEN * tokens


def rendezvous(key: bytes, url: str) -> bytes:
    """Return the weight of a server for a key; the largest wins (highest random weight, Thaler and Ravishankar 1998).

    >>> rendezvous(b"prompt", "http://a") == rendezvous(b"prompt", "http://a") != rendezvous(b"prompt", "http://b")
    True
    """
    return hashlib.sha256(key + b"\x1f" + url.encode()).digest()


def _retry_after_s(response: httpx2.Response) -> float | None:
    """Return the pause that the server requests; None without one (or for a date, which needs two clocks to agree)."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, LONGEST_RETRY_AFTER_S) if seconds > 0 else None


def _message(content: bytes) -> str:
    """Return the server's error message: that of OpenAI's error object, else the start of the body."""
    try:
        message = json.loads(content)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = content[:1200].decode(errors="replace")
    return str(message)[:300]
