"""The page as a web application.

    request ──► guard.py ──► a function below ──► the rows that its reader may see ──► template ──► HTML

    /                         where every group is, what waits for what
    /groups                   the list of groups         /tasks/ID           a task's answers side by side
    /policies                 all, and one: versions,    /runs, /runs/ID     what agents did, turn by turn
      /policies/NAME            decisions, curves        /jobs, /jobs/ID     what was ordered, and what it cost
    /dead-letters             what could not be used     /live, /sql         as it is written; a statement
    /records/TOPIC/P/OFFSET   one record, all of it      /tokens/P/OFFSET     a response's tokens, how likely each was

`streamward page` only reads: there is no route that changes anything. In the server of agents (mount.py) somebody may
decide about versions and dead letters, if their role allows, and logs in first where the server asks for keys.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.http import errors
from gateway.http.principal import actor_of, principal_of
from gateway.http.request_record import AskedCall, asked_of
from gateway.log.query_body import MOST
from gateway.page import (
    chart,
    decisions,
    live,
    login,
)
from gateway.page.forms import SentForm, posted
from gateway.page.origin import PageGuard
from streams.access.roles import Action, Principal
from streams.access.tenants.tenant_names import is_of
from streams.errors import (
    CallError,
    EventError,
    LogError,
    NotFoundError,
    RefusedError,
    SettingsError,
    StreamwardError,
)
from streams.tools.query import formats
from streams.tools.views import (
    agent_runs as runs,
    answer_tokens as tokens,
    bounded_query as sql_box,
    dead_letters as letters,
    job_list as orders,
    log_record as records,
    places as overview,
    policy_versions as policies,
    rights,
    side_by_side,
    task as tasks,
    visible_text as text,
)
from streams.tools.views.log_view import LogReader, LogView

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
STATUS: tuple[tuple[type[StreamwardError], HTTPStatus], ...] = (
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (SettingsError, HTTPStatus.BAD_REQUEST),
    (RefusedError, HTTPStatus.FORBIDDEN),
    (LogError, HTTPStatus.SERVICE_UNAVAILABLE),
)
SECTIONS = (
    ("", "Overview"),
    ("groups", "Groups"),
    ("policies", "Policies"),
    ("runs", "Runs"),
    ("jobs", "Jobs"),
    ("dead-letters", "Dead letters"),
    ("live", "Live"),
    ("sql", "SQL"),
)
"""Path and name of what the head of every page leads to."""
OF_ALL_TENANTS = ("live", "sql")
"""Those that nobody of a tenant sees."""

log = logging.getLogger("streamward.page")


def create_app(
    view: LogView,
    *,
    hosts: Collection[str] = LOOPBACK,
    people: login.PagePeople | None = None,
    decides: bool = False,
    texts: tokens.TokenTexts | None = None,
) -> Starlette:
    """Return the application; `hosts` are the names under which it may be asked, none: any.

    `people`: how one logs in, where a door asks for that. `decides`: whether forms that change something are taken.
    `texts`: a tokenizer, for answers that were made with it.
    """
    env = environment()
    env.globals |= {"decides": decides, "asks_who": people is not None}

    def page(template: str, data: Callable[[LogReader, Request], dict[str, Any]]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return _html(env, request, template, data(LogReader(view, principal_of(request)), request))

        return answer

    def failed(request: Request, exc: Exception) -> Response:
        status = next((code for kind, code in STATUS if isinstance(exc, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(exc, HTTPException):
            status = HTTPStatus(exc.status_code)
        if isinstance(exc, CallError):
            status = HTTPStatus(errors.STATUS[exc.kind])
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("%s: %s", request.url.path, exc, exc_info=exc)
        said = exc.detail if isinstance(exc, HTTPException) else str(exc)
        return _html(env, request, "error.html", {"status": status, "said": said}, status)

    def curves_json(request: Request) -> Response:
        return JSONResponse(_curves(LogReader(view, principal_of(request)), request))

    def left(_: Request, exc: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    def form(template: str, of: _Form) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _decided(env, view, request, template, of)

        return answer

    entrance = [] if people is None else login.routes(people, partial(_html, env))
    forms = [
        Route("/policies/{policy:path}", form("policy.html", VERSION_FORM), methods=["POST"]),
        Route("/dead-letters", form("letters.html", LETTER_FORM), methods=["POST"]),
    ]
    app = Starlette(
        routes=[
            Route("/", page("overview.html", lambda log, _: overview.data(log))),
            Route("/groups", page("groups.html", _groups)),
            Route("/tasks/{task_id:path}", page("task.html", partial(_task, texts=texts))),
            Route("/tokens/{partition:int}/{offset:int}", page("tokens.html", partial(_tokens, texts=texts))),
            Route("/policies", page("policies.html", _policies)),
            Route("/policies/{policy:path}", page("policy.html", _policy)),
            Route("/curves", curves_json),
            Route("/runs", page("runs.html", _runs)),
            Route("/runs/{trajectory_id:path}", page("run.html", _run)),
            Route("/jobs", page("jobs.html", lambda log, _: orders.data(log))),
            Route("/jobs/{job_id:path}", page("job.html", _job)),
            Route("/dead-letters", page("letters.html", _letters)),
            Route("/live", page("live.html", _live)),
            Route("/live/events", live.LiveLog(view).stream),
            Route("/sql", page("sql.html", _sql)),
            Route("/records/{label}/{partition:int}/{offset:int}", page("record.html", _record)),
            Mount("/static", StaticFiles(directory=STATIC)),
            *(forms if decides else ()),
            *entrance,
        ],
        exception_handlers={
            StreamwardError: failed, HTTPException: failed, ClientDisconnect: left, Exception: failed,
        },
    )  # fmt: skip
    app.add_middleware(cast(Any, PageGuard), hosts=hosts, origin="" if people is None else people.origin)
    return app


def environment() -> Environment:
    """Return what renders the templates: every printed value goes through `text.as_text`, and is then escaped."""
    env = Environment(
        loader=PackageLoader("gateway.page"),
        autoescape=True,
        finalize=text.as_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"cut": text.cut, "number": number, "moment": moment, "cell": formats.cell, "path": path}
    env.globals |= {"bar": side_by_side.width, "svg": chart.svg, "legend": chart.legend}
    return env


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at a page, as templates see them."""

    asks: Principal | None = None

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Path and name of what this visitor can look at."""
        tenant = None if self.asks is None else self.asks.tenant
        return [one for one in SECTIONS if tenant is None or one[0] not in OF_ALL_TENANTS]

    def may(self, action: Action) -> bool:
        """Return whether a form for this is shown."""
        return rights.may(self.asks, action).allowed


def _html(
    env: Environment, request: Request, template: str, data: dict[str, Any], status: HTTPStatus = HTTPStatus.OK
) -> Response:
    base = str(request.scope.get("root_path", ""))
    here = request.url.path.removeprefix(base).strip("/").partition("/")[0]
    html = env.get_template(template).render(
        base=base, here=here, alone=False, query=request.query_params, visitor=Visitor(principal_of(request)), **data
    )
    return HTMLResponse(html.encode("utf-8", "replace"), status)


# --- what is decided --------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """A form that changes something."""

    action: Action
    takes: Callable[[LogReader, Request, SentForm], None]
    shows: Callable[[LogReader, Request], dict[str, Any]]
    """The page that it is on, which is shown again if nothing comes of it."""


def _takes_version(log: LogReader, request: Request, form: SentForm) -> None:
    policy = request.path_params["policy"]
    if not is_of(log.tenant, policy):
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}")
    decisions.decide_version(log.settings, policy, form, actor_of(request))


def _takes_letter(log: LogReader, request: Request, form: SentForm) -> None:
    decisions.decide_letter(log.settings, form, actor_of(request))


async def _decided(env: Environment, view: LogView, request: Request, template: str, of: _Form) -> Response:
    """Do what a form asks for, and go back to its page; or show it with the reason why nothing was done.

    Raises HTTPException for who may not, and as the form's own function where its page cannot be shown.
    """
    form, reader = await posted(request), LogReader(view, principal_of(request))
    decision = rights.may(reader.asks, of.action)
    if (asked := asked_of(request)) is not None:
        asked.calls.append(AskedCall(request.method, of.action, decision, form.word("version")[:20]))
    if not decision.allowed:
        raise HTTPException(HTTPStatus.FORBIDDEN, decision.why)
    try:
        await run_in_threadpool(of.takes, reader, request, form)
    except (SettingsError, RefusedError, NotFoundError, EventError) as exc:
        view.outdate()
        status = HTTPStatus.BAD_REQUEST if isinstance(exc, SettingsError) else HTTPStatus.CONFLICT
        data = await run_in_threadpool(of.shows, reader, request)
        return _html(env, request, template, data | {"tried": form, "failed": str(exc)}, status)
    view.outdate()
    return RedirectResponse(quote(request.scope["path"], safe="/") + "#decisions", HTTPStatus.SEE_OTHER)


# --- what each page reads ---------------------------------------------------------------------------------------------


def _groups(log: LogReader, request: Request) -> dict[str, Any]:
    asked = {name: request.query_params.get(name, "") for name in ("policy", "fate", "version")}
    version, first = whole_number(asked["version"], "version"), _first(request)
    with log.look() as look:
        sql = tasks.groups_sql(policy=asked["policy"], fate=asked["fate"] or "all", version=version)
        rows = look.rows(f"{sql} LIMIT {tasks.PAGE_ROWS + 1} OFFSET {first}")
        policies = [row["policy"] for row in look.rows("SELECT DISTINCT policy FROM groups ORDER BY policy")]
        return {
            "groups": rows[: tasks.PAGE_ROWS],
            "more": first + tasks.PAGE_ROWS if len(rows) > tasks.PAGE_ROWS else None,
            "first": first,
            "policies": policies,
            "fates": tasks.FATES,
            "asked": asked,
            "at": look.at,
        }


def _task(log: LogReader, request: Request, texts: tokens.TokenTexts | None) -> dict[str, Any]:
    with log.look() as look:
        return tasks.as_shown(tasks.one(look, request.path_params["task_id"]), texts) | {"at": look.at}


def _tokens(log: LogReader, request: Request, texts: tokens.TokenTexts | None) -> dict[str, Any]:
    with log.look() as look:
        return tokens.one(look, **request.path_params, texts=texts)


def _policies(log: LogReader, _: Request) -> dict[str, Any]:
    with log.look() as look:
        return {"policies": look.rows(policies.POLICIES_SQL), "at": look.at}


def _policy(log: LogReader, request: Request) -> dict[str, Any]:
    with log.look() as look:
        found = policies.one(look, request.path_params["policy"], _first(request))
        return found | {"at": look.at, "tried": {}, "failed": None}


def _curves(log: LogReader, request: Request) -> dict[str, Any]:
    found = policies.CURVES.get(request.query_params.get("of", ""))
    if found is None:
        return policies.plain([])
    with log.look() as look:
        return policies.plain(found(look, request.query_params.get("policy", "")))


def _runs(log: LogReader, request: Request) -> dict[str, Any]:
    with log.look() as look:
        return runs.data(look, tasks.PAGE_ROWS, _first(request))


def _run(log: LogReader, request: Request) -> dict[str, Any]:
    with log.look() as look:
        return runs.one(look, request.path_params["trajectory_id"])


def _job(log: LogReader, request: Request) -> dict[str, Any]:
    found = orders.one(log, request.path_params["job_id"])["job"]
    return {"job": found, "fields": records.fields(found)}


def _letters(log: LogReader, request: Request) -> dict[str, Any]:
    with log.look() as look:
        return letters.data(look, tasks.PAGE_ROWS, _first(request)) | {"tried": {}, "failed": None}


def _live(log: LogReader, _: Request) -> dict[str, Any]:
    with log.look() as look:
        return live.data(look, log)


def _sql(log: LogReader, request: Request) -> dict[str, Any]:
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise RefusedError("another site asked for this statement; open it from the page itself")
    sql = request.query_params.get("q", "")
    try:
        return sql_box.data(log, sql, most=MOST) | {"failed": None}
    except (SettingsError, RefusedError) as exc:
        return sql_box.data(log, "", most=MOST) | {"sql": sql, "failed": str(exc)}


def _record(log: LogReader, request: Request) -> dict[str, Any]:
    with log.look() as look:
        found = records.one(look, log.settings, **request.path_params)
        return {**found, **request.path_params, "at": look.at}


VERSION_FORM = _Form("adapters.promote", _takes_version, _policy)
LETTER_FORM = _Form("letters.decide", _takes_letter, _letters)


def _first(request: Request) -> int:
    return whole_number(request.query_params.get("from", ""), "from") or 0


def whole_number(text: str, name: str) -> int | None:
    """Return the number that a query names; None without one. Raises SettingsError."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise SettingsError(f"{name}={text[:80]}: expected a whole number")
    return int(text)


# --- how values look --------------------------------------------------------------------------------------------------


def number(value: Any, digits: int = 3) -> str:
    """Return a number as people read it; a dash for none.

    >>> number(1234567), number(0.123456), number(None)
    ('1,234,567', '0.123', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def moment(value: Any) -> str:
    """Return a time of the log to the second; a dash for none.

    >>> moment("2026-11-21T14:30:21.524Z")
    '2026-11-21 14:30:21'
    """
    return "–" if value is None else str(value).replace("T", " ")[:19]


def path(value: Any) -> str:
    """Return a value as a part of an address.

    >>> path("a/b&c")
    'a%2Fb%26c'
    """
    return quote(str(value), safe="")
