"""Find functions named as scorers that cannot be loaded, before anything is sampled.

    tasks, scoring.modules ──► module:function, its module found ─────► loaded in a worker process ──► reason

A module that is not listed or not found here is only a doubt: the scoring agents may have other settings and folders.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import RewardSource
from streams.errors import SettingsError
from streams.scorers.execution import Scorers, parts_of
from streams.scorers.module_names import is_in_reach
from streams.scorers.verdict import ScoreError
from streams.settings.model import Scoring

_loadable: set[tuple[str, str]] = set()
"""Names that were loaded, by `scoring.modules`."""


def unusable_scorer(scoring: Scoring, sources: Iterable[RewardSource]) -> str | None:
    """Return why the first function named by these cannot score; None if none is known to fail."""
    names = dict.fromkeys(part.name for part in parts_of(sources) if ":" in part.name)
    unknown = [name for name in names if (scoring.modules, name) not in _loadable and is_in_reach(name, scoring)]
    if not unknown:
        return None
    try:
        with Scorers(scoring) as scorers:
            for name in unknown:
                scorers.load([RewardSource(name=name)])
                _loadable.add((scoring.modules, name))
    except (ScoreError, SettingsError) as exc:
        return str(exc)
    return None


def doubtful_scorer(scoring: Scoring, sources: Iterable[RewardSource]) -> str | None:
    """Return the requirement of these that a scoring agent like this process would lack, or None."""
    parts = list(parts_of(sources))
    try:
        with Scorers(scoring) as scorers:
            missing = scorers.missing(sources)
    except SettingsError as exc:
        return str(exc)
    if missing is not None:
        return missing.error
    far = next((part.name for part in parts if ":" in part.name and not is_in_reach(part.name, scoring)), None)
    return None if far is None else f"scorer {far} is not in reach: there is no such module here"
