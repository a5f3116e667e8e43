"""The page as a web application: its routes, and which view each of them shows.

    request ──► origin.py ──► a view of the log, as far as the visitor may see ──► template ──► HTML

    /                         where every group is, what waits for what
    /groups                   the list of groups         /tasks/ID           a task's answers compared
    /policies                 all, and one: versions,    /runs, /runs/ID     what was run, turn by turn
      /policies/NAME, /compare  decisions, curves        /live, /sql         records as they are written; a statement
    /dead-letters             what could not be used
    /records/TOPIC/P/OFFSET   one record, all of it      /tokens/P/OFFSET    a response's tokens, how likely each was
    /lists/NAME, …/KEY        a list of a plugin's       /jobs, …            sections of plugins: view_section.py

streams/tools/views decides what is shown; this module only renders it. `streamward page` is read-only. In the server of
agents (mount.py) a principal may decide about versions, dead letters and runs, if its role allows, after a login where
the server asks for keys.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.http import errors
from gateway.http.own_machine import LOOPBACK
from gateway.log.query_body import MOST
from plugins.page import chart, live, login
from plugins.page.decision_forms import (
    DecisionForm,
    ShowsPage,
    decide_posted_letter,
    decide_posted_version,
    reader_of,
)
from plugins.page.origin import PageGuard
from plugins.page.render import Renderer, sections
from plugins.page.views import (
    answer_tokens,
    bounded_query,
    dead_letters,
    group_list,
    log_record,
    overlays,
    overview,
    plugin_list,
    policy_versions,
    record_line,
    version_pair,
)
from plugins.page.views.answer_words import TURNS, AnswerWord, words_by_id
from plugins.page.views.curves import OVER
from streams.errors import CallError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.plugins.plugin import load_reference
from streams.tools.query.view_list import RowDecision, view_lists
from streams.tools.views import explanation, run_list
from streams.tools.views.curve import Over
from streams.tools.views.log_view import LogReader, LogSnapshot, LogView, Row
from streams.tools.views.side_by_side import TokenTexts
from streams.tools.views.view_section import PageForm, ViewPage

STATIC = Path(__file__).parent / "static"
STATUS: tuple[tuple[type[StreamwardError], HTTPStatus], ...] = (
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (SettingsError, HTTPStatus.BAD_REQUEST),
    (RefusedError, HTTPStatus.FORBIDDEN),
    (LogError, HTTPStatus.SERVICE_UNAVAILABLE),
)
CLIENT_LEFT = 499

log = logging.getLogger("streamward.page")

ReadView = Callable[[LogSnapshot, Request], object]


def create_app(
    view: LogView,
    *,
    hosts: Collection[str] = LOOPBACK,
    people: login.PagePeople | None = None,
    decides: bool = False,
    texts: TokenTexts | None = None,
) -> Starlette:
    """Return the application; `hosts`: names under which it answers; empty: any.

    `people`: the login, where a door asks for one. `decides`: whether forms that change something are accepted.
    `texts`: a tokenizer, for answers that were made with it. Raises SettingsError for a wrong list of a plugin.
    """
    view_lists()
    renderer = Renderer(decides=decides, asks_login=people is not None)
    app = Starlette(
        routes=[
            *_pages(view, renderer, texts, decides=decides),
            *(login.routes(people, renderer) if people is not None else ()),
        ],
        exception_handlers={
            ClientDisconnect: lambda _, exc: Response(status_code=CLIENT_LEFT),
            **dict.fromkeys((StreamwardError, HTTPException, Exception), partial(_explain, renderer)),
        },
    )
    app.router.redirect_slashes = False  # it would redirect to any Host that a request names
    app.add_middleware(cast(Any, PageGuard), hosts=hosts, origin="" if people is None else people.origin)
    return app


def _pages(view: LogView, renderer: Renderer, texts: TokenTexts | None, *, decides: bool) -> list[BaseRoute]:
    def routes(path: str, show: ShowsPage, form: PageForm | None) -> list[BaseRoute]:
        shown: list[BaseRoute] = [Route(path, lambda request: show(reader_of(view, request), request))]
        sent = [Route(path, DecisionForm(form, show).route(view), methods=["POST"])] if form and decides else []
        return shown + sent

    def page(path: str, template: str, read: ReadView, form: PageForm | None = None) -> list[BaseRoute]:
        def show(log: LogReader, request: Request, status: HTTPStatus = HTTPStatus.OK, **fields: object) -> Response:
            with log.snapshot() as snapshot:
                data = read(snapshot, request)
            return renderer.html(request, template, data, status, as_of=snapshot.as_of, **fields)

        return routes(path, show, form)

    def by_path(find: Callable[..., object], **options: Any) -> ReadView:
        return lambda log, request: find(log, **request.path_params, **options)

    version = PageForm("adapters.promote", decide_posted_version)
    letter = PageForm("letters.decide", decide_posted_letter)
    return [
        *page("/", "overview.html", by_path(overview.read_overview)),
        *page("/groups", "groups.html", _groups),
        *page("/tasks/{task_id:path}", "task.html", by_path(find_task_page, texts=texts)),
        *page("/tokens/{partition:int}/{offset:int}", "tokens.html", by_path(answer_tokens.find_tokens, texts=texts)),
        *page("/policies", "policies.html", by_path(policy_versions.list_policies)),
        *page("/policies/{policy:path}", "policy.html", _policy, version),
        *page("/compare", "compare.html", _pair),
        Route("/curves", partial(_curves, view)),
        *page("/runs", "runs.html", _runs),
        *page("/runs/{answer_id:path}", "run.html", by_path(find_run_page, texts=texts)),
        *page("/dead-letters", "letters.html", _letters, letter),
        *page("/live", "live.html", by_path(record_line.newest_records)),
        Route("/live/events", live.LiveLog(view).stream),
        Route("/sql", partial(_sql, view, renderer)),
        *page("/lists/{name}", "list.html", _list),
        *(
            route
            for one in view_lists().values()
            for route in page(
                f"/lists/{one.name}/{{key:path}}",
                "listed_row.html",
                by_path(plugin_list.find_listed_row, name=one.name),
                _decision_form(one.decision) if one.decision and decides else None,
            )
        ),
        *page("/records/{label}/{partition:int}/{offset:int}", "record.html", by_path(log_record.find_record)),
        Mount("/static", StaticFiles(directory=STATIC)),
        *(
            route
            for section in sections()
            for shown in section.pages(view)
            for route in routes(f"/{section.path}{shown.path}", partial(_of_section, renderer, shown), shown.form)
        ),
    ]


def _decision_form(decision: RowDecision) -> PageForm:
    return PageForm(decision.action, load_reference(decision.decide, f"{decision.button}: cannot be imported"))


def _explain(renderer: Renderer, request: Request, exc: Exception) -> Response:
    """Return the page of an error."""
    status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(exc)
    if isinstance(exc, HTTPException):
        status, message = HTTPStatus(exc.status_code), exc.detail
        if message == HTTPStatus.NOT_FOUND.phrase:  # the router's own 404, which names no path
            message = f"there is no page {request.url.path}; the menu has those there are"
    elif isinstance(exc, CallError):
        status = HTTPStatus(errors.STATUS[exc.kind])
    else:
        status = next((code for kind, code in STATUS if isinstance(exc, kind)), status)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s: %s", request.url.path, exc, exc_info=exc)
    return renderer.html(request, "error.html", status=status, message=message)


# --- the view of each page --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskPage(explanation.ExplainedTask):
    """A task as its page has it."""

    words: Mapping[str, list[AnswerWord]]
    """The words of each answer whose tokenizer is known, by its response_id, after what all answers begin with."""


def find_task_page(log: LogSnapshot, task_id: str, texts: TokenTexts | None = None) -> TaskPage:
    """Return a task by its id, or the beginning of it. Raises NotFoundError if nothing in the log is about it."""
    task = explanation.find_explained(log, task_id, texts)
    ids = [slot.response["response_id"] for slot in task.answers.slots if slot.response is not None]
    words = words_by_id(log, ids, texts, shared=task.answers.shared.text)
    return TaskPage(task.history, task.answers, task.why, words)


@dataclass(frozen=True)
class RunPage(run_list.WholeRun):
    """A run as its page has it."""

    words: Mapping[str, list[AnswerWord]]
    """The words of each answer whose tokenizer is known, by the id of its turn, or of the run without turns."""


def find_run_page(log: LogSnapshot, answer_id: str, texts: TokenTexts | None = None) -> RunPage:
    """Return one run, or the conversation that it is of. Raises NotFoundError."""
    run = run_list.find_run(log, answer_id)
    turns = [turn["turn_id"] for turn in run.turns]
    words = words_by_id(log, turns, texts, of=TURNS) if turns else words_by_id(log, run.run["run_ids"], texts)
    return RunPage(run.answer_id, run.run, run.response, run.turns, run.rewards, words)


def _groups(log: LogSnapshot, request: Request) -> group_list.GroupList:
    return group_list.list_groups(log, _group_filter(request.query_params), _first(request))


def _group_filter(query: Mapping[str, str]) -> group_list.GroupFilter:
    """Return the filter of groups in a query. Raises SettingsError."""

    def limits(name: str) -> group_list.Limits:
        least, most = f"{name}_from", f"{name}_to"
        return group_list.Limits(decimal_number(query.get(least, ""), least), decimal_number(query.get(most, ""), most))

    return group_list.GroupFilter(
        policy=query.get("policy", ""),
        fate=query.get("fate", "") or "all",
        version=whole_number(query.get("version", ""), "version"),
        made=whole_number(query.get("made", ""), "made"),
        scenario=query.get("scenario", ""),
        text=query.get("text", ""),
        reward=limits("reward"),
        spread=limits("spread"),
        tokens=limits("tokens"),
        longest=limits("longest"),
        sort=query.get("sort", ""),
        until=whole_number(query.get("until", ""), "until"),
    )


@dataclass(frozen=True)
class RunsPage(run_list.ListedRuns):
    """Some runs, with what they were asked and answered."""

    texts: Mapping[str, Row]
    """The beginnings of `question` and `answer`, by answer_id."""


def _runs(log: LogSnapshot, request: Request) -> RunsPage:
    query = request.query_params
    chosen = run_list.RunFilter(
        agent=query.get("agent", ""),
        policy=query.get("policy", ""),
        scenario=query.get("scenario", ""),
        version=whole_number(query.get("version", ""), "version"),
        verdict=query.get("verdict", ""),
        purpose=query.get("purpose", ""),
        failed_tools=bool(query.get("failed_tools", "")),
        text=query.get("text", ""),
        sort=query.get("sort", ""),
    )
    listed = run_list.list_runs(log, chosen, _first(request))
    return RunsPage(listed.chosen, listed.runs, run_list.run_texts(log, listed.runs.rows))


def _policy(log: LogSnapshot, request: Request) -> policy_versions.PolicyHistory:
    query = request.query_params
    choice = policy_versions.PolicyChoice(
        _first(request),
        _laid_over(request),
        _over(request),
        query.get("curves") == "now",
        query.get("suite", ""),
        tuple(filter(None, query.getlist("pin"))),
    )
    return policy_versions.find_policy(log, request.path_params["policy"], choice)


def _pair(log: LogSnapshot, request: Request) -> version_pair.VersionPair:
    query = request.query_params
    before, after = (whole_number(query.get(name, ""), name) for name in ("a", "b"))
    return version_pair.compare_versions(log, query.get("policy", ""), before, after)


def _laid_over(request: Request) -> tuple[str, ...]:
    """Return the names of the curves to overlay."""
    return tuple(name for name in request.query_params.getlist("with") if name)


def _over(request: Request) -> Over:
    """Return the x axis of curves. Raises SettingsError."""
    over = request.query_params.get("over", "") or "version"
    if over not in OVER:
        raise SettingsError(f"over={over[:80]}: expected one of {', '.join(OVER)}")
    return cast(Over, over)


def _list(log: LogSnapshot, request: Request) -> plugin_list.PluginList:
    return plugin_list.find_list(log, request.path_params["name"], request.query_params, _first(request))


def _letters(log: LogSnapshot, request: Request) -> dead_letters.LetterList:
    return dead_letters.list_letters(log, _first(request))


# --- views without a snapshot or a template ---------------------------------------------------------------------------


def _curves(view: LogView, request: Request) -> Response:
    over, base = _over(request), str(request.scope.get("root_path", ""))
    with reader_of(view, request).snapshot() as log:
        policy = request.query_params.get("policy", "")
        overlay = overlays.read_overlay(log, policy, _laid_over(request), over)
    charts = [drawing for section in overlay.sections for drawing in section.charts]
    return JSONResponse({drawing.figure.key: chart.uplot_data(drawing, over, base) for drawing in charts})


def _of_section(
    renderer: Renderer,
    shown: ViewPage,
    log: LogReader,
    request: Request,
    status: HTTPStatus = HTTPStatus.OK,
    **fields: object,
) -> Response:
    query = {name: request.query_params.get(name, "") for name in shown.query}
    data = shown.read(log, **request.path_params, **query)
    return renderer.html(request, shown.template, data, status, **fields)


def _sql(view: LogView, renderer: Renderer, request: Request) -> Response:
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise RefusedError("another site asked for this statement; open it from the page itself")
    log = reader_of(view, request)
    answer = bounded_query.answer_statement(log, request.query_params.get("q", ""), limit=MOST)
    return renderer.html(request, "sql.html", answer)


def _first(request: Request) -> int:
    return whole_number(request.query_params.get("from", ""), "from") or 0


def whole_number(text: str, name: str) -> int | None:
    """Return the number that a query names; None without one. Raises SettingsError."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise SettingsError(f"{name}={text[:80]}: expected a whole number")
    return int(text)


def decimal_number(text: str, name: str) -> float | None:
    """Return the number that a query names; None without one. Raises SettingsError."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingsError(f"{name}={text[:80]}: expected a number, such as 0.5")
    return value
