"""The settings of processes on a cluster."""

from __future__ import annotations

from pydantic import Field

from streams.settings.model import Section


class Distributed(Section):
    """Processes on a Ray cluster: `train --launcher ray`, `policy --on ray`, `scoring --on ray`."""

    wait_s: float = Field(
        60.0,
        ge=1,
        description="time to wait for room for all processes, seconds; increase it for a cluster that autoscales",
    )
    restarts: int = Field(-1, ge=-1, description="maximum of restarts of a lost process; 0: none; -1: unlimited")
