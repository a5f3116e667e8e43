"""An experiment trains, can be asked held-out questions, and is compared: with a tiny model against a real broker."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, DeadLetter, Response
from streams.cli.task_file import TaskFileOptions, read_tasks
from streams.errors import NotFoundError, RefusedError
from streams.settings.model import Settings
from streams.stages.tasks import suites
from streams.tools.archive import history
from streams.tools.replay import comparison, experiments, held_out, picture, run_replay as replay
from streams.tools.replay.held_out import HeldOutSuite
from streams.tools.replay.run_replay import ReplayRequest, ReplayResult
from streams.tools.replay.selection import Selection
from tests.support.commands import invoke
from tests.support.log.replay_source import NUMBER, write_tiny
from tests.support.processes import read
from trainer.reproduce import retrain

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
SAMPLED_BY = 7
"""A version that the experiment's own line never has when it trains on what that version sampled."""
ASKED = HeldOutSuite(suite=suites.generated("sums", count=2, seed=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay-trains")


@pytest.fixture(scope="module")
def source(kafka_bootstrap: str, folder: Path) -> Settings:
    """The settings of a log whose responses are of the tiny model's tokens."""
    return write_tiny(kafka_bootstrap, folder, SAMPLED_BY)


def run(source: Settings, folder: Path, name: str, steps: int | None = None) -> ReplayResult:
    asked = ReplayRequest(name=name, selection=Selection(policy="default"), folder=folder / name, steps=steps)
    return replay.run(source, asked, stop=threading.Event())


def versions(settings: Settings) -> list[AdapterEvent]:
    return [event for _, event in read(settings, AdapterEvent) if event.kind == "trained"]


@pytest.fixture(scope="module")
def whole(source: Settings, folder: Path) -> ReplayResult:
    """An experiment that was run to its end in one go."""
    return run(source, folder, "whole")


def test_one_version_a_batch_is_trained_on_responses_of_another_line(whole: ReplayResult) -> None:
    made = versions(whole.settings)
    assert [event.version for event in made] == [1, 2, 3, 4] == list(range(1, NUMBER // 2 + 1))
    assert {(event.policy, event.recipe["trainer.off_policy"]) for event in made} == {("whole", "True")}
    assert all(event.metrics["groups_refused"] == 0 and event.metrics["grad_norm"] > 0 for event in made)
    assert read(whole.settings, DeadLetter) == []
    assert whole.counts["steps"] == 4


def test_a_run_with_fewer_steps_goes_on_later_and_ends_with_the_same_bytes(
    source: Settings, folder: Path, whole: ReplayResult
) -> None:
    first = run(source, folder, "twice", steps=1)
    assert (first.counts["steps"], len(versions(first.settings))) == (1, 1)
    second = run(source, folder, "twice")
    assert [event.files for event in versions(second.settings)] == [event.files for event in versions(whole.settings)]


def test_its_versions_are_reproduced_to_the_byte_as_those_of_any_log(whole: ReplayResult) -> None:
    reader = history.of(whole.settings, "log")
    planned = retrain.plan(whole.settings, "whole", None, reader, start=0)
    made = list(retrain.run(planned, whole.settings, reader))
    assert [(one.version, one.equal) for one in made] == [(version, True) for version in (1, 2, 3, 4)]


def test_a_version_that_a_new_reward_taught_is_two_bars_and_no_sampled_token(
    source: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its checkpoints are below the working folder
    words = ("--scorer", 'regex={"pattern": "11", "mode": "search"}', "--steps", "1", "--show")
    done = invoke(source, "replay", "run", "shown", *words)
    assert done.exit_code == 0, done.output
    first, second, cost, plot = done.stderr.splitlines()[-4:]
    bars = picture.replay_bars(source, experiments.find(source, "shown"))
    assert (float(first.split()[2]), float(second.split()[1])) == (round(bars.before, 3), round(bars.after, 3))
    assert bars.before != bars.after and (bars.sampled, bars.versions) == (0, 1)
    assert cost.endswith("; 0 tokens sampled, 1 version trained")
    assert "<svg" in Path(plot.removeprefix("Plot: ")).read_text()


def test_an_experiment_without_a_score_has_nothing_to_compare(source: Settings, folder: Path) -> None:
    asked = ReplayRequest(name="bare", selection=Selection(policy="default"), folder=folder / "bare", train=False)
    replay.run(source, asked, stop=threading.Event())
    assert comparison.side(source, "bare").scores == {}
    with pytest.raises(
        NotFoundError, match="'nobody' is neither an experiment nor a policy with an adapter or a score"
    ):
        comparison.side(source, "nobody")


def test_its_versions_answer_held_out_questions_once_and_are_compared(source: Settings, whole: ReplayResult) -> None:
    for _ in range(2):
        results = held_out.run(source, "whole", ASKED, stop=threading.Event())
        assert [(version, event.metrics["n"]) for version, event in results.items()] == [(0, 2.0), (4, 2.0)]
    groups = [group for _, group in read(whole.settings, AdvantagedGroup) if group.purpose == "eval"]
    assert sorted(group.adapter_version for group in groups) == [0, 0, 4, 4]
    assert len(read(whole.settings, AdvantagedGroup)) == NUMBER + 4  # and no train task was sampled again
    sides = comparison.side(source, "whole"), comparison.side(source, "default")
    (base, last) = comparison.rows(*sides)
    assert (base["version"], last["version"], last["default"], last["difference"]) == (0, 4, None, None)
    assert last["whole"] is not None and last["n"] == [2, 0]


def test_its_versions_answer_the_held_out_file_of_up_under_the_name_that_up_gives_it(
    source: Settings, whole: ReplayResult, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("question,answer\n20 + 1,21\n20 + 2,22\n")
    words = ["replay", "evaluate", "whole", "--held-out", str(tmp_path / "own.csv"), "--map", "prompt=question"]
    words += ["--group-size", "1", "--max-tokens", "4", "--versions", "last", "--output", "jsonl"]
    result = invoke(source, *words)
    assert result.exit_code == 0, result.stderr
    row = json.loads(result.stdout)
    reading = TaskFileOptions(names=("prompt=question",), group_size=1, max_tokens=4, purpose="eval")
    asked = suites.of_tasks("held-out", read_tasks(source, tmp_path / "own.csv", reading).tasks)
    assert (row["version"], row["n"], row["suite"]) == (4, 2, asked.name)


def test_its_versions_play_held_out_episodes(source: Settings, whole: ReplayResult) -> None:
    asked = ["replay", "evaluate", "whole", "--suite", "distractor", "--options", '{"turns": 2}', "--count", "2"]
    result = invoke(source, *asked, "--versions", "last", "--output", "jsonl")
    assert result.exit_code == 0, result.stderr
    row = json.loads(result.stdout)
    assert (row["version"], row["n"], row["suite"]) == (4, 2, 'distractor/n=2/seed=0/{"turns": 2}')
    played = [one for _, one in read(whole.settings, Response) if one.agent_id == "environment"]
    assert [(one.adapter_version, len(one.turns), one.error) for one in played] == [(4, 2, None)] * 2


def test_questions_of_a_version_that_is_not_there_are_refused(source: Settings, whole: ReplayResult) -> None:
    with pytest.raises(NotFoundError, match="experiment whole has no version 9; the newest is 4"):
        held_out.run(source, "whole", replace(ASKED, versions=("9",)), stop=threading.Event())


def test_an_experiment_that_has_not_finished_is_not_asked(source: Settings, folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    asked = ReplayRequest(name="halted", selection=Selection(policy="default"), folder=folder / "halted")
    assert replay.run(source, asked, stop=stop).kind == "stopped"
    with pytest.raises(
        RefusedError, match="experiment halted is stopped; finish it first with the same `streamward replay run`"
    ):
        held_out.run(source, "halted", ASKED, stop=threading.Event())
    assert experiments.find(source, "halted").kind == "stopped"
