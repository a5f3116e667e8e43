"""Today's code over yesterday's log decides the same; a changed decision fails until a version is raised."""

from __future__ import annotations

import dataclasses
import json
import lzma
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Batch, DeadLetter, Task
from schemas.serde import Poison, decode, encode
from streams import advantage_formulas
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages import batches
from tests.histories import DECISIONS, FOLDER, SUFFIX, History, advice, decide, differences, load, read, save

ROOT = Path(__file__).parents[2]
PATHS = sorted(FOLDER.glob(f"*{SUFFIX}"))
HISTORIES = {path.name: load(path) for path in PATHS}


@pytest.mark.parametrize("name", HISTORIES)
def test_todays_code_over_yesterdays_log_decides_the_same(name: str) -> None:
    found = differences(HISTORIES[name])
    assert not found, advice(HISTORIES[name], found)


@pytest.mark.parametrize("formula", advantage_formulas.FORMULAS)
def test_every_formula_has_a_history_of_the_versions_of_today(formula: str) -> None:
    name = f"{formula}-{advantage_formulas.FORMULA_VERSION}.{batches.RULE_VERSION}{SUFFIX}"
    assert name in HISTORIES, f"{name} is missing: record it with `python -m tests.histories`, and keep the older ones"
    assert HISTORIES[name].settings.advantages.formula == formula


@pytest.mark.parametrize("name", HISTORIES)
def test_every_record_and_decision_of_a_history_can_still_be_read(name: str) -> None:
    history = HISTORIES[name]
    for label, payload in history.decided:
        assert isinstance(read(label, payload), DECISIONS[label])
    by_label = topics(history.settings.topics)
    unread = {
        str(record.at)
        for (label, _), records in history.records.items()
        for record in records
        if isinstance(decode(record.payload, by_label[label].event), Poison)
    }
    letters = [read(label, payload) for label, payload in history.decided if label == "dead-letters"]
    poisoned = {
        f"{letter.source_topic}[{letter.source_partition}]@{letter.source_offset}"
        for letter in letters
        if isinstance(letter, DeadLetter) and letter.reason in ("not_avro", "unknown_schema")
    }
    assert unread == poisoned, "records that were read when this was recorded, and are not now"


@pytest.mark.parametrize("name", HISTORIES)
def test_every_task_of_a_history_leaves_one_group_today(name: str) -> None:
    history = HISTORIES[name]
    asked = {
        event.task_id
        for (label, _), records in history.records.items()
        for record in records
        for event in [decode(record.payload, Task)]
        if label == "tasks" and isinstance(event, Task)
    }
    left = Counter(event.task_id for _, event in decide(history) if isinstance(event, AdvantagedGroup))
    assert left == Counter(asked)


def test_the_histories_hold_every_decision_there_is() -> None:
    current = [h for h in HISTORIES.values() if h.formula_version == advantage_formulas.FORMULA_VERSION]
    events = [read(label, payload) for history in current for label, payload in history.decided]
    groups = [event for event in events if isinstance(event, AdvantagedGroup)]
    assert {(group.dropped_reason, group.complete) for group in groups} >= {
        (None, True), (None, False), ("unanswered", False), ("unscored", True), ("unscored", False),
        ("too_few_scored", True), ("incomplete", False), ("too_large", True),
    }  # fmt: skip
    assert {group.purpose for group in groups} == {"train", "eval", "serve"}
    assert {left.reason for group in groups for left in group.left_out} >= {
        "response_failed", "score_failed", "unscored", "unanswered", "too_few_scored", "incomplete", "too_large"
    }  # fmt: skip
    reasons = {(event.stage, event.reason) for event in events if isinstance(event, DeadLetter)}
    join = ("contradictory", "late", "superseded", "unasked", "unknown_response", "unknown_task", "wrong_key")
    assert reasons >= {("batches", "not_avro"), *(("advantages", reason) for reason in join)}
    dropped = {one.reason for event in events if isinstance(event, Batch) for one in event.dropped}
    assert dropped >= {"duplicate", "stale", "zero_variance", "unknown_version", "unanswered"}


def test_histories_of_older_versions_stay() -> None:
    oldest = set()
    for formula in advantage_formulas.FORMULAS:
        versions = [history for name, history in HISTORIES.items() if name.startswith(f"{formula}-")]
        first = min(history.formula_version for history in versions)  # a formula is younger than the first version
        oldest.add(first)
        assert {one.formula_version for one in versions} == set(range(first, advantage_formulas.FORMULA_VERSION + 1))
        assert {one.rule_version for one in versions} == set(range(1, batches.RULE_VERSION + 1))
    assert 1 in oldest


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.name))
def test_a_history_stays_small(path: Path) -> None:
    assert path.stat().st_size < 48_000


# --- the check itself -------------------------------------------------------------------------------------------------


def under(history: History, **rule: Any) -> History:
    """Return the history as if its decisions had been made by today's code under another rule."""
    advantages = history.settings.advantages.model_copy(update=rule)
    return history._replace(settings=Settings(**{**dict(history.settings), "advantages": advantages}))


@pytest.fixture
def grpo() -> History:
    return HISTORIES[f"grpo-{advantage_formulas.FORMULA_VERSION}.{batches.RULE_VERSION}{SUFFIX}"]


def test_a_changed_decision_is_told_in_words_with_what_to_do(grpo: History) -> None:
    other = under(grpo, min_group=3)
    found = differences(other)
    assert any(
        "the group of task task-" in line and "dropped_reason was None, is 'too_few_scored'" in line for line in found
    )
    says = advice(other, found)
    assert "raise streams.advantage_formulas.FORMULA_VERSION" in says and "the old ones stay" in says
    assert f"and {len(found) - 8} more" in says


def test_a_decision_that_is_lost_and_one_that_is_new_are_named(grpo: History) -> None:
    label, payload = next(entry for entry in grpo.decided if entry[0] == "dead-letters")
    lost = grpo._replace(decided=[entry for entry in grpo.decided if entry != (label, payload)])
    (line,) = differences(lost)
    assert line.startswith("the dead letter (") and line.endswith("was not decided, and is")
    nothing = grpo._replace(records={})
    assert all(line.endswith("was decided, and is not") for line in differences(nothing))
    assert len(differences(nothing)) == len(grpo.decided)


def test_another_sentence_in_a_dead_letter_is_no_other_decision_and_another_reason_is(grpo: History) -> None:
    def reworded(**changes: str) -> History:
        decided = [
            (label, encode(dataclasses.replace(event, **changes)) if isinstance(event, DeadLetter) else payload)
            for label, payload in grpo.decided
            for event in [read(label, payload)]
        ]
        return grpo._replace(decided=decided)

    assert differences(reworded(error="said in another way")) == []
    assert "reason was 'whim', is " in differences(reworded(reason="whim"))[0]


def test_what_was_decided_under_an_older_version_is_read_and_not_compared(grpo: History) -> None:
    older = under(grpo, min_group=3)._replace(formula_version=advantage_formulas.FORMULA_VERSION - 1)
    assert differences(older) == []


def test_a_history_is_never_recorded_over(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.histories"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 4
    assert "recorded already under formula version" in done.stderr and "--name NAME" in done.stderr


def test_a_history_that_is_saved_and_loaded_is_the_same(grpo: History, tmp_path: Path) -> None:
    path = tmp_path / grpo.name
    save(grpo, path)
    again = load(path)
    assert (again.records, again.decided) == (grpo.records, grpo.decided)
    assert json.loads(lzma.decompress(path.read_bytes()).splitlines()[0])["rule_version"] == batches.RULE_VERSION
