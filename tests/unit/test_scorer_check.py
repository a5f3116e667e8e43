"""A function named as a scorer that cannot be loaded is found at every entrance, in the same words."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import TABLE
from gateway.server import log_rooms
from schemas.events import RewardSource
from streams.cli.task_file import check_tasks
from streams.errors import EventError, SettingsError
from streams.scorers.scorer_check import doubtful_scorer, unusable_scorer
from streams.settings.model import Scoring, Serve, Settings
from streams.stages.scoring.trial import load_scorers
from tests.support.callers import BEARER, Known
from tests.support.factories import task

MARKED = """
from streamward import entry_point

@entry_point("short/1")
def short(task, response, settings):
    return 1
"""
BAD = {
    "statistics:short": "that name imports .*statistics.py, not .*/statistics.py; rename yours",
    "my_scorers:shor": "imported from .*my_scorers.py, has no function 'shor'; did you mean short?",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("my_scorers.py").write_text(MARKED)
    Path("statistics.py").write_text(MARKED)
    Path("unfinished.py").write_text("import nothing_is_there\n")
    return tmp_path


def settings_for(name: str) -> Settings:
    return Settings(scoring=Scoring(modules=f"{name.partition(':')[0]}, ."))


def source(name: str) -> RewardSource:
    return RewardSource(name=name)


def by_http(settings: Settings, name: str) -> dict[str, Any]:
    nothing: Any = SimpleNamespace(states=None)
    app = Application(log_rooms(settings, nothing), version="0", max_body_bytes=100_000)
    http = TestClient(Door(app, TABLE, Known("admin"), KeyLimits(Serve())))
    answer = http.post("/tasks", headers=BEARER, json={"input": "q", "answer": "a", "reward_sources": [name]})
    assert answer.status_code == 400
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(("name", "words"), BAD.items())
def test_a_function_that_cannot_be_loaded_is_refused_at_every_entrance(name: str, words: str) -> None:
    settings = settings_for(name)
    with pytest.raises(EventError, match=f"nothing was submitted: .*{words}"):
        check_tasks(settings, [task(reward_sources=(source(name),))])
    with pytest.raises(SettingsError, match=words):
        load_scorers(settings.scoring, [source(name)])
    error = by_http(settings, name)
    assert error["param"] == "reward_sources" and error["message"] == unusable_scorer(settings.scoring, [source(name)])


def test_what_is_not_listed_or_not_in_reach_is_left_to_the_scoring_agent() -> None:
    assert unusable_scorer(Scoring(modules="other, ."), [source("my_scorers:shor")]) is None
    assert unusable_scorer(Scoring(modules="elsewhere, ."), [source("elsewhere:short")]) is None
    assert unusable_scorer(Scoring(modules="my_scorers"), [source("my_scorers:shor")]) is None
    assert unusable_scorer(Scoring(), [source("exact"), source("exakt")]) is None


def test_a_scorer_that_other_settings_may_have_is_doubtful() -> None:
    assert "scoring.modules lists other, ." in str(doubtful_scorer(Scoring(modules="other, ."), [source("mine:x")]))
    assert "scorer elsewhere:x is not in reach" in str(
        doubtful_scorer(Scoring(modules="elsewhere"), [source("elsewhere:x")])
    )
    assert "scoring.judge_url" in str(doubtful_scorer(Scoring(), [source("judge")]))
    assert doubtful_scorer(Scoring(modules="my_scorers, ."), [source("my_scorers:short"), source("exact")]) is None


def test_a_function_that_was_loaded_is_not_loaded_again_and_one_that_failed_is() -> None:
    scoring = Scoring(modules="my_scorers, unfinished, .")
    assert unusable_scorer(scoring, [source("my_scorers:short")]) is None
    Path("my_scorers.py").write_text("raise SystemExit\n")
    assert unusable_scorer(scoring, [source("my_scorers:short")]) is None
    error = "scorer unfinished:short cannot be loaded: No module named 'nothing_is_there'"
    assert error in str(unusable_scorer(scoring, [source("unfinished:short")]))
    Path("unfinished.py").write_text(MARKED.replace("@entry_point", "#"))
    unmarked = "imported from .*unfinished.py, has 'short', which is not marked as a scorer"
    assert re.search(unmarked, str(unusable_scorer(scoring, [source("unfinished:short")])))
    Path("unfinished.py").write_text(MARKED)
    assert unusable_scorer(scoring, [source("unfinished:short")]) is None
