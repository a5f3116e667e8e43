"""The tree of a run on the page: the run, its calls, and the runs of agents that answer them, each with its state.

    run_tree, run_steps ──► runs without a parent, the newest first ──► /run-trees
                        ├─► calls that wait for a person ──► /run-trees/waiting
                        └─► the tree that a run is in, from its root ──► /run-trees/RUN_ID

A section of the page, if that is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from plugins.threads.waiting_page import WAITING_PAGE
from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogReader, LogSnapshot, LogView, Row
from streams.tools.views.view_section import ViewPage, ViewSection

MOST_ROOTS = 100
"""Runs that the list has, the newest."""
_ROOTS = """
SELECT t.run_id, t.agent_id, t.ending, t.requested_at, count(s.run_id) AS calls
FROM run_tree AS t LEFT JOIN run_steps AS s USING (run_id) WHERE t.parent_id IS NULL
GROUP BY ALL ORDER BY t.requested_at DESC
"""
_TREE = """
WITH RECURSIVE above AS (
    SELECT run_id, parent_id FROM run_tree WHERE run_id = {run_id}
    UNION ALL SELECT t.run_id, t.parent_id FROM run_tree AS t JOIN above AS a ON t.run_id = a.parent_id
), root AS (
    SELECT run_id FROM above WHERE parent_id IS NULL OR parent_id NOT IN (SELECT run_id FROM above)
), tree AS (
    SELECT run_id FROM root UNION ALL SELECT t.run_id FROM run_tree AS t JOIN tree AS b ON t.parent_id = b.run_id
)
SELECT t.* FROM run_tree AS t SEMI JOIN tree USING (run_id) ORDER BY t.depth, t.requested_at
"""


@dataclass(frozen=True)
class RunNode:
    """A run of a tree."""

    run: Row
    """As the view `run_tree` has it."""
    state: str
    """Its ending; waits, if one of its calls does; open, while it works."""
    calls: list[CallNode]


@dataclass(frozen=True)
class CallNode:
    """A call of a run."""

    call: Row
    """As the view `run_steps` has it."""
    child: RunNode | None
    """The run that answers it."""


@dataclass(frozen=True)
class RunTreePage:
    """The tree that a run is in."""

    run_id: str
    """The run in the address."""
    root: RunNode
    as_of: datetime


@dataclass(frozen=True)
class RunTreeList:
    """The newest runs that no other run asked for."""

    runs: list[Row]
    as_of: datetime


def list_trees(log: LogReader) -> RunTreeList:
    """Return the newest trees. Raises LogError if the log cannot be read."""
    with log.snapshot() as snapshot:
        return RunTreeList(snapshot.rows(_ROOTS, MOST_ROOTS), snapshot.as_of)


def find_tree(log: LogReader, run_id: str) -> RunTreePage:
    """Return the tree of a run. Raises NotFoundError, also for another tenant's, LogError."""
    with log.snapshot() as snapshot:
        runs = {row["run_id"]: row for row in snapshot.rows(_TREE.format(run_id=literal(run_id)))}
        if run_id not in runs:
            raise NotFoundError(f"there is no run {run_id[:80]!r} of a thread; /run-trees lists the newest")
        return RunTreePage(run_id, _node(next(iter(runs)), runs, _calls(snapshot, runs)), snapshot.as_of)


def _calls(log: LogSnapshot, runs: dict[str, Row]) -> dict[str, list[Row]]:
    """Return the calls of runs in their order, by run."""
    names = ", ".join(map(literal, runs))
    calls: dict[str, list[Row]] = {name: [] for name in runs}
    sql = f"SELECT * FROM run_steps WHERE run_id IN ({names}) ORDER BY created_at, _offset, number"  # noqa: S608
    for row in log.rows(sql):
        calls[row["run_id"]].append(row)
    return calls


def _node(run_id: str, runs: dict[str, Row], calls: dict[str, list[Row]]) -> RunNode:
    """Return a run with what is below it."""
    run, own = runs[run_id], calls[run_id]
    nodes = [CallNode(call, _node(name, runs, calls) if (name := call["child_run"]) in runs else None) for call in own]
    waits = any(call["state"].startswith("waits") for call in own)
    return RunNode(run, run["ending"] or ("waits" if waits else "open"), nodes)


def tree_pages(view: LogView) -> tuple[ViewPage, ...]:
    """Return the list of trees, the calls that wait for a person, and the page of one tree."""
    return ViewPage("", "run_trees.html", list_trees), WAITING_PAGE, ViewPage("/{run_id}", "run_tree.html", find_tree)


SECTIONS = (ViewSection("run-trees", "Run trees", "plugins.threads", tree_pages, ids={"run_id": "run-trees"}),)
