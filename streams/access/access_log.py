"""Every key as the log has it, followed; and how keys are made and revoked.

    access ──► a thread that follows ──► AccessKey of each ──► find: one look, one SHA-256
    create, revoke ──► event ──► access ──► own fold has passed it ──► answer

Whoever follows knows of a revocation as soon as its record is read. Once the log cannot be read, `find` raises: what
cannot hear of revocations lets nobody in.

Not covered: while the broker is away but may come back, keys count as they were known last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Self

from schemas.events import AccessEvent, AccessRole, Coordinates
from schemas.serde import Poison
from streams.access import keys
from streams.access.keys import AccessKey, NewSecret
from streams.errors import LogError, NotFoundError, StreamwardError
from streams.kafka import times
from streams.kafka.admin import offsets
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record
from streams.settings.model import Settings

CATCH_UP_S = 60.0
"""How long the log may take to be read, or an event to be read back."""

log = logging.getLogger("streamward.access")


class AccessLog:
    """Every key, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        self._settings = settings
        bounds = offsets(settings, ["access"])
        starts = {tp: low for tp, (low, _) in bounds.items()}
        self._ends = {tp: end for tp, (_, end) in bounds.items()}
        self._reader = PartitionReader(settings, starts)
        self._positions = dict(starts)
        self._keys: dict[str, AccessKey] = {}
        self._changed = threading.Condition()
        self._error: StreamwardError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follows-access", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for tp, end in self._ends.items():
            self._wait_for(Coordinates(*tp, end - 1))
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

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
        """Return a new key, which is in the log. Raises LogError if the broker does not answer."""
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

    def _write(self, event: AccessEvent) -> None:
        """Write an event, and return once it is folded."""
        written: list[Coordinates] = []
        with Producer(self._settings, linger_ms=0) as producer:
            producer.send(event, on_ack=written.append)
        self._wait_for(written[0])

    def _wait_for(self, at: Coordinates) -> None:
        """Return once the record at `at` is folded. Raises LogError if it does not come."""
        deadline = time.monotonic() + CATCH_UP_S
        with self._changed:
            while self._positions[at.topic, at.partition] <= at.offset:
                self._raise_error()
                if time.monotonic() > deadline:
                    raise LogError(f"{at} was not read within {CATCH_UP_S:g} s; check Kafka with `streamward doctor`")
                self._changed.wait(POLL_S)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        with self._reader:
            while not self._over.is_set():
                try:
                    records = self._reader.poll()
                except StreamwardError as exc:
                    with self._changed:
                        self._error = exc
                        self._changed.notify_all()
                    return
                with self._changed:
                    for record in records:
                        self._take(record)
                    self._positions = self._reader.position
                    self._changed.notify_all()

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
