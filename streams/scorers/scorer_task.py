"""The task for a user's scorer, with the verifier as a mapping."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from schemas.events import Task
from streams.scorers.verdict import json_object


class ScorerTask:
    """Every field of a `Task`; `verifier` is a dict, and `verifier_text` the JSON text in the log.

    >>> task = ScorerTask(Task(task_id="t", created_at=0, policy="p", verifier='{"answer": "11"}'))
    >>> task.verifier["answer"], task.verifier_text, task.policy
    ('11', '{"answer": "11"}', 'p')
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def verifier(self) -> dict[str, Any]:
        """The right answer and its settings. Raises ScoreError(bad_verifier) if it is not a JSON object."""
        return json_object(self._task.verifier, f"task {self._task.task_id}: verifier", reason="bad_verifier")

    @property
    def verifier_text(self) -> str:
        """The verifier's text in the log."""
        return self._task.verifier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)
