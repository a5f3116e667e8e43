"""The stream worker with one stage, to be run as a process: the join, or with `batches` that one, in the loop.

    settings ──► worker.driver: faust, loop ◄── the stage registers ──► runs until it is told to stop

Not covered: the stages together, as `streamward streams` has them.
"""

from __future__ import annotations

import sys

from streams.cli.runtime import until_stopped
from streams.settings.load import load
from streams.settings.model import Settings
from streams.stages import batches
from streams.stages.advantages import live, loop as batched


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    settings = load()
    return _loop(settings) if settings.worker.driver == "loop" else _faust(settings)


def _faust(settings: Settings) -> int:
    from streams.worker.faust.faust_app import build_app, run_worker
    from streams.worker.faust.faust_driver import FaustDriver

    app = build_app(settings, worker_name="bench")
    live.register(FaustDriver(app))
    return run_worker(app)


def _loop(settings: Settings) -> int:
    from streams.worker.batched import run as loop

    with until_stopped() as stop:
        loop.run(settings, [batches.register if "batches" in sys.argv else batched.register], stop=stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
