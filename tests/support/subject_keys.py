"""Keys of subjects for tests: everybody has one but those that a test says are erased or unknown."""

from __future__ import annotations

from hashlib import sha512

from schemas.key_source import ErasedError, UnknownKeyError


class SubjectKeys:
    """A key for each subject but those that are erased or unknown."""

    def __init__(self) -> None:
        self.erased: set[str] = set()
        self.unknown: set[str] = set()
        self.restricted: set[str] = set()

    def subject_of(
        self, tenant: str | None, person: str | None, caller: str | None, policy: str | None = None
    ) -> str | None:
        return person

    def close(self) -> None:
        pass

    def may_train(self, subject: str) -> bool:
        return subject not in self.restricted

    def salt_of(self, subject: str) -> bytes:
        return sha512(subject.encode()).digest()

    def key_of(self, subject: str) -> bytes:
        if subject in self.erased:
            raise ErasedError
        if subject in self.unknown:
            raise UnknownKeyError(f"no key of {subject}")
        return sha512(subject.encode(errors="replace")).digest()
