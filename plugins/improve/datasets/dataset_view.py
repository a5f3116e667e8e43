"""Views of builds: drift by column, and the newest build of each data set.

DatasetEvent ──► drift_of, newest_builds ──► the command line, metrics, plugins
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from plugins.data.cleaning.input_drift import ColumnDrift
from plugins.improve.datasets.dataset_log import DatasetLog
from schemas.events import DatasetEvent
from streams.output import moment


def drift_of(event: DatasetEvent) -> list[ColumnDrift]:
    """Return the drift of each column, as the event has it."""
    names = [name for name in event.drift if f"{name}.bound" in event.drift]
    return [ColumnDrift(name, event.drift[name], event.drift[f"{name}.bound"]) for name in names]


def newest_builds(log: DatasetLog, tenants: Container[str | None] | None = None) -> list[dict[str, Any]]:
    """Return a row for the newest build of each data set of these tenants; None: of all."""
    builds = [build for name in log.names() if (build := log.newest(name)) is not None]
    return [
        {
            "dataset": build.dataset,
            "digest": build.digest,
            "newest_verdict": moment(build.created_at),
            "train": build.counts.get("train", 0),
            "eval": build.counts.get("eval", 0),
            "compared": build.drift_from is not None,
            "moved": [str(column) for column in drift_of(build) if column.has_moved],
        }
        for build in builds
        if tenants is None or build.tenant in tenants
    ]
