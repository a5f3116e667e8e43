"""Trajectories: the list of runs, and one turn by turn.

view runs ──► the list          trajectories, turns, rewards of one ──► RunHistory
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row, RowPage

RUNS_SQL = "SELECT * FROM runs ORDER BY _timestamp DESC, _partition, _offset DESC"


@dataclass(frozen=True)
class RunHistory:
    """One run: its model calls in order, and what was said of it."""

    trajectory_id: str
    run: Row | None
    turns: list[Row]
    rewards: list[Row]


def turns_sql(trajectory_id: str) -> str:
    """Return the statement of a run's model calls, in order."""
    return f"""
SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, logprobs),
    len(completion_token_ids) AS sampled_tokens, epoch_ms(created_at) - epoch_ms(started_at) AS took_ms
FROM turns WHERE trajectory_id = {literal(trajectory_id)}
QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _offset) = 1 ORDER BY number, _offset
"""  # noqa: S608 - a literal


def list_runs(log: LogSnapshot, first: int) -> RowPage:
    """Return runs, the newest first."""
    return log.page(RUNS_SQL, first)


def find_run(log: LogSnapshot, trajectory_id: str) -> RunHistory:
    """Return one run. Raises NotFoundError."""
    own_id = literal(trajectory_id)
    run = log.first(f"SELECT * FROM runs WHERE trajectory_id = {own_id}")  # noqa: S608
    turns = log.rows(turns_sql(trajectory_id))
    if run is None and not turns:
        raise NotFoundError(f"the log has no trajectory {trajectory_id[:80]!r}; /runs lists them")
    rewards = log.rows(
        f"SELECT * FROM rewards WHERE response_id = {own_id} OR response_id IN "  # noqa: S608
        f"(SELECT turn_id FROM turns WHERE trajectory_id = {own_id}) ORDER BY _timestamp, _offset"
    )
    return RunHistory(trajectory_id, run, turns, rewards)
