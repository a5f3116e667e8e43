"""Logins: each is a family of refresh tokens, and only the newest is valid.

    login ──► begun ──► swr_<session>_<secret>, SHA-256 of the secret ──► AccessEvent ──► access
    refresh with the newest ──► refreshed: the next one        with an older one ──► ended, the whole family
    access ──► folded ──► LoginSession of each ──► find ──► LoginSession, Reused, or why not

A refresh token that is used twice was copied: its thief or its owner used it before, and nothing tells which, so both
have to log in again (RFC 9700 section 4.14.2). Two gateways that get the same token write two events with one number;
the second, with another secret, ends the family in every fold.

Not covered: a client that lost the answer and sends the old token again has to log in again, too.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from plugins.people.access.keys import NO_DIGEST, NewSecret, digest
from plugins.people.access.users import User
from schemas.events import AccessEvent, derive_id

_TOKEN = re.compile(r"swr_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """A login as the log has it."""

    session_id: str
    user_id: str
    epoch: int
    """The user's when it began."""
    began_at: int
    expires_at: int
    digests: tuple[str, ...] = field(repr=False)
    """SHA-256 of each refresh token, the newest last; none once it has ended."""
    ended_at: int | None = None

    def why_refused(self, user: User | None, now_ms: int) -> str | None:
        """Return why it is not valid at a time; None if it is. `user`: its owner."""
        if self.ended_at is not None:
            return "this login was ended"
        if now_ms >= self.expires_at:
            return "this login has expired"
        if user is None or user.disabled_at is not None or user.epoch != self.epoch:
            return "this login was made void"
        return None


class Reused(NamedTuple):
    """A refresh token that was exchanged before."""

    session: LoginSession


def token_text(secret: NewSecret) -> str:
    """Return the refresh token that a client keeps, of the id of a session and a secret."""
    return f"swr_{secret.key_id}_{secret.secret}"


def start_event(secret: NewSecret, user: User, *, reason: str, now_ms: int, expires_at: int) -> AccessEvent:
    """Return the event that begins a login."""
    return AccessEvent(
        event_id=derive_id(secret.key_id, "session_begun", 0),
        subject_id=secret.key_id,
        created_at=now_ms,
        kind="session_begun",
        actor=user.user_id,
        reason=reason,
        sequence=0,
        user_id=user.user_id,
        epoch=user.epoch,
        secret_sha256=digest(secret.secret),
        expires_at=expires_at,
    )


def refresh_event(session: LoginSession, secret: str, *, now_ms: int) -> AccessEvent:
    """Return the event that puts another refresh token in the place of the newest."""
    number = len(session.digests)
    return AccessEvent(
        event_id=derive_id(session.session_id, "session_refreshed", number),
        subject_id=session.session_id,
        created_at=now_ms,
        kind="session_refreshed",
        actor=session.user_id,
        reason="refreshed",
        sequence=number,
        secret_sha256=digest(secret),
    )


def end_event(session: LoginSession, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that ends a login."""
    return AccessEvent(
        event_id=derive_id(session.session_id, "session_ended"),
        subject_id=session.session_id,
        created_at=now_ms,
        kind="session_ended",
        actor=actor,
        reason=reason,
    )


def fold(before: LoginSession | None, event: AccessEvent) -> LoginSession | None:
    """Return a login after one more event about it; one that has ended stays so."""
    if event.kind == "session_begun":
        if before is not None or None in (event.user_id, event.epoch, event.expires_at, event.secret_sha256):
            return before
        return LoginSession(
            session_id=event.subject_id,
            user_id=event.user_id or "",
            epoch=event.epoch or 0,
            began_at=event.created_at,
            expires_at=event.expires_at or 0,
            digests=(event.secret_sha256 or "",),
        )
    if before is None or before.ended_at is not None:
        return before
    if event.kind == "session_ended":
        return replace(before, ended_at=event.created_at, digests=())
    number, sha256 = event.sequence or 0, event.secret_sha256
    if sha256 is None or number > len(before.digests):
        return before
    if number == len(before.digests):
        return replace(before, digests=(*before.digests, sha256))
    return before if before.digests[number] == sha256 else replace(before, ended_at=event.created_at, digests=())


def find(
    sessions: Mapping[str, LoginSession], users: Mapping[str, User], sent: str, now_ms: int
) -> LoginSession | Reused | str:
    """Return the login of a refresh token, `Reused`, or why the token is invalid."""
    parts = _TOKEN.fullmatch(sent)
    if parts is None:
        return "this is no refresh token of Streamward; expected swr_<id>_<secret>"
    session, sha256 = sessions.get(parts[1]), digest(parts[2])
    newest = session.digests[-1] if session is not None and session.digests else NO_DIGEST
    if hmac.compare_digest(sha256, newest) and session is not None:
        return session.why_refused(users.get(session.user_id), now_ms) or session
    if session is not None and sha256 in session.digests:
        return Reused(session)
    return "there is no such login, or it was ended"
