"""Callers of a server, known without a log: one key, and one person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from schemas.events import AccessRole, RequestEvent
from streams.access.credentials import UNKNOWN
from streams.errors import LogError

KEY_ID = "00112233445566ff"
SECRET = "s" * 43
KEY = f"sw_{KEY_ID}_{SECRET}"
BEARER = {"Authorization": f"Bearer {KEY}"}
PERSON = {"Authorization": "Bearer a.b.c"}
AGENTS_MAY = {"models.read", "groups.read", "chat.call", "feedback.give", "runs.write"}
"""Of what its role may, all that a key of an agent may."""


class Caller(NamedTuple):
    """A principal."""

    subject_id: str
    roles: tuple[AccessRole, ...]
    tenant: str | None = None
    agent_id: str | None = None

    @property
    def who(self) -> str:
        """Its name in messages."""
        return self.subject_id if self.subject_id.startswith("user ") else f"key {self.subject_id}"


def key(role: AccessRole = "admin", *, tenant: str | None = None, agent_id: str | None = None) -> Caller:
    return Caller(KEY_ID, (role,), tenant, agent_id)


def person(*roles: AccessRole, tenant: str | None = None) -> Caller:
    return Caller("user ann", roles or ("admin",), tenant)


class Known:
    """One key, and a person whose access token is `a.b.c`; and a log that can be away."""

    advice = "ask for one"

    def __init__(self, role: AccessRole, *, tenant: str | None = None, agent_id: str | None = None) -> None:
        self.key, self.person = key(role, tenant=tenant, agent_id=agent_id), person(role, tenant=tenant)
        self.away, self.is_unread = False, False
        self.is_gone = False
        """The log has no such key."""
        self.readings = 0

    def find(self, sent: str) -> Caller | str:
        if self.away:
            raise LogError("the log cannot be read")
        if sent == "a.b.c":
            return self.person
        if not sent.startswith("sw_") or len(sent) != len(KEY):
            return "this is no key of Streamward; expected sw_<id>_<secret>"
        return self.key if sent == KEY and not self.is_unread else UNKNOWN

    def of_actor(self, actor: str) -> Caller | str:
        return next((each for each in (self.key, self.person) if each.who == actor), f"{actor} is no key and no user")

    def catch_up(self) -> None:
        self.readings += 1
        self.is_unread = self.is_gone


class Written:
    """What a door writes of what is asked, and why it may not be answered."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self.full: str | None = None

    def why_not(self) -> str | None:
        return self.full

    def write(self, events: Iterable[RequestEvent]) -> None:
        self.events += events
