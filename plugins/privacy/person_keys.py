"""The keys that this process seals and opens with: three states, of which the log decides one.

    erased in the log ──► erased, whatever the store has          a key in the store ──► present
    neither ──► unknown: stop, or a dead letter, never taken for erased

A key store that was restored from a backup has keys of erased persons again; since the log has the erasures, they open
nothing. Without the log that is not known, so a process that cannot read it opens nothing, either.

A person who expired and returns has the next pseudonym, made of the one before, and with it another key:

    name ──► pseudonym ── expired? ──► the next ── expired? ──► …
"""

from __future__ import annotations

import hmac
import os
import threading
import time
from typing import NamedTuple

from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import KeyStore, KeyStoreError, store_of
from plugins.privacy.privacy_settings import Privacy
from schemas.events import PSEUDONYM
from schemas.key_source import ErasedError, KeySource, UnknownKeyError
from streams.access.tenants.tenant_names import named
from streams.errors import LogError, NotFoundError
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings

MOST_KEYS = 100_000
"""Most keys in memory."""
LOG_AWAY_S = 2.0
"""How long the log is not asked for again after it could not be reached."""
PSEUDONYMS = "_pseudonyms"
"""Name of the key that pseudonyms are made with."""


def key_source(settings: Settings) -> KeySource | None:
    """Return the keys of these settings; None if they have no store."""
    rule = settings.of_plugin(Privacy)
    return PersonKeys(settings, rule) if rule.has_store else None


class _Followed(NamedTuple):
    """The erasures, as the process with this id follows them."""

    process: int
    log: FollowedOnDemand[ErasureLog]


class PersonKeys:
    """The keys of persons. Methods may be called from any thread."""

    def __init__(self, settings: Settings, rule: Privacy) -> None:
        self._settings, self._rule = settings, rule
        self._store: KeyStore = store_of(rule)
        self._away_until = 0.0
        self._keys: dict[str, bytes] = {}
        self._followed: _Followed | None = None
        self._lock = threading.Lock()

    def key_of(self, subject: str) -> bytes:
        """Return a key. Raises ErasedError, LogError; UnknownKeyError, or KeyStoreError where that is to stop."""
        if self._log().is_erased(subject):
            self._keys.pop(subject, None)
            raise ErasedError
        key = self._keys.get(subject) or self._store.get(subject)
        if key is None:
            text = f"there is no key of subject {subject}, and the log does not say that it was erased"
            if self._rule.unknown == "stop":
                raise KeyStoreError(f"{text}: restore the key store, or set privacy.unknown=dead_letter")
            raise UnknownKeyError(text)
        return self._keep(subject, key)

    def may_train(self, subject: str) -> bool:
        """Return whether a person allows training. Raises LogError."""
        return self._log().state(subject).may_train

    def salt_of(self, subject: str) -> bytes:
        """Return a key, whatever the log says. Raises UnknownKeyError, KeyStoreError."""
        if (key := self._keys.get(subject) or self._store.get(subject)) is None:
            raise UnknownKeyError(f"there is no key of subject {subject}")
        return key

    def subject_of(
        self, tenant: str | None, person: str | None, caller: str | None, policy: str | None = None
    ) -> str | None:
        """Return the pseudonym of a person, with a key; None: nothing is sealed.

        Raises ErasedError, KeyStoreError, LogError.
        """
        name = person or (caller if self._rule.seal == "all" else None)
        if name is None or not self._rule.seals_for(tenant, policy):
            return None
        log = self._reachable_log()  # `up` reads its file before there is one: then this is asked when it submits
        subject = self.pseudonym(tenant, name) if log is None else self.generations(tenant, name, log)[-1]
        if log is not None and log.is_erased(subject):
            raise ErasedError
        if subject not in self._keys:
            self._keep(subject, self._store.create(subject))
        return subject

    def pseudonym(self, tenant: str | None, name: str) -> str:
        """Return what the log first calls a person: without the store it tells nothing. A pseudonym is its own."""
        own = named(tenant, name)
        return own if PSEUDONYM.fullmatch(own) else named(tenant, self._pseudonym_of(f"{tenant or ''}\x1f{name}"))

    def following(self, subject: str) -> str:
        """Return the pseudonym of a person who returns after this one expired."""
        tenant, dot, _ = subject.rpartition(".")
        return f"{tenant}{dot}{self._pseudonym_of(subject)}"

    def generations(self, tenant: str | None, name: str, log: ErasureLog) -> list[str]:
        """Return the first pseudonym of a person and all that follow it, up to the one in use."""
        subjects = [self.pseudonym(tenant, name)]
        while log.state(subjects[-1]).is_expired:
            subjects.append(self.following(subjects[-1]))
        return subjects

    def _pseudonym_of(self, text: str) -> str:
        secret = self._keys.get(PSEUDONYMS) or self._keep(PSEUDONYMS, self._store.create(PSEUDONYMS))
        return f"p-{hmac.digest(secret, text.encode(errors='surrogatepass'), 'sha256').hex()[:32]}"

    def close(self) -> None:
        """Stop following the log."""
        followed, self._followed = self._followed, None
        if followed is not None and followed.process == os.getpid():
            followed.log.__exit__()

    def _keep(self, name: str, key: bytes) -> bytes:
        if len(self._keys) >= MOST_KEYS:
            self._keys.clear()
        self._keys[name] = key
        return key

    def _reachable_log(self) -> ErasureLog | None:
        """Return the erasures; None where the log is not there yet."""
        followed = self._followed
        if (followed is None or followed.log.current is None) and time.monotonic() < self._away_until:
            return None
        try:
            return self._log()
        except (LogError, NotFoundError):
            self._away_until = time.monotonic() + LOG_AWAY_S
            return None

    def _log(self) -> ErasureLog:
        """Return the erasures, up to date within moments."""
        followed = self._followed
        if followed is None or followed.process != os.getpid():  # a thread does not survive a fork
            with self._lock:
                followed = self._followed
                if followed is None or followed.process != os.getpid():
                    followed = self._followed = _Followed(os.getpid(), FollowedOnDemand(ErasureLog, self._settings))
        return followed.log.current or followed.log.open()
