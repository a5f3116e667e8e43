"""Decide which adapter versions are kept in the store, and which may be deleted.

    AdapterState, keep best K by a score, keep the last N primaries ──► plan ──► RetentionDecision for each version

Versions that serve, may have to serve again, or await a decision are always kept. The others are ranked by their
results on a suite, except rejected versions, which cannot serve any more. A version is retired by an event before its
files are deleted, so that every reader knows before they are gone. Its batches stay in the log, and `streamward
reproduce` can train it again; a version that was trained elsewhere cannot be reproduced, so it is kept until a user
retires it.

The trainer keeps its last checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streams.adapters.versions import AdapterState, Version, weights_of
from streams.errors import SettingsError

FIRST = ("exact", "mean_reward", "reward_mean", "reward")
"""Metrics that say how well a version did, in order of preference."""


class RetentionDecision(NamedTuple):
    """The decision about one version, with its reason."""

    version: Version
    reason: str
    goes: bool
    score: float | None


def headline(metrics: Mapping[str, float]) -> str | None:
    """Return the metric that represents a suite, or None.

    >>> headline({"n": 64.0, "mean_reward": 0.5}), headline({"n": 64.0})
    ('mean_reward', 'n')
    """
    return next((name for name in FIRST if name in metrics), next(iter(metrics), None))


def measure(state: AdapterState, by: str | None) -> tuple[str, str] | None:
    """Return the suite and the metric for ranking versions; None if none was ever evaluated.

    `by` is suite/metric; a suite's name may itself have slashes. Without it, the only suite and the metric that
    represents it. Raises SettingsError if the suite is ambiguous or unknown.
    """
    suites: dict[str, dict[str, float]] = {}
    for version in state.versions.values():
        for suite, metrics in version.evaluated.items():
            suites.setdefault(suite, {}).update(metrics)
    names = [f"{suite}/{name}" for suite, metrics in suites.items() for name in metrics]
    if by is not None:
        if by not in names:
            raise SettingsError(f"--by {by}: no version was evaluated so; expected one of {', '.join(names) or 'none'}")
        suite, _, metric = by.rpartition("/")
        return suite, metric
    if len(suites) > 1:
        best = [f"{suite}/{headline(metrics)}" for suite, metrics in suites.items()]
        raise SettingsError(f"several suites were asked; say which one ranks the versions, e.g. --by {best[0]}")
    for suite, metrics in suites.items():
        if (name := headline(metrics)) is not None:
            return suite, name
    return None


def plan(state: AdapterState, *, best: int, primaries: int, by: tuple[str, str] | None) -> list[RetentionDecision]:
    """Return the decision on every version except the base model, the oldest first.

    In addition to required ones, the `best` versions by score are kept, and this many earlier `primaries`.
    """
    scores = {number: _score(version, by) for number, version in state.versions.items()}
    reasons = _required(state, primaries)
    name = "" if by is None else f" by {by[1]} of {by[0]}"
    ranked = sorted(
        (number for number, score in scores.items() if score is not None and _may_serve(state.versions[number])),
        key=lambda number: (-(scores[number] or 0.0), -number),
    )
    for place, number in enumerate(ranked[:best], start=1):
        reasons.setdefault(number, f"number {place}{name}")
    decisions = []
    for number, version in sorted(state.versions.items()):
        if number == 0:
            continue
        goes = number not in reasons
        reason = reasons.get(number) or _reason_to_go(version, scores[number], ranked, name)
        decisions.append(RetentionDecision(version, reason, goes, scores[number]))
    return decisions


def _required(state: AdapterState, primaries: int) -> dict[int, str]:
    """Return the versions that are kept whatever their score, with the reason."""
    reasons = {state.primary: "is primary"}
    if state.serving.candidate is not None:
        reasons.setdefault(state.serving.candidate, "is the candidate")
    before = [number for number in _newest_first(state.primaries[:-1]) if number not in reasons]
    for number in [number for number in before if number and _may_serve(state.versions[number])][:primaries]:
        reasons[number] = "was primary, for a roll-back"
    continued = weights_of(state.versions, state.newest).version
    for number, version in state.versions.items():
        if number > state.primary and version.status == "trained":
            reasons.setdefault(number, "is newer than the primary, and nobody has decided")
        is_needed = version.tuned_by is not None or continued != state.newest
        if number == continued and is_needed and version.status != "retired":
            reasons.setdefault(number, "is the newest with weights, and the next batch is trained onto its files")
        if version.trained_elsewhere is not None and version.status != "retired":
            reasons.setdefault(
                number, f"was trained elsewhere ({version.trained_elsewhere}), so it cannot be made again"
            )
    return reasons


def _newest_first(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(reversed(list(numbers))))


def _may_serve(version: Version) -> bool:
    return version.status not in ("retired", "rejected")


def _score(version: Version, by: tuple[str, str] | None) -> float | None:
    return None if by is None else version.evaluated.get(by[0], {}).get(by[1])


def _reason_to_go(version: Version, score: float | None, ranked: list[int], name: str) -> str:
    if not _may_serve(version):
        return "is retired" if version.status == "retired" else "was rejected"
    if score is None:
        return "was never evaluated" + name
    return f"number {ranked.index(version.version) + 1}{name}"
