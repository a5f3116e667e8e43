"""A server with two runs that wait for a person, for a browser to decide about them.

runs, a judge that promotes ──► curator ──► review queue ──► `streamward serve` on a Kafka node
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.kafka import admin
from streams.kafka.node import process as broker
from tests.plugins.improve.test_review import judge_runs
from tests.support.agent_server import serving, settings_of


@contextmanager
def reviewed(folder: Path) -> Iterator[str]:
    """Yield the server's address."""
    with broker.embedded(folder / "kafka") as node:
        settings = settings_of(node.bootstrap, folder)
        admin.apply_topics(settings)
        judge_runs(settings, {"first": "calc", "second": "calc"})
        with serving(settings) as url:
            yield url
