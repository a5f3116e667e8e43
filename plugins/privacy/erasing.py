"""Erase a person: ask, delete the key, confirm. Any step may be repeated, and a crash between two loses none.

    asked, in the log ──► unreadable ──► grace is over: key deleted ──► deleted ──► not in the store: confirmed

The log has the request before the key is gone, so no key is deleted without one; and a process that finishes later
starts from what the log and the store say.

    no record for the retention ──► expired, in the log ──► as above
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from plugins.privacy.erasure_log import ErasureLog, PersonState
from plugins.privacy.key_store import KeyStore
from plugins.privacy.privacy_settings import Privacy
from streams.kafka import times


class Eraser:
    """Erases persons."""

    def __init__(self, log: ErasureLog, store: KeyStore, rule: Privacy) -> None:
        self._log, self._store, self._rule = log, store, rule

    def erase(self, person: str, actor: str, reason: str) -> PersonState:
        """Ask for the erasure of a person unless that was done, and do what is due.

        Raises KeyStoreError, LogError.
        """
        state = self._log.state(person)
        if state.asked is None:
            due_at = times.now_ms() + int(self._rule.grace_s * 1000)
            state = self._log.note(person, "asked", actor, reason, due_at=due_at)
        return self._finish(state, actor)

    def finish(self, actor: str) -> Iterator[PersonState]:
        """Finish all erasures that are due, and delete keys that came back; yield the states that were unfinished.

        Raises KeyStoreError, LogError.
        """
        for state in list(self._log.states.values()):
            if state.confirmed_at is None and state.asked is not None:
                yield self._finish(state, actor)
            elif state.confirmed_at is not None and self._store.get(state.person) is not None:
                self._store.delete(state.person)
                yield state

    @property
    def has_retention(self) -> bool:
        """Whether persons may expire."""
        return bool(self._rule.retention_s) or any(state.retention_s for state in self._log.states.values())

    def expire(
        self, newest_ms: Mapping[str, int], following: Callable[[str], str], actor: str
    ) -> Iterator[PersonState]:
        """Erase all persons whose newest record is older than their retention; yield their states.

        Restrictions are first written for the pseudonym `following` it, which the person has after a return. Raises
        KeyStoreError, LogError.
        """
        for person, last_ms in newest_ms.items():
            state = self._log.state(person)
            retention_s = self._rule.retention_s if state.retention_s is None else state.retention_s
            if state.is_erased or not retention_s or times.now_ms() - last_ms <= retention_s * 1000:
                continue
            reason = f"no record for {retention_s:g} s"
            if state.restrictions:
                self._log.note(following(person), "restricted", actor, reason, restrictions=state.restrictions)
            yield self._finish(self._log.note(person, "expired", actor, reason), actor)

    def _finish(self, state: PersonState, actor: str) -> PersonState:
        if state.asked is None or times.now_ms() < (state.asked.due_at or 0) or state.confirmed_at is not None:
            return state
        self._store.delete(state.person)
        if state.deleted_at is None:
            state = self._log.note(state.person, "deleted", actor, "its key was deleted")
        if self._store.get(state.person) is None:
            state = self._log.note(state.person, "confirmed", actor, "its key is not in the store")
        return state
