"""Users: create, change and disable them, as a fold of their events.

    created, roles_set, password_set, disabled, enabled ──► AccessEvent ──► access
    access ──► folded ──► User of each ──► decide, as for a key

Each change has the number after the last one that its writer knew. Of two changes with the same number the first
counts, so a writer checks afterwards whether the user is as intended. A person either has a password here, or an issuer
(OIDC) vouches for them; the latter's id is derived from the issuer and the issuer's id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.events import AccessEvent, AccessKind, AccessRole, derive_id
from streams.access.tenants import tenant_names as tenants
from streams.errors import SettingsError
from streams.output import moment

LONGEST = 64
"""Characters of a name."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
FROM_ISSUER = "oidc-"
"""How ids of people begin whom an issuer vouches for. Names of people with a password cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person as the log has it."""

    user_id: str
    name: str | None
    roles: tuple[AccessRole, ...]
    tenant: str | None
    password_hash: str | None = field(repr=False)
    issuer: str | None
    created_at: int
    disabled_at: int | None = None
    sequence: int = 0
    """Of the last change."""
    epoch: int = 0
    """How often passwords changed or the user was disabled: logins of an earlier epoch are void."""

    @property
    def who(self) -> str:
        """Its name in messages."""
        return f"user {self.user_id}"

    @property
    def subject_id(self) -> str:
        """Its id in events of its requests; no key has such an id."""
        return self.who

    @property
    def agent_id(self) -> str | None:
        """A person is not bound to an agent."""
        return None

    def why_refused(self, now_ms: int) -> str | None:
        """Return why a login of this person opens nothing; None if it does. Users do not expire."""
        if self.disabled_at is not None:
            return f"{self.who} is disabled"
        if self.tenant is not None and tenants.why_no_name(self.tenant) is not None:
            return f"{self.who} is of a tenant that cannot be called so"
        return None


def checked_name(name: str) -> str:
    """Return a valid name of a user. Raises SettingsError."""
    if not _NAME.fullmatch(name) or name.startswith(FROM_ISSUER):
        raise SettingsError(
            f"{name[:LONGEST]!r} cannot be the name of a user; expected up to {LONGEST} small letters, digits and "
            f". _ @ + -, with a letter or digit first, and not {FROM_ISSUER!r} at the beginning, e.g. ann"
        )
    return name


def id_from_issuer(issuer: str, subject: str) -> str:
    """Return the id of a person whom an issuer calls `subject`."""
    return FROM_ISSUER + derive_id(issuer, subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A person to create as a user: with a password, or of an issuer."""

    user_id: str
    roles: Sequence[AccessRole]
    password_hash: str | None = field(default=None, repr=False)
    issuer: str | None = None
    name: str | None = None
    tenant: str | None = None


def creation_event(user: NewUser, *, actor: str, now_ms: int) -> AccessEvent:
    """Return the event that makes a user."""
    return AccessEvent(
        event_id=derive_id(user.user_id, "user_created", 0),
        subject_id=user.user_id,
        created_at=now_ms,
        kind="user_created",
        actor=actor,
        reason="asked for",
        sequence=0,
        name=user.name,
        tenant=user.tenant,
        password_hash=user.password_hash,
        issuer=user.issuer,
        roles=tuple(user.roles),
    )


def roles_event(user: User, roles: Sequence[AccessRole], *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that gives a user other roles."""
    return replace(_change_event(user, "roles_set", actor, reason, now_ms), roles=tuple(roles))


def password_event(user: User, password_hash: str, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that gives a user another password, and ends what they were logged in to."""
    return replace(_change_event(user, "password_set", actor, reason, now_ms), password_hash=password_hash)


def disable_event(user: User, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that shuts a user out."""
    return _change_event(user, "user_disabled", actor, reason, now_ms)


def enable_event(user: User, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that lets a user log in again; earlier logins stay void."""
    return _change_event(user, "user_enabled", actor, reason, now_ms)


def fold(before: User | None, event: AccessEvent) -> User | None:
    """Return a user after one more event about it; one out of turn changes nothing."""
    if event.sequence is None or (before is None) != (event.kind == "user_created"):
        return before
    if before is None:
        return User(
            user_id=event.subject_id,
            name=event.name,
            roles=event.roles,
            tenant=event.tenant,
            password_hash=event.password_hash,
            issuer=event.issuer,
            created_at=event.created_at,
        )
    if event.sequence != before.sequence + 1:
        return before
    after = replace(before, sequence=event.sequence)
    match event.kind:
        case "roles_set":
            return replace(after, roles=event.roles)
        case "password_set" if before.password_hash is not None:
            return replace(after, password_hash=event.password_hash, epoch=before.epoch + 1)
        case "user_disabled":
            return replace(after, disabled_at=event.created_at, epoch=before.epoch + 1)
        case "user_enabled":
            return replace(after, disabled_at=None)
    return before


def row(user: User) -> dict[str, Any]:
    """Return what people and programs are shown of a user."""
    return {
        "user_id": user.user_id,
        "name": user.name,
        "roles": ", ".join(user.roles),
        "tenant": user.tenant,
        "issuer": user.issuer,
        "status": "enabled" if user.disabled_at is None else "disabled",
        "created_at": moment(user.created_at),
        "disabled_at": None if user.disabled_at is None else moment(user.disabled_at),
    }


def _change_event(user: User, kind: AccessKind, actor: str, reason: str, now_ms: int) -> AccessEvent:
    return AccessEvent(
        event_id=derive_id(user.user_id, kind, user.sequence + 1),
        subject_id=user.user_id,
        created_at=now_ms,
        kind=kind,
        actor=actor,
        reason=reason,
        sequence=user.sequence + 1,
    )
