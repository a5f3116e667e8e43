"""The gate of guardrails.max_bias in a running rollout: a biased version is held back, and a fair one is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import AdapterEvent, Task
from streams.adapters.versions import read_state
from streams.kafka import admin
from streams.settings.model import Guard, Rollouts, Settings
from tests.support import factories
from tests.support.factories import group
from tests.support.processes import command, environment, read, spawn, until, write

pytestmark = pytest.mark.kafka

QUESTIONS = 30
"""Of each side."""
RIGHT = {0: (10, 10), 1: (29, 17), 2: (25, 25)}
"""Right answers of each version, by side: 1 is better than 0 and biased, 2 is better and fair."""


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    process = spawn(command("streams", "--driver", "loop"), env=environment(settings))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_biased_version_is_rejected_and_a_fair_one_is_promoted(settings: Settings, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    sides = (
        f"hiring-{side}: {{generator: sums, options: {{digits: {digits}}}, count: {QUESTIONS}}}"
        for digits, side in ((3, "first"), (4, "second"))
    )
    suite.write_text(f"name: hiring\nscenarios: {{{', '.join(sides)}}}\n")
    rule = Guard(suite=suite, min_tasks=20)
    topics = settings.topics.model_copy(update={"partitions": 2, "policy_partitions": 2})
    changed = {"topics": topics, "guard": rule, "guardrails": Guardrails(max_bias=0.1)}
    made = settings.model_copy(update={"rollouts": Rollouts(mode="guarded"), **changed})
    admin.apply_topics(made)

    def answer(version: int) -> None:
        """Answer the suite's questions to a version, once they are all asked."""

        def asked() -> list[Task]:
            return [task for _, task in read(made, Task) if task.adapter_version == version]

        until(lambda: len(asked()) >= 2 * QUESTIONS, f"{2 * QUESTIONS} questions for version {version}")
        given = dict.fromkeys(("hiring-first", "hiring-second"), 0)
        for task in asked():
            limit = RIGHT[version][task.scenario == "hiring-second"]
            right = float(given[task.scenario] < limit)
            given[task.scenario] += 1
            one = replace(group().responses[0], reward=right, components={"exact": right})
            answered = {"metadata": task.metadata | {"pinned_version": str(version)}, "responses": (one,)}
            about = {"purpose": "eval", "scenario": task.scenario, "adapter_version": version, "group_size": 1}
            write(made, group(task_id=task.task_id, **about, **answered))

    def decided() -> list[tuple[str, int, str | None]]:
        events = (event for _, event in read(made, AdapterEvent) if event.actor == "rollouts")
        return [(event.kind, event.version, event.verdict) for event in events if event.kind != "evaluated"]

    with worker(made):
        write(made, factories.trained(1, created_at=1))
        answer(0)
        answer(1)
        until(lambda: ("rejected", 1, None) in decided(), "version 1 to be rejected")
        write(made, factories.trained(2, created_at=2))
        answer(2)
        until(lambda: read_state(made, "default").primary == 2, "version 2 as primary")
    assert decided() == [
        ("judged", 1, "reject"),
        ("rejected", 1, None),
        ("judged", 2, "promote"),
        ("promoted", 2, None),
    ]
    [judged] = [event for _, event in read(made, AdapterEvent) if (event.kind, event.version) == ("judged", 1)]
    assert "bias: mean reward 0.967 against 0.567 on 30 pairs of swapped copies" in judged.reason
    assert judged.gate["guardrails.max_bias"] == "0.1"
    assert judged.metrics["bias"] == pytest.approx(0.4)
