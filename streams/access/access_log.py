"""Every key as the log has it, followed; and how keys are made and revoked.

    access ──► a thread that follows ──► AccessKey of each ──► find: one look, one SHA-256
    create, revoke ──► event ──► access ──► own fold has passed it ──► answer

Whoever follows knows of a revocation as soon as its record is read. Once the log cannot be read, `find` raises: what
cannot hear of revocations lets nobody in.

Not covered: revocations during an outage. Until the broker answers again, keys are judged by what was read before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from schemas.events import AccessEvent, AccessRole
from schemas.serde import Poison
from streams.access import keys, tenants
from streams.access.keys import AccessKey, NewSecret
from streams.errors import NotFoundError, SettingsError
from streams.kafka import times
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.settings.model import Settings

log = logging.getLogger("streamward.access")


class AccessLog(FollowedTopic):
    """Every key, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, "access")
        self._keys: dict[str, AccessKey] = {}

    @property
    def keys(self) -> Mapping[str, AccessKey]:
        """Every key by its id, the oldest first."""
        with self._changed:
            return dict(sorted(self._keys.items(), key=lambda item: (item[1].created_at, item[0])))

    def get(self, key_id: str) -> AccessKey:
        """Return a key by its id. Raises NotFoundError."""
        if (found := self._keys.get(key_id)) is None:
            raise NotFoundError(
                f"there is no key {keys.shown(key_id)}; `streamward access keys list` shows all of them"
            )
        return found

    def find(self, sent: str) -> AccessKey | str:
        """Return the key that a client sent, or why it is none. Raises LogError once the log cannot be read."""
        self._raise_error()
        return keys.find(self._keys, sent, times.now_ms())

    def wait_revoked(self, key_id: str, within_s: float) -> bool:
        """Return whether a key is known to be revoked, at the latest after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._keys[key_id].revoked_at is not None, within_s)

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
        if tenant is not None and (why := tenants.why_no_name(tenant)) is not None:
            raise SettingsError(f"--tenant: {why}")
        secret, now = keys.new_secret(), times.now_ms()
        self._write(
            keys.created(
                secret,
                role=role,
                actor=actor,
                now_ms=now,
                name=name,
                tenant=tenant,
                agent_id=agent_id,
                expires_at=None if lasts_ms is None else now + lasts_ms,
            )
        )
        return secret

    def revoke(self, key_id: str, *, actor: str, reason: str) -> AccessKey:
        """Return a key that is revoked, now or before. Raises NotFoundError, LogError."""
        if self.get(key_id).revoked_at is None:
            self._write(keys.revoked(key_id, actor=actor, reason=reason, now_ms=times.now_ms()))
        return self.get(key_id)

    def _take(self, record: Record) -> None:
        event = record.decode(AccessEvent)
        if isinstance(event, Poison):
            log.warning("skipped: %s", event.error, extra=record.log_extra)
        elif record.key != event.subject_id.encode():
            log.warning("skipped: it is about another key than its record", extra=record.log_extra)
        elif (known := keys.folded(self._keys.get(event.subject_id), event)) is None:
            log.warning("skipped: key %s was never made", event.subject_id, extra=record.log_extra)
        else:
            self._keys[event.subject_id] = known
