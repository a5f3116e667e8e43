"""The keys that persons' words are sealed with, as this process has them.

A key is there, was erased, or is unknown, and unknown is never taken for erased: a wrong key store must not make
people's words vanish.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Protocol

KEY_BYTES = 64
"""Length of a subject's key: AES-256 twice, for the tag and for the text."""


class UnknownKeyError(Exception):
    """The key source does not know this subject, so it cannot say whether it was erased."""


class ErasedError(Exception):
    """The key of the subject was deleted."""


class AlteredError(Exception):
    """The ciphertext was made for another record, or with another key."""


class KeySource(Protocol):
    """The keys of subjects, as this process has them."""

    def key_of(self, subject: str) -> bytes:
        """Return the KEY_BYTES of a subject's key. Raises ErasedError or UnknownKeyError.

        An error of another kind stops the reader or writer.
        """
        ...

    def salt_of(self, subject: str) -> bytes:
        """Return what digests of a subject's words begin with: from its key, whether it was erased or not.

        Raises UnknownKeyError where there is no key.
        """
        ...

    def subject_of(
        self, tenant: str | None, person: str | None, caller: str | None, policy: str | None = None
    ) -> str | None:
        """Return the pseudonym of a person, whose key is made if there is none yet; None: nothing is sealed.

        `person` is the name that the caller gives, unique in its tenant; `caller` the API key or user that calls;
        `policy` answers, None: it is not known yet, or there is none. Raises ErasedError for a person who was erased,
        and did not return.
        """
        ...

    def may_train(self, subject: str) -> bool:
        """Return whether what is of a subject may be trained on."""
        ...

    def close(self) -> None:
        """Release what it holds: another source takes its place."""
        ...


class NoKeys:
    """The source of a process that has none."""

    def key_of(self, subject: str) -> bytes:
        """Raise UnknownKeyError."""
        raise UnknownKeyError(
            f"no key store is set, and a record is sealed for subject {subject}; load the plugin that has one"
        )

    def salt_of(self, subject: str) -> bytes:
        """Raise UnknownKeyError."""
        return self.key_of(subject)

    def subject_of(
        self, tenant: str | None, person: str | None, caller: str | None, policy: str | None = None
    ) -> str | None:
        """Return None."""
        return None

    def may_train(self, subject: str) -> bool:
        """Return True: nothing says otherwise."""
        return True

    def close(self) -> None:
        """Do nothing."""


class _ProcessKeys:
    """The source of this process, found when the first record needs it."""

    source: KeySource | None = NoKeys()
    find: Callable[[], KeySource | None] = NoKeys
    lock = threading.Lock()


def use(source: KeySource) -> None:
    """Seal and open with these keys from now on, in the whole process."""
    use_later(lambda: source)


def use_later(find: Callable[[], KeySource | None]) -> None:
    """The same with the source that `find` returns when the first record needs a key; None: there are no keys."""
    with _ProcessKeys.lock:
        before, _ProcessKeys.source, _ProcessKeys.find = _ProcessKeys.source, None, staticmethod(find)
    if before is not None:
        before.close()


def current() -> KeySource:
    """Return the source of keys. Raises the errors of finding it."""
    if (source := _ProcessKeys.source) is not None:
        return source
    with _ProcessKeys.lock:
        if _ProcessKeys.source is None:
            _ProcessKeys.source = _ProcessKeys.find() or NoKeys()
        return _ProcessKeys.source


NO_TRAINING = "no_training"
"""Why something is left out of training: its person does not allow it."""


def may_train(subject: str | None) -> bool:
    """Return whether what is of a subject may be trained on; None: it is of no person."""
    return subject is None or current().may_train(subject)


# --- what a process remembers -----------------------------------------------------------------------------------------

_forgetting: list[weakref.WeakMethod[Callable[[str], None]]] = []


def when_erased(forget: Callable[[str], None]) -> None:
    """Call this method with each subject that is erased from now on, in any thread, while its object exists."""
    _forgetting[:] = [known for known in _forgetting if known() is not None]
    _forgetting.append(weakref.WeakMethod(forget))


def tell_erased(subject: str) -> None:
    """Have everything in memory of a subject forgotten."""
    for known in tuple(_forgetting):
        if (forget := known()) is not None:
            forget(subject)


# --- who reads --------------------------------------------------------------------------------------------------------

PERSONS_READ, MORE_PERSONS = "persons_read", "more_persons_read"
"""Metadata of a request: the persons whose words were opened for it, with spaces between; and how many others were."""
MOST_NAMED = 1000
_of_request: ContextVar[set[str] | None] = ContextVar("persons_read", default=None)


class _ProcessReads:
    """The persons whose words this process has opened, if it serves one user."""

    persons: set[str] | None = None


def collect_reads(*, whole_process: bool = False) -> set[str]:
    """Return a set that gets each person whose words are opened from now on, in this context or the whole process."""
    persons = set[str]()
    if whole_process:
        _ProcessReads.persons = persons
    else:
        _of_request.set(persons)
    return persons


def note_read(person: str | None) -> None:
    """Note that a person's words were opened, or are shown out of memory; None: those of no person."""
    persons = _of_request.get()
    persons = _ProcessReads.persons if persons is None else persons
    if person is not None and persons is not None:
        persons.add(person)


def reads_metadata(persons: Collection[str]) -> dict[str, str]:
    """Return the metadata of a request that opened the words of these persons."""
    if not persons:
        return {}
    named, more = sorted(persons)[:MOST_NAMED], max(0, len(persons) - MOST_NAMED)
    return {PERSONS_READ: " ".join(named)} | ({MORE_PERSONS: str(more)} if more else {})
