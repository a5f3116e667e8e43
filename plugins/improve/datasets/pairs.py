"""Pair a promoted run with a rejected one on the same question, from the earliest version.

    promoted, rejected ──► the same first prompt and tools ──► the rejected one of the lowest version, the oldest

Both sides of a pair get better from round to round: in self-rewarding rounds the difference between chosen and rejected
shrinks until a pair teaches nothing. The earliest version's mistakes keep the difference large.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from plugins.improve.datasets.judged_runs import JudgedRun


def partners(promoted: Sequence[JudgedRun], rejected: Iterable[JudgedRun]) -> list[JudgedRun | None]:
    """Return for each promoted run its rejected partner, if any."""
    by_prompt: dict[str, JudgedRun] = {}
    for run in rejected:
        key = _prompt_key(run)
        by_prompt[key] = min(by_prompt.get(key, run), run, key=_age)
    return [by_prompt.get(_prompt_key(run)) for run in promoted]


def _age(run: JudgedRun) -> tuple[int, int, str]:
    return min(run.versions, default=0), run.ended_ms, run.finished.answer_id


def _prompt_key(run: JudgedRun) -> str:
    return hashlib.sha256(repr(run.prompt).encode()).hexdigest()
