"""Find functions named as scorers that cannot be loaded, before a sample is paid for.

    tasks, scoring.modules ──► module:function, its module in reach ──► loaded in a worker process, once ──► reason

Not covered: a module that is not listed or not in reach here. The scoring agent, whose settings and folder may be
others, says so (`module_not_listed`), and a later start of it scores the responses.
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
    """Return why the first function that these name cannot score; None if none is known to fail."""
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
