"""The keys that this process seals and opens with: three states, of which the log decides one.

    erased in the log ──► erased, whatever the store has          a key in the store ──► present
    neither ──► unknown: stop, or a dead letter, never taken for erased

A key store that was restored from a backup has keys of erased persons again; since the log has the erasures, they open
nothing. Without the log that is not known, so a process that cannot read it opens nothing, either.
"""

from __future__ import annotations

import hmac
import os
import threading
from typing import NamedTuple

from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import KeyStore, KeyStoreError, store_of
from plugins.privacy.privacy_settings import Privacy
from schemas.events import PSEUDONYM
from schemas.key_source import ErasedError, KeySource, UnknownKeyError
from streams.access.tenants.tenant_names import named
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings

MOST_KEYS = 100_000
"""Most keys in memory."""
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

    def salt_of(self, subject: str) -> bytes:
        """Return a key, whatever the log says. Raises UnknownKeyError, KeyStoreError."""
        if (key := self._keys.get(subject) or self._store.get(subject)) is None:
            raise UnknownKeyError(f"there is no key of subject {subject}")
        return key

    def subject_of(self, tenant: str | None, person: str | None, caller: str | None) -> str | None:
        """Return the pseudonym of a person, with a key; None: nothing is sealed.

        Raises ErasedError, KeyStoreError, LogError.
        """
        name = person or (caller if self._rule.seal == "all" else None)
        if name is None or not self._rule.seals_for(tenant):
            return None
        subject = self.pseudonym(tenant, name)
        followed = self._followed  # without a log yet, as while a file is read: then it is erased when it is written
        if followed is not None and followed.log.current is not None and self._log().is_erased(subject):
            raise ErasedError
        if subject not in self._keys:
            self._keep(subject, self._store.create(subject))
        return subject

    def pseudonym(self, tenant: str | None, name: str) -> str:
        """Return what the log calls a person: without the store it tells nothing. A pseudonym is its own."""
        own = named(tenant, name)
        if PSEUDONYM.fullmatch(own):
            return own
        secret = self._keys.get(PSEUDONYMS) or self._keep(PSEUDONYMS, self._store.create(PSEUDONYMS))
        digest = hmac.digest(secret, f"{tenant or ''}\x1f{name}".encode(errors="surrogatepass"), "sha256").hex()
        return named(tenant, f"p-{digest[:32]}")

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

    def _log(self) -> ErasureLog:
        """Return the erasures, up to date within moments."""
        followed = self._followed
        if followed is None or followed.process != os.getpid():  # a thread does not survive a fork
            with self._lock:
                followed = self._followed
                if followed is None or followed.process != os.getpid():
                    followed = self._followed = _Followed(os.getpid(), FollowedOnDemand(ErasureLog, self._settings))
        return followed.log.current or followed.log.open()
