"""A job that is ordered in a Pod of a release is done: a part of tests/deploy/test_rendered.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from plugins.jobs.controller.gauges import JOBS
from schemas.events import RewardSource
from tests.support.processes import until

if TYPE_CHECKING:
    from tests.deploy.test_rendered import Release


def check(release: Release, source: RewardSource) -> None:
    queries = "".join(json.dumps({"query": f"{number} 7"}) + "\n" for number in range(8))
    config = {
        "n_trajectories_per_query": 2,
        "max_tokens": 8,
        "held_out_share": 0,
        "reward_sources": [{"name": source.name, "settings": json.loads(source.settings)}],
    }
    order = ("jobs", "start", "default", "--queries", "-", "--iterations", "1", "--config", json.dumps(config))
    (job,) = release.told(*order, stdin=queries)
    until(lambda: release.total("jobs", JOBS, status="completed") == 1, "its end", folder=release.host.folder)
    assert release.told("jobs", "watch", job["job_id"])[-1]["kind"] == "completed"
