"""Decisions on the page about versions and dead letters, with the functions of the commands.

    form ──► read_history ──► still the version that was expected? ──► decide ──► one event, read back
    form ──► Letters ──► redrive.decide ──► the record on its topic again, or closed
    decided ──► back to the form's page          not decided ──► the page again, with the reason

A page may be outdated when its form is sent. So the form names the version that was primary when it was shown; if
another one is primary by now, nothing is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.http.principal import actor_of, principal_of
from gateway.http.request_record import RecordedCall, record_of
from plugins.page.forms import read_form
from schemas.events import AdapterKind
from streams.access.tenants.tenant_names import is_of
from streams.adapters.decisions import ProposedDecision, decide, read_history, rollback_target
from streams.errors import EventError, LogError, NotFoundError, RefusedError, SettingsError
from streams.settings.model import Settings
from streams.tools.dead_letters import letters as dead_letters, redrive
from streams.tools.dead_letters.letters import Verdict
from streams.tools.views import rights
from streams.tools.views.log_view import LogReader, LogView
from streams.tools.views.view_section import PageForm, SentForm

KINDS: dict[str, AdapterKind] = {"promote": "promoted", "reject": "rejected", "rollback": "rolled_back"}
VERDICTS: dict[str, Verdict] = {"retry": "retried", "drop": "dropped"}
UNKNOWN = "Whether it was written is not known: look at the page again before you decide anew"


class ShowsPage(Protocol):
    """Answers with the page of a request; `fields`: more for its template."""

    def __call__(
        self, log: LogReader, request: Request, status: HTTPStatus = HTTPStatus.OK, **fields: object
    ) -> Response: ...


def reader_of(view: LogView, request: Request) -> LogReader:
    """Return the log as the visitor of a request sees it."""
    return LogReader(view, principal_of(request), actor=actor_of(request))


class DecisionForm(NamedTuple):
    """A form and its page."""

    form: PageForm
    show: ShowsPage

    def route(self, view: LogView) -> Callable[[Request], Awaitable[Response]]:
        """Return the function that answers when the form is sent.

        It raises HTTPException if the principal may not decide, and errors of `show`.
        """
        action, decide = self.form

        async def answer(request: Request) -> Response:
            form, log = await read_form(request), reader_of(view, request)
            decision = rights.may(log.principal, action)
            if (record := record_of(request)) is not None:
                record.calls.append(RecordedCall(request.method, action, decision, form.word("version")[:20]))
            if not decision.allowed:
                raise HTTPException(HTTPStatus.FORBIDDEN, decision.why)
            try:
                await run_in_threadpool(decide, log, form, **request.path_params)
            except (SettingsError, RefusedError, NotFoundError, EventError) as exc:
                view.outdate()
                status = HTTPStatus.BAD_REQUEST if isinstance(exc, SettingsError) else HTTPStatus.CONFLICT
                return await run_in_threadpool(self.show, log, request, status, sent=form, failed=str(exc))
            view.outdate()
            return RedirectResponse(quote(request.scope["path"], safe="/") + "#decisions", HTTPStatus.SEE_OTHER)

        return answer


def decide_posted_version(log: LogReader, form: SentForm, *, policy: str) -> None:
    """Decide about a version of the policy in the path. Raises as `decide_version`."""
    if not is_of(log.rights.tenant, policy):
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}")
    decide_version(log.view.settings, policy, form, log.actor)


def decide_posted_letter(log: LogReader, form: SentForm) -> None:
    """Decide about a dead letter. Raises as `decide_letter`."""
    decide_letter(log.view.settings, form, log.actor)


def decide_version(settings: Settings, policy: str, form: SentForm, actor: str) -> None:
    """Promote, reject or roll back to a version, once; return when it has taken effect.

    Raises SettingsError for an incomplete form, NotFoundError for an unknown version, RefusedError if another version
    than the expected one answers, the rules forbid it, or another decision came first; LogError.
    """
    kind = KINDS.get(form.word("kind"))
    if kind is None:
        raise SettingsError(f"kind: expected one of {', '.join(KINDS)}, got {form.word('kind')[:80]!r}")
    reason, expected = form.reason("reason"), form.number("expected")
    if kind != "rolled_back" and not form.word("version"):
        raise SettingsError(f"version: name the one to {form.word('kind')}")
    history = read_history(settings, policy)
    if form.word("version"):
        version = form.number("version")
    else:
        version = rollback_target(history, expected, actor=actor, reason=reason)
    proposed = ProposedDecision(kind=kind, version=version, actor=actor, reason=reason, expect=expected)
    try:
        decide(settings, history, proposed)
    except LogError as exc:
        raise LogError(f"{exc}. {UNKNOWN}") from exc


def decide_letter(settings: Settings, form: SentForm, actor: str) -> None:
    """Write the record of a dead letter to its topic again, or close it.

    Raises SettingsError for an incomplete form, NotFoundError without such a letter, RefusedError and EventError
    for a record that may not be written again, LogError.
    """
    verdict = VERDICTS.get(form.word("what"))
    if verdict is None:
        raise SettingsError(f"what: expected one of {', '.join(VERDICTS)}, got {form.word('what')[:80]!r}")
    reason = form.reason("reason")
    letters = dead_letters.load(settings)
    chosen = letters.find(form.word("letter"), prefix=settings.topics.prefix)
    order = redrive.RedriveOrder(verdict=verdict, actor=actor, why=reason)
    try:
        outcomes = [*redrive.decide(settings, letters, chosen, order)]
    except LogError as exc:
        raise LogError(f"{exc}. {UNKNOWN}") from exc
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        if outcome.result == "already":
            raise RefusedError(f"{outcome.letter.source}: it was {verdict} already; look again")
    if not outcomes:
        raise NotFoundError("there is no such dead letter; look again")
