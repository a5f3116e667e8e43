"""A sweep over recorded groups: trained, scored and halved, with a tiny model against a real broker."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plugins.improve.sweep import sweep_file, sweep_runner
from plugins.improve.sweep.sweep_runner import Sweep, SweepRun
from schemas.events import AdapterEvent, Response, Task
from streams.errors import StreamwardError
from streams.settings.model import Settings
from streams.tools.replay import experiments
from streams.tools.replay.replay_context import Stopped
from tests.support.commands import invoke, rows_of
from tests.support.log.replay_source import name_of, write_tiny
from tests.support.processes import command, environment, read, spawn, until

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
SWEEP = """
name = "rates"
[suite]
generator = "sums"
count = 4
[grid]
trainer.learning_rate = [0.003, 0.01]
"""


@pytest.fixture(scope="module")
def source(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of a log whose responses are of the tiny model's tokens."""
    return write_tiny(kafka_bootstrap, tmp_path_factory.mktemp("sweep"), version=7)


def prepare(source: Settings, folder: Path, text: str) -> Sweep:
    (folder / "sweep.toml").write_text(text)
    return sweep_runner.prepare(source, sweep_file.read_sweep(folder / "sweep.toml"), folder / "sweep.toml")


def paid(source: Settings, sweep: Sweep) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return how often each version was trained and scored, and each question answered, by experiment."""
    logs = {name: experiments.of(source, one) for name, one in experiments.read(source).items()}
    work: dict[str, Counter[tuple[Any, ...]]] = {}
    for name in sweep.plan.recipes:
        if name in logs:
            events = [event for _, event in read(logs[name], AdapterEvent)]
            answers = [one for _, one in read(logs[name], Response) if not one.task_id.startswith("task-")]
            work[name] = Counter((event.kind, event.version, event.suite) for event in events)
            work[name] += Counter((answer.task_id, answer.slot) for answer in answers)
    return work


@pytest.mark.kills
def test_a_sweep_that_is_killed_and_stopped_ends_as_one_and_pays_for_nothing_twice(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # experiments are in a folder beside it
    sweep = prepare(source, tmp_path, SWEEP)
    words = command("replay", "sweep", "sweep.toml")
    with (
        (tmp_path / "sweep.log").open("wb") as log,
        spawn(words, env=environment(source), stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: _is_trained(source), "a first version", folder=tmp_path)
        finally:
            process.kill()

    stop = threading.Event()

    def stop_at_a_question(stage: str, done: int, total: int | None) -> None:
        if "asking" in stage:
            stop.set()

    with pytest.raises(Stopped):
        SweepRun(settings=source, sweep=sweep, stop=stop, report=stop_at_a_question).run()

    end = SweepRun(settings=source, sweep=sweep, stop=threading.Event(), report=lambda *_: None).run()
    assert end.verdict.rounds == 1 and end.verdict.version == 1 and end.verdict.gain is not None
    assert end.verdict.gain.n == 2 and end.verdict.best in sweep.plan.recipes[1:]
    assert end.used.tokens > 0 and end.used.usage.trainer_s > 0
    before = paid(source, sweep)
    assert set(before) == set(sweep.plan.recipes)
    assert {count for counter in before.values() for count in counter.values()} == {1}
    work = [key[0] for counter in before.values() for key in counter]
    assert (work.count("trained"), work.count("evaluated")) == (3, 5)

    result = invoke(source, "replay", "sweep", "sweep.toml", "--output", "jsonl")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    best = None if end.verdict.is_level else end.verdict.best
    assert (row.get("best"), row["n"], row["rounds"]) == (best, 2, "1 of 1")
    assert paid(source, sweep) == before


def test_a_larger_grid_continues_what_is_there_until_its_budget_is_spent(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SWEEP.replace('"rates"', '"spent"') + "[budget]\nmax_tokens = 1\n"
    (tmp_path / "sweep.toml").write_text(text)
    result = invoke(source, "replay", "sweep", "sweep.toml", "--output", "jsonl")
    assert result.exit_code == 4, result.output
    assert "tokens are used: the sweep ended before its report" in result.stderr
    row = json.loads(result.stdout)
    assert row["rounds"] == "0 of 1" and "best" not in row and row["tokens"] > 1
    assert list(experiments.read(source)).count("spent-base") == 1
    assert not [name for name in experiments.read(source) if name.startswith("spent-") and name != "spent-base"]


def test_a_suite_whose_questions_were_trained_on_is_refused_before_anything_is_paid_for(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (asked,) = {task.messages[-1].content for _, task in read(source, Task) if task.task_id == name_of(0)}
    lines = [{"prompt": text, "answer": "1", "reward_sources": ["exact"]} for text in (asked, "7?", "8?", "9?")]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "suite.yaml").write_text("name: own\nscenarios: {all: {file: questions.jsonl}}\n")
    text = SWEEP.replace('"rates"', '"leak"').replace('generator = "sums"\ncount = 4', 'file = "suite.yaml"')
    (tmp_path / "sweep.toml").write_text(text)
    result = invoke(source, "replay", "sweep", "sweep.toml")
    assert result.exit_code == 4 and "sweep leak: contaminated" in result.stderr, result.output
    assert not [name for name in experiments.read(source) if name.startswith("leak-")]


def test_recipes_are_shown_before_anything_is_written(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP.replace('"rates"', '"plan"'))
    result = invoke(source, "replay", "sweep", "sweep.toml", "--dry-run", "--output", "jsonl")
    rows = rows_of(result)
    assert [row["settings"] for row in rows] == [
        {},
        {"trainer.learning_rate": "0.003"},
        {"trainer.learning_rate": "0.01"},
    ]
    assert not [name for name in experiments.read(source) if name.startswith("plan-")]


def _is_trained(source: Settings) -> bool:
    experiment = experiments.read(source).get("rates-base")
    if experiment is None:
        return False
    try:
        return any(event.kind == "trained" for _, event in read(experiments.of(source, experiment), AdapterEvent))
    except StreamwardError:  # its topics are being made
        return False
