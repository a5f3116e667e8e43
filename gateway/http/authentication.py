"""Authentication: how a server with keys knows its callers. A plugin's part of the server has it.

    ServerPart.authentication ──► principals, requests ──► the door (door.py), in front of every route
                               └► logins ──► routes and pages where people log in ──► RequestRecord

The core decides what a principal may do. A plugin says which principal a key or a token belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.request_record import record_of
from schemas.events import RequestEvent
from streams.access.credentials import TokenPair
from streams.access.roles import Decision, Principal
from streams.access.token_bucket import TokenBucket
from streams.errors import LoginRefused

LOGGED_IN = Decision(True, "logged in")
NOT_STORED = {"Cache-Control": "no-store"}
"""Of answers with tokens (RFC 6749 section 5.1)."""


class FindsPrincipals(Protocol):
    """Finds the principal of a request. Methods may be called from any thread."""

    @property
    def advice(self) -> str:
        """How a caller gets a key, for the answer to one without."""

    def find(self, sent: str) -> Principal | str:
        """Return the owner of a key or access token; a text says why it is none, `UNKNOWN` if it may be a key that was
        just created. Raises LogError."""

    def of_actor(self, actor: str) -> Principal | str:
        """Return the owner of events by this actor as it is now; a text says why it may do nothing. Raises LogError."""

    def catch_up(self) -> None:
        """Return once every key in the log is known. Raises LogError."""


class RecordsRequests(Protocol):
    """Writes the events of requests."""

    def why_not(self) -> str | None:
        """Return why requests are refused now; None if they are not."""

    def write(self, events: Iterable[RequestEvent]) -> None:
        """Queue events, without waiting."""


class LogsPeopleIn(Protocol):
    """Logs people in and out. Methods wait for the broker, and raise LogError if it does not answer."""

    def log_in(self, name: str, password: str, address: str) -> TokenPair:
        """Return tokens for a user with the right password. Raises LoginRefused."""

    def refresh(self, refresh_token: str) -> TokenPair:
        """Return the next tokens of a login. Raises LoginRefused."""

    def log_out(self, refresh_token: str) -> Principal | None:
        """End a login, if it has not ended, and return its user."""


@dataclass(frozen=True, kw_only=True)
class Authentication:
    """How a server knows its callers."""

    principals: FindsPrincipals
    requests: RecordsRequests | None = None
    """None: requests are not recorded."""
    spent: Mapping[str, TokenBucket] = field(default_factory=dict)
    """The tokens of each principal after the requests that earlier servers recorded, by time.monotonic()."""
    logins: LogsPeopleIn | None = None
    """None: people cannot log in."""
    issuer: str = ""
    """URL of the OpenID issuer that people log in through; empty: none."""
    public_url: str = ""
    """The server's address in browsers; empty: its own."""
    over_tls: bool = False
    """Whether browsers reach the server by https."""
    session_s: int = 0
    """Lifetime of a login."""


class LoginLanding(Protocol):
    """Where the logins of browsers end that began for a part of the server."""

    def welcome(self, pair: TokenPair) -> Response:
        """Return the answer to a browser whose user has logged in."""

    def refuse(self, error: LoginRefused) -> Response:
        """Return the answer to a browser whose login was refused."""


def address_of(request: Request) -> str:
    """Return the client's address."""
    return "unknown" if request.client is None else request.client.host


def record_login(request: Request, user: Principal | None, decision: Decision) -> None:
    """Record a login or logout: the user, or the reason of the refusal."""
    if (record := record_of(request)) is not None:
        record.principal, record.decision = user, decision


def refusal_decision(exc: LoginRefused) -> Decision:
    """Return why a login was refused."""
    return Decision(False, str(exc) if exc.about is None else f"{exc.about}: {exc}")


def logout_decision(user: Principal | None) -> Decision:
    """Return the decision of a logout, with the login that it ended, if any."""
    return Decision(True, "there was no such login" if user is None else "logged out")
