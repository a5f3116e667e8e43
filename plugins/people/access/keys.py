"""API keys: create one, recognise it, and fold its events.

    new_secret ──► sw_<id>_<secret>, shown once       SHA-256 of the secret ──► AccessEvent ──► access
    access ──► folded ──► AccessKey of each           sw_<id>_<secret> ──► find ──► AccessKey, or why not

A secret is 256 random bits, so it cannot be guessed, and one SHA-256 is enough to keep it out of the log. Slow hashes
such as argon2 protect secrets that can be guessed, such as passwords; here they would cost every request a tenth of a
second and protect nothing.

Not covered: people (users.py), and rotation of keys: create the second, then revoke the first.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from schemas.events import AccessEvent, AccessRole, derive_id
from streams.access.credentials import UNKNOWN
from streams.access.tenants import tenant_names as tenants
from streams.errors import SettingsError
from streams.output import moment

_KEY = re.compile(r"sw_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{16}")
_DURATION = re.compile(r"([0-9]{1,5})([mhdw])")
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SECRET_BYTES = 32
ID_BYTES = 8
NO_DIGEST = "0" * 64
"""Compared with the secret of an unknown key, so that both cases take equally long."""


class NewSecret(NamedTuple):
    """A secret that was just made."""

    key_id: str
    secret: str

    @property
    def text(self) -> str:
        """The text that a client sends. Only the terminal of its creator may ever show it."""
        return f"sw_{self.key_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"NewSecret({self.key_id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A key as the log has it."""

    key_id: str
    secret_sha256: str = field(repr=False)
    role: AccessRole
    name: str | None
    tenant: str | None
    agent_id: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None

    @property
    def who(self) -> str:
        """Its name in messages."""
        return f"key {self.key_id}"

    @property
    def subject_id(self) -> str:
        """Its id in events of its requests."""
        return self.key_id

    @property
    def roles(self) -> tuple[AccessRole, ...]:
        """Its role; a person may have several."""
        return (self.role,)

    def why_refused(self, now_ms: int) -> str | None:
        """Return why it opens nothing at a time; None if it does."""
        if self.revoked_at is not None:
            return f"key {self.key_id} was revoked"
        if self.expires_at is not None and now_ms >= self.expires_at:
            return f"key {self.key_id} has expired"
        if self.tenant is not None and tenants.why_no_name(self.tenant) is not None:
            return f"key {self.key_id} is of a tenant that cannot be called so: make another key"
        return None


def new_secret() -> NewSecret:
    """Return a new secret, with the id of its key."""
    return NewSecret(secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES))


def printable_id(key_id: str) -> str:
    """Return an id as messages may repeat it: a whole key that was given in its place must not end in a log."""
    return key_id if _ID.fullmatch(key_id) else "of that name (an id has 16 hexadecimal digits)"


def duration_ms(text: str) -> int:
    """Return milliseconds. Raises SettingsError.

    >>> duration_ms("12h"), duration_ms("2d")
    (43200000, 172800000)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise SettingsError(f"{text!r} is no duration; expected a whole number and a unit: 90m, 12h, 30d or 8w")
    return int(match[1]) * _UNITS_MS[match[2]]


def row(key: AccessKey, now_ms: int) -> dict[str, Any]:
    """Return what people and programs are shown of a key."""
    expired = key.expires_at is not None and now_ms >= key.expires_at
    return {
        "key_id": key.key_id,
        "name": key.name,
        "role": key.role,
        "tenant": key.tenant,
        "agent_id": key.agent_id,
        "status": "revoked" if key.revoked_at is not None else "expired" if expired else "valid",
        "created_at": moment(key.created_at),
        "expires_at": None if key.expires_at is None else moment(key.expires_at),
        "revoked_at": None if key.revoked_at is None else moment(key.revoked_at),
    }


def digest(secret: str) -> str:
    """Return what the log keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGrant:
    """What a new key is for."""

    role: AccessRole
    name: str | None = None
    tenant: str | None = None
    agent_id: str | None = None
    expires_at: int | None = None


def creation_event(secret: NewSecret, grant: KeyGrant, *, actor: str, now_ms: int) -> AccessEvent:
    """Return the event that makes a secret a key."""
    return AccessEvent(
        event_id=derive_id(secret.key_id, "key_created"),
        subject_id=secret.key_id,
        created_at=now_ms,
        kind="key_created",
        actor=actor,
        reason="asked for",
        name=grant.name,
        secret_sha256=digest(secret.secret),
        role=grant.role,
        tenant=grant.tenant,
        agent_id=grant.agent_id,
        expires_at=grant.expires_at,
    )


def revocation_event(key_id: str, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that ends a key."""
    return AccessEvent(
        event_id=derive_id(key_id, "key_revoked"),
        subject_id=key_id,
        created_at=now_ms,
        kind="key_revoked",
        actor=actor,
        reason=reason,
    )


def fold(before: AccessKey | None, event: AccessEvent) -> AccessKey | None:
    """Return a key after one more event about it.

    The first `key_created` counts: a second one cannot give another secret to a known id. A revoked key stays revoked,
    since its first revocation. A revocation before the creation changes nothing.
    """
    if event.kind == "key_revoked":
        if before is None or before.revoked_at is not None:
            return before
        return replace(before, revoked_at=event.created_at)
    if before is not None or event.role is None or event.secret_sha256 is None:
        return before
    return AccessKey(
        key_id=event.subject_id,
        secret_sha256=event.secret_sha256,
        role=event.role,
        name=event.name,
        tenant=event.tenant,
        agent_id=event.agent_id,
        created_at=event.created_at,
        expires_at=event.expires_at,
    )


def find(keys: Mapping[str, AccessKey], sent: str, now_ms: int) -> AccessKey | str:
    """Return the key that a client sent, or why it is invalid; the reason never repeats the text that was sent.

    With a wrong secret the reason is the same for known and unknown ids.
    """
    parts = _KEY.fullmatch(sent)
    if parts is None:
        return "this is no key of Streamward; expected sw_<id>_<secret>"
    key = keys.get(parts[1])
    expected_sha256 = NO_DIGEST if key is None else key.secret_sha256
    if not hmac.compare_digest(digest(parts[2]), expected_sha256) or key is None:
        return UNKNOWN
    return key.why_refused(now_ms) or key
