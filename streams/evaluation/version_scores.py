"""Choose the versions to evaluate on a suite, wait for their results, and compare them.

    versions ──► wait for `evaluated` of each; name the stage that makes no progress ──► scores, gains

Nothing is computed here: the agents answer, score and count, and the log holds the results. So an interrupted wait
resumes when the same command runs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from schemas.conventions import PINNED
from schemas.events import AdapterEvent, AdvantagedGroup, Outcome
from schemas.serde import Poison
from streams.adapters import versions as adapters
from streams.adapters.versions import AdapterState, Version
from streams.errors import NotFoundError, RefusedError
from streams.evaluation import intervals, paired
from streams.kafka import admin
from streams.kafka.reader import PartitionReader
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings

QUIET_S = 15.0
"""After this long without news, the wait reports which stage makes no progress."""
MOVING = {
    "responses": "no response has come: run `streamward policy` with policy.name={policy}",
    "rewards": "responses come and no rewards: run `streamward scoring`",
    "groups": "rewards come and no groups: run `streamward streams`",
}
ALL = "all"
"""The name of all scenarios together."""


def choose(state: AdapterState, version: int | None, against: Sequence[int], *, compare: bool) -> tuple[int, ...]:
    """Return the versions to evaluate: `version` (else the newest not retired), `against`; primary and base.

    Raises NotFoundError for a version that does not exist, RefusedError for a retired one that was named.
    """
    newest = max(number for number, entry in state.versions.items() if entry.status != "retired")
    first = newest if version is None else version
    for number in (first, *against):
        if number not in state.versions:
            raise NotFoundError(
                f"policy {state.policy} has no version {number}; the newest is {state.newest} "
                "(`streamward adapters list`)"
            )
        if state.versions[number].status == "retired":
            raise RefusedError(f"version {number} of policy {state.policy} is retired, so its files may be gone")
    return tuple(dict.fromkeys((first, *against, *((state.primary, 0) if compare else ()))))


def open_versions(state: AdapterState, suite: str, versions: Sequence[int]) -> list[int]:
    """Return those of `versions` without a result of the suite."""
    return [version for version in versions if suite not in state.versions[version].evaluated]


@dataclass(frozen=True, slots=True)
class AwaitedResults:
    """The versions of a policy that await results on a suite."""

    policy: str
    suite: str
    versions: Sequence[int]


def wait(
    settings: Settings,
    awaited: AwaitedResults,
    *,
    stop: Event,
    report: Callable[[str], None],
    quiet_s: float = QUIET_S,
) -> AdapterState:
    """Return the state of the policy once every version has its result, or once `stop` is set.

    `report` gets a sentence after each `quiet_s` without news: the progress, and the stage that makes none.
    Raises as `adapters.read_state`.
    """
    policy, versions = awaited.policy, awaited.versions
    state = adapters.empty(policy)
    kinds = {topics(settings.topics)[label].name: label for label in ("adapters", "groups")}
    before = _ends(settings)
    done: dict[int, set[str]] = {version: set() for version in versions}
    moved = time.monotonic()
    with PartitionReader(settings, _starts(settings, policy)) as tail:
        while not stop.is_set():
            for record in tail.poll():
                if kinds[record.at.topic] == "adapters":
                    event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
                    state = state if isinstance(event, Poison) else adapters.fold(state, event)
                elif (answer := _task_of(record.decode(AdvantagedGroup), awaited)) is not None:
                    moved = time.monotonic()
                    done.get(answer[0], set()).add(answer[1])
            trained = [version for version in versions if version in state.versions]
            if len(trained) == len(versions) and not open_versions(state, awaited.suite, versions):
                break
            if time.monotonic() - moved > quiet_s:
                waiting = {version: done[version] for version in open_versions(state, awaited.suite, trained)}
                report(_silence(settings, policy, before, waiting))
                moved = time.monotonic()
    return state


def _task_of(group: AdvantagedGroup | Poison, awaited: AwaitedResults) -> tuple[int, str] | None:
    """Return version and task of a group that counts for the suite."""
    if isinstance(group, Poison) or (group.policy, group.metadata.get("suite")) != (awaited.policy, awaited.suite):
        return None
    pinned = group.metadata.get(PINNED, "")
    return (int(pinned), group.task_id) if pinned.isdecimal() else None


def _starts(settings: Settings, policy: str) -> dict[TopicPartition, int]:
    """Return the offsets to read from: the policy's adapters from the beginning, its groups from now on."""
    partition = partition_of(policy, settings.topics.policy_partitions)
    first = topics(settings.topics)["adapters"].name
    bounds = admin.offsets(settings, ["adapters", "groups"])
    return {tp: low if tp[0] == first else high for tp, (low, high) in bounds.items() if tp[1] == partition}


def _ends(settings: Settings) -> dict[str, int]:
    """Return how many records each topic of the loop has seen."""
    return {label: sum(end for _, end in admin.offsets(settings, [label]).values()) for label in MOVING}


def _silence(settings: Settings, policy: str, before: Mapping[str, int], done: Mapping[int, set[str]]) -> str:
    now = _ends(settings)
    still = next((text for label, text in MOVING.items() if now[label] <= before[label]), None)
    missing = ", ".join(f"{version} ({len(tasks)} tasks since)" for version, tasks in sorted(done.items()))
    reason = (still or "responses, rewards and groups all come: these tasks wait for their turn").format(policy=policy)
    return f"waiting for version {missing}; {reason}"


# --- side by side -----------------------------------------------------------------------------------------------------


def scores(version: Version, suite: str, confidence: float) -> list[dict[str, Any]]:
    """Return a row for all scenarios together and one for each: mean, low and high of each metric.

    Empty if the version has no result of this suite; one row without intervals if its tasks have no index.
    Answers that were sampled together share their latency, so its interval is narrower than it should be.
    """
    if suite not in version.evaluated:
        return []
    metrics, outcomes = version.evaluated[suite], version.outcomes.get(suite, ())
    names = sorted({outcome.scenario for outcome in outcomes})
    rows = [{"scenario": ALL, **_means(outcomes, confidence)}]
    if not outcomes:
        rows[0] |= {name: metrics.get(key) for name, key in (("success", "exact"), ("mean_reward", "mean_reward"))}
    rows[0] |= {"n": int(metrics.get("n", 0)), "failed": int(metrics.get("failed", 0))}
    for name in names if len(names) > 1 else ():
        inside = [outcome for outcome in outcomes if outcome.scenario == name]
        n = metrics.get(f"scenario.{name}.n", 0)
        failed = sum(outcome.failed for outcome in inside)
        rows.append({"scenario": name, **_means(inside, confidence), "n": int(n), "failed": failed})
    return rows


def gains(first: Version, second: Version, suite: str, confidence: float) -> Iterator[dict[str, Any]]:
    """Yield a row for all scenarios and one for each: first against second, on the tasks both were scored on."""
    pairs = paired.pairs(first.outcomes.get(suite, ()), second.outcomes.get(suite, ()))
    if not pairs:
        return
    yield {"against": second.version, "scenario": ALL, **paired.compare(pairs, confidence).metrics()}
    parts = paired.by_scenario(pairs)
    for name, inside in parts.items() if len(parts) > 1 else ():
        yield {"against": second.version, "scenario": name, **paired.compare(inside, confidence).metrics()}


def _means(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, field in (("success", "success"), ("mean_reward", "reward"), ("tokens", "tokens"), ("latency_ms",) * 2):
        values = [value for outcome in outcomes if (value := getattr(outcome, field)) is not None]
        if not values:
            row[name] = None
            continue
        value, low, high, n = intervals.mean(values, confidence)
        if name == "success":
            low, high = intervals.wilson(value, n, confidence)
        row |= {name: value} | ({f"{name}_low": low, f"{name}_high": high} if n > 1 or name == "success" else {})
    return row
