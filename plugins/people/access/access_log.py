"""Follow the keys and users in the log, and create and revoke keys.

    access ──► a thread that follows ──► keys, users, logins, signing keys, tenants with logs of their own
    sw_<id>_<secret> ──► find ──► AccessKey        access token ──► find ──► User        anything else ──► why not
    create, revoke ──► event ──► access ──► own fold has passed it ──► answer

A follower applies a revocation as soon as it has read the record. While the log cannot be read, `find` raises: a
gateway that cannot learn of revocations refuses all callers.

Not covered: revocations during an outage. Until the broker answers again, decisions use the records read before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from plugins.people.access import keys, sessions, tenant_logs, tokens, users
from plugins.people.access.keys import AccessKey, NewSecret
from plugins.people.access.sessions import LoginSession
from plugins.people.access.tenant_logs import TenantLog
from plugins.people.access.tokens import PublicKey
from plugins.people.access.users import User
from schemas.events import AccessEvent, AccessRole
from streams.access.tenants import tenant_names as tenants
from streams.errors import NotFoundError, SettingsError
from streams.kafka import times
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.settings.model import Settings

Folded = TypeVar("Folded", AccessKey, User, LoginSession, TenantLog)


class AccessLog(FollowedTopic):
    """All about access, followed in a thread. Use as a context manager; methods may be called from any thread."""

    advice = "`streamward admin access keys create` makes one"

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, "access")
        self._keys: dict[str, AccessKey] = {}
        self._users: dict[str, User] = {}
        self._sessions: dict[str, LoginSession] = {}
        self._public_keys: tuple[PublicKey, ...] = ()
        self._tenant_logs: dict[str, TenantLog] = {}

    @property
    def keys(self) -> Mapping[str, AccessKey]:
        """Every key by its id, the oldest first."""
        with self._changed:
            return dict(sorted(self._keys.items(), key=lambda item: (item[1].created_at, item[0])))

    def get(self, key_id: str) -> AccessKey:
        """Return a key by its id. Raises NotFoundError."""
        if (key := self._keys.get(key_id)) is None:
            raise NotFoundError(
                f"there is no key {keys.printable_id(key_id)}; `streamward admin access keys list` shows all of them"
            )
        return key

    @property
    def users(self) -> Mapping[str, User]:
        """Every user by its id, in the order of their ids."""
        with self._changed:
            return dict(sorted(self._users.items()))

    @property
    def tenant_logs(self) -> Mapping[str, TenantLog]:
        """Every tenant that has or had a log of its own, in the order of their names."""
        with self._changed:
            return dict(sorted(self._tenant_logs.items()))

    @property
    def public_keys(self) -> tuple[PublicKey, ...]:
        """Every key that tokens were signed with; the newest is last."""
        return self._public_keys

    def user(self, user_id: str) -> User:
        """Return a user by its id. Raises NotFoundError."""
        if (user := self._users.get(user_id)) is None:
            raise NotFoundError(
                f"there is no user {user_id[: users.LONGEST]!r}; `streamward admin access users list` shows all"
            )
        return user

    def session(self, session_id: str) -> LoginSession | None:
        """Return a login by its id; None if there is none."""
        return self._sessions.get(session_id)

    def find(self, sent: str) -> AccessKey | User | str:
        """Return the owner of a key or access token, or why it is none. Raises LogError once the log cannot be read."""
        self._raise_error()
        if not tokens.looks_like_one(sent):
            return keys.find(self._keys, sent, times.now_ms())
        claims = tokens.verify(self._public_keys, sent, times.now_ms())
        return claims if isinstance(claims, str) else self._person(claims)

    def of_actor(self, actor: str) -> AccessKey | User | str:
        """Return the key or the user of this name, as `who` has it, or why it is none. Raises LogError as `find`."""
        self._raise_error()
        kind, _, name = actor.partition(" ")
        owner = self._keys.get(name) if kind == "key" else self._users.get(name) if kind == "user" else None
        if owner is None:
            return f"{actor[: users.LONGEST]} is no key and no user"
        return owner.why_refused(times.now_ms()) or owner

    def _person(self, claims: tokens.Claims) -> User | str:
        session, user = self._sessions.get(claims.session_id), self._users.get(claims.user_id)
        if session is None or user is None or session.user_id != claims.user_id:
            return "this login was made void"
        return session.why_refused(user, times.now_ms()) or user

    def login_of(self, refresh_token: str) -> LoginSession | sessions.Reused | str:
        """Return the login that a refresh token is of, or what is wrong with it. Raises LogError as `find`."""
        self._raise_error()
        return sessions.find(self._sessions, self._users, refresh_token, times.now_ms())

    def wait_until(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """Wait until a condition holds, at most so many seconds; return whether it does."""
        with self._changed:
            return self._changed.wait_for(is_so, within_s)

    def write(self, event: AccessEvent) -> None:
        """Write an event; this log has taken it in afterwards. Raises LogError if the broker does not answer."""
        self._write(event)

    def create(
        self,
        *,
        role: AccessRole,
        actor: str,
        name: str | None = None,
        tenant: str | None = None,
        agent_id: str | None = None,
        lasts_ms: int | None = None,
    ) -> NewSecret:
        """Return a new key, which is in the log. Raises SettingsError for what is no name of a tenant, LogError."""
        if tenant is not None and (problem := tenants.why_no_name(tenant)) is not None:
            raise SettingsError(f"--tenant: {problem}")
        secret, now = keys.new_secret(), times.now_ms()
        expires_at = None if lasts_ms is None else now + lasts_ms
        grant = keys.KeyGrant(role=role, name=name, tenant=tenant, agent_id=agent_id, expires_at=expires_at)
        self._write(keys.creation_event(secret, grant, actor=actor, now_ms=now))
        return secret

    def revoke(self, key_id: str, *, actor: str, reason: str) -> AccessKey:
        """Return a key that is revoked, now or before. Raises NotFoundError, LogError."""
        if self.get(key_id).revoked_at is None:
            self._write(keys.revocation_event(key_id, actor=actor, reason=reason, now_ms=times.now_ms()))
        return self.get(key_id)

    def _take(self, record: Record) -> None:
        event = self._decoded(record, AccessEvent)
        if event is not None and not self._fold(event):
            self._log.warning(
                "skipped: %s of %s, which was never made", event.kind, event.subject_id, extra=record.log_extra
            )

    def _fold(self, event: AccessEvent) -> bool:
        """Return whether there is something, now or before, that an event is about."""
        about = event.subject_id
        if event.kind.startswith("signing_key_"):
            self._public_keys = tokens.fold(self._public_keys, event)
            return any(key.kid == about for key in self._public_keys)
        if event.kind.startswith("tenant_"):
            return _put(self._tenant_logs, about, tenant_logs.fold(self._tenant_logs.get(about), event))
        if event.kind.startswith("session_"):
            return _put(self._sessions, about, sessions.fold(self._sessions.get(about), event))
        if event.kind.startswith("key_"):
            return _put(self._keys, about, keys.fold(self._keys.get(about), event))
        return _put(self._users, about, users.fold(self._users.get(about), event))


def _put(states: dict[str, Folded], about: str, value: Folded | None) -> bool:
    if value is not None:
        states[about] = value
    return value is not None
