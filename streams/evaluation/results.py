"""Results of a version on the tasks of a suite.

    groups of pinned eval tasks ──► one outcome per task ──► the suite is complete ──► adapters (evaluated)

An eval task belongs to a suite (`metadata["suite"]` of `metadata["suite_size"]` tasks, of which it is number
`metadata["suite_index"]`) and is pinned to a version. Each task leaves one group, so a suite is done once that many
different tasks have groups. A response without a score counts as failed and is in no mean: a missing reward is missing,
never 0.

    n, failed             scored responses; slots without a score, and all slots of a task that another version answered
    success, exact        share of right answers: two names for one figure. The task's metadata decides
                          (`success_reward`, the least reward), else what the environment says, else 1.0 from source
                          `exact`, else a reward of 1.0
    mean_reward, tokens, latency_ms
    NAME_low, NAME_high   interval of success (Wilson) and of mean_reward (Student's t), at 95 %
    scenario.NAME.…       n, success and mean_reward of one scenario

Means are over tasks, of the mean over each task's scored responses: a task counts once, however many responses it has.

A suite without `suite_index` gets metrics, but no outcomes: its tasks cannot be matched with another version's. The row
holds an outcome per task until the suite is done, and is rewritten for each task: suites.py has the resulting limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from schemas.conventions import PINNED
from schemas.events import AdapterEvent, AdvantagedGroup, GroupResponse, Outcome, derive_id
from streams.errors import ContradictoryEvent
from streams.evaluation import intervals
from streams.evaluation.suite import SUCCESS_REWARD
from streams.worker.table_rows import pack, unpack

STAGE = "rollouts"
ROW_VERSION = 4
DUST = 1e-6
"""Tolerance for rounding in a sum of weights: 0.7 + 0.2 + 0.1 is less than 1."""


class TaskResult(NamedTuple):
    """The sums over one task's responses: an entry of the row."""

    scenario: str
    slots: int
    n: int = 0
    """Scored responses."""
    right: int = 0
    reward: float = 0.0
    tokens: int = 0
    latency_ms: float = 0.0
    prompt_tokens: int = 0
    """Tokens that the policy read: prompts, and tool results."""
    sampled_tokens: int = 0
    failed_tools: int = 0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class SuiteResults:
    """The results so far of one suite on one version."""

    size: int
    tasks: Mapping[str, TaskResult] = field(default_factory=dict)
    """Outcomes by index, or by short task id without one. Empty again once the suite is done."""
    last_at: int = 0
    done: bool = False


def suite_key(group: AdvantagedGroup) -> bytes | None:
    """Return the key of the suite that `group` counts for, or None. Raises ContradictoryEvent if it names a suite but
    no version.
    """
    if group.purpose != "eval" or "suite" not in group.metadata:
        return None
    return "\x1f".join((group.policy, group.metadata["suite"], str(_version_of(group)))).encode()


def count(suite: SuiteResults | None, group: AdvantagedGroup) -> tuple[SuiteResults, Sequence[AdapterEvent]]:
    """Return the suite after `group`, which `suite_key` gave a key, and its result if that was the last one.

    Raises ContradictoryEvent if the group's suite_size or suite_index is not a count, the size differs from the suite's
    first one, the index is not below it, or its success_reward is not a number.
    """
    size = _count(group, "suite_size")
    suite = suite or SuiteResults(size=size)
    if size != suite.size:
        raise ContradictoryEvent(
            f"task {group.task_id} says suite {group.metadata['suite']!r} has {size} tasks, but it began with "
            f"{suite.size}. Give another set of tasks another suite name"
        )
    task = _task(group, size)
    if suite.done or task in suite.tasks:
        return suite, ()
    suite = replace(
        suite, tasks={**suite.tasks, task: _task_result(group)}, last_at=max(suite.last_at, group.created_at)
    )
    if len(suite.tasks) < suite.size:
        return suite, ()
    return replace(suite, tasks={}, done=True), (_result(suite, group),)


def _task(group: AdvantagedGroup, size: int) -> str:
    """Return the key of a task within its suite."""
    if "suite_index" not in group.metadata:
        return short(group.task_id)
    index = _count(group, "suite_index")
    if index >= size:
        raise ContradictoryEvent(
            f"task {group.task_id} is number {index} of suite {group.metadata['suite']!r}, which has {size} tasks; "
            f"expected 0 to {size - 1}"
        )
    return str(index)


def _task_result(group: AdvantagedGroup) -> TaskResult:
    mismatch = group.adapter_version not in (-1, _version_of(group))
    responses = () if mismatch else group.responses
    least = _least_reward(group)
    return TaskResult(
        scenario=group.scenario,
        slots=group.group_size,
        n=len(responses),
        right=sum(is_right(response, least) for response in responses),
        reward=math.fsum(response.reward for response in responses),
        tokens=sum(response.completion_tokens for response in responses),
        # rounded, or this value would take more of the row than everything else
        latency_ms=round(math.fsum(response.latency_ms for response in responses), 1),
        prompt_tokens=sum(group.tokens_read(response) for response in responses),
        sampled_tokens=sum(response.tokens_written for response in responses),
        failed_tools=sum(response.failed_tools for response in responses),
        recoveries=sum(response.recoveries for response in responses),
    )


def is_right(response: GroupResponse, least: float | None = None) -> bool:
    """Return whether a scored response is right; `least` is the minimum reward of a right one, if the task sets it."""
    if least is not None:
        return response.reward >= least - DUST
    if response.success is not None:
        return response.success
    return abs(response.components.get("exact", response.reward) - 1.0) <= DUST


def _least_reward(group: AdvantagedGroup) -> float | None:
    """Return the minimum reward of a right answer, if the task sets it."""
    text = group.metadata.get(SUCCESS_REWARD)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise ContradictoryEvent(
            f'task {group.task_id} of suite {group.metadata["suite"]!r} has metadata["{SUCCESS_REWARD}"] {text!r}; '
            "expected the least reward of a right answer, e.g. 0.8"
        ) from None


# --- the result -------------------------------------------------------------------------------------------------------


def _result(suite: SuiteResults, group: AdvantagedGroup) -> AdapterEvent:
    name, version = group.metadata["suite"], _version_of(group)
    numbered = all(task.isdecimal() for task in suite.tasks)
    entries = sorted(suite.tasks.items(), key=lambda entry: (len(entry[0]), entry[0]))
    return AdapterEvent(
        event_id=derive_id(group.policy, version, "evaluated", name),
        policy=group.policy,
        created_at=suite.last_at,
        version=version,
        kind="evaluated",
        actor=STAGE,
        reason=f"all {suite.size} tasks of the suite are in",
        suite=name,
        metrics=_metrics([result for _, result in entries]),
        outcomes=tuple(_outcome(int(task), result) for task, result in entries) if numbered else (),
    )


def _outcome(index: int, result: TaskResult) -> Outcome:
    n = result.n
    return Outcome(
        index=index,
        scenario=result.scenario,
        success=result.right / n if n else None,
        reward=result.reward / n if n else None,
        tokens=result.tokens / n if n else None,
        prompt_tokens=result.prompt_tokens / n if n else None,
        sampled_tokens=result.sampled_tokens / n if n else None,
        latency_ms=result.latency_ms / n if n else None,
        failed=result.slots - n,
        failed_tools=result.failed_tools,
        recoveries=result.recoveries,
    )


def _metrics(results: Sequence[TaskResult]) -> dict[str, float]:
    """Return the metrics of all tasks and of each scenario."""
    metrics = _means(results)
    rewards = [result.reward / result.n for result in results if result.n]
    if rewards:
        low, high = intervals.wilson(metrics["success"], len(rewards))
        metrics |= {"success_low": low, "success_high": high}
    if len(rewards) > 1:
        estimate = intervals.mean(rewards)
        metrics |= {"mean_reward_low": estimate.low, "mean_reward_high": estimate.high}
    for name in sorted({result.scenario for result in results}):
        means = _means([result for result in results if result.scenario == name])
        metrics |= {f"scenario.{name}.{key}": means[key] for key in ("n", "success", "mean_reward") if key in means}
    return metrics


def _means(results: Sequence[TaskResult]) -> dict[str, float]:
    n = sum(result.n for result in results)
    metrics = {"n": float(n), "failed": float(sum(result.slots - result.n for result in results))}
    scored = [result for result in results if result.n]
    if not scored:
        return metrics
    success = _mean([result.right / result.n for result in scored])
    metrics |= {
        "exact": success,
        "success": success,
        "mean_reward": _mean([result.reward / result.n for result in scored]),
    }
    metrics["tokens"] = _mean([result.tokens / result.n for result in scored])
    metrics["latency_ms"] = _mean([result.latency_ms / result.n for result in scored])
    return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _version_of(group: AdvantagedGroup) -> int:
    if PINNED not in group.metadata:
        raise ContradictoryEvent(
            f"task {group.task_id} belongs to suite {group.metadata['suite']!r} but is pinned to no version, so its "
            "answer says nothing about one; set adapter_version on every task of a suite"
        )
    return _count(group, PINNED)


def _count(group: AdvantagedGroup, name: str) -> int:
    text = group.metadata.get(name, "")
    if not text.isdecimal():
        raise ContradictoryEvent(
            f'task {group.task_id} of suite {group.metadata["suite"]!r} has metadata["{name}"] {text!r}; expected a '
            "whole number, e.g. 64"
        )
    return int(text)


# --- the table row ----------------------------------------------------------------------------------------------------


def dump(suite: SuiteResults) -> bytes:
    """Return the table row of a suite."""
    return pack(ROW_VERSION, {column.name: getattr(suite, column.name) for column in fields(suite)})


def load(row: bytes | None) -> SuiteResults | None:
    """Return the suite in a table row; None for no row. Raises ValueError for a row of another version."""
    if row is None:
        return None
    data = unpack(row, ROW_VERSION)
    tasks = {task: TaskResult(*values) for task, values in data["tasks"].items()}
    return SuiteResults(**data | {"tasks": tasks})


def short(any_id: str) -> str:
    """Return 48 bits, enough to identify an id among the decisions on a policy or the tasks of a suite.

    They are bits of its hash: users may choose task ids themselves, and those often begin alike.
    """
    return derive_id(any_id)[:13]
