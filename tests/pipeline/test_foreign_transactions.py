"""Tasks and rewards that a program of somebody else writes in transactions: aborted, committed, and left open.

foreign program ──► transactions ──► policy, streams ──► groups ──► audit, and a recount without our code
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.commands import invoke
from tests.support.log.foreign_program import ForeignProgram, reward, task
from tests.support.processes import running, until

pytestmark = pytest.mark.kafka

TASKS = 6


@pytest.mark.parametrize("driver", ["faust", "loop"])
def test_a_log_with_transactions_comes_to_what_the_audit_says(made: Settings, tmp_path: Path, driver: str) -> None:
    policy = made.policy.model_copy(update={"engine": "scripted", "script": '{"accuracy": 0.5}'})
    settings = made.model_copy(update={"policy": policy, "worker": made.worker.model_copy(update={"driver": driver})})
    program = ForeignProgram(settings.kafka.bootstrap, settings.topics.prefix, "program")
    late = ForeignProgram(settings.kafka.bootstrap, settings.topics.prefix, "late")
    program.begin(task("Aborted.") for _ in range(3))
    program.abort()
    program.begin(task(f"Say {number}.") for number in range(TASKS))
    program.commit()
    with running(settings, tmp_path, "policy", "streams"):
        until(lambda: len(program.read("responses")) == 2 * TASKS, "every answer", folder=tmp_path)
        late.begin([task("Not yet.")])
        program.begin(reward(response, 0.25) for response in program.read("responses"))
        program.abort()
        program.begin(reward(response, 1.0) for response in program.read("responses"))
        program.commit()
        until(lambda: len(program.read("groups")) == TASKS, "a group for every task", folder=tmp_path)
        assert counts(settings) == program.recount()
        assert [row["topic"] for row in said(settings, "status")["open_transactions"]] == [made.topics.prefix + "tasks"]
        late.commit()
        until(lambda: len(program.read("responses")) == 2 * TASKS + 2, "answers to the late task", folder=tmp_path)
        late.begin(reward(response, 1.0) for response in program.read("responses"))  # most for a second time
        late.commit()
        until(lambda: len(program.read("groups")) == TASKS + 1, "the late task's group", folder=tmp_path)
    recount = program.recount()
    assert recount["tasks"] == TASKS + 1 and recount["responses"] == 2 * TASKS + 2
    assert counts(settings) == recount
    assert admin.open_transactions(settings, ["tasks", "rewards"]) == []


def counts(settings: Settings) -> dict[str, int]:
    """Return what the audit counts; it must balance, and call nothing lost, doubled or phantom."""
    audit = said(settings, "audit")
    assert (audit["balanced"], audit["lost"], audit["phantom"], audit["dead_letters"]) == (True, [], [], {}), audit
    return {name: audit[name] for name in ("tasks", "responses", "rewards", "groups")}


def said(settings: Settings, name: str) -> dict[str, Any]:
    result = invoke(settings, name, "--output", "json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer
