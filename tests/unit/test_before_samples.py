"""What would keep submitted tasks from teaching is said before a sample of them is paid for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from schemas.events import RewardSource
from streams.arrow.file_rows import read_objects
from streams.cli.task_file import check_tasks, too_few_for_a_step
from streams.errors import JobRequestError
from streams.settings.load import load
from tests.support.factories import task

SETTINGS = load(env={}, overrides=["batches.groups=3", "policy.engine=scripted"])


def test_fewer_train_tasks_than_a_step_takes_are_counted_for_each_policy() -> None:
    tasks = [
        task(task_id=f"{policy}{n}", policy=policy) for policy, count in (("a", 3), ("b", 2)) for n in range(count)
    ]
    tasks += [task(task_id="e", policy="c", purpose="eval", group_size=1)]
    assert too_few_for_a_step(SETTINGS, tasks) == [
        "2 train tasks of b fill no training step of 3 groups (batches.groups): add tasks or --epochs, or set it to 2"
    ]


def test_a_scorer_that_cannot_be_loaded_is_said_when_tasks_are_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    check_tasks(
        SETTINGS, [task(task_id=str(n), reward_sources=(RewardSource(name="no_such:scorer"),)) for n in range(3)]
    )
    said = capsys.readouterr().err
    assert "scorer no_such:scorer" in said and "(unless the scoring agents run elsewhere)" in said
    check_tasks(SETTINGS, [task(task_id=str(n)) for n in range(3)])
    assert capsys.readouterr().err == ""


def test_questions_are_read_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("query,expected_outcome\n4 + 7 =,11\n1 + 1 =,\n")
    questions = [{"query": "4 + 7 =", "expected_outcome": "11"}, {"query": "1 + 1 ="}]
    with CliRunner().isolation():
        assert read_objects(tmp_path / "q.csv", "--queries", "training_queries") == questions
        (tmp_path / "q.csv").write_text("query\na,b\n")
        with pytest.raises(JobRequestError, match=r"q.csv:2: 2 cells, expected 1 as in the header \(query\)"):
            read_objects(tmp_path / "q.csv", "--queries", "training_queries")
