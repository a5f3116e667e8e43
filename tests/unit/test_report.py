"""What a run comes to: a line of JSON, a table, a picture, and what to type next."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from schemas.events import Coordinates
from schemas.serde import encode
from streams.adapters.learning import LearningFigures
from streams.demo import loop_report as report
from streams.demo.demo_options import DemoOptions
from streams.demo.progress import HeldOut, Progress
from streams.demo.settings_file import leave_settings
from streams.kafka.record import Record, dead_letter
from streams.settings.load import save
from streams.settings.model import Broker, Kafka, Settings, Topics
from streams.stages.scoring.breaker import PAUSED, PAUSED_REASON
from tests.support.deploy.command_lines import parsed


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file of the run, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STREAMWARD_CONFIG", raising=False)
    Path("demo").mkdir()
    return save(Settings(topics=Topics(prefix="here.")), Path("demo"), by="streamward demo")


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    """A run that learned for two versions."""
    known = Progress(Settings(kafka=Kafka(bootstrap="127.0.0.1:21000"), broker=Broker(data_dir=tmp_path)))
    known.held_out = {2: HeldOut(2, 0.91428, 0.93, 35), 0: HeldOut(0, 0.0, 0.1, 35)}
    for version, rewards in {0: 2.0, 1: 8.0, 2: 12.0}.items():
        known.learning.versions[version] = LearningFigures(groups=2, differed=1, answers=16, reward_sum=rewards, cut=4)
    known.taught_nothing = 12
    known.counts.update(tasks=40, responses=310, rewards=310, groups=38, batches=2, adapters=6)
    known.places.update({"trained": 32, "left out": 5, "waiting": 3})
    known.reasons.update(zero_variance=4, stale=1)
    known.versions = known.batches = 2
    return known


def result(progress: Progress, **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"loop_s": 61.26, "data_dir": Path("demo"), "peak_bytes": {"kafka": 340}}
    return report.summarize(progress, **whole, ending=report.LoopEnding(**changes))


def shown(progress: Progress, **changes: Any) -> str:
    out = io.StringIO()
    config = Path("demo/streamward.toml")
    report.show(
        result(progress, **changes), progress, Console(file=out, width=100, markup=False), config, DemoOptions()
    )
    return out.getvalue()


def test_the_report_is_json_and_has_what_a_script_asks_for(progress: Progress) -> None:
    assert json.loads(json.dumps(result(progress))) == {
        "held_out": [{"version": 0, "exact": 0.0, "n": 35}, {"version": 2, "exact": 0.9143, "n": 35}],
        "train_reward": [
            {"version": version, "reward": mean, "n": 16, "groups": 2, "differed": 1, "cut": 4, "distinct": 0}
            for version, mean in enumerate((0.125, 0.5, 0.75))
        ],
        "trained_on": 32,
        "taught_nothing": 12,
        "adapters": 2,
        "responses": 310,
        "groups": 38,
        "batches": 2,
        "loop_s": 61.3,
        "data_dir": "demo",
        "bootstrap": "127.0.0.1:21000",
        "peak_bytes": {"kafka": 340},
        "interrupted": False,
        "finished": True,
        "failure": None,
    }


def test_the_report_is_written_with_its_plot(progress: Progress, tmp_path: Path) -> None:
    report.write(result(progress), progress, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == result(progress)
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_any_score_has_a_report_and_no_plot(progress: Progress, tmp_path: Path) -> None:
    progress.held_out = {}
    folder = tmp_path / "scripted"
    folder.mkdir()
    report.write(result(progress), progress, folder)
    assert [file.name for file in folder.iterdir()] == ["report.json"]
    assert "Held-out score" not in shown(progress) and "learning.png" not in shown(progress)


def test_without_held_out_questions_the_table_has_the_reward_of_each_version_that_answered(progress: Progress) -> None:
    progress.held_out = {}
    rows = [line.split() for line in shown(progress).splitlines() if line.strip().startswith("v")]
    assert [row[:3] for row in rows[1:]] == [["v0", "0.12", "1"], ["v1", "0.50", "1"], ["v2", "0.75", "1"]]


def test_scores_stand_by_version_with_the_reward_of_what_the_version_answered(progress: Progress) -> None:
    rows = [line.split() for line in shown(progress).splitlines() if line.strip().startswith("v")]
    assert [row[:9] for row in rows if row[0] != "version"] == [
        ["v0", "0.00", "0.10", "35", "0.12", "1", "of", "2", "25%"],
        ["v2", "0.91", "0.93", "35", "0.75", "1", "of", "2", "25%"],
    ]


def test_every_topic_with_records_stands_with_their_number(progress: Progress) -> None:
    text = shown(progress)
    for label, records in {"tasks": 40, "responses": 310, "groups": 38, "batches": 2}.items():
        assert any(line.split() == [f"streamward.{label}", str(records)] for line in text.splitlines()), label
    assert "dead-letters" not in text


def test_tasks_that_left_without_training_stand_with_their_reasons(progress: Progress) -> None:
    said = " ".join(shown(progress).split())
    assert "Train tasks: 32 trained on, 12 of them taught nothing, 5 left out (4 zero_variance, 1 stale)" in said


def test_a_scorer_that_is_still_paused_is_named_below_the_tables(progress: Progress) -> None:
    error = PAUSED.format(
        scorer="caps:caps", last="exception: it raised", cause="It failed 20 times in a row", pause_s=30
    )
    record = Record(Coordinates("streamward.responses", 0, 0), 1, b"k", b"")
    letter = encode(dead_letter(record, stage="scoring", reason=PAUSED_REASON, error=error))
    progress.fold(Record(Coordinates("streamward.dead-letters", 0, 0), 1, b"k", letter))
    said = " ".join(shown(progress).split())
    assert "5 left out (4 zero_variance, 1 stale)" in said and "scoring: caps:caps is paused: exception" in said


def test_it_says_since_when_held_out_scores_are_flat_and_what_is_answered_instead(
    progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "beyond chance" not in shown(progress), "it has learned until the end"
    progress.held_out = {
        version: HeldOut(version, exact, exact, 20, low)
        for version, exact, low in ((0, 0.0, 0.0), (4, 0.4, 0.22), (8, 0.45, 0.26))
    }
    assert "beyond chance" not in shown(progress), "one look is not many"
    progress.held_out[12] = HeldOut(12, 0.4, 0.4, 20, 0.22)
    monkeypatch.setattr(progress.held_out_answers, "commonest_wrong", lambda: [("[/b] 2019", 7)])
    said = " ".join(shown(progress).split())
    assert (
        "no version is better beyond chance than v4 (0.40); v12 has 0.40. Its commonest wrong answers: 7 × '[/b] 2019'."
        in said
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"interrupted": True, "finished": False}, "Stopped."), ({"finished": False}, "The time is over (--minutes).")],
)
def test_a_run_that_did_not_finish_says_why_and_that_it_can_be_resumed(
    progress: Progress, changes: dict[str, Any], says: str
) -> None:
    assert f"{says} Everything is in the log: run the same command again to resume." in shown(progress, **changes)
    assert "again to resume" not in shown(progress)


def test_the_next_commands_are_for_the_settings_of_this_run(progress: Progress, config: Path) -> None:
    assert f"  streamward --config {config} adapters list" in shown(progress).splitlines()
    leave_settings(config)
    assert "  streamward adapters list" in shown(progress).splitlines()
    assert "./streamward.toml now has these settings" in shown(progress)


def test_the_next_commands_call_the_program_as_it_was_called(
    progress: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [".venv/bin/streamward", "demo"])
    assert "  .venv/bin/streamward demo --steps 30" in shown(progress).splitlines()
    program = tmp_path / "streamward"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(program), "demo"])
    assert "  streamward demo --steps 30" in shown(progress).splitlines()


def test_the_next_commands_exist_and_none_of_them_waits_for_records_that_nobody_writes(progress: Progress) -> None:
    commands = [
        line.split()
        for line in shown(progress).partition("Try next:")[2].splitlines()
        if "streamward --config " in line
    ]
    for _, _, _, *words in commands:
        assert " ".join(words).startswith(parsed(words))
        assert words[:2] != ["events", "tail"] or "--until-end" in words
