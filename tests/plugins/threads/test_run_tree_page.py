"""The tree of a run on the page: from its root, with each call, the run that answers it, and what waits."""

from __future__ import annotations

import html
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from schemas.events import Event, ParentCall, ThreadEvent
from streams.kafka.topics import LABELS
from streams.settings.model import Archive, Settings, Topics
from streams.tools.views.log_view import LogView
from tests.plugins.threads.conversation import OPEN, Conversations, run_name, user
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import register_all, with_tools
from tests.support.agent_server import audited
from tests.support.factories import T0, thread_event
from tests.support.log.archive_of import archived

app = pytest.importorskip("plugins.page.app")
HOSTILE = "<script>alert(1)</script>"


def asking(*, answers: bool) -> Conversations:
    """Return a run whose call another run answers, or where that run waits for consent."""
    made = Conversations(list[Event]())
    made.create(OPEN)
    made.request(0, thread_id=OPEN)
    made.call_tools("a", thread_id=OPEN)
    parent = made.newest[run_name(0)]
    child = parent.child_id(parent.steps.open_calls[0].call)
    made.begin(OPEN, child_run=child)
    about = ParentCall(run_id=parent.run_id, turn_id=parent.steps.turns[-1], call_id="0 a", depth=1)
    fields = {"agent_id": "host", "stateless": True, "parent": about, "messages": (user("?"),)}
    made.write(thread_event("run_requested", child, child, **fields))
    if answers:
        made.answer(child, HOSTILE)
        made.finish(OPEN, child_run=child)
        made.answer(OPEN, "So.")
    else:
        made.call_tools("b", thread_id=child)
        made.pause(child)
        made.pause(OPEN, waits_for="child")
    return made


def page_of(made: Conversations, folder: Path) -> TestClient:
    settings = Settings(
        archive=Archive(store=str(folder / "archive")), topics=Topics(partitions=1, policy_partitions=1)
    )
    log: dict[str, list[Event | bytes]] = {label: [] for label in LABELS}
    log["threads"] = [event for event in made.events if isinstance(event, ThreadEvent)]
    archived(settings, log, count(T0, 1000))
    return TestClient(app.create_app(LogView(settings, "archive")), base_url="http://127.0.0.1")


def child_in(made: Conversations) -> str:
    [child] = {event.call.child_run for event in made.events if isinstance(event, ThreadEvent) and event.call}
    return str(child)


def test_the_page_of_a_child_has_the_tree_from_its_root(tmp_path: Path) -> None:
    made = asking(answers=True)
    page = page_of(made, tmp_path)
    listed = page.get("/run-trees").text
    assert f"/run-trees/{run_name(0)}" in listed and child_in(made) not in listed
    tree = page.get(f"/run-trees/{child_in(made)}").text
    assert tree.index(run_name(0)) < tree.index("calls <b>add</b>") < tree.index(f"/runs/{child_in(made)}")
    assert tree.count(">success</span>") == 2 and tree.count(">answered</span>") == 1
    assert HOSTILE not in tree and "data-refresh" not in tree
    assert page.get("/run-trees/none").status_code == 404


def test_what_waits_for_a_person_is_listed_until_its_run_is_over(tmp_path: Path) -> None:
    made = asking(answers=False)
    waiting = page_of(made, tmp_path / "waiting").get("/run-trees/waiting").text
    assert waiting.count(">waits for consent</span>") == 1 and f"POST /acp/runs/{child_in(made)}/resume" in waiting
    assert "<form" not in waiting
    made = Conversations(list[Event]())
    made.create(OPEN)
    made.request(0, thread_id=OPEN)
    made.call_tools("a", thread_id=OPEN)
    made.pause(OPEN)
    made.request(1, thread_id=OPEN, if_busy="interrupt")
    assert "No call waits" in page_of(made, tmp_path / "interrupted").get("/run-trees/waiting").text


@pytest.mark.kafka
def test_a_person_answers_on_the_page_with_the_verdict_that_a_request_gets(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with with_tools(kafka_bootstrap, tmp_path) as tools, audited(tools.settings) as url:
        client = Client(url, {})
        register_all(client)
        runs = [client.run(client.thread(), "book the Lamb", agent_id="host")["run"] for _ in range(2)]
        with httpx.Client(base_url=url, timeout=300, follow_redirects=True, headers={"Origin": url}) as browser:
            path = "/page/run-trees/waiting"
            assert browser.get(path).text.count("calls <b>book</b>") == 2

            def answer(run: Any, text: str) -> httpx.Response:
                [call] = run["requires_action"]
                return browser.post(path, data={"run": run["run_id"], "call": call["tool_call_id"], "answer": text})

            unsure, asked = answer(runs[0], "maybe"), client.ask(*resume(runs[0], "maybe"))
            assert (unsure.status_code, asked.status_code) == (400, 422)
            assert "waits for consent; send yes or no" in asked.json()["message"]
            assert asked.json()["message"] in html.unescape(unsure.text)
            assert answer(runs[0], "yes").text.count("calls <b>book</b>") == 1
            assert answer(runs[1], "no").status_code == 200
            ended = [client.send("GET", f"/runs/{run['run_id']}/wait")["messages"][-1]["content"] for run in runs]
            assert ended == ["You sleep at the Lamb.", "Then not."]
            late, asked = answer(runs[0], "yes"), client.ask(*resume(runs[0], "yes"))
            assert (late.status_code, asked.status_code) == (409, 409)
            assert "waits for nothing" in asked.json()["message"]
            assert asked.json()["message"] in html.unescape(late.text)
        assert tools.made().count("book Lamb") == 1


def resume(run: Any, answer: str) -> tuple[str, str, Any]:
    return "POST", f"/acp/runs/{run['run_id']}/resume", {"resume": answer}


def test_a_tree_says_which_call_waits_for_what(tmp_path: Path) -> None:
    tree = page_of(asking(answers=False), tmp_path).get(f"/run-trees/{run_name(0)}").text
    assert tree.count(">waits</span>") == 2 and "data-refresh" in tree
    assert tree.index(">waits for child</span>") < tree.index(">waits for consent</span>")
