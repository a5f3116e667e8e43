"""The page over a real log: what is in it and written meanwhile, what people decide, and a broker that is silent."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from plugins.page import app
from plugins.page.commands import demo_companion
from plugins.page.settings import Page
from schemas.events import AdapterEvent, DeadLetter, Event, RequestEvent, derive_id
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.times import now_ms
from streams.settings.model import Kafka, Settings
from streams.tools import standstill
from streams.tools.status import look
from streams.tools.views.log_view import LogView
from tests.support.agent_server import serving, settings_of
from tests.support.factories import T0, batch, response, scoreless, task, trained
from tests.support.log import page_log
from tests.support.log.keys import open_keys
from tests.support.log.members import member_of
from tests.support.processes import command, environment, read, spawn, until, write

pytestmark = pytest.mark.kafka


@pytest.fixture
def address(made: Settings, tmp_path: Path) -> Iterator[str]:
    """Where a page answers that another process serves."""
    own = made.model_copy(update={"page": Page(port=0)})
    said = tmp_path / "page.log"
    with said.open("w") as log, spawn(command("page"), env=environment(own), stderr=log) as process:
        try:
            until(lambda: "the page is at" in said.read_text(), "an address", folder=tmp_path)
            yield re.findall(r"http://\S+\d", said.read_text())[0]
        finally:
            process.terminate()
            assert process.wait(300) == 0


def test_the_first_line_says_whether_anything_is_stuck_in_the_words_of_status(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "MOVES_S", 0.0)
    write(made, task(), response(), batch())
    now = now_ms()
    (row,) = standstill.standstills(made, look(made, now_ms=now), now)
    view = LogView(made)
    try:
        html = TestClient(app.create_app(view), base_url="http://127.0.0.1").get("/").text
    finally:
        view.close()
    first = re.findall(r'<p class="said" role="status">(.*?)</p>', html)[0]
    assert row.motion == "stuck" and row.cause.waits_for in first
    assert "What to do: start <code>streamward train</code>" in first
    assert html.index("is stuck") < html.index("<section>"), "before all else"


def test_a_log_is_shown_as_it_is_now_and_followed_as_it_is_written(made: Settings, address: str) -> None:
    with httpx.Client(base_url=address, timeout=300) as browser, Producer(made) as producer:
        assert "There are no train tasks yet" in browser.get("/").text
        assert "nobody: start `streamward streams`" in browser.get("/").text.replace("&#39;", "'")
        with browser.stream("GET", "/live/events") as following:
            lines = following.iter_lines()
            assert next(lines) == ": follows"
            log = page_log.small_log()
            for label in ("tasks", "responses", "rewards", "groups", "batches", "adapters"):
                for event in log[label]:
                    assert isinstance(event, Event)
                    producer.send(event)
            producer.flush()
            found = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
            assert set(found) == {"topic", "partition", "offset", "time", "key", "summary"}
        until(lambda: browser.get("/tasks/taught").status_code == 200, "the task is shown")
        assert "2 of 4 answers were better than the mean of 0.5" in browser.get("/tasks/taught").text
        with member_of(made, "scoring", ["responses"]) as agent:
            until(
                lambda: agent.poll(timeout_s=0.2) or '<span class="tag taught">1</span>' in browser.get("/").text, "one"
            )
            producer.send(scoreless(response()))
            producer.flush()
            until(lambda: '<span class="tag nothing">1, held up</span>' in browser.get("/").text, "a failing scorer")
        producer.send(task(task_id="new", policy="another"))
        producer.flush()
        until(lambda: "another" in browser.get("/").text, "what was written since is shown")


def test_beside_a_demo_it_answers_where_its_user_is_told_also_while_the_broker_is_away(tmp_path: Path) -> None:
    away, said = Settings(kafka=Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.5)), tmp_path / "page.log"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        away = away.model_copy(update={"page": Page(port=taken.getsockname()[1])})
        companion = demo_companion(away)
        words = command(*companion.words)
        (told,) = re.findall(r"^look at it in a browser: (http://\S+)/$", companion.message)
        assert f":{taken.getsockname()[1]}" not in told
    assert demo_companion(away).words == ("--set", f"page.port={away.of_plugin(Page).port}", "page"), (
        "its own is free now"
    )
    with said.open("w") as log, spawn(words, env=environment(away), stderr=log) as process:
        try:
            until(lambda: "the page is at" in said.read_text(), "an address", folder=tmp_path)
            with httpx.Client(base_url=told, timeout=300) as browser:
                for _ in range(2):
                    answer = browser.get("/")
                    assert answer.status_code == 503
                    assert "127.0.0.1:1" in answer.text
        finally:
            process.terminate()
            assert process.wait(300) == 0


PASSWORD = "correct horse battery staple"
PEOPLE = ("logins.logins", "access.tokens", "settings")
"""Modules of the plugin that logs people in, without which there is no such test."""


def test_a_person_logs_in_decides_and_cannot_decide_by_a_page_that_is_old(kafka_bootstrap: str, tmp_path: Path) -> None:
    logins, tokens, people = map(pytest.importorskip, (f"plugins.people.{name}" for name in PEOPLE))
    key = tmp_path / "signing.pem"
    key.write_bytes(tokens.new_private_key())
    settings = settings_of(kafka_bootstrap, tmp_path, auth="keys").model_copy(
        update={"people": people.People(signing_key=key)}
    )
    admin.apply_topics(settings)
    letter = DeadLetter(
        dead_letter_id=derive_id("scoring", "x"), created_at=T0, stage="scoring", reason="late", error="it was late",
        source_topic=f"{settings.topics.prefix}responses", source_partition=0, source_offset=7, source_timestamp=T0,
    )  # fmt: skip
    with open_keys(settings) as log, Producer(settings) as producer:
        logins.create_user(log, "ann", PASSWORD, ["promoter", "trainer"], actor="bob")
        for event in (trained(1, policy="coach"), letter):
            producer.send(event)
        producer.flush()
    with serving(settings) as url, httpx.Client(base_url=url, timeout=300, follow_redirects=True) as browser:
        browser.headers.update({"Accept": "text/html", "Origin": url})

        def decided(status: int, **sent: str) -> str:
            answer = browser.post("/page/policies/coach", data=sent)
            assert answer.status_code == status, answer.text
            return re.sub(r"<[^>]*>", "", answer.text)

        assert "<h1>Log in</h1>" in browser.get("/").text
        sent = {"username": "ann", "password": PASSWORD, "next": "/page/policies/coach"}
        assert 'name="expected" value="0"' in browser.post("/page/login", data=sent).text
        promote = {"kind": "promote", "version": "1", "expected": "0"}
        assert "Version 1 answers" in decided(200, **promote, reason="it is better")
        decided(200, **promote, reason="it is better")  # the same again, as by a second click
        for late in (promote, promote | {"kind": "reject"}, promote | {"kind": "rollback", "version": "0"}):
            assert "nothing was written" in decided(409, **late, reason="too late")
        assert "Version 0 answers" in decided(200, kind="rollback", version="", expected="1", reason="it is not")
        made = [event for _, event in read(settings, AdapterEvent) if event.kind != "trained"]
        assert [(one.kind, one.actor, one.reason) for one in made] == [
            ("promoted", "user ann", "it is better"), ("rolled_back", "user ann", "it is not"),
        ]  # fmt: skip
        closed = {"letter": letter.dead_letter_id, "what": "drop", "reason": "it cannot be used"}
        assert "dropped by user ann: it cannot be used" in browser.post("/page/dead-letters", data=closed).text
        assert "it was dropped already" in browser.post("/page/dead-letters", data=closed).text
        assert "<h1>Log in</h1>" in browser.post("/page/logout").text
        assert "<h1>Log in</h1>" in browser.get("/page/policies/coach").text
    asked = [(one.action, one.subject_id, one.status) for _, one in read(settings, RequestEvent)]
    assert ("adapters.promote", "user ann", 409) in asked and ("letters.decide", "user ann", 303) in asked
