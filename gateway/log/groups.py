"""A task's group as JSON: its answers slot by slot, side by side.

task_id ──► group_view.py: rows of the log, and why they taught something or nothing ──► GroupAnswer
"""

from __future__ import annotations

from starlette.requests import Request

from gateway.http.principal import TASKS_LISTED, principal_of
from gateway.http.route import REST
from gateway.log.group_answer import GroupAnswer
from gateway.log.open_log import OpenLog


class TaskGroups:
    """The route that reads the group of a task."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log

    @REST.get(
        "/groups/{task_id}",
        may="groups.read",
        ids=TASKS_LISTED,
        at_once=1,  # the view answers one after the other
        tools={
            "show_group": "Show the answers to a task side by side, with their rewards.",
            "why_dropped": "Say what the group of a task taught, or why it taught nothing: see `verdict` and `why`.",
        },
    )
    def get_group(self, request: Request, task_id: str) -> GroupAnswer:
        """Look at the answers to a task next to each other."""
        view = self._log.view
        from gateway.log import group_view  # which needs DuckDB

        with view.snapshot() as snapshot:
            return group_view.read_group(snapshot, view.settings, task_id, principal_of(request))
