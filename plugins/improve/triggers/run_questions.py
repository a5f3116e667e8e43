"""The questions of runs, for a job to ask again.

    a crossing's ranges ──► promoted runs, or all that were served ──► their tasks ──► questions with their verifiers

Only verifiable tasks are trained on: a task without a verifier is left out, since a score that is checked against
nothing drifts with the policy that it trains. Runs without a task are left out, too, and episodes, since their question
is a seed. An agent's task without scorers gets those that the agent was registered with when the rule was crossed. One
job has one agent and one set of scorers: the most frequent ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from plugins.agents.registry.registration import registrations
from plugins.improve.triggers.promoted_runs import PromotedRuns
from plugins.improve.triggers.rule import RetrainRule
from schemas import json_text
from schemas.events import AdvantagedGroup, CurationEvent, JobQuestion, RewardSource, Task, TriggerEvent
from schemas.serde import Poison
from streams.errors import NotFoundError
from streams.kafka.admin import offsets
from streams.kafka.reader import read
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.tasks.submit import records_of


@dataclass(frozen=True, slots=True)
class JobQuestions:
    """What a job asks, and what it leaves out."""

    agent: str | None
    max_turns: int | None
    reward_sources: tuple[RewardSource, ...]
    questions: tuple[JobQuestion, ...]
    left_out: dict[str, int] = field(default_factory=dict)
    """Runs, by reason."""


def questions_of(crossing: TriggerEvent, rule: RetrainRule, settings: Settings, limit: int) -> JobQuestions:
    """Return the questions of a crossing's runs, the newest first; always the same for the same crossing.

    Raises NotFoundError if none can be trained on, LogError if the broker does not answer.
    """
    task_ids = list(dict.fromkeys(_task_ids(crossing, rule, settings)))
    tasks = _tasks(settings, task_ids)
    rewards = rewards_at(settings, crossing.created_at)
    run_questions = choose((tasks[task_id] for task_id in task_ids if task_id in tasks), limit, rewards)
    left_out = run_questions.left_out | {"no task": len(task_ids) - len(tasks)}
    if not run_questions.questions:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count) or "there is no run"
        raise NotFoundError(
            f"of {len(task_ids)} runs no question can be trained on: {reasons}. Submit tasks with an "
            "answer that they are checked against"
        )
    return run_questions


RewardsOfAgent = Callable[[str], tuple[RewardSource, ...]]
"""The reward sources of an agent's tasks that name none."""


def rewards_at(settings: Settings, at_ms: int) -> RewardsOfAgent:
    """Return the function that gives what an agent was registered with at a time; its first call reads the log."""
    registered = cache(lambda: registrations(settings))

    def rewards_of_agent(agent_id: str) -> tuple[RewardSource, ...]:
        events = [event for event in registered().get(agent_id, ()) if event.created_at <= at_ms]
        return events[-1].reward_sources if events and events[-1].kind == "registered" else ()

    return rewards_of_agent


def choose(tasks: Iterable[Task], limit: int, rewards_of_agent: RewardsOfAgent = lambda _: ()) -> JobQuestions:
    """Return the questions of these tasks, each prompt once, at most so many."""
    usable: list[Task] = []
    left_out: Counter[str] = Counter()
    for task in tasks:
        if not task.reward_sources and task.agent is not None:
            task = replace(task, reward_sources=rewards_of_agent(task.agent))
        reason = unusable(task)
        if reason is None:
            usable.append(task)
        else:
            left_out[reason] += 1
    kinds = Counter((task.agent, task.max_turns, task.reward_sources) for task in usable)
    if not kinds:
        return JobQuestions(None, None, (), (), dict(left_out))
    kind = kinds.most_common(1)[0][0]
    questions: dict[str, JobQuestion] = {}
    for task in usable:
        if (task.agent, task.max_turns, task.reward_sources) != kind:
            left_out["of another agent or scorer"] += 1
        elif len(questions) < limit:
            query = task.messages[-1].content
            whole = task.messages if len(task.messages) > 1 else ()
            questions.setdefault(query, JobQuestion(query=query, verifier=task.verifier, messages=whole))
    return JobQuestions(*kind, tuple(questions.values()), dict(left_out))


def unusable(task: Task) -> str | None:
    """Return why a task's question cannot train; None if it can."""
    if task.environment is not None:
        return "an episode"
    if not task.reward_sources or not _checks_something(task.verifier):
        return "without a verifier"
    if not task.messages or task.messages[-1].role != "user" or not task.messages[-1].content:
        return "without a question at its end"
    return "with tools" if task.tools else None


def _checks_something(verifier: str) -> bool:
    try:
        value: Any = json_text.parse(verifier)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value)


# --- the log ----------------------------------------------------------------------------------------------------------


def _task_ids(crossing: TriggerEvent, rule: RetrainRule, settings: Settings) -> list[str]:
    """Return the tasks of the crossing's runs, the newest first."""
    shapes = topics(settings.topics)
    if crossing.signal == "promotable":
        promoted = PromotedRuns({(part.topic, part.partition): part.first for part in crossing.ranges})
        for record in _records(crossing, settings, "curation"):
            event = record.decode_placed(CurationEvent, shapes["curation"].partitions)
            if isinstance(event, Poison) or event.policy != rule.policy or rule.tenant not in (None, event.tenant):
                continue
            promoted.take(record.at, event)
        return promoted.task_ids()
    partitions = shapes["groups"].partitions
    groups = (record.decode_placed(AdvantagedGroup, partitions) for record in _records(crossing, settings, "groups"))
    task_ids = [
        group.task_id
        for group in groups
        if not isinstance(group, Poison)
        and (group.policy, group.purpose) == (rule.policy, rule.purpose)
        and rule.tenant in (None, group.tenant)
    ]
    return task_ids[::-1]


def _records(crossing: TriggerEvent, settings: Settings, label: str) -> Iterator[Record]:
    """Yield the records of a topic in the crossing's ranges; for verdicts, also those before."""
    name = topics(settings.topics)[label].name
    parts = {(part.topic, part.partition): part for part in crossing.ranges if part.topic == name}
    lows = {tp: low for tp, (low, _) in offsets(settings, [label]).items() if tp in parts}
    starts = {tp: low if label == "curation" else max(low, parts[tp].first) for tp, low in lows.items()}
    ends = {tp: parts[tp].next for tp in starts if parts[tp].next > starts[tp]}
    return read(settings, {tp: starts[tp] for tp in ends}, ends)


def _tasks(settings: Settings, task_ids: list[str]) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    partitions = topics(settings.topics)["tasks"].partitions
    for record in records_of(settings, task_ids):
        task = record.decode_placed(Task, partitions)
        if not isinstance(task, Poison):
            tasks.setdefault(task.task_id, task)
    return tasks
