"""Users of jobs, for Locust: most ask how a job is, some list all, and now and then one orders what is refused.

    STREAMWARD_JOB_IDS ──► training.get_status, training.list_jobs, /finetune/jobs/JOB/status ──► streamward serve

Run it by `make load`, or against any server with `locust --host http://127.0.0.1:8790`.
"""

import os
import random

from locust import HttpUser, between, task

NAMES = [name for name in os.environ.get("STREAMWARD_JOB_IDS", "").split(",") if name]


class WhoWatchesJobs(HttpUser):
    """Asks, looks at the answer for a moment, and asks again."""

    wait_time = between(0.05, 0.15)

    @task(8)
    def status(self) -> None:
        """Ask for a job by JSON-RPC."""
        if NAMES:
            self._call("training.get_status", {"job_id": random.choice(NAMES)}, "result")

    @task(2)
    def status_by_rest(self) -> None:
        """Ask for a job by REST."""
        if NAMES:
            self.client.get(f"/finetune/jobs/{random.choice(NAMES)}/status", name="/finetune/jobs/JOB/status")

    @task(1)
    def newest(self) -> None:
        """List some jobs."""
        self._call("training.list_jobs", {"limit": 20}, "result")

    @task(1)
    def unknown(self) -> None:
        """Ask for a job that there is not: an error of the protocol."""
        self._call("training.get_status", {"job_id": "nobody"}, "error")

    def _call(self, method: str, params: dict[str, object], expected: str) -> None:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        with self.client.post("/jsonrpc", json=asked, name=f"{method}, {expected}", catch_response=True) as answer:
            if answer.status_code != 200 or expected not in answer.json():
                answer.failure(f"expected {expected}, got {answer.status_code}: {answer.text[:200]}")
