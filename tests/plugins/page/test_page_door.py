"""The page behind the door: who gets in, what each sees of the log, and what each may decide."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import TABLE
from plugins.page import app, cookie as entrance, decision_forms, render
from plugins.page.cookie import PAGE_ROUTES, LoginCookie, PageEntrance
from plugins.page.login import PagePeople
from plugins.page.mount import PageMount, mount
from plugins.page.views import plugin_list
from schemas.events import AccessRole
from streams.access.credentials import TokenPair
from streams.access.roles import ROLES, allowed_to
from streams.errors import LogError, LoginRefused, NotFoundError, RefusedError, SettingsError
from streams.settings.model import Archive, Serve, Settings, Topics
from streams.tools.query.view_list import ListSection, ViewList
from streams.tools.views.log_view import LogView
from streams.tools.views.view_section import SentForm
from tests.plugins.page.test_page import Words, linked_pages
from tests.support.callers import BEARER, Caller, Known, Written
from tests.support.factories import T0
from tests.support.log import page_log
from tests.support.log.archive_of import archived
from tests.support.thoroughness import FULL
from tests.unit.test_door import actions

HERE = "https://streamward.example"
COOKIE = LoginCookie(over_tls=True, lasts_s=3600)
HTML = {"Accept": "text/html"}
TENANTS = ("red", "blue")
WORDS = ("azure", "crimson")
"""What blue's and red's texts, names and reasons have in them, and nobody else's."""


class Issued:
    """Logs people in: `ann` with `right`; each refresh gives the next number, and one is good once."""

    def __init__(self, person: Caller) -> None:
        self.person, self.newest, self.ended, self.away = person, 0, False, False
        self.at_once, self.lock = 0, threading.Lock()

    def log_in(self, name: str, password: str, address: str) -> TokenPair:
        if self.away:
            raise LogError("the broker does not answer")
        if (name, password) == ("late", "x"):
            raise LoginRefused("too many attempts to log in; try again in 30 s", wait_ms=30_000)
        if (name, password) != ("ann", "right"):
            raise LoginRefused("name or password is wrong, or the user is disabled")
        return self._pair()

    def refresh(self, refresh_token: str) -> TokenPair:
        with self.lock:
            if self.away:
                raise LogError("the broker does not answer")
            if self.ended or refresh_token != f"swr_{self.newest}":
                self.ended = True
                raise LoginRefused("this refresh token was used before, so its login was ended")
            self.newest += 1
            return self._pair()

    def log_out(self, refresh_token: str) -> Caller | None:
        self.ended = True
        return self.person

    def _pair(self) -> TokenPair:
        return TokenPair(f"a.{self.newest}.c", f"swr_{self.newest}", 900, self.person)

    def find(self, sent: str) -> Caller | str:
        if self.away:
            raise LogError("the log cannot be read")
        good = not self.ended and sent == f"a.{self.newest}.c"
        return self.person if good else "the access token has expired"


class Both:
    """Keys, and the tokens of people."""

    advice = "ask for one"

    def __init__(self, known: Known, issued: Issued) -> None:
        self.known, self.issued = known, issued

    def find(self, sent: str) -> Caller | str:
        return self.issued.find(sent) if sent.count(".") == 2 else self.known.find(sent)

    def of_actor(self, actor: str) -> Caller | str:
        return self.known.of_actor(actor)

    def catch_up(self) -> None:
        self.known.catch_up()


class AtThePage(TestClient):
    """A browser at a server with the door and the page."""

    def __init__(self, view: LogView, role: AccessRole = "viewer", *, tenant: str | None = None, **given: Any) -> None:
        known = Known(role, tenant=tenant, **given)
        self.issued, self.written = Issued(known.person), Written()
        logins: Any = self.issued
        page = app.create_app(view, hosts=(), people=PagePeople(logins, COOKIE, "", HERE), decides=True)
        whole = Starlette()
        mount(whole, page)
        tokens = Both(known, self.issued)
        door = Door(whole, TABLE, tokens, KeyLimits(Serve()), self.written)
        self.entrance = PageEntrance(door, tokens, logins, COOKIE)
        super().__init__(self.entrance, base_url=HERE, follow_redirects=False, headers=HTML)

    def log_in(self, **changes: str) -> Any:
        sent = {"username": "ann", "password": "right", "next": "/page/groups"} | changes
        return self.post("/page/login", data=sent, headers={"Sec-Fetch-Site": "same-origin"})


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogView]:
    folder = tmp_path_factory.mktemp("tenants")
    settings = Settings(archive=Archive(store=str(folder / "archive")), topics=Topics(policy_partitions=1))
    archived(settings, page_log.tenants_log(), count(T0, 1000))
    found = LogView(settings, "archive")
    yield found
    found.close()


def whole(view: LogView, hosts: Collection[str] = ()) -> Starlette:
    """Return an application with the page in it."""
    app_with_page = Starlette()
    people = PagePeople(None, COOKIE)
    mount(app_with_page, app.create_app(view, hosts=hosts, people=people, decides=True))
    return app_with_page


def test_each_page_needs_a_right_and_only_the_login_and_its_files_are_open(view: LogView) -> None:
    assert {may for (_, path), may in actions(whole(view)).items() if path.startswith("/page")} >= {"log.read"}
    assert {f"{route.method} {route.path}" for route in PAGE_ROUTES if route.is_open} == {
        *("GET /", "GET /page/login", "POST /page/login", "GET /page/logout", "POST /page/logout"),
        "GET /page/static/{path:path}",
    }


def test_a_slash_too_many_leads_nowhere_and_least_of_all_to_the_host_that_the_request_names(view: LogView) -> None:
    door = Door(whole(view), TABLE, Known("admin"), KeyLimits(Serve(auth="keys", key_per_s=0)))
    http = TestClient(door, base_url="http://evil.example", follow_redirects=False, headers=BEARER)
    for path in ("groups", "live", "sql", "dead-letters"):
        for slashes in ("/", "//"):
            answer = http.get(f"/page/{path}{slashes}")
            assert answer.status_code == 404 and "evil.example" not in f"{answer.headers} {answer.text}", path
    assert http.get("/page").headers["location"] == http.get("/").headers["location"] == "/page/"


def test_a_browser_comes_back_from_an_issuer_to_the_page_with_the_cookie_or_to_the_form() -> None:
    pair = TokenPair("a.0.c", "swr_0", 900, Any)
    answer = COOKIE.welcome(pair)
    assert 'content="0;url=/page/"' in bytes(answer.body).decode() and answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("streamward-login=") and "SameSite=strict" in cookie and "Path=/page" in cookie
    for error, status in ((LoginRefused("is disabled"), 401), (LoginRefused("too many", wait_ms=1), 429)):
        refused = COOKIE.refuse(error)
        assert refused.status_code == status and "set-cookie" not in refused.headers
        assert f'{error}</p><p><a href="/page/login">' in bytes(refused.body).decode()


# --- who gets in ------------------------------------------------------------------------------------------------------


def test_without_a_login_a_browser_is_sent_to_the_form_and_a_program_is_told_so(view: LogView) -> None:
    http = AtThePage(view)
    assert http.get("/").headers["location"] == "/page/"
    sent = http.get("/page/groups?policy=x&fate=all")
    assert (sent.status_code, sent.headers["location"]) == (
        303, "/page/login?next=%2Fpage%2Fgroups%3Fpolicy%3Dx%26fate%3Dall",
    )  # fmt: skip
    assert http.get("/page/groups", headers={"Accept": "*/*"}).status_code == 401
    assert http.get("/page/", headers={"HX-Request": "true"}).headers["hx-redirect"] == "/page/login"
    assert http.get("/page/login").status_code == 200 == http.get("/page/static/page.css").status_code
    assert "Dead letters" not in http.get("/page/login").text, "what leads back to the form is not shown"
    assert [one.status for one in http.written.events] == [401, 401, 401], "the form and its style are nobody's secret"


def test_a_login_is_a_cookie_that_scripts_and_other_sites_do_not_have(view: LogView) -> None:
    http = AtThePage(view)
    answer = http.log_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/groups")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=strict", "Path=/page"))
    assert http.get("/page/groups").status_code == 200
    assert "user ann" in http.get("/page/").text
    assert http.written.events[-1].subject_id == "user ann" and http.written.events[-1].action == "log.read"
    gone = http.post("/page/logout", headers={"Sec-Fetch-Site": "same-origin"})
    assert gone.status_code == 303 and http.issued.ended
    assert http.get("/page/groups").status_code == 303


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"password": "guessed"}, 401, "name or password is wrong"),
        ({"password": "x" * 300}, 401, "name or password is wrong"),
        ({"username": "late", "password": "x"}, 429, "try again in 30 s"),
    ],
)
def test_who_is_not_let_in_hears_why_on_the_form(view: LogView, changes: Any, status: int, said: str) -> None:
    http = AtThePage(view)
    answer = http.log_in(**changes)
    assert answer.status_code == status and said in answer.text and "set-cookie" not in answer.headers
    assert ("retry-after" in answer.headers) == (status == 429)
    assert changes["password"] not in answer.text or len(changes["password"]) == 1


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example/page/", "/page//evil.example", "/page\\evil", "/v1/models", ""]
)
def test_a_login_leads_to_the_page_alone(view: LogView, to: str) -> None:
    assert AtThePage(view).log_in(next=to).headers["location"] == "/page/"


def test_an_access_token_that_ends_is_renewed_once_for_all_requests_of_a_browser(view: LogView) -> None:
    http = AtThePage(view)
    http.log_in()
    old = http.cookies[entrance.COOKIE]
    http.issued.newest, http.issued.person = 0, http.issued.person
    before = {"Cookie": f"{entrance.COOKIE}=x.0.c:swr_0"}
    other = TestClient(http.entrance, base_url=HERE, follow_redirects=False, headers=HTML)
    answers = [other.get("/page/groups", headers=before) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 200] and http.issued.newest == 1
    assert {one.headers["set-cookie"].partition(";")[0] for one in answers} == {f"{entrance.COOKIE}=a.1.c:swr_1"}
    assert old != f"{entrance.COOKIE}=a.1.c:swr_1" and not http.issued.ended


def test_a_login_that_is_over_is_forgotten_and_a_broker_that_is_away_is_said(view: LogView) -> None:
    http = AtThePage(view)
    http.log_in()
    http.issued.ended = True
    answer = http.get("/page/groups")
    assert answer.status_code == 303 and f'{entrance.COOKIE}="";' in answer.headers["set-cookie"]
    http.issued.ended = False
    http.log_in()
    http.issued.away = True
    answer = http.get("/page/groups")
    assert answer.status_code == 503 and "the log cannot be read" in Words(answer.text).text


def test_the_cookie_opens_nothing_but_the_page(view: LogView) -> None:
    http = AtThePage(view, "admin")
    http.log_in()
    kept = {"Cookie": f"{entrance.COOKIE}={http.cookies[entrance.COOKIE]}"}
    assert http.get("/v1/models", headers=kept).status_code == 401
    assert http.get("/auth/permissions", headers=kept).status_code == 401


def test_a_key_opens_the_page_unless_it_is_bound_to_an_agent(view: LogView) -> None:
    assert AtThePage(view).get("/page/", headers=BEARER).status_code == 200
    bound = AtThePage(view, agent_id="calc").get("/page/", headers=BEARER)
    assert bound.status_code == 403 and "may only act as agent calc" in Words(bound.text).text


FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": HERE},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", ["/page/policies/red.coach", "/page/dead-letters", "/page/logout", "/page/login"])
def test_what_another_site_sends_is_not_done(view: LogView, path: str, headers: dict[str, str]) -> None:
    http = AtThePage(view, "admin")
    http.log_in()
    answer = http.post(path, data={"kind": "promote"}, headers=headers)
    assert answer.status_code == 403 and "another site's page" in answer.text and not http.issued.ended


def test_what_the_page_itself_sends_is_taken(view: LogView) -> None:
    for headers in ({"Origin": HERE}, {"Sec-Fetch-Site": "same-origin"}):
        http = AtThePage(view)
        http.log_in()
        assert http.post("/page/logout", headers=headers).status_code == 303


# --- what each sees ---------------------------------------------------------------------------------------------------


def every_page(http: AtThePage) -> dict[str, str]:
    """Return every page that links lead to."""

    def leads(link: str) -> bool:
        return link.startswith("/page/") and "/sql?" not in link and "sort=" not in link and "pin=" not in link

    return dict(linked_pages(lambda path: http.get(path, headers=BEARER), "/page/", leads))


@pytest.mark.parametrize(
    ("tenant", "own", "others"), [("red", "crimson", "azure"), *([("blue", "azure", "crimson")] if FULL else [])]
)
def test_who_is_of_a_tenant_sees_its_own_and_no_word_of_anothers(
    view: LogView, tenant: str, own: str, others: str
) -> None:
    http = AtThePage(view, "admin", tenant=tenant)
    pages = every_page(http)
    log = page_log.tenants_log()
    direct = [
        *(f"/page/records/{label}/0/{n}" for label in page_log.TENANT_TOPICS for n in range(len(log[label]) + 1)),
        *(f"/page/tasks/{one}-{n}" for one in WORDS for n in range(3)), "/page/tasks/shared",
        *(f"/page/tokens/0/{n}" for n in range(5)),
        *(f"/page/policies/{one}.coach" for one in TENANTS), "/page/policies/default", "/page/jobs", "/page/runs",
        *(f"/page/runs/{one}-walk" for one in WORDS), *(f"/page/jobs/{one}-job" for one in WORDS),
        *(f"/page/groups?policy={one}.coach" for one in TENANTS), "/page/curves?policy=default",
        *(f"/page/curves?policy={one}.coach&over=time" for one in TENANTS),
        "/page/dead-letters", "/page/live", "/page/live/events", "/page/sql?q=FROM+tasks", "/page/sql",
    ]  # fmt: skip
    pages |= {path: http.get(path, headers=BEARER).text for path in direct if path not in pages}
    other = next(one for one in TENANTS if one != tenant)
    for path, html in pages.items():
        asked = html.replace(path, "")  # an answer may repeat what was asked for
        said = Words(asked).text
        assert others not in said.replace(path.rpartition("/")[2], ""), path
        assert f"{other}." not in said.replace(path.rpartition("/")[2], ""), path
    for path in (f"/page/tasks/{own}-0", f"/page/policies/{tenant}.coach", f"/page/runs/{own}-walk"):
        assert own in Words(pages[path]).text, path
    assert own in Words(pages["/page/jobs"]).text and own in Words(pages["/page/dead-letters"]).text


def test_a_tenants_overview_counts_its_own_tasks_alone(view: LogView) -> None:
    def overview(**who: Any) -> str:
        return Words(AtThePage(view, "admin", **who).get("/page/", headers=BEARER).text).text

    assert "red.coach 1 waiting" in overview(tenant="red") and "default 1 waiting" in overview(tenant="red")
    assert "Records" not in overview(tenant="red") and "What waits for what" not in overview(tenant="red")
    assert "default 3 waiting" in overview() and "Records" in overview()


def test_a_list_of_a_plugin_has_the_rows_that_its_view_has_for_a_visitor(
    view: LogView, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ListSection("Answers", "responses", ("slot", "text", "response_id"), "task_id = {key}", "slot")
    declared = ViewList(
        "asked", "Asked", "tasks", ("task_id", "policy"), filters=("policy",), key="task_id", facts=("group_size",),
        sections=(answers,),
    )  # fmt: skip
    for module in (plugin_list, render, app):
        monkeypatch.setattr(module, "view_lists", lambda: {"asked": declared})

    def listed(tenant: str | None, query: str = "") -> str:
        return AtThePage(view, "admin", tenant=tenant).get(f"/page/lists/asked{query}", headers=BEARER).text

    whole, red = listed(None), listed("red")
    assert "azure" in whole and "crimson" in whole and '<a href="/page/lists/asked/azure-0">' in whole
    assert '<a href="/page/policies/blue.coach">' in whole, "ids of pages are links without a word of the plugin"
    assert "azure" not in red and "crimson" in red
    order = re.findall(r'href="/page/lists/asked/([^"?]+)"', listed(None, "?sort=-task_id"))
    assert order == sorted(order, reverse=True) and len(order) > 3
    row = listed(None, "/azure-0")
    assert "group size 2" in Words(row).text and "azure 1" in row and 'href="/page/runs/' in row
    assert "no row" in listed("red", "/azure-0") and "azure 1" not in listed("red", "/azure-0")
    assert "There are no such rows" in listed(None, "?policy=another")


def test_another_task_of_the_same_id_shows_nothing_of_the_first(view: LogView) -> None:
    """Red wrote a task with the id of one of blue's: its records are blue's all the same."""
    red = AtThePage(view, "admin", tenant="red").get("/page/tasks/azure-0", headers=BEARER)
    blue = AtThePage(view, "admin", tenant="blue").get("/page/tasks/azure-0", headers=BEARER)
    assert red.status_code == 404 and blue.status_code == 200 and "crimson" not in blue.text


def test_sql_and_live_records_are_for_who_sees_everything(view: LogView) -> None:
    tenant = AtThePage(view, "admin", tenant="red")
    for path in ("/page/sql", "/page/live", "/page/live/events"):
        assert tenant.get(path, headers=BEARER).status_code == 403
    assert "/page/sql" not in tenant.get("/page/", headers=BEARER).text


def test_who_may_what_and_who_asked_is_read_by_an_admin_alone(view: LogView) -> None:
    def sql(role: AccessRole, statement: str) -> str:
        return AtThePage(view, role).get("/page/sql", params={"q": statement}, headers=BEARER).text

    for statement in ("FROM access", "FROM whole.access", "FROM live.main_access"):
        assert "argon2" not in sql("viewer", statement)
    assert "argon2" in sql("admin", "FROM access")
    for role in ROLES:
        record = AtThePage(view, role).get("/page/records/access/0/0", headers=BEARER)
        assert (record.status_code == 200) == (role == "admin"), role


# --- what each may decide ---------------------------------------------------------------------------------------------

FORM = {"kind": "promote", "version": "1", "expected": "0", "reason": "it is better"}


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What reaches the functions of the commands: policy or letter, and who decides."""
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(
        decision_forms, "decide_version", lambda settings, policy, form, actor: done.append((policy, actor))
    )
    monkeypatch.setattr(
        decision_forms, "decide_letter", lambda settings, form, actor: done.append((form["letter"], actor))
    )
    return done


@pytest.mark.parametrize("role", ROLES)
def test_a_role_decides_what_it_may_and_its_event_says_so(
    view: LogView, decided: list[tuple[str, str]], role: AccessRole
) -> None:
    http = AtThePage(view, role)
    http.log_in()
    for path, form, action in (
        ("/page/policies/red.coach", FORM, "adapters.promote"),
        ("/page/dead-letters", {"what": "drop", "letter": "abcdef", "reason": "no use"}, "letters.decide"),
    ):
        may = action in allowed_to(role)
        assert ('<form class="decide"' in http.get(path).text) == may
        answer = http.post(path, data=form, headers={"Origin": HERE})
        assert answer.status_code == (303 if may else 403), answer.text
        assert ((form.get("letter", "red.coach"), "user ann") in decided) == may
        event = http.written.events[-1]
        assert (event.action, event.allowed, event.method) == (action, may, "POST")


def test_a_tenants_promoter_decides_about_its_own_policies_alone(view: LogView, decided: list[tuple[str, str]]) -> None:
    http = AtThePage(view, "admin", tenant="red")
    http.log_in()
    for policy in ("blue.coach", "default"):
        assert http.post(f"/page/policies/{policy}", data=FORM, headers={"Origin": HERE}).status_code == 404
    assert http.post("/page/dead-letters", data={"letter": "abcdef"}, headers={"Origin": HERE}).status_code == 403
    assert decided == []
    assert http.post("/page/policies/red.coach", data=FORM, headers={"Origin": HERE}).status_code == 303
    assert decided == [("red.coach", "user ann")]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedError("nothing was written: expected version 0 to be primary, and it is 1"), 409),
        (SettingsError("there is no reason; say why"), 400),
        (NotFoundError("policy red.coach has no adapter version 9"), 409),
    ],
)
def test_what_is_not_done_is_said_beside_what_was_asked(
    view: LogView, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(decision_forms, "decide_version", refuse)
    http = AtThePage(view, "promoter")
    http.log_in()
    answer = http.post("/page/policies/red.coach", data=FORM | {"reason": "<b>why"}, headers={"Origin": HERE})
    assert answer.status_code == status and str(error) in Words(answer.text).text
    assert 'value="&lt;b&gt;why"' in answer.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "retire"}, "expected one of promote, reject, rollback"),
        ({"reason": "  "}, "there is no reason"),
        ({"reason": "x" * 3000}, "has 3,000 characters"),
        ({"expected": "-1"}, "expected: expected a whole number"),
        ({"version": ""}, "version: name the one to promote"),
    ],
)
def test_a_form_that_is_not_whole_writes_nothing(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        decision_forms.decide_version(Settings(), "default", SentForm(FORM | changes), "ann")


def test_where_nobody_is_asked_for_a_key_this_machine_decides_and_no_other_site(
    view: LogView, decided: list[tuple[str, str]]
) -> None:
    http = TestClient(app.create_app(view, decides=True), base_url="http://127.0.0.1", follow_redirects=False)
    assert http.post("/policies/red.coach", data=FORM, headers={"Host": "evil.example"}).status_code == 421
    assert http.post("/policies/red.coach", data=FORM, headers={"Origin": "http://evil.example"}).status_code == 403
    assert decided == []
    assert http.post("/policies/red.coach", data=FORM, headers={"Origin": "http://127.0.0.1"}).status_code == 303
    assert decided == [("red.coach", "api")]
    assert "Log out" not in http.get("/").text


def test_a_server_without_what_the_page_needs_says_so_and_answers_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: PageMount) -> None:
        raise ModuleNotFoundError("No module named 'duckdb'")

    monkeypatch.setattr(PageMount, "_make", missing)
    whole = Starlette(routes=[Route("/healthz", PlainTextResponse("ok"))])
    mount(whole, PageMount(Settings()))
    http = TestClient(whole)
    answer = http.get("/page/groups")
    assert answer.status_code == 503 and "this server has no page: No module named 'duckdb'" in Words(answer.text).text
    assert http.get("/healthz").status_code == 200
