"""Trajectories: the list of runs, and one turn by turn.

view runs ──► the list          trajectories, turns, rewards of one ──► its calls in order
"""

from __future__ import annotations

from typing import Any

from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import Look

RUNS_SQL = "SELECT * FROM runs ORDER BY _timestamp DESC, _partition, _offset DESC"


def turns_sql(trajectory_id: str) -> str:
    """Return the statement of a run's model calls, in order."""
    return f"""
SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, logprobs),
    len(completion_token_ids) AS sampled_tokens, epoch_ms(created_at) - epoch_ms(started_at) AS took_ms
FROM turns WHERE trajectory_id = {literal(trajectory_id)}
QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _offset) = 1 ORDER BY number, _offset
"""  # noqa: S608 - a literal


def data(look: Look, rows: int, first: int) -> dict[str, Any]:
    """Return what the list shows."""
    found = look.rows(f"{RUNS_SQL} LIMIT {rows + 1} OFFSET {first}")
    return {"runs": found[:rows], "first": first, "more": first + rows if len(found) > rows else None, "at": look.at}


def one(look: Look, trajectory_id: str) -> dict[str, Any]:
    """Return what the page of a run shows. Raises NotFoundError."""
    run = look.first(f"SELECT * FROM runs WHERE trajectory_id = {literal(trajectory_id)}")  # noqa: S608
    turns = look.rows(turns_sql(trajectory_id))
    if run is None and not turns:
        raise NotFoundError(f"the log has no trajectory {trajectory_id[:80]!r}; /runs lists them")
    said = look.rows(
        f"SELECT * FROM rewards WHERE response_id = {literal(trajectory_id)} OR response_id IN "  # noqa: S608
        f"(SELECT turn_id FROM turns WHERE trajectory_id = {literal(trajectory_id)}) ORDER BY _timestamp, _offset"
    )
    return {"trajectory_id": trajectory_id, "run": run, "turns": turns, "rewards": said, "at": look.at}
