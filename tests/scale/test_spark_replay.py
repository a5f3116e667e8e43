"""A replay on Spark writes the bytes of a replay on one machine; executors that are not as this one are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from streams.settings.model import Settings
from tests.skips import needs
from tests.support.log import spread_replay as spread
from tests.support.spark import environment

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
SPARK_PROMISED = "TEST_SPARK"


@pytest.fixture
def spark(tmp_path: Path) -> dict[str, str]:
    """What Spark needs in its environment."""
    try:
        return environment.variables(tmp_path)
    except environment.NoSpark as exc:
        assert os.environ.get(SPARK_PROMISED) != "1", f"Spark was promised, but there is no {exc}"
        pytest.skip(needs(str(exc), "make setup-spark && make test-spark"))


def run(settings: Settings, env: dict[str, str], cwd: Path, *more: str) -> spread.Ended:
    return spread.replayed(environment.PYTHON, settings, *more, env=env, cwd=cwd)


def test_every_byte_is_that_of_a_replay_on_one_machine(
    settings: Settings, spark: dict[str, str], tmp_path: Path
) -> None:
    source = spread.archived(settings)
    here = run(source, spark, tmp_path, "--source", "archive")
    assert here.code == 0, here.stderr
    expected = spread.taken(source)
    assert {label for label, rows in expected.items() if rows} >= {"groups", "dead-letters", "batches", "responses"}
    there = run(source, spark, tmp_path, "--on", "spark")
    assert there.code == 0, there.stderr
    assert spread.taken(source) == expected
    assert there.stdout == here.stdout


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        (spread.no_streamward, "cannot run Streamward: ModuleNotFoundError: No module named"),
        (spread.other_release, "so what it makes may have other bytes"),
        (spread.without_schema, "lacks the schema"),
    ],
)
def test_an_executor_that_is_not_as_this_process_is_refused_before_anything_is_written(
    settings: Settings, spark: dict[str, str], tmp_path: Path, executor: Callable[[Path], Path], says: str
) -> None:
    source = spread.archived(settings)
    python = tmp_path / "python"
    folder = executor(tmp_path / "elsewhere")
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {environment.PYTHON} "$@"\n', encoding="utf-8"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    done = run(source, {**spark, "PYSPARK_PYTHON": str(python)}, tmp_path, "--on", "spark")
    assert (done.code, says in done.stderr, "Nothing was written" in done.stderr) == (2, True, True), done.stderr
    assert spread.nothing_written(source)


def test_a_topic_that_was_never_archived_is_refused(settings: Settings, spark: dict[str, str], tmp_path: Path) -> None:
    source = spread.archived(settings)
    (spread.folder_of(source, "rewards")).rename(tmp_path / "gone")
    done = run(source, spark, tmp_path, "--on", "spark")
    assert (done.code, "does not hold" in done.stderr, "archive sync" in done.stderr) == (3, True, True), done.stderr
    assert spread.nothing_written(source)


def test_a_segment_that_was_changed_is_named_and_no_record_is_copied(
    settings: Settings, spark: dict[str, str], tmp_path: Path
) -> None:
    source = spread.archived(settings)
    spread.damage(source)
    done = run(source, spark, tmp_path, "--on", "spark")
    assert (done.code, "it was changed since it was written" in done.stderr) == (5, True), done.stderr
    assert not any(spread.taken(source).values())


def test_an_export_has_the_files_of_one_on_one_machine(
    settings: Settings, spark: dict[str, str], tmp_path: Path
) -> None:
    source = spread.archived(settings)
    here = spread.exported(environment.PYTHON, source, "here", "--source", "archive", env=spark, cwd=tmp_path)
    there = spread.exported(environment.PYTHON, source, "there", "--on", "spark", env=spark, cwd=tmp_path)
    assert (here.code, there.code) == (0, 0), here.stderr + there.stderr
    assert there.stdout.replace("there", "here") == here.stdout
    assert spread.files(tmp_path / "there") == spread.files(tmp_path / "here")
    assert len(spread.files(tmp_path / "here")["train.jsonl"]) > 1000
