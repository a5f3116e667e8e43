"""Find moments by an id and a condition.

RUN, --turn, --where ──► view moments ──► MomentKey, …
"""

from __future__ import annotations

from itertools import islice

from streams.settings.model import Settings
from streams.tools.forks.moments import MomentKey
from streams.tools.query.session import Session
from streams.tools.query.views import literal

MOST = 100_000
"""Maximum number of moments of one command."""


def find_keys(settings: Settings, run: str | None, turn: int | None, where: str | None) -> list[MomentKey]:
    """Return the moments of a run, conversation or task, by the beginning of its id, at a turn, for which an SQL
    condition on the view `moments` holds; None: all. Raises as `Session.run`.
    """
    conditions = [] if turn is None else [f"turn = {turn:d}"]
    if run is not None:
        conditions.append(f"(starts_with(trajectory_id, {literal(run)}) OR starts_with(task_id, {literal(run)}))")
    conditions.append("true" if where is None else f"({where}\n)")  # that \n ends a comment
    chosen = f"SELECT task_id, trajectory_id, turn FROM moments WHERE {' AND '.join(conditions)}"  # noqa: S608 - parsed
    with Session(settings) as session:
        session.parse(chosen)
        rows = (row for batch in session.run(f"{chosen} ORDER BY 2, 3").batches for row in batch.to_pylist())
        return [MomentKey(row["task_id"], row["trajectory_id"], row["turn"]) for row in islice(rows, MOST)]
