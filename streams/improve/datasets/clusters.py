"""Rows that must not be on both sides of a split: of one task, thread or resubmission, or with almost one question.

row ──► its keys (task, the task it was sent again for, thread) ──────────┐
    └─► its question ──► 5-grams of others: streams/data/near_duplicates ─┴─► union-find ──► clusters
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streams.data.near_duplicates import Clusters, join_similar
from streams.improve.datasets.judged_runs import JudgedRun
from streams.improve.runs.run_row import thread_of
from streams.stages.tasks.resubmit import ORIGIN


def clusters_of(rows: Sequence[Sequence[JudgedRun]], near_duplicate: float) -> Clusters:
    """Return the clusters of these rows, each a run and what it is compared with, by their place among them."""
    clusters, first_rows = Clusters(len(rows)), dict[str, int]()
    for row, runs in enumerate(rows):
        for run in runs:
            for key in keys(run):
                clusters.join(row, first_rows.setdefault(key, row))
    join_similar([runs[0].question for runs in rows], near_duplicate, clusters)
    return clusters


def keys(run: JudgedRun) -> Iterator[str]:
    """Yield what all rows of a cluster have in common, one by one."""
    task = run.finished.task
    yield f"task {run.finished.task_id}"
    if task is not None and ORIGIN in task.metadata:
        yield f"task {task.metadata[ORIGIN]}"
    if (thread := thread_of(run.finished)) is not None:
        yield f"thread {thread}"
