"""Run one suite on a Kafka node of its own: python -m tests.strangers.one_suite SUITE FILE [--write]

suite ──► findings ──► FILE     the exchanges that it recorded ──► their files, with --write

A process for each, since a server in this process would share Python's lock with the next one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from streams.kafka.node import process as broker
from tests.strangers import exchanges
from tests.strangers.stage import Stage
from tests.strangers.suites import SUITES


def main() -> None:
    """Write what the suite finds, once it is complete."""
    name, file, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary, broker.embedded(Path(temporary) / "kafka") as node:
        stage = Stage(node.bootstrap, Path(temporary) / name)
        stage.folder.mkdir()
        findings = SUITES[name].run(stage)
    if options:
        for kept, rows in stage.recordings.items():
            exchanges.write(rows, kept)
    Path(file).write_text(json.dumps(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
