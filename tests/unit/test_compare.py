"""How runs beside TRL are counted: a kill's losses, lines of code, tables. `make compare` measures, never a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.events import Response
from tests.benchmarks.compare import compare_tables, demo_run, trl_run
from tests.benchmarks.compare.demo_run import DemoLog
from tests.benchmarks.compare.measured_run import MeasuredRun, read, write
from tests.support.factories import response

SPANS = [(0.0, 10.0), (10.0, 30.0)]


def event(kind: str, at: float, step: int, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "step": step, **fields}


def generation(at: float, step: int, question: int) -> list[dict[str, Any]]:
    """Return the events of two answers to a question, sampled in two seconds."""
    ids = [question, question]
    return [event("begun", at, step, ids=ids), event("sampled", at + 2, step, ids=ids, tokens=20)]


def test_without_a_checkpoint_all_that_was_sampled_before_the_kill_is_lost() -> None:
    before = [event("started", 0.5, 0), *generation(1, 0, 0), *generation(5, 1, 1), event("begun", 9, 2, ids=[2, 2])]
    after = [event("started", 11, 0), *generation(12, 0, 0), *generation(15, 1, 1), *generation(18, 2, 2)]
    lost = trl_run.losses([*before, *after, event("scoring", 25, 3)], SPANS)
    # two answers of two seconds, twice, and two that were being sampled for one second
    assert lost == {"trajectory_s": 10.0, "served_twice": 3, "never_trained": 0, "tokens_again": 40}


def test_with_a_checkpoint_a_step_only_the_open_generation_is_lost_and_a_question_that_is_skipped_is_counted() -> None:
    before = [event("started", 0.5, 0), *generation(1, 0, 0), event("begun", 8, 1, ids=[1, 1])]
    after = [event("started", 11, 1), *generation(12, 1, 2), event("scoring", 25, 2)]
    lost = trl_run.losses([*before, *after], SPANS)
    assert lost == {"trajectory_s": 4.0, "served_twice": 0, "never_trained": 0, "tokens_again": 0}
    skipped = trl_run.losses([*before, event("started", 11, 1), event("scoring", 25, 2)], SPANS)
    assert skipped["never_trained"] == 1


def test_the_clock_of_a_peer_stands_still_while_it_is_evaluated() -> None:
    run = MeasuredRun("trl-tuned", "sums", 0)
    scores = [event("scoring", 4, 1), event("scored", 7, 1, score=0.5), event("scoring", 9, 2)]
    trl_run.fill(run, [*generation(1, 0, 0), *scores, event("scored", 10, 2, score=0.9)], SPANS[:1])
    assert run.points == [(4.0, 1, 20, 0.5), (6.0, 2, 20, 0.9)]
    assert (run.evaluation_s, run.seconds, run.first(0.8)) == (4.0, 6.0, (6.0, 2, 20, 0.9))


def answer(at: float, task: str, slot: int) -> tuple[float, Response]:
    return at, response(task_id=task, slot=slot, group_size=8)


def test_what_the_demo_was_sampling_at_a_kill_counts_as_lost_and_as_asked_twice() -> None:
    whole = [answer(2.0, "a", slot) for slot in range(8)]
    log = DemoLog(answers=whole, sent=[1.0], step=2)
    lost = demo_run.losses(log, [5.0])
    assert (lost["trajectory_s"], lost["served_twice"], lost["tokens_again"]) == (8 * 3.0, 1, 0)
    twice = demo_run.losses(DemoLog(answers=[*whole, answer(9.0, "a", 0)], sent=[1.0], step=1), [5.0])
    assert (twice["trajectory_s"], twice["served_twice"]) == (0.0, 1)
    assert twice["tokens_again"] == whole[0][1].completion_tokens > 0


def test_lines_of_code_are_counted_without_docstrings_comments_and_blank_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('"""A docstring\nof two lines."""\n\n# a comment\nimport re\n\n\ndef f():\n    return re\n')
    assert trl_run.code_lines(script) == 3


def test_the_tables_have_the_newest_run_of_each_kind_and_stand_between_the_marks(tmp_path: Path) -> None:
    machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "python": "3"}
    lost = {"trajectory_s": 5.0, "served_twice": 1, "never_trained": 0, "tokens_again": 7}
    for seed, seconds, kills in ((0, 999.0, []), (0, 100.0, []), (1, 300.0, []), (0, 150.0, [30.0, 60.0])):
        points = [(seconds / 2, 1, 50, 0.85), (seconds, 2, 1000, 0.95)]
        run = MeasuredRun("streamward", "sums", seed, kills, points, seconds, lost=lost, machine=machine)
        write(run, tmp_path)
    write(MeasuredRun("trl-calculator", "calculator", 0, error="no | tools", machine=machine, lost=lost), tmp_path)
    page = tmp_path / "compare.md"
    page.write_text(f"before\n{compare_tables.BEGIN}\nold\n{compare_tables.END}\nafter\n")
    compare_tables.write(read(tmp_path), tmp_path)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| streamward (2 runs) | 100 | 200 | 50 | 1,000 | 0.95 |" in text
    assert "no / tools" in text and "999" not in text and "| 5 | 1 | 0 | 7 |" in text
    assert (tmp_path / "compare.png").exists() and (tmp_path / "compare-crash.png").exists()


def test_a_page_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "compare.md"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        compare_tables.write([], tmp_path)
    assert page.read_text() == "no marks\n"
