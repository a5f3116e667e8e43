"""The stream worker with the join alone, to be run as a process.

    settings ──► app ◄── advantages registers ──► runs until it is told to stop

Not covered: batches and rollouts, which `streamward streams` carries too, and the batch driver's join does not.
"""

from __future__ import annotations

import sys

from streams.settings.load import load
from streams.stages.advantages import stage as advantages
from streams.worker.app import build_app, run_worker


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    app = build_app(load(), worker_name="bench")
    advantages.register(app)
    return run_worker(app)


if __name__ == "__main__":
    sys.exit(main())
