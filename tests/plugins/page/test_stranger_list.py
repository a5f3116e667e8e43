"""The list of a stranger's plugin (docs/examples/plugin-thumbs) is a section of the page, with links into it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from plugins.page.settings import Page
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.support.factories import response, task
from tests.support.log.secured_node import free_ports
from tests.support.processes import command, until
from tests.support.stranger_plugin import environment_with, install_thumbs, run_with

pytestmark = pytest.mark.kafka


def test_bad_answers_are_listed_the_worst_first_and_lead_to_their_tasks(settings: Settings, tmp_path: Path) -> None:
    packages, (port,) = install_thumbs(tmp_path), free_ports(1)
    assert run_with(packages, "admin", "topics", "apply", settings=settings).returncode == 0
    asked, answers = task(group_size=2), [response(slot=slot, group_size=2) for slot in range(2)]
    with Producer(settings) as producer:
        for event in (asked, *answers):
            producer.send(event)
    for answer, thumb in ((answers[0], "--up"), (answers[1], "--no-up")):
        rated = run_with(packages, "rate", asked.task_id, answer.response_id, thumb, settings=settings)
        assert rated.returncode == 0, rated.stderr
    env = environment_with(packages, settings.model_copy(update={"page": Page(port=port)}))
    page = subprocess.Popen(command("page"), env=env, cwd=tmp_path)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as browser:

            def shown(path: str) -> str:
                try:
                    return browser.get(path).text
                except httpx.TransportError:
                    return ""

            until(lambda: '<a href="/lists/bad-answers">Bad answers</a>' in shown("/"), "the section")
            listed = shown("/lists/bad-answers")
            assert '<a href="/lists/bad-answers" aria-current="page">' in listed and "<h1>Bad answers</h1>" in listed
            assert listed.count("<tr>") == 2 and f'<a href="/tasks/{asked.task_id}">' in listed
            assert "There are no such rows" in shown("/lists/bad-answers?policy=another")
            assert browser.get("/lists/toes").status_code == 404
    finally:
        page.kill()
        page.wait()
