"""The stream worker: one Faust app that carries all three stages.

    settings ──► app ◄── advantages, batches, rollouts register ──► runs until it is told to stop

Not covered: one stage a process. Add workers instead: they share the partitions.
"""

from __future__ import annotations

import os
import socket

from streams import advantages, batches, cluster, rollouts
from streams.app import build_app, run_worker
from streams.settings import Settings


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0 drained, 1 crashed, 75 stopped by a watchdog.

    Raises LogError if the broker does not answer, or records were deleted before they were read; NotFoundError or
    SettingsError if the topics are not as they should.
    """
    cluster.check_topics(settings)
    app = build_app(settings, worker_name=f"streams-{socket.gethostname()}-{os.getpid()}")
    for stage in (advantages, batches, rollouts):
        stage.register(app)
    return run_worker(app)
