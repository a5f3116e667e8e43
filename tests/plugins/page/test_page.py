"""The page over a log in an archive: every figure, why a group taught nothing, and texts that would do harm."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from plugins.page import app, chart, export
from plugins.page.render import sections
from plugins.page.views import answer_tokens, answer_words, curves, group_list, overview, policy_versions, record_line
from plugins.page.views.bounded_query import answer_statement
from plugins.page.views.record_line import RecordLine
from schemas.events import Coordinates, DeadLetter, Event, derive_id
from schemas.serde import Poison, encode
from streams.errors import NotFoundError
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Archive, Settings
from streams.tools.views import places
from streams.tools.views.log_view import WHOLE_LOG, LogReader, LogView
from streams.tools.views.rights import LogRights
from streams.tools.views.side_by_side import shared_by_token, shared_words
from tests.support.commands import invoke
from tests.support.factories import (
    T0,
    adapter_event,
    group,
    one_of_each,
    promoted,
    response,
    reward,
    state_after,
    task,
    trained,
)
from tests.support.log import page_log
from tests.support.log.archive_of import archived

ROUTES = (
    "/",
    "/groups",
    "/groups?fate=nothing",
    "/tasks/taught",
    "/policies",
    "/policies/default",
    "/runs",
    "/dead-letters",
    "/live",
    "/sql",
    "/sql?q=FROM+tasks",
    "/records/groups/0/0",
    "/compare?policy=default",
    "/tokens/0/0",
    *(f"/{section.path}" for section in sections()),
)


def opened(folder: Path, log: page_log.Log) -> LogView:
    settings = Settings(archive=Archive(store=str(folder / "archive")))
    archived(settings, log, count(T0, 1000))
    return LogView(settings, "archive")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogView]:
    found = opened(tmp_path_factory.mktemp("small"), page_log.small_log())
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(view: LogView) -> TestClient:
    return TestClient(app.create_app(view), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    found = opened(tmp_path_factory.mktemp("hostile"), page_log.hostile_log())
    yield TestClient(app.create_app(found), base_url="http://127.0.0.1")
    found.close()


class Words(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.said))


@cache
def parsed(html: str) -> Words:
    """Return what is in a page, which several assertions look at."""
    return Words(html)


@cache
def fetched(client: TestClient, path: str) -> Any:
    """Return a page of a log that does not change, which several tests look at."""
    return client.get(path)


def words(client: TestClient, path: str) -> str:
    answer = fetched(client, path)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text).text


# --- what became of a group, in words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task_id", "said"),
    [
        ("taught", "It taught something 2 of 4 answers were better than the mean of 0.5"),
        ("taught", "It is in batch 0, from which version 1 was trained."),
        ("flat", "It taught nothing All 3 rewards are 0: no answer was better than another, so every advantage is 0."),
        ("flat", "The rewards of this policy's scenario go from 0 to 1, so no answer did well: the task is too hard"),
        ("easy", "go from 0 to 1, so every answer did well: the task is too easy for this version."),
        ("few", "Too few answers had scores to compare"),
        ("few", "Slot 1 left out: the answer failed. Slot 2 left out: a scorer gave up on it."),
        ("nobody", "No slot was answered before the task's time was over."),
        ("open", "Not grouped yet 1 scores of exact are missing."),
        ("waiting", "There is no answer yet."),
        ("held", "Not for training Its purpose is eval"),
        ("late", "It taught nothing It came too late: its answers are by a version too many steps before the batch"),
    ],
)
def test_a_task_says_what_it_taught_or_why_it_taught_nothing(client: TestClient, task_id: str, said: str) -> None:
    assert said in words(client, f"/tasks/{task_id}")


def test_answers_are_aligned_at_the_first_word_that_differs(client: TestClient) -> None:
    html = client.get("/tasks/taught").text
    assert "<pre>The sum </pre>" in html
    assert re.findall(r"</span>([^<]*)</pre>", html) == ["is 11.", "is 12.", "was 11", "is eleven"]
    assert "the same 8 tokens" in parsed(html).text


class Letters:
    """A tokenizer whose tokens are two bytes each."""

    tokenizer_digest = "c" * 64

    def token_bytes(self, token: int) -> bytes:
        return token.to_bytes(2, "big")


def test_answers_of_a_tokenizer_at_hand_are_aligned_at_the_first_token_that_differs(view: LogView) -> None:
    ids = [[0x6162, 0xC3A4, 0x63C3], [0x6162, 0xC3A4, 0x63C4]]
    texts = ["abäcä", "abäcĄ"]
    assert shared_by_token(texts, ids, Letters().token_bytes) == "abä"
    divided = [[0x61C3, 0xA462], [0x61C3, 0xA562]]
    assert shared_by_token(["aäb", "aåb"], divided, Letters().token_bytes) == "a", "half a character is not shared"
    assert shared_by_token(["other", "texts"], ids, Letters().token_bytes) is None
    other = TestClient(app.create_app(view, texts=Letters()), base_url="http://127.0.0.1").get("/tasks/taught")
    assert "<pre>The sum </pre>" in other.text, "where tokens do not give the texts, words do"


class Characters:
    """A tokenizer whose tokens are characters, by their number, and whose digest is that of the answers here."""

    tokenizer_digest = response().tokenizer_digest

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode()


def test_words_are_coloured_by_probability_and_those_without_loss_are_marked(view: LogView, tmp_path: Path) -> None:
    coloured = TestClient(app.create_app(view, texts=Characters()), base_url="http://127.0.0.1")
    html = coloured.get("/tasks/taught").text
    rows = re.findall(r"<pre class=\"text words\".*?</pre>", html)
    assert len(rows) == 4 and Words(rows[0]).text.replace(" ", "") == "is11.", "from where the answers differ"
    assert '<span class="p3" title="60.7 %" data-word>i</span>' in rows[0]
    run = re.findall(r'href="(/runs/[^"]+)"', coloured.get("/runs?sort=-tokens").text)[0]
    assert 'title="60.7 %" data-word>T</span>' in coloured.get(run).text
    assert "data-word" in coloured.get("/tokens/0/0").text
    ids = [*map(ord, "ab")]
    row = {"completion_token_ids": ids, "logprobs": [math.log(0.01), 0.0], "loss_mask": [True, False]}
    words = answer_words.answer_words(row, Characters())
    assert [(word.band, word.about) for word in words] == [(0, "1 %"), (4, "100 %, bears no loss")]


class Halves(Characters):
    """A tokenizer whose tokens are bytes."""

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,))


def test_a_character_divided_between_tokens_is_of_the_last_of_them() -> None:
    row = {"completion_token_ids": [*"ä1".encode()], "logprobs": [0.0] * 3, "loss_mask": []}
    assert [word.text for word in answer_words.answer_words(row, Halves())] == ["", "ä", "1"]


def test_tokens_are_shown_with_how_likely_each_was_and_what_is_known_of_the_ratio(client: TestClient) -> None:
    (link, *_) = re.findall(r'href="(/tokens/[^"]+)" hx-get', client.get("/tasks/taught").text)
    text = words(client, link)
    assert re.search(r"0 84 -0.5 60.7 % 1 104 -0.5 60.7 %", text)
    assert (
        re.search(r"8 105 differs from here -0.5", text)
        and "the tokenizer of this answer is not that of model.base" in text
    )
    assert "The ratio of each token is not recorded, nor what it was in the step that made version 1." in text
    assert "No trainer has learned from this answer" in words(client, link.replace("/0/0", "/0/4"))
    assert client.get("/tokens/0/99999999999999999999").status_code == 404


DAPO = {"trainer.loss": "dapo", "trainer.epsilon_low": "0.2", "trainer.epsilon_high": "0.28"}


@pytest.mark.parametrize(
    ("metrics", "recipe", "said"),
    [
        (
            {"clipped": 0.05},
            DAPO,
            " Its loss, dapo, clips the ratio at 0.8 and 1.28; that held back 5 % of the tokens.",
        ),
        (
            {"clipped": 0.0},
            DAPO | {"trainer.loss": "cispo", "trainer.epsilon_high": "5.0"},
            "caps the ratio at 5; that ",
        ),
        ({}, DAPO | {"trainer.loss": "gspo"}, " Its loss, gspo, clips the mean ratio of an answer at 0.8 and 1.28."),
        ({"clipped": 0.05}, DAPO | {"trainer.loss": "own:loss"}, " 5 % of the tokens were clipped."),
        ({"clipped": 0.05}, DAPO | {"trainer.epsilon_low": "<b>"}, " 5 % of the tokens were clipped."),
        ({}, {}, " made version 3 its mean was 1.01."),
        ({"mismatch_max": 0.1}, {}, "its mean was 1.01, and each was between 0.9048 and 1.105."),
        ({"mismatch_max": 2.4e-5}, {}, "and none differed from 1 by more than 0.000024."),
        ({"mismatch_max": 1e-8}, {}, "and each was 1, to six digits."),
        ({"mismatch_max": 0.0}, {}, "and each was 1."),
        ({"mismatch_max": 1000.0}, {}, "its mean was 1.01."),
    ],
)
def test_the_ratios_of_a_step_are_described_as_far_as_they_were_measured(
    metrics: dict[str, float], recipe: dict[str, str], said: str
) -> None:
    text = answer_tokens.describe_ratio(3, {"ratio": 1.01, "tokens": 1200.0} | metrics, recipe)
    assert text.startswith("The ratio of each token is not recorded. Over 1,200 tokens of the step that made version 3")
    assert said in text
    assert "1 to 1" not in text


def test_rewards_of_any_scale_are_compared_with_those_of_the_scenario(tmp_path: Path) -> None:
    maker = page_log.LogMaker()
    for name, value in (("lost", -5.0), ("drawn", 2.0), ("won", 7.5)):
        asked = maker.asked(name, "play", group_size=2)
        answers = maker.answered(asked, [f"{name} 1", f"{name} 2"])
        maker.judged(answers, [value] * 2)
        maker.grouped(asked, answers, [value] * 2)
    found = opened(tmp_path, maker.log)
    http = TestClient(app.create_app(found), base_url="http://127.0.0.1")
    assert "go from -5 to 7.5, so no answer did well" in words(http, "/tasks/lost")
    assert "go from -5 to 7.5. The answers differ, and the scorers" in words(http, "/tasks/drawn")
    assert "go from -5 to 7.5, so every answer did well" in words(http, "/tasks/won")
    found.close()


def test_texts_that_share_nothing_or_stand_alone_are_shown_whole() -> None:
    assert shared_words(["a b", "b a"]) == "" == shared_words(["alone"]) == shared_words([])
    assert shared_words(["10 apples", "100 apples"]) == ""


def test_an_advantage_has_a_sign_and_a_word_beside_its_colour(client: TestClient) -> None:
    text = words(client, "/tasks/taught")
    assert "▲ +0.866 better reward 1" in text
    assert "▼ -0.866 worse reward 0" in text
    assert "= 0 neither" in words(client, "/tasks/flat")


def test_the_bar_of_an_advantage_begins_at_zero_and_has_a_scale(client: TestClient) -> None:
    html = client.get("/tasks/taught").text
    assert re.findall(r'<rect class="length" x="(\d+)" width="(\d+)"', html) == [("100", "100"), ("0", "100")] * 2
    assert "advantage −0.866 0 +0.866" in parsed(html).text
    assert 'class="bar"' not in client.get("/tasks/flat").text, "where all are 0 there is nothing to draw"


def test_a_long_answer_is_scrolled_where_it_is(tmp_path: Path) -> None:
    maker = page_log.LogMaker()
    asked = maker.asked("long", "say much", group_size=3)
    answers = maker.answered(asked, ["yes", "no " * 300, "\n" * 9])
    maker.grouped(asked, answers, [0.0, 1.0, 0.0])
    view = opened(tmp_path, maker.log)
    html = TestClient(app.create_app(view), base_url="http://127.0.0.1").get("/tasks/long").text
    view.close()
    assert re.findall(r'tabindex="0" role="region" aria-label="Answer of slot (\d)"', html) == ["1", "2"]


def test_every_record_of_a_task_is_a_link_that_shows_the_record(client: TestClient) -> None:
    found = Words(client.get("/tasks/taught").text)
    links = {attributes["href"] for tag, attributes in found.tags if tag == "a" and "/records/" in attributes["href"]}
    expected = {f"/records/{label}/0/{n}" for label in ("responses", "rewards") for n in range(4)}
    assert links >= expected | {"/records/tasks/0/0", "/records/groups/0/0"}
    assert all(client.get(link).status_code == 200 for link in links)
    assert "The sum was 11" in words(client, "/records/responses/0/2")


def test_a_record_leads_to_those_beside_it_and_the_first_and_last_to_one(
    client: TestClient, hostile: TestClient
) -> None:
    def beside(http: TestClient, path: str) -> list[str]:
        return re.findall(r'rel="(?:prev|next)" href="([^"]+)"', http.get(path).text)

    assert beside(client, "/records/batches/0/0") == ["/records/batches/0/1"]
    assert beside(client, "/records/batches/0/1") == ["/records/batches/0/0"]
    assert beside(hostile, "/records/dead-letters/0/0") == ["/records/dead-letters/0/1"], "which cannot be read"


def test_the_same_question_is_shown_over_versions(client: TestClient) -> None:
    text = words(client, "/tasks/taught")
    assert "The same question over versions" in text
    assert re.search(r"0 taught \(this\) train .* 0.5 1 0 1 0 .* 1 held eval .* 1 1 1", text)


def listed(client: TestClient, path: str) -> list[str]:
    """Return the tasks of a list of groups, in its order."""
    return re.findall(r'href="/tasks/(\w+)"', fetched(client, path).text)


@pytest.mark.parametrize(
    ("query", "tasks"),
    [
        ("", ["late", "held", "nobody", "few", "easy", "flat", "taught"]),
        ("fate=nothing", ["late", "nobody", "few", "easy", "flat"]),
        ("fate=taught&version=0", ["taught"]),
        ("text=4+%2B+7", ["held", "taught"]),
        ("text=SUM+WAS", ["taught"]),  # which an answer has, and no question
        ("scenario=sums", ["held"]),
        ("policy=default&reward_from=0.4&reward_to=0.6", ["late", "taught"]),
        ("reward_to=0", ["flat"]),
        ("spread_from=0.1", ["late", "taught"]),
        ("spread_from=0.6", ["late"]),
        ("tokens_from=14", ["taught"]),
        ("tokens_to=1", ["late", "few"]),
        ("longest_from=17", ["taught"]),  # one of its answers; their mean is less
        ("longest_to=1&sort=task", ["few", "late"]),
        ("sort=-longest&longest_from=9", ["taught", "easy", "flat"]),
        ("sort=spread&spread_from=0.1", ["taught", "late"]),
        ("sort=question&tokens_from=2", ["easy", "flat", "held", "taught"]),
        ("sort=-task&fate=nothing", ["nobody", "late", "flat", "few", "easy"]),
        ("text=taug", ["taught"]),  # which its id begins with
        ("text=tau", []),
        ("fate=nothing&spread_from=0.1&text=8", ["late"]),
        ("policy=other", []),
        ("from=50", []),
        ("until=0", []),
        ("reward_from=&text=&fate=&scenario=&version=", ["late", "held", "nobody", "few", "easy", "flat", "taught"]),
    ],
)
def test_groups_are_narrowed_to_those_of_the_address(client: TestClient, query: str, tasks: list[str]) -> None:
    assert listed(client, f"/groups?{query}") == tasks


def test_a_head_of_a_list_sorts_it_and_keeps_what_was_chosen(client: TestClient) -> None:
    html = fetched(client, "/groups?spread_from=0.1&sort=-longest").text
    heads = {head: direction for direction, head in re.findall(r'aria-sort="(\w+)"><a href="([^"]+)"', html)}
    assert heads["/groups?spread_from=0.1&amp;sort=longest"] == "descending"  # and again the other way round
    assert heads["/groups?spread_from=0.1&amp;sort=-written"] == "none"
    assert '<input type="hidden" name="sort" value="-longest">' in html


def test_runs_show_question_answer_and_outcome_and_are_found_by_an_id(client: TestClient) -> None:
    text = words(client, "/runs?sort=-tokens")
    first = text.partition("began")[2]
    assert re.match(r"\W*4 \+ 7 = The sum is eleven completed 0 0 17 ", first)
    longest = re.findall(r'href="/runs/([^"?]+)"', fetched(client, "/runs?sort=-tokens").text)[0]
    assert re.findall(r'href="/runs/([^"?]+)"', client.get(f"/runs?text={longest[:8]}").text) == [longest]
    assert len(re.findall(r'href="/runs/([^"?]+)"', client.get("/runs?text=taught").text)) == 4, "those of a task"


def test_ids_in_results_and_records_are_links(client: TestClient) -> None:
    sql = "SELECT task_id, response_id, policy, 'taught' AS other FROM responses LIMIT 1"
    links = re.findall(r'<td data-label="(\w+)"><div><a href="([^"]+)"', client.get(f"/sql?q={sql}").text)
    assert [name for name, _ in links] == ["task_id", "response_id", "policy"]
    assert links[0][1] == "/tasks/taught" and links[2][1] == "/policies/default"
    assert all(client.get(link).status_code == 200 for _, link in links)
    assert 'href="/policies/default"' in client.get("/records/responses/0/0").text


def test_a_list_of_groups_shows_the_question_and_the_best_and_the_worst_answer(client: TestClient) -> None:
    text = words(client, "/groups?text=4+%2B+7&fate=taught")
    best_and_worst = "taught 4 + 7 = 1 The sum is 11. 1 The sum was 11 0 The sum is eleven 4 differ"
    assert f"{best_and_worst} 0.5 0.577 14.8 17 taught version 1" in text
    assert "taught version 1 0 default" in text
    assert re.search(r"few 2 \+ 2 = – 4 – 5 1 \S+ 1 1 dropped: too_few_scored 0 of 3 scored", words(client, "/groups"))


def test_the_form_of_the_list_has_what_was_chosen(client: TestClient) -> None:
    html = client.get("/groups?reward_from=0.25&text=%22%3Cb%3E&fate=nothing&scenario=sums").text
    fields = {at["name"]: at.get("value") for tag, at in parsed(html).tags if tag == "input"}
    assert (fields["reward_from"], fields["reward_to"]) == ("0.25", "")
    assert (fields["text"], fields["scenario"]) == ('"<b>', "sums")
    assert '<option value="nothing" selected>' in html


def test_the_list_of_a_thousand_groups_goes_on_where_it_ended_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    maker, count_of_groups = page_log.LogMaker(), group_list.PAGE_GROUPS + 20
    for number in range(count_of_groups):
        asked = maker.asked(f"t{number}", "1 + 1 =", group_size=2)
        maker.grouped(asked, maker.answered(asked, ["2", "3"]), [1.0, 0.0])
    view = opened(tmp_path, maker.log)
    http = TestClient(app.create_app(view), base_url="http://127.0.0.1")
    first = http.get("/groups?fate=taught").text
    assert f"{count_of_groups} groups, the newest first" in Words(first).text
    (older,) = [at for tag, at in Words(first).tags if tag == "a" and at.get("rel") == "next"]
    assert older["href"] == older["hx-get"]
    with view.snapshot() as snapshot:
        newest = group_list.list_groups(snapshot, group_list.GroupFilter(), 0)
        assert newest.until is not None
        before = group_list.GroupFilter(until=newest.until - 5000)
        assert group_list.list_groups(snapshot, before, 0).listed == count_of_groups - 5
    assert f"until={newest.until}" in str(older["href"])
    assert [*listed(http, "/groups?fate=taught"), *listed(http, str(older["href"]))] == [
        f"t{number}" for number in reversed(range(count_of_groups))
    ]
    view.close()


def test_the_overview_counts_each_train_task_at_its_place(view: LogView, client: TestClient) -> None:
    with view.snapshot() as snapshot:
        counts = {row["place"]: row["tasks"] for row in snapshot.rows(places.PLACES_SQL)}
    assert counts == {"trained": 1, "batched": 1, "left out": 3, "grouped": 1, "sampled": 1, "waiting": 1}
    assert "1 sampled answered, and not scored yet" in words(client, "/")


def test_the_overview_counts_what_taught_nothing_as_the_list_of_groups_does(client: TestClient) -> None:
    groups = listed(client, "/groups?fate=nothing")
    assert f"Groups that taught nothing ({len(groups)})" in words(client, "/")


def test_topics_without_a_record_are_folded(client: TestClient) -> None:
    html = client.get("/").text
    before, _, after = html.partition("topics without a record")
    assert '<th scope="row" data-label="topic">tasks</th>' in before
    assert '<th scope="row" data-label="topic">turns</th>' in after and "turns" not in before


def test_an_overview_that_is_renewed_is_read_once_a_look_at_the_log(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    archived(settings, page_log.small_log(), count(T0, 1000))
    now = [0.0]
    view = LogView(settings, "archive", clock=lambda: now[0])

    def read(rights: LogRights = WHOLE_LOG) -> overview.Overview:
        with view.snapshot(rights) as snapshot:
            return overview.read_overview(snapshot)

    assert read() is read()
    assert read(LogRights("red")) is not read(), "each sees what its rights allow"
    assert read(LogRights("red")).places == {}
    older, now[0] = read(), 1000.0
    assert read() is not older and read().places == older.places
    view.close()


# --- versions, curves and the rest ------------------------------------------------------------------------------------


def test_a_policy_shows_its_versions_what_they_are_made_of_and_who_decided(client: TestClient) -> None:
    text = words(client, "/policies/default")
    assert "Version 1 answers" in text
    assert "1 primary version 0" in text
    assert "batches[0]@0 : 1 groups, 2 answers" in text
    assert "differed in reward answers cut their mean reward" in text
    assert "0 superseded" in text
    assert "promoted 1 effective ann 0.75 of 40 are right 1" in text


def test_every_figure_of_a_curve_equals_that_of_streamward_query(view: LogView, client: TestClient) -> None:
    sql = curves.rewards_sql("default")
    printed = invoke(view.settings, "query", sql, "--source", "archive", "--output", "json")
    rows = json.loads(printed.stdout)
    assert [(row["version"], row["groups"]) for row in rows] == [(0, 5)]
    assert rows[0]["mean"] == pytest.approx((0.5 + 0 + 1 + 1 + 0.5) / 5)
    curve = client.get("/curves", params={"policy": "default"}).json()["reward"]
    where = {"versions": [0], "groups": "/compare?policy=default&b=", "colour": 0, "dashed": False}
    values = {name: [rows[0][name]] for name in ("mean", "low", "high")}
    assert curve == {"x": [0], "curves": [{"name": "default", **where, **values}], "share": False}


def test_curves_are_a_picture_without_javascript(client: TestClient) -> None:
    found = Words(client.get("/policies/default").text)
    assert [at["aria-label"] for tag, at in found.tags if at.get("class") == "chart"] == [
        f"{title} of default by version"
        for title in (
            "Held-out score", "Train reward", "Groups that taught something", "Length of answers", "Cut answers",
            "Loss",
        )
    ]  # fmt: skip
    assert "sums@1 of version 1: 0.75" in found.text


def test_a_long_curve_keeps_its_ends_and_the_whole_of_its_band() -> None:
    points = [curves.CurvePoint(n, n % 7 / 7, -float(n), float(n)) for n in range(10_000)]
    line = chart.place_points(curves.Curve("", points), "version")
    drawn = chart.thin(line, chart.MAX_POINTS)
    assert len(drawn) == chart.MAX_POINTS
    assert (min(one.point.low for one in drawn), max(one.point.high for one in drawn)) == (-9_999, 9_999)
    assert chart.thin(line[:5], chart.MAX_POINTS) == line[:5]


def test_statuses_are_those_of_the_fold() -> None:
    steps = [
        trained(1), trained(2), promoted(1), trained(3), adapter_event("rejected", 2),
        adapter_event("canary_started", 3, share=0.1, expected_version=1), promoted(3, expected_version=1),
        adapter_event("rolled_back", 1, expected_version=3),
    ]  # fmt: skip
    folded = {number: one.status.replace("_", " ") for number, one in state_after(steps, "default").versions.items()}
    assert policy_versions.fold_events([asdict(one) for one in steps])[1] == folded


def test_dead_letters_are_counted_and_their_content_is_text(hostile: TestClient) -> None:
    text = words(hostile, "/dead-letters")
    assert "open" in text and "by scoring" in text
    assert "\ufffd\ufffd<script>␀␛" in text


def test_a_dead_letter_says_in_words_what_is_in_it_why_it_failed_and_what_to_do(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    answer = response(task_id="sum-1", slot=2, text="eleven")
    key, payload = (base64.b64encode(data).decode() for data in (b"sum-1", encode(answer)))
    letter = DeadLetter(
        dead_letter_id=derive_id("scoring", "a"), created_at=T0, stage="scoring", reason="no_judge", error="no judge",
        source_topic=topics(settings.topics)["responses"].name, source_partition=0, source_offset=1,
        source_timestamp=T0, key=key, payload=payload,
    )  # fmt: skip
    foreign = replace(letter, dead_letter_id="b", reason="solar_flare", source_topic="elsewhere", key=None)
    large = replace(letter, dead_letter_id="c", reason="late", payload=None, payload_bytes=5000)
    archived(settings, {"dead-letters": [letter, foreign, large]}, count(T0, 1000))
    view = LogView(settings, "archive")
    text = words(TestClient(app.create_app(view), base_url="http://127.0.0.1"), "/dead-letters")
    view.close()
    assert "scoring no_judge its task asks for the judge, and this agent has none open 1" in text
    assert (
        "open A record of responses: its task asks for the judge, and this agent has none "
        "In it: answer of slot 2 by version 0: eleven no judge Set scoring.judge_url" in text
    )
    assert "of task sum-1" in text
    assert "open A record of elsewhere: solar_flare" in text
    assert "In it: (5,000 bytes, not kept in the dead letter)" in text
    assert "Putting it back cannot help: its deadline has passed" in text


def test_a_job_shows_how_far_it_is_and_what_was_ordered(hostile: TestClient) -> None:
    assert "0 of 3" in words(hostile, "/jobs")
    assert "batch size 4" in words(hostile, "/jobs/job-1")


def test_a_run_is_shown_turn_by_turn(hostile: TestClient) -> None:
    (run,) = set(re.findall(r'href="(/runs/[^"]+)"', hostile.get("/runs?agent=tourist").text))
    text = words(hostile, run)
    assert "calls of tools 1" in text and "verdict –" in text
    assert re.search(r"Turn 0 version 0 · 2 tokens in 10 ms · ends by stop .* calls .* Turn 1 version 0", text)


def test_an_answer_without_an_agent_is_a_run_with_its_text(hostile: TestClient) -> None:
    runs = set(re.findall(r'href="(/runs/[^"]+)"', hostile.get("/runs?purpose=train").text))
    (of_agent,) = set(re.findall(r'href="(/runs/[^"]+)"', hostile.get("/runs?agent=tourist").text))
    direct = runs - {of_agent}
    assert len(direct) > 1 and all("turns 1" in words(hostile, run) for run in direct)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("agent=nobody", 200, "There are no such runs"),
        ("verdict=good", 400, "verdict is 'good'; expected one of promote, reject, needs_human, none"),
        ("purpose=fun", 400, "purpose is 'fun'"),
        ("version=x", 400, "version=x: expected a whole number"),
        ("failed_tools=yes&scenario=x", 200, "There are no such runs"),
    ],
)
def test_runs_are_filtered_and_a_filter_that_is_none_is_named(
    hostile: TestClient, query: str, status: int, said: str
) -> None:
    answer = hostile.get(f"/runs?{query}")
    assert answer.status_code == status and said in parsed(answer.text).text


def test_an_archive_is_not_followed(client: TestClient) -> None:
    assert client.get("/live/events").status_code == 403
    assert "groups[0]@0" in words(client, "/live")


def test_a_live_line_says_what_a_record_is_and_nothing_that_steers() -> None:
    record = Record(Coordinates("responses", 0, 7), T0, b"\xff\x1b", b"", ())
    line = RecordLine.of("responses", record, response(text="<b>\x1b[31m\nred"))
    assert (line.key, line.summary) == ("\ufffd␛", "answer of slot 0 by version 0: <b>␛[31m red")
    assert RecordLine.of("tasks", record, Poison("not_avro", "?")).summary == "no event: not_avro"


def test_a_record_that_was_there_has_the_same_line_as_one_that_is_written(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    by_event = {topic.event: topic for topic in topics(settings.topics).values()}
    events = [
        *(event for event in one_of_each() if type(event) in by_event),
        response(slot=1, text="", error="too long"),
        reward(slot=1, value=None, error="no judge"),
        group(dropped_reason="unanswered", responses=()),
        group(purpose="serve"),
    ]
    log: dict[str, list[Event]] = {}
    for event in events:
        log.setdefault(by_event[type(event)].label, []).append(event)
    archived(settings, log, count(T0, 1000))
    view = LogView(settings, "archive")
    with view.snapshot() as snapshot:
        newest = record_line.newest_records(snapshot).newest
    view.close()
    times, expected = count(T0, 1000), set()
    for label, of_topic in log.items():
        for offset, (event, time_ms) in enumerate(zip(of_topic, times, strict=False)):
            topic = by_event[type(event)]
            key = str(getattr(event, topic.key, "")).encode() if topic.key else b""
            record = Record(Coordinates(topic.name, 0, offset), time_ms, key, encode(event), ())
            expected |= (
                {RecordLine.of(label, record, event)} if label in record_line.live_topics(LogRights()) else set()
            )
    assert {*newest} == expected and len(newest) == len(expected)
    assert all(line.summary for line in newest)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT task_id FROM tasks WHERE purpose = 'eval'", "1 rows task_id held"),
        ("DROP VIEW tasks", "a query only reads"),
        ("SELECT content FROM read_text('/etc/hostname')", "--allow-files lets a query read and write files"),
        ("SELEC 1", "syntax error"),
        ("FROM range(5000)", "1,000 rows, and more: only the first 1,000 are shown"),
    ],
)
def test_a_statement_may_do_what_streamward_query_lets_it(client: TestClient, sql: str, said: str) -> None:
    answer = client.get("/sql", params={"q": sql})
    assert answer.status_code == 200
    assert said in parsed(answer.text).text


def test_a_statement_that_runs_for_too_long_is_ended(view: LogView) -> None:
    sql = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
    answer = answer_statement(LogReader(view), sql, limit=10, longest_s=0.05)
    assert answer.result is None and "was ended; let it read less" in str(answer.failed)


def test_another_site_cannot_have_a_statement_run(client: TestClient) -> None:
    assert client.get("/sql?q=FROM+tasks", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


# --- what may be asked, and by whom -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/tasks/none", 404, "nothing in the log is about a task 'none'"),
        ("/records/nothing/0/0", 404, "there is no topic 'nothing'; there are tasks"),
        ("/records/tasks/0/99999999999999999999999", 404, "there is no such record"),
        ("/groups?version=x", 400, "version=x: expected a whole number"),
        ("/groups?reward_from=much", 400, "reward_from=much: expected a number, such as 0.5"),
        ("/groups?tokens_to=inf", 400, "tokens_to=inf: expected a number"),
        ("/groups?spread_to=nan", 400, "spread_to=nan: expected a number"),
        ("/policies/none", 404, "the log knows no policy 'none'; there are default"),
        ("/runs/none", 404, "the log has no run 'none'"),
        ("/jobs/none", 404, "there is no job 'none'"),
        ("/groups?sort=size", 400, "sort=size: known: longest, question, reward,"),
        ("/runs?sort=-token", 400, "sort=-token: did you mean tokens?"),
        ("/lists/run-calls?sort=x", 400, "sort=x: known: agent_id,"),
        ("/lists/run-calls/x", 404, "Calls of tools has no row 'x'"),
        ("/elsewhere", 404, "there is no page /elsewhere; the menu has those there are"),
    ],
)
def test_what_is_not_there_is_said_in_words(client: TestClient, path: str, status: int, said: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert said in parsed(answer.text).text


def test_who_asks_under_another_name_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"Host": "127.0.0.1.evil.example:8791"}).status_code == 421
    assert client.get("/groups", headers={"Host": "[::1]:8791"}).status_code == 200


def test_nothing_can_be_changed(client: TestClient) -> None:
    assert {client.request(method, path).status_code for path in ROUTES for method in ("POST", "PUT", "DELETE")} == {
        405
    }


@pytest.mark.parametrize("path", [*ROUTES, "/tasks/none", "/static/page.css"])
def test_a_browser_is_told_to_run_and_load_nothing_from_elsewhere(client: TestClient, path: str) -> None:
    answer = fetched(client, path)
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def assert_runs_nothing_inline(html: str) -> None:
    for tag, attributes in parsed(html).tags:
        assert tag != "style" and "style" not in attributes, attributes
        assert tag != "script" or attributes["src"]
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert re.match(r"/|\?|#|$", attributes.get(name) or "/"), attributes


@pytest.mark.parametrize("path", ROUTES)
def test_no_page_has_inline_script_or_style_or_loads_from_elsewhere(client: TestClient, path: str) -> None:
    assert_runs_nothing_inline(fetched(client, path).text)


class Cells(HTMLParser):
    """The names of the columns of each table, and those that the cells of each row say for a phone."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[tuple[list[str], list[list[str]]]] = []
        self._in_head = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        at = dict(attrs)
        if tag == "table":
            self.tables.append(([], []))
        elif tag == "tr" and self.tables:
            self.tables[-1][1].append([])
        elif tag == "th" and at.get("scope") == "col":
            self.tables[-1][0].append("")
            self._in_head = True
        elif tag in ("td", "th") and "data-label" in at:
            self.tables[-1][1][-1].append(at["data-label"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._in_head = self._in_head and tag != "th"

    def handle_data(self, data: str) -> None:
        if self._in_head:
            self.tables[-1][0][-1] += data


@pytest.mark.parametrize("path", ROUTES)
def test_each_cell_has_the_name_of_its_column_for_where_a_row_is_a_card(client: TestClient, path: str) -> None:
    for columns, rows in Cells(fetched(client, path).text).tables:
        assert columns and all(row == columns for row in rows if row), columns


def test_our_own_javascript_is_small_and_the_rest_is_as_it_was_released() -> None:
    static = app.STATIC
    own = [path for path in static.glob("*.js") if not path.name.endswith(".min.js")]
    assert sum(path.stat().st_size for path in own) < 40_000
    vendored = re.findall(r"\| `([^`]+)` .* `([0-9a-f]{64})` \|", (static / "VENDORED.md").read_text())
    assert {name for name, _ in vendored} == {path.name for path in static.glob("*.min.*")}
    assert [name for name, sha in vendored if hashlib.sha256((static / name).read_bytes()).hexdigest() != sha] == []


# --- what others wrote ------------------------------------------------------------------------------------------------


def linked_pages(
    get: Callable[[str], httpx.Response], begin: str, leads: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """Follow every link that leads on, from a page on, and yield path and text of each page."""
    ahead, seen = [begin], {begin}
    while ahead:
        path = ahead.pop()
        answer = get(path)
        assert answer.status_code in (200, 404), f"{path}: {answer.text}"
        if "text/html" not in answer.headers["content-type"]:
            continue
        yield path, answer.text
        links = {attributes.get("href") or "" for tag, attributes in parsed(answer.text).tags if tag == "a"}
        new = {link.partition("#")[0] for link in links if leads(link)} - seen
        seen |= new
        ahead += sorted(new)


def every_page(client: TestClient) -> Iterator[str]:
    """Yield each page that links from the overview lead to; of the many statements a few."""
    statements = {f"/sql?q=FROM%20{name}%20LIMIT%2020" for name in ("tasks", "responses", "dead_letters")}
    leads = re.compile("/(?!sql[?]|.*[?;&](?:sort|pin)=)")
    pages = linked_pages(client.get, "/", lambda link: link in statements or leads.match(link))
    return (text for _, text in pages)


def test_hostile_texts_are_shown_as_text_on_every_page(hostile: TestClient) -> None:
    pages = list(every_page(hostile))
    assert len(pages) > 20
    for html in pages:
        assert_runs_nothing_inline(html)
        found = parsed(html)
        assert {tag for tag, _ in found.tags} & {"b", "img", "i"} <= {"b"}
        assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", html) is None
        assert len(html) < 600_000
    whole = "\n".join(pages)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;␛[2J␛[31mred␇left‹U+202E›tfel‹U+2066›hidden‹U+200B›" in whole
    assert "980,000 more characters" in whole
    assert "{{ 7 * 7 }}" in whole


def test_a_view_is_kept_for_as_long_as_it_was_costly(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    now, cpu = [0.0], count(0, 3)  # every look takes 3 s of a processor
    view = LogView(settings, "archive", clock=lambda: now[0], cpu_clock=lambda: float(next(cpu)))

    def tasks_seen() -> int:
        with view.snapshot() as snapshot:
            return len(snapshot.rows("FROM tasks"))

    assert tasks_seen() == 0
    archived(settings, {"tasks": [task()]}, count(T0))
    now[0] = 29.0
    assert tasks_seen() == 0
    now[0] = 31.0
    assert tasks_seen() == 1
    view.close()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "said"), [("taught", "It taught something"), ("default", "Policy default")])
def test_a_page_is_exported_to_a_file_that_loads_nothing(view: LogView, tmp_path: Path, name: str, said: str) -> None:
    out = tmp_path / "page.html"
    run = invoke(view.settings, "page", "export", name, "--out", str(out), "--source", "archive")
    assert run.exit_code == 0, run.output
    found = Words(out.read_text(encoding="utf-8"))
    assert said in found.text
    assert not [tag for tag, at in found.tags if tag in ("script", "link", "a", "img") or "src" in at or "href" in at]


def test_an_export_of_what_is_not_there_writes_nothing(view: LogView, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="the log knows no task 'none', and the log knows no policy 'none'"):
        export.write(view.settings, "archive", "none", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
