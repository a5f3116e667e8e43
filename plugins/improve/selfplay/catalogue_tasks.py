"""The tasks of one run of a catalogue.

    crossing, catalogue ──► questions, generated tasks, draws of a curriculum ──► tasks with ids of their own

A function of the crossing's event and of the catalogue that it names by digest: ids are derived from the catalogue, the
scheduled time (or the event, if a person started the run) and the question. So a run that is started twice, by two
schedulers or after a kill, has the same tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from plugins.improve.selfplay import curriculum
from plugins.improve.selfplay.catalogue import Catalogue, CatalogueScenario
from plugins.improve.selfplay.curriculum import CATALOGUE, CELL, SCENARIO
from schemas.conventions import SELFPLAY_RUN
from schemas.events import Message, RewardSource, Sampling, Task, TriggerEvent, derive_id
from streams.access.tenants.tenant_names import named
from streams.errors import SettingsError
from streams.scorers.scorer_check import unusable_scorer
from streams.settings.model import Settings
from streams.stages.tasks.generators import TaskSpec, generate
from streams.stages.tasks.task_problems import task_problems

CATEGORY, RUN = "selfplay_category", SELFPLAY_RUN
"""Metadata of its tasks, with those of curriculum.py."""


def tasks_of(crossing: TriggerEvent, catalogue: Catalogue) -> list[Task]:
    """Return the tasks of a run. Raises NotFoundError for an unknown generator, SettingsError for bad options."""
    return [
        _as_part_of(task, scenario, crossing, catalogue, text)
        for scenario in catalogue.scenarios
        for text, task in _questions(scenario, crossing, catalogue)
    ]


def check(tasks: list[Task], settings: Settings) -> None:
    """Raise SettingsError for a task that the log does not accept, or a scorer that cannot be loaded."""
    for task in tasks:
        if (problem := next(task_problems(task, settings.topics, settings.advantages.min_group), None)) is not None:
            raise SettingsError(f"scenario {task.scenario}: {task.messages[-1].content[:80]!r}: {problem}")
    sources = list(dict.fromkeys(source for task in tasks for source in task.reward_sources))
    if problem := unusable_scorer(settings.scoring, sources):
        raise SettingsError(f"reward_sources: {problem}")


def run_key(crossing: TriggerEvent) -> str:
    """Return what the ids of a run's tasks are derived from: its time, or its event."""
    return crossing.event_id if crossing.due_at is None else str(crossing.due_at)


def _questions(scenario: CatalogueScenario, crossing: TriggerEvent, catalogue: Catalogue) -> Iterator[tuple[str, Task]]:
    """Yield the tasks of a scenario, each with the text that its id is derived from."""
    if scenario.questions is not None:
        for question in scenario.questions:
            yield question.question, _question_task(question.question, question.expected, scenario, crossing, catalogue)
    elif scenario.curriculum is None:
        for task in _generator_tasks(scenario, crossing, catalogue, scenario.options, _seed(crossing, scenario.name)):
            yield f"{task.metadata['seed']}/{task.metadata['index']}", task
    else:
        yield from _curriculum_tasks(scenario, crossing, catalogue)


def _question_task(
    question: str, expected: Any, scenario: CatalogueScenario, crossing: TriggerEvent, catalogue: Catalogue
) -> Task:
    system = () if scenario.system is None else (Message(role="system", content=scenario.system),)
    sources = tuple(
        RewardSource(name=source.name, weight=source.weight, settings=json.dumps(source.settings))
        for source in catalogue.reward_sources
    )
    return Task(
        task_id="",  # `_as_part_of` gives it one
        created_at=crossing.created_at,
        policy=crossing.policy,
        purpose=catalogue.purpose,
        group_size=catalogue.group_size,
        sampling=Sampling(temperature=catalogue.temperature, max_tokens=catalogue.max_tokens),
        verifier="{}" if expected is None else json.dumps({"answer": expected}),
        reward_sources=() if expected is None and catalogue.purpose == "serve" else sources,
        messages=(*system, Message(role="user", content=question)),
    )


def _generator_tasks(
    scenario: CatalogueScenario, crossing: TriggerEvent, catalogue: Catalogue, options: Any, seed: int, count: int = 0
) -> Iterator[Task]:
    spec = TaskSpec(
        family=scenario.generator or "",
        count=count or scenario.count,
        seed=seed,
        purpose=catalogue.purpose,
        policy=crossing.policy,
        group_size=catalogue.group_size,
        options=options,
    )
    return generate(spec, now_ms=crossing.created_at)


def _curriculum_tasks(
    scenario: CatalogueScenario, crossing: TriggerEvent, catalogue: Catalogue
) -> Iterator[tuple[str, Task]]:
    """Yield the draws of a curriculum; a question that was drawn before is left out, as a cell of few may repeat."""
    part = scenario.curriculum
    if part is None:
        return
    success = curriculum.from_evidence(scenario.name, crossing.evidence)
    prompts: set[tuple[Message, ...]] = set()
    for draw in curriculum.draws(part, success, f"{crossing.event_id}/{scenario.name}", scenario.count):
        options = {**scenario.options, **draw.options}
        for task in _generator_tasks(scenario, crossing, catalogue, options, draw.seed, 1):
            if task.messages not in prompts:
                prompts.add(task.messages)
                recorded = {CELL: draw.name, "selfplay_success": f"{success.get(draw.name, 0.5):g}"}
                yield f"{draw.name}/{draw.seed}", replace(task, metadata={**task.metadata, **recorded})


def _as_part_of(
    task: Task, scenario: CatalogueScenario, crossing: TriggerEvent, catalogue: Catalogue, text: str
) -> Task:
    about = {CATALOGUE: catalogue.key, SCENARIO: scenario.name, CATEGORY: scenario.category, RUN: crossing.event_id}
    task_id = derive_id("selfplay", catalogue.digest, run_key(crossing), scenario.name, text)
    return replace(
        task,
        task_id=named(catalogue.tenant, task_id),
        metadata={**task.metadata, **about},
        scenario=scenario.name,
        tenant=catalogue.tenant,
        agent=task.agent if task.agent is not None or catalogue.agent is None else catalogue.agent,
    )


def _seed(crossing: TriggerEvent, scenario: str) -> int:
    """Return the seed of a generator in one run."""
    digest = hashlib.sha256(f"{run_key(crossing)}\x1f{scenario}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
