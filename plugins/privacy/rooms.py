"""Erasures over HTTP and as commands.

    POST /privacy/erase ──► asked, deleted, confirmed         POST /privacy/revoke, while there is time
    GET /privacy/persons ──► what became of each              POST /privacy/finish ──► what is due, or expired
    POST /privacy/restrict ──► not trained on, a retention of its own

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
from plugins.privacy.person_records import newest_records
from plugins.privacy.privacy_settings import Privacy
from schemas.privacy_events import RETENTION_S, TRAINING
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


class RestrictBody(PersonBody):
    """What a person's words may be used for."""

    training: Literal["on", "off"] | None = Field(None, description="whether they may be trained on")
    retention_s: Annotated[int, Field(ge=0)] | None = Field(
        None, description="`finish` erases the person without a record for so long, seconds; 0: never"
    )


class PersonAnswer(Answer):
    """What became of a person's words."""

    object: Literal["person"]
    person: str = Field(description="the pseudonym")
    state: Literal["kept", "asked", "expired", "deleted", "erased"]
    training: Literal["on", "off"] = Field(description="whether words of the person may be trained on")
    retention_s: int | None = Field(description="that of the person alone; null: as privacy.retention_s")
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
    training="on",
    retention_s=None,
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

    @REST.post(
        "/privacy/restrict",
        may=ERASE,
        at_once=AT_ONCE,
        refuses=(409,),
        sends={"person": "ann", "training": "off"},
        example=EXAMPLE,
    )
    def restrict_person(self, request: Request, body: RestrictBody) -> PersonAnswer:
        """Keep a person's words from training, or for a time of their own."""
        values = {TRAINING: body.training, RETENTION_S: body.retention_s}
        restrictions = {name: str(value) for name, value in values.items() if value is not None}
        if not restrictions:
            raise CallError("invalid", "there is nothing to restrict; set training, retention_s, or both", TRAINING)
        name, log = self._name(request, body.person), self._log.registry(ErasureLog)
        return _answer(log.note(name, "restricted", actor_of(request), body.reason, restrictions=restrictions))

    @REST.post("/privacy/finish", may=ERASE, at_once=1, refuses=(400,))
    def finish_erasures(self, request: Request) -> PersonAnswers:
        """Delete the keys that are due, or that a backup brought back, and erase persons whose retention is over."""
        eraser, actor = self._eraser(), actor_of(request)
        states = list(eraser.finish(actor))
        if eraser.has_retention:
            from streams.tools.archive import history  # an image without an archive has the route, too

            keys = PersonKeys(self._settings, self._rule)
            states += eraser.expire(newest_records(self._settings, history.of(self._settings)), keys.following, actor)
        own = own_of(tenant_of(request), {state.person: state for state in states})
        return PersonAnswers(object="list", data=[_answer(state) for state in own.values()])

    @REST.get("/privacy/persons", may=READ, at_once=AT_ONCE, refuses=())
    def list_persons(self, request: Request) -> PersonAnswers:
        """List the persons that were erased or restricted, by their pseudonyms."""
        states = own_of(tenant_of(request), self._log.registry(ErasureLog).states)
        return PersonAnswers(object="list", data=[_answer(state) for state in states.values()])

    def _eraser(self) -> Eraser:
        if not self._rule.has_store:
            raise CallError("unsupported", NO_STORE)
        return Eraser(self._log.registry(ErasureLog), store_of(self._rule), self._rule)

    def _name(self, request: Request, person: str) -> str:
        if not self._rule.has_store:
            raise CallError("unsupported", NO_STORE)
        keys = PersonKeys(self._settings, self._rule)
        return keys.generations(tenant_of(request), person, self._log.registry(ErasureLog))[-1]


def _answer(state: PersonState) -> PersonAnswer:
    asked = state.asked

    def time_text(ms: int | None) -> str | None:
        return None if ms is None else moment(ms)

    return PersonAnswer(
        object="person",
        person=state.person,
        state=state.word,
        training="on" if state.may_train else "off",
        retention_s=state.retention_s,
        asked_at=None if asked is None else time_text(asked.created_at),
        due_at=None if asked is None else time_text(asked.due_at),
        deleted_at=time_text(state.deleted_at),
        confirmed_at=time_text(state.confirmed_at),
    )


ROOMS = (Erasures,)
