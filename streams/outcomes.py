"""How well a version did on the tasks of a suite: the count of its answers.

    groups of pinned eval tasks ──► count, once per task ──► all of the suite are in ──► adapters (evaluated)

An eval task belongs to a suite (`metadata["suite"]` of `metadata["suite_size"]` tasks) and is pinned to a version. Each
task leaves one group, so a suite is done when that many different tasks are in. What could not be scored is counted as
failed and is in no mean: a missing reward is missing, never 0.

Not covered: what follows from the result. That is the guard's business (streams/guard.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from schemas.events import AdapterEvent, AdvantagedGroup, derive_id
from streams.errors import ContradictoryEvent
from streams.rows import pack, unpack

STAGE = "rollouts"
ROW_VERSION = 1


@dataclass(frozen=True, slots=True)
class Suite:
    """What is known of one suite asked of one version."""

    size: int
    tasks: tuple[str, ...] = ()
    """Short ids of the tasks that are in; empty again once the suite is done."""
    n: int = 0
    """Scored responses."""
    exact: int = 0
    reward_sum: float = 0.0
    failed: int = 0
    """Slots without a score, and tasks that another version answered."""
    last_at: int = 0
    done: bool = False


def suite_key(group: AdvantagedGroup) -> bytes | None:
    """Return the key of the suite `group` counts for, or None if it counts for none.

    Raises ContradictoryEvent if it names a suite and no version.
    """
    if group.purpose != "eval" or "suite" not in group.metadata:
        return None
    return "\x1f".join((group.policy, group.metadata["suite"], str(_pinned(group)))).encode()


def count(suite: Suite | None, group: AdvantagedGroup) -> tuple[Suite, Sequence[AdapterEvent]]:
    """Return the suite after `group`, which `suite_key` gave a key, and its result if that was the last one.

    `exact` is the share of scored responses whose source "exact" gave 1.0 (without such a source: whose reward is 1.0).

    Raises ContradictoryEvent if the group's suite_size is no count, or not the one the suite began with.
    """
    size = _count(group, "suite_size")
    suite = suite or Suite(size=size)
    if size != suite.size:
        raise ContradictoryEvent(
            f"task {group.task_id} says suite {group.metadata['suite']!r} has {size} tasks, but it began with "
            f"{suite.size}. Give another set of questions another suite name"
        )
    if suite.done or short(group.task_id) in suite.tasks:
        return suite, ()
    mismatch = group.adapter_version not in (-1, _pinned(group))
    responses = () if mismatch else group.responses
    suite = replace(
        suite,
        tasks=(*suite.tasks, short(group.task_id)),
        n=suite.n + len(responses),
        exact=suite.exact + sum(response.components.get("exact", response.reward) == 1.0 for response in responses),
        reward_sum=suite.reward_sum + sum(response.reward for response in responses),
        failed=suite.failed + group.group_size - len(responses),
        last_at=max(suite.last_at, group.created_at),
    )
    if len(suite.tasks) < suite.size:
        return suite, ()
    return replace(suite, tasks=(), done=True), (_result(suite, group),)


def _result(suite: Suite, group: AdvantagedGroup) -> AdapterEvent:
    name, version = group.metadata["suite"], _pinned(group)
    metrics = {"n": float(suite.n), "failed": float(suite.failed)}
    if suite.n:
        metrics |= {"exact": suite.exact / suite.n, "mean_reward": suite.reward_sum / suite.n}
    return AdapterEvent(
        event_id=derive_id(group.policy, version, "evaluated", name),
        policy=group.policy,
        created_at=suite.last_at,
        version=version,
        kind="evaluated",
        actor=STAGE,
        reason=f"all {suite.size} tasks of the suite are in",
        suite=name,
        metrics=metrics,
    )


def _pinned(group: AdvantagedGroup) -> int:
    if "pinned_version" not in group.metadata:
        raise ContradictoryEvent(
            f"task {group.task_id} belongs to suite {group.metadata['suite']!r} but is pinned to no version, so its "
            "answer says nothing about one; set adapter_version on every task of a suite"
        )
    return _count(group, "pinned_version")


def _count(group: AdvantagedGroup, name: str) -> int:
    text = group.metadata.get(name, "")
    if not text.isdecimal():
        raise ContradictoryEvent(
            f'task {group.task_id} of suite {group.metadata["suite"]!r} has metadata["{name}"] {text!r}; expected a '
            "whole number, e.g. 64"
        )
    return int(text)


def dump(suite: Suite) -> bytes:
    """Return the table row of a suite."""
    return pack(ROW_VERSION, asdict(suite))


def load(row: bytes | None) -> Suite | None:
    """Return the suite in a table row; None for no row. Raises ValueError for a row of another version."""
    if row is None:
        return None
    data = unpack(row, ROW_VERSION)
    return Suite(**data | {"tasks": tuple(data["tasks"])})


def short(any_id: str) -> str:
    """Return 48 bits of an id, which tell the decisions on a policy, or the tasks of a suite, apart.

    They are bits of its hash: people may give tasks ids of their own, and those often begin alike.
    """
    return derive_id(any_id)[:13]
