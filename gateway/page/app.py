"""The page as a web application.

    request ──► is it for this machine? ──► a function below ──► rows ──► template ──► HTML that runs nothing inline

    /                         where every group is, what waits for what
    /groups                   the list of groups         /tasks/ID           a task's answers side by side
    /policies                 all, and one: versions,    /runs, /runs/ID     what agents did, turn by turn
      /policies/NAME            decisions, curves        /jobs, /jobs/ID     what was ordered, and what it cost
    /dead-letters             what could not be used     /live, /sql         as it is written; a statement
    /records/TOPIC/P/OFFSET   one record, all of it

It only reads: there is no route that changes anything. A browser may load from here alone, and run nothing that is in
a page (Content-Security-Policy, W3C CSP Level 3). Who asks under a name that is not this machine's is refused, so that
no other site's name can be pointed at it (DNS rebinding).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.page import (
    chart,
    letters,
    live,
    orders,
    overview,
    policies,
    records,
    runs,
    side_by_side,
    sql_box,
    tasks,
    text,
)
from gateway.page.log_view import LogView
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.tools.query import formats

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
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

log = logging.getLogger("streamward.page")


def create_app(view: LogView, *, hosts: Collection[str] = LOOPBACK) -> Starlette:
    """Return the application; `hosts` are the names under which it may be asked."""
    env = environment()

    def page(template: str, data: Callable[[LogView, Request], dict[str, Any]]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return _html(env, request, template, data(view, request))

        return answer

    def failed(request: Request, exc: Exception) -> Response:
        status = next((code for kind, code in STATUS if isinstance(exc, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(exc, HTTPException):
            status = HTTPStatus(exc.status_code)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("%s: %s", request.url.path, exc, exc_info=exc)
        said = exc.detail if isinstance(exc, HTTPException) else str(exc)
        return _html(env, request, "error.html", {"status": status, "said": said}, status)

    def curves_json(request: Request) -> Response:
        return JSONResponse(_curves(view, request))

    app = Starlette(
        routes=[
            Route("/", page("overview.html", lambda view, _: overview.data(view))),
            Route("/groups", page("groups.html", _groups)),
            Route("/tasks/{task_id:path}", page("task.html", _task)),
            Route("/policies", page("policies.html", _policies)),
            Route("/policies/{policy:path}", page("policy.html", _policy)),
            Route("/curves", curves_json),
            Route("/runs", page("runs.html", _runs)),
            Route("/runs/{trajectory_id:path}", page("run.html", _run)),
            Route("/jobs", page("jobs.html", lambda view, _: orders.data(view))),
            Route("/jobs/{job_id:path}", page("job.html", _job)),
            Route("/dead-letters", page("letters.html", _letters)),
            Route("/live", page("live.html", _live)),
            Route("/live/events", live.LiveLog(view).stream),
            Route("/sql", page("sql.html", _sql)),
            Route("/records/{label}/{partition:int}/{offset:int}", page("record.html", _record)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={StreamwardError: failed, HTTPException: failed, Exception: failed},
    )
    app.add_middleware(cast(Any, _PageGuard), hosts=hosts)
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
    env.globals |= {"bar": side_by_side.width, "sections": SECTIONS, "svg": chart.svg, "legend": chart.legend}
    return env


def _html(
    env: Environment, request: Request, template: str, data: dict[str, Any], status: HTTPStatus = HTTPStatus.OK
) -> Response:
    base = str(request.scope.get("root_path", ""))
    here = request.url.path.removeprefix(base).strip("/").partition("/")[0]
    html = env.get_template(template).render(base=base, here=here, alone=False, query=request.query_params, **data)
    return HTMLResponse(html.encode("utf-8", "replace"), status)


# --- what each page reads ---------------------------------------------------------------------------------------------


def _groups(view: LogView, request: Request) -> dict[str, Any]:
    asked = {name: request.query_params.get(name, "") for name in ("policy", "fate", "version")}
    version, first = whole_number(asked["version"], "version"), _first(request)
    with view.look() as look:
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


def _task(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        return tasks.as_shown(tasks.one(look, request.path_params["task_id"])) | {"at": look.at}


def _policies(view: LogView, _: Request) -> dict[str, Any]:
    with view.look() as look:
        return {"policies": look.rows(policies.POLICIES_SQL), "at": look.at}


def _policy(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        return policies.one(look, request.path_params["policy"]) | {"at": look.at}


def _curves(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        found = policies.curves(look, request.query_params.get("policy", ""))
    return policies.plain(found.get(request.query_params.get("of", ""), []))


def _runs(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        return runs.data(look, tasks.PAGE_ROWS, _first(request))


def _run(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        return runs.one(look, request.path_params["trajectory_id"])


def _job(view: LogView, request: Request) -> dict[str, Any]:
    found = orders.one(view, request.path_params["job_id"])["job"]
    return {"job": found, "fields": records.fields(found)}


def _letters(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        return letters.data(look, tasks.PAGE_ROWS, _first(request))


def _live(view: LogView, _: Request) -> dict[str, Any]:
    with view.look() as look:
        return live.data(look, view)


def _sql(view: LogView, request: Request) -> dict[str, Any]:
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise RefusedError("another site asked for this statement; open it from the page itself")
    sql = request.query_params.get("q", "")
    try:
        return sql_box.data(view, sql) | {"failed": None}
    except (SettingsError, RefusedError) as exc:
        return sql_box.data(view, "") | {"sql": sql, "failed": str(exc)}


def _record(view: LogView, request: Request) -> dict[str, Any]:
    with view.look() as look:
        found = records.one(look, view.settings, **request.path_params)
        return {**found, **request.path_params, "at": look.at}


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


# --- who may ask ------------------------------------------------------------------------------------------------------


class _PageGuard:
    """Refuses requests under a foreign name, and says with every answer what a browser may do with it."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        host = Request(scope).headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts and name not in self._hosts:
            said = f"{text.visible(host[:80])}: this page answers only as {' or '.join(self._hosts)}\n"
            await PlainTextResponse(said, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)
