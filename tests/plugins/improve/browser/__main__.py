"""A server with two runs that wait for a person, and Chromium that decides about them: a part of make test-page.

runs, a judge that promotes ──► curator ──► review queue ──► `streamward serve` on a Kafka node ──► review.py

    python -m tests.plugins.improve.browser PICTURES     PAGE_PYTHON has Playwright; PYTHONPATH the page's walks
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from streams.kafka import admin
from streams.kafka.node import process as broker
from tests.plugins.improve.judged_runs import judge_runs
from tests.support.agent_server import serving, settings_of


def main(pictures: str) -> int:
    """Return the exit code of the browser."""
    with tempfile.TemporaryDirectory() as name, broker.embedded(Path(name) / "kafka") as node:
        settings = settings_of(node.bootstrap, Path(name))
        admin.apply_topics(settings)
        judge_runs(settings, {"first": "calc", "second": "calc"})
        with serving(settings) as address:
            walk = Path(__file__).parent / "review.py"
            command = [os.environ["PAGE_PYTHON"], str(walk), address, pictures, os.environ["AXE"]]
            return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
