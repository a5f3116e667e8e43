"""Curves of policies and experiments, over versions and over time, laid over each other; and the page of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from plugins.page import app, chart, export
from plugins.page.views import curves, overlays, policy_versions, version_pair
from plugins.page.views.question_flips import read_questions
from schemas.events import ExperimentEvent, derive_id
from streams.settings.model import Archive, Settings
from streams.tools.query.session import Session
from streams.tools.replay import experiments
from streams.tools.views.curve import Curve, CurveChart, CurvePoint, Figure
from streams.tools.views.log_view import LogView
from streams.tools.views.rights import LogRights
from tests.plugins.page.test_page import Words, words
from tests.plugins.page.test_page_figures import Tables, asked, dots, session as session
from tests.support.factories import T0, evaluated, job_event, job_spec, trained
from tests.support.log import page_log
from tests.support.log.archive_of import archived

JOB = "4adaf3a1-50c7-5e0c-9f3c-2f3a1e9d7c10"
DAY_S = 86_400
RED = LogRights(tenant="red", access=False)


def coached_log(policy: str = "coach", versions: int = 3) -> page_log.Log:
    """Return a log of a policy with two sources of reward, and of an experiment with it."""
    maker = page_log.LogMaker()
    for version in range(versions):
        task = maker.asked(f"{policy}-{version}", "2 + 2 =", policy=policy, group_size=2)
        answers = maker.answered(task, ["4", "I think it is 4"], version=version)
        parts = [{"exact": 1.0, "exact.match": 1.0, "brief": 0.5}, {"exact": 0.0, "exact.match": 0.0, "brief": 0.25}]
        maker.grouped(task, answers, [1.5, 0.25], components=parts)
        if version:
            maker.log["adapters"] += [
                trained(version, policy=policy, metrics={"loss": 0.5 / version}),
                evaluated(version, version / 4, policy=policy, suite=f"job/{JOB}"),
            ]
    return maker.log


def started(name: str, settings: dict[str, str]) -> ExperimentEvent:
    return ExperimentEvent(
        event_id=derive_id(name), experiment=name, created_at=T0, kind="finished", policy="coach", actor="replay",
        reason="done", code_version="1", settings=settings, changed=tuple(settings),
    )  # fmt: skip


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogView]:
    settings = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("curves") / "archive")))
    dry, odd = started("dry", {"advantages.formula": "dr_grpo"}), started("odd", {"no.such": "setting"})
    log = page_log.pictured_log()
    for label, events in coached_log().items():
        log[label] += events
    log["experiments"] += [dry, odd, started("stopped", {})]
    archived(settings, log, count(T0, 1000))
    experiment = experiments.fold(None, dry)
    archived(experiments.of(settings, experiment), coached_log("dry", 5), count(T0 + 1000 * DAY_S, 60_000))
    log_view = LogView(settings, "archive")
    yield log_view
    log_view.close()


@pytest.fixture(scope="module")
def client(view: LogView) -> TestClient:
    return TestClient(app.create_app(view), base_url="http://127.0.0.1")


def legends(html: str) -> dict[str, list[str]]:
    """Return the names of the curves of each chart that has a legend, by its title."""
    found = re.findall(r"<h3>([^<]+)</h3>.*?(?=<div class=\"curve\")", html, re.DOTALL)
    keys = re.findall(r"<h3>[^<]+</h3>(.*?)<div class=\"curve\"", html, re.DOTALL)
    return {title: re.findall(r"</svg>([^<]+)</li>", key) for title, key in zip(found, keys, strict=True)}


# --- one policy -------------------------------------------------------------------------------------------------------


def test_reward_is_shown_by_source_where_there_are_several(session: Session, client: TestClient) -> None:
    rows = asked(
        session,
        "SELECT adapter_version AS version, avg(components['exact']) AS exact, avg(components['brief']) AS brief "
        "FROM group_responses WHERE policy = 'coach' AND purpose = 'train' GROUP BY ALL",
    )
    expected = [(name, str(row["version"]), f"{row[name]:.4g}") for row in rows for name in ("exact", "brief")]
    assert dots(client.get("/policies/coach").text, "Reward by source") == sorted(expected)
    assert "Reward by source" not in client.get("/policies/learner").text, "exact is all that its reward is made of"


def test_a_suite_of_a_job_has_the_short_id_of_the_job_in_legends_and_tables(client: TestClient) -> None:
    html = client.get("/policies/coach").text
    assert legends(html)["Held-out score"] == ["job 4adaf3a1"]
    assert f"job/{JOB}" not in Words(html).text and "job 4adaf3a1, 40 tasks" in Words(html).text


@pytest.mark.parametrize("versions", [(1, 2), (0, 3), (7, 7), (0, 1000)])
def test_versions_are_marked_by_whole_numbers(versions: tuple[int, int]) -> None:
    curve = Curve("", [CurvePoint(version, 0.5, 0.5, 0.5) for version in versions])
    marks = re.findall(r'class="middle">([^<]+)<', chart.svg(CurveChart(Figure("loss", "Loss"), [curve]), "loss"))
    assert marks and all(mark.isdecimal() for mark in marks) and len(marks) == len(set(marks))


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ((0.0, 0.0), (0.0, 1.0)), ((0.2, 1.0), (0.0, 1.04)), ((0.9999999, 1.0), (0.0, 1.04)),
        ((3.0, 4.0), (2.96, 4.04)), ((-2.0, -2.0), (-2.08, 0.0)), ((-1.0, 1.0), (-1.08, 1.08)),
    ],
)  # fmt: skip
def test_zero_is_on_an_axis_unless_values_are_far_from_it_and_differ(
    values: tuple[float, ...], ends: tuple[float, float]
) -> None:
    assert chart.value_range([CurvePoint(0, value, value, value) for value in values]) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [
        (20, ["08:00:00", "08:00:05", "08:00:10", "08:00:15", "08:00:20"]), (600, ["08:00", "08:05", "08:10"]),
        (3 * DAY_S, ["01-16", "01-17", "01-18"]), (0, ["08:00:00"]),
    ],
)  # fmt: skip
def test_time_is_marked_by_seconds_minutes_or_days(seconds: int, marks: list[str]) -> None:
    points = [CurvePoint(number, 0.5, 0.5, 0.5, T0 + 1000 * number * seconds) for number in (0, 1)]
    drawing = chart.svg(CurveChart(Figure("loss", "Loss"), [Curve("", points)]), "loss", "time")
    assert re.findall(r'class="middle">([^<]+)<', drawing) == marks


def test_values_that_no_picture_has_room_for_are_left_out(tmp_path: Path) -> None:
    maker = page_log.LogMaker()
    values = (-1e308, 1e308, 0.5, 5e-324)
    maker.log["adapters"] += [
        trained(number, metrics={"loss": value, "kl": 5e-324 * number}) for number, value in enumerate(values, 1)
    ]
    odd = {"n": 1e308, "exact": 0.5, "mean_reward": 0.25, "mean_reward_low": -1e308, "mean_reward_high": 1e308}
    maker.log["adapters"].append(evaluated(1, metrics=odd))
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    archived(settings, maker.log, count(T0, 1000))
    log_view = LogView(settings, "archive")
    http = TestClient(app.create_app(log_view), base_url="http://127.0.0.1")
    assert [dot[1:] for dot in dots(http.get("/policies/default").text, "Loss")] == [("3", "0.5"), ("4", "4.941e-324")]
    assert http.get("/curves", params={"policy": "default"}).json()["held_out_reward"]["curves"][0]["mean"] == [0.25]
    log_view.close()


def test_over_time_a_point_is_where_its_newest_record_was_written(session: Session, client: TestClient) -> None:
    found = client.get("/curves", params={"policy": "coach", "over": "time"}).json()["loss"]
    rows = asked(
        session,
        "SELECT epoch_ms(_timestamp) AS at FROM adapters WHERE policy = 'coach' AND kind = 'trained' ORDER BY 1",
    )
    assert found["x"] == [row["at"] / 1000 for row in rows]
    assert found["curves"][0]["versions"] == [1, 2]
    hours = client.get("/curves", params={"policy": "coach", "over": "hours"}).json()
    first = min(chart["x"][0] for chart in hours.values())
    assert first == 0 and hours["loss"]["x"][1] - hours["loss"]["x"][0] == pytest.approx(2 / 3600)
    assert re.findall(r'class="middle">(\d\d:\d\d:\d\d)<', client.get("/policies/coach?over=time").text)
    assert client.get("/policies/coach?over=weeks").status_code == 400


def test_each_point_leads_to_its_version_next_to_the_one_before_or_to_what_it_was_made_of(client: TestClient) -> None:
    html = client.get("/policies/coach").text
    reward, loss = (re.findall(rf'<a href="([^"]+)"[^>]*aria-label="{name} of', html) for name in ("default", "Loss"))
    assert reward == [f"/compare?policy=coach&amp;b={version}" for version in range(3)]
    assert loss == [f"/groups?policy=coach&amp;made={version}" for version in (1, 2)]
    listed = re.findall(r'href="/tasks/([\w-]+)"', client.get("/groups?policy=learner&made=3").text)
    assert {*listed} == {f"learner-2-{number}" for number in range(4)}, "version 3 was made of what version 2 answered"


@pytest.mark.parametrize("before", ["", "&a=14"])
def test_two_versions_are_shown_next_to_each_other_with_what_flipped(
    session: Session, client: TestClient, before: str
) -> None:
    html = client.get(f"/compare?policy=learner&b=15{before}").text
    flipped = asked(
        session,
        "SELECT o.index AS number, a.success AS before, o.success AS after FROM "
        "(SELECT unnest(outcomes) AS o FROM adapters WHERE policy = 'learner' AND version = 15 AND suite = 'sums@1') "
        "JOIN (SELECT unnest(outcomes) AS a FROM adapters WHERE policy = 'learner' AND version = 14) "
        "ON a.index = o.index WHERE a.success <> o.success",
    )
    worse = [row["number"] for row in flipped if row["before"] > row["after"]]
    better = [row["number"] for row in flipped if row["before"] < row["after"]]
    assert worse and better
    tables = Tables(html)
    shown = {kind: tables.column(name, "question") for kind, name in (
        ("worse", "Right in version 14, wrong in version 15"), ("better", "Wrong in version 14, right in version 15"),
    )}  # fmt: skip
    named = {number: f"{number + 3} + {number + 8} =" if number < 3 else f"number {number}" for number in range(12)}
    assert shown["worse"] == [(named[number],) for number in worse]
    assert shown["better"] == [(named[number],) for number in better]
    rewards = asked(
        session,
        "SELECT adapter_version AS version, reward, count(*) AS n FROM group_responses WHERE policy = 'learner' "
        "AND purpose = 'train' AND adapter_version IN (14, 15) GROUP BY ALL",
    )
    counts = {(f"{row['reward']:.4g}", row["version"]): row["n"] for row in rewards}
    for value, first, second in tables.column("reward", "reward", "version 14", "version 15"):
        assert int(first.split()[0]) == counts.get((value, 14), 0)
        assert int(second.split()[0]) == counts.get((value, 15), 0)
    assert "6 + 7 =" in dict(tables.column("Answers to the same questions", "question", "version 14"))
    assert "/groups?policy=learner&amp;made=15" in html and "from version 14" in Words(html).text


def test_versions_that_cannot_be_compared_are_named(client: TestClient) -> None:
    assert client.get("/compare?policy=learner&a=99").status_code == 404
    assert "has no version 99" in client.get("/compare?policy=learner&a=99").text
    assert "fewer than two versions" in client.get("/compare?policy=none").text
    newest = client.get("/compare?policy=learner").text
    assert "<h1>Versions 19 and 20</h1>" in newest


def test_values_of_two_versions_are_counted_by_themselves_or_in_intervals() -> None:
    rows = version_pair.distribution([float(n) for n in range(20)], [19.0])
    assert len(rows) == version_pair.BARS and rows[-1].counts == (2, 1) and rows[0].label == "0 to 1.9"
    assert sum(row.counts[0] for row in rows) == 20 and version_pair.distribution([], []) == []


def test_a_sentence_says_since_when_a_policy_is_better_and_charts_that_say_so_come_first(client: TestClient) -> None:
    html = client.get("/policies/learner").text
    said = re.findall(r'<p class="trend">([^<]+)</p>', html)
    assert said == ["held-out 0.08 → 1.00, beyond chance since v4, flat since v16"]
    assert said[0] in client.get("/").text
    assert re.findall("<h3>([^<]+)</h3>", html)[:5] == [
        "Held-out score", "Train reward", "Groups that taught something", "Length of answers", "Cut answers",
    ]  # fmt: skip
    assert re.findall(r'<details data-fold="([^"]+)"[^>]* open>', html)[0] == "Is it learning?"
    assert '<details data-fold="Training steps" data-phone="folded"><summary>' in html
    pinned = client.get("/policies/learner?pin=loss&pin=lag&pin=none").text
    assert re.findall("<h3>([^<]+)</h3>", pinned)[:3] == ["Loss", "Lag", "Held-out score"]
    assert 'pin=lag&amp;pin=none" aria-label="Unpin Loss"' in pinned


def test_a_policy_says_what_it_used_also_without_a_job(session: Session, client: TestClient) -> None:
    (row,) = asked(session, "SELECT sum(completion_tokens) AS n FROM responses WHERE policy = 'learner'")
    (steps,) = asked(session, "SELECT sum(metrics['step_s']) AS s FROM adapters WHERE policy = 'learner'")
    text = words(client, "/policies/learner")
    assert f"Used until now: {row['n']:,} sampled tokens in 504 answers" in text
    assert f"{steps['s']:.3g} s of training steps" in text


def test_the_band_of_a_reward_ends_where_rewards_do(view: LogView) -> None:
    with view.snapshot() as log:
        bands = [(row["low"], row["high"]) for row in log.rows(curves.rewards_sql("learner"))]
    assert min(low for low, _ in bands) == 0 and max(high for _, high in bands) == 1


def test_a_long_name_is_cut_in_a_legend_and_whole_when_pointed_at() -> None:
    name = 'scorers = [["regex", "{\\"pattern\\": \\"[0-9]+ …", 1.0], ["other", "{}", 0.5]]'
    shown = str(chart.legend([Curve(name), Curve("short")]))
    assert re.findall("</svg>([^<]+)</li>", shown)[1] == "short" and shown.count("…</li>") == 1
    assert "&#34;other&#34;" in re.findall('<li title="([^"]+)"', shown)[0]


def test_curves_of_a_long_policy_are_read_apart_from_its_page(
    client: TestClient, view: LogView, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = client.get("/policies/learner").text
    monkeypatch.setattr(policy_versions, "MOST_GROUPS", 83)
    page = client.get("/policies/learner", params={"with": "coach", "over": "time"}).text
    (link, again) = re.findall(r'<section id="curves">.*?href="([^"]+)" hx-get="([^"]+)" hx-trigger="load"', page)[0]
    assert link == again == "/policies/learner?over=time&amp;with=coach&amp;curves=now" and "<figure>" not in page
    assert Tables(page).rows["Versions"] == Tables(whole).rows["Versions"]
    curves_alone = client.get(link.replace("&amp;", "&")).text
    assert legends(curves_alone)["Loss"] == ["learner", "coach"] and 'id="curves" data-curves' in curves_alone
    out = export.write(view.settings, "archive", "learner", Path(view.settings.archive.store).parent / "page.html")
    assert out == "policy" and "<figure>" in (Path(view.settings.archive.store).parent / "page.html").read_text()
    monkeypatch.setattr(policy_versions, "MOST_GROUPS", 84)
    assert "<figure>" in client.get("/policies/learner").text


# --- laid over each other ---------------------------------------------------------------------------------------------


def test_policies_laid_over_each_other_have_one_curve_each(client: TestClient) -> None:
    html = client.get("/policies/coach", params={"with": "learner"}).text
    assert legends(html)["Train reward"] == ["coach", "learner"] == legends(html)["Loss"]
    assert legends(html)["Held-out score"] == ["coach, job 4adaf3a1", "learner, sums@1"]
    assert "Reward by source" not in html
    data = client.get("/curves", params={"policy": "coach", "with": "learner"}).json()["taught"]["curves"]
    assert [curve["groups"] for curve in data] == [f"/compare?policy={name}&b=" for name in ("coach", "learner")]


def test_an_experiment_is_laid_over_the_policy_that_it_replays(client: TestClient) -> None:
    html = client.get("/policies/coach", params={"with": "experiment dry"}).text
    assert legends(html)["Loss"] == ["coach", "experiment dry"]
    assert ("experiment dry", "4", "0.125") in dots(html, "Loss")
    (_, data) = client.get("/curves", params={"policy": "coach", "with": "experiment dry"}).json()["loss"]["curves"]
    assert data["groups"] is None, "its groups are in its own log"
    assert "policies/coach?with=experiment%20dry" in client.get("/policies").text
    assert "advantages.formula = dr_grpo" in words(client, "/policies")


def test_an_experiment_that_cannot_be_read_says_why_and_the_rest_is_shown(client: TestClient) -> None:
    html = client.get("/policies/coach", params={"with": ["experiment odd", "experiment stopped"]}).text
    assert "experiment odd: experiment odd" in Words(html).text and "no.such" in Words(html).text
    assert legends(html)["Loss"] == ["coach"]


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["nobody"], 404, "the log knows no policy 'nobody'"),
        (["experiment none"], 404, "the log knows no policy 'experiment none'"),
        ([f"p{number}" for number in range(6)], 400, "6 are laid over coach, and 5 can be"),
    ],
)
def test_what_cannot_be_laid_over_a_policy_is_refused(
    client: TestClient, names: list[str], status: int, said: str
) -> None:
    for path in ("/policies/coach", "/curves?policy=coach"):
        answer = client.get(path, params={"policy": "coach", "with": names})
        assert answer.status_code == status and said in Words(answer.text).text


def test_a_tenant_lays_nothing_of_others_over_its_policies(view: LogView) -> None:
    with view.snapshot(RED) as log:
        assert overlays.list_choices(log, "red.coach") == [] == overlays.read_experiments(log)


def test_figures_are_read_once_for_as_long_as_the_log_is_as_it_is(view: LogView) -> None:
    with view.snapshot() as log:
        first = curves.read_sections(log, "coach")
        assert curves.read_sections(log, "coach") is first
    with view.snapshot(RED) as log:
        sections = curves.read_sections(log, "coach")
        assert not any(chart.curves for section in sections for chart in section.charts), "of others nothing is kept"


# --- held-out questions -----------------------------------------------------------------------------------------------


def test_questions_that_changed_last_come_first_and_lead_to_their_tasks(client: TestClient, view: LogView) -> None:
    with view.snapshot() as log:
        table = read_questions(log, "learner")
    assert table is not None and [column.version for column in table.columns] == [1, *range(14, 21)]
    flips = [question.outcomes[-1].flip != "" for question in table.questions if question.outcomes[-1] is not None]
    assert flips == sorted(flips, reverse=True)
    asked_last = {outcome.task_id for question in table.questions if (outcome := question.outcomes[-1]) is not None}
    assert asked_last >= {f"held-20-{number}" for number in range(3)}
    assert 'href="/tasks/held-20-0"' in client.get("/policies/learner").text


def test_the_suite_that_was_asked_last_is_shown_unless_another_is_chosen(client: TestClient) -> None:
    page = Tables(client.get("/policies/coach").text)
    assert page.rows["Held-out questions"][1]["version 2"] == "20 of 40 ▲ 10 ▼ 0"
    assert client.get("/policies/coach", params={"suite": "none"}).status_code == 200


# --- a job ------------------------------------------------------------------------------------------------------------


def job_client(folder: Path, *events: Any) -> TestClient:
    maker = page_log.LogMaker()
    maker.log["jobs"] += events
    settings = Settings(archive=Archive(store=str(folder / "archive")))
    archived(settings, maker.log, count(T0, 1000))
    return TestClient(app.create_app(LogView(settings, "archive")), base_url="http://127.0.0.1")


def test_a_job_shows_intervals_and_no_milliseconds_and_no_json(client: TestClient) -> None:
    html = client.get("/jobs/job-1").text
    page = Tables(html)
    (newest, *_) = page.rows["Evaluations"][1:]
    assert newest["success"] == "0.75 (0.301 to 0.954)", "Wilson's interval of 3 of 4"
    assert newest["gain in success"] == "0.75 (0.333 to 1)" and newest["questions"] == "4"
    assert not re.search(r"\d{13}|[{}\[\]]", page.text), "no epoch milliseconds, no JSON"
    assert "2027-01-15 08:00:00" in page.text
    assert "0.77 USD of 2.00 USD" in page.text and "ordered by ann" in page.text and "iteration 3 of 4" in page.text


def test_a_job_leads_to_its_policy_its_versions_groups_and_questions(client: TestClient) -> None:
    links = {attributes.get("href") for tag, attributes in Words(client.get("/jobs/job-1").text).tags if tag == "a"}
    assert {"/policies/learner", "/groups?policy=learner", "/policies/learner?suite=job%2Fjob-1#questions"} <= links
    assert {f"/groups?policy=learner&made={version}" for version in (1, 2, 3)} <= links


def test_a_job_that_failed_says_what_to_do_in_the_list_too(client: TestClient) -> None:
    for path in ("/jobs", "/jobs/job-1"):
        assert "✕ failed" in words(client, path) and "start <code>streamward train</code>" in client.get(path).text
    assert Tables(client.get("/jobs").text).rows["Jobs"][-1]["what to do"] == "start streamward train"


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "queued"), (["started"], "running"), (["started", "paused"], "paused"),
        (["started", "completed"], "completed"), (["started", "failed"], "failed"), (["cancelled"], "cancelled"),
    ],
)  # fmt: skip
def test_each_state_of_a_job_has_a_colour_a_sign_and_a_word(tmp_path: Path, kinds: list[str], state: str) -> None:
    events = [job_event("created"), *(job_event(kind, number) for number, kind in enumerate(kinds, 1))]  # type: ignore[arg-type]
    html = job_client(tmp_path, *events).get("/jobs").text
    (tag,) = re.findall(rf'class="tag job-{state}"><span aria-hidden="true">([^<]+)</span> {state}<', html)
    style = (app.STATIC / "page.css").read_text()
    assert tag and (state == "queued" or f".job-{state} {{" in style)


def test_what_was_ordered_is_in_words(tmp_path: Path) -> None:
    spec = job_spec(max_budget_usd=None, target_gain=0.2)
    text = words(job_client(tmp_path, job_event("created", spec=spec)), "/jobs/job-1")
    assert "scored by exact" in text
    assert "1 a million tokens of prompts, 2 a million sampled tokens, 3 an hour of training" in text
    assert "target gain 0.2" in text and "null" not in text
