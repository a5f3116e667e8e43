"""Erasures over HTTP and as commands.

    POST /privacy/erase ──► asked, deleted, confirmed         POST /privacy/revoke, while there is time
    GET /privacy/persons ──► what became of each              POST /privacy/finish ──► what is due

A person is named as calls and tasks name one, or by the pseudonym of the log. A tenant's keys see its own alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import ErasureLog, PersonState
from plugins.privacy.key_store import store_of
from plugins.privacy.person_keys import PersonKeys
from plugins.privacy.privacy_settings import Privacy
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import own_of
from streams.errors import CallError
from streams.output import moment
from streams.settings.model import Settings

READ, ERASE = PluginAction("privacy.read"), PluginAction("privacy.erase")
Person = Annotated[
    str, Field(min_length=1, max_length=512, description="a person as calls and tasks name one, or its pseudonym")
]
Reason = Annotated[str, Field("asked for", min_length=1, max_length=1000, description="why; it is recorded")]


class PersonBody(Body):
    """A person."""

    person: Person
    reason: Reason


class PersonAnswer(Answer):
    """What became of a person's words."""

    object: Literal["person"]
    person: str = Field(description="the pseudonym")
    state: Literal["kept", "asked", "deleted", "erased"]
    asked_at: str | None
    due_at: str | None = Field(description="until then the erasure may be revoked")
    deleted_at: str | None
    confirmed_at: str | None


class PersonAnswers(Answer):
    """The persons that there are events about."""

    object: Literal["list"]
    data: list[PersonAnswer]


EXAMPLE = PersonAnswer(
    object="person",
    person="p-4f2a8b1c9d3e5f60718293a4b5c6d7e8",
    state="erased",
    asked_at="2026-11-30T14:00:00Z",
    due_at="2026-11-30T14:00:00Z",
    deleted_at="2026-11-30T14:00:00Z",
    confirmed_at="2026-11-30T14:00:00Z",
)
NO_STORE = "no keys are kept here; set privacy.key_folder or privacy.command, and privacy.seal"


class Erasures:
    """The routes of erasures."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log, self._rule = settings, log, settings.of_plugin(Privacy)

    @REST.post("/privacy/erase", may=ERASE, at_once=AT_ONCE, refuses=(409,), sends={"person": "ann"}, example=EXAMPLE)
    def erase_person(self, request: Request, body: PersonBody) -> PersonAnswer:
        """Make a person's words unreadable, and delete the key."""
        eraser = self._eraser()
        return _answer(eraser.erase(self._name(request, body.person), actor_of(request), body.reason))

    @REST.post("/privacy/revoke", may=ERASE, at_once=AT_ONCE, refuses=(409,), sends={"person": "ann"}, example=EXAMPLE)
    def revoke_erasure(self, request: Request, body: PersonBody) -> PersonAnswer:
        """Take an erasure back while its key exists."""
        name = self._name(request, body.person)
        return _answer(self._log.registry(ErasureLog).note(name, "revoked", actor_of(request), body.reason))

    @REST.post("/privacy/finish", may=ERASE, at_once=1, refuses=(400,))
    def finish_erasures(self, request: Request) -> PersonAnswers:
        """Delete the keys that are due, and those that a backup brought back."""
        states = list(self._eraser().finish(actor_of(request)))
        own = own_of(tenant_of(request), {state.person: state for state in states})
        return PersonAnswers(object="list", data=[_answer(state) for state in own.values()])

    @REST.get("/privacy/persons", may=READ, at_once=AT_ONCE, refuses=())
    def list_persons(self, request: Request) -> PersonAnswers:
        """List the persons that were to be erased, by their pseudonyms."""
        states = own_of(tenant_of(request), self._log.registry(ErasureLog).states)
        return PersonAnswers(object="list", data=[_answer(state) for state in states.values()])

    def _eraser(self) -> Eraser:
        if not self._rule.has_store:
            raise CallError("unsupported", NO_STORE)
        return Eraser(self._log.registry(ErasureLog), store_of(self._rule), self._rule)

    def _name(self, request: Request, person: str) -> str:
        if not self._rule.has_store:
            raise CallError("unsupported", NO_STORE)
        return PersonKeys(self._settings, self._rule).pseudonym(tenant_of(request), person)


def _answer(state: PersonState) -> PersonAnswer:
    asked = state.asked

    def time_text(ms: int | None) -> str | None:
        return None if ms is None else moment(ms)

    return PersonAnswer(
        object="person",
        person=state.person,
        state=state.word,
        asked_at=None if asked is None else time_text(asked.created_at),
        due_at=None if asked is None else time_text(asked.due_at),
        deleted_at=time_text(state.deleted_at),
        confirmed_at=time_text(state.confirmed_at),
    )


ROOMS = (Erasures,)
