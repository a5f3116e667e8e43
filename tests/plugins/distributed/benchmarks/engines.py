"""Seconds of a replay of one archive on this machine, on Spark and on Ray, beside each other; their bytes are compared.

    node ──► whole groups ──► archive ──► here, on Spark, here, on Ray ──► seconds, the same sha256

Each runs in a process of its own, in the environment of its engine (`make setup-spark setup-ray`), and writes the same
experiment. An engine is counted twice: from the first line of the command, and from when it is started and its nodes
are checked, which a cluster that is there already does not take.

Not covered: several machines. On the cores of one, an engine costs what it costs and gains nothing; what is to be seen
is how much it costs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streams.settings.load import to_env
from streams.settings.model import Archive, Settings
from streams.tools.archive import sync
from tests.benchmarks.loop import REPO, node
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, SLOTS, preload
from tests.plugins.distributed.replays import READ, taken
from tests.support.spark import environment

GROUPS = 1500
SEGMENT_RECORDS = 5000
"""So that there are some pieces to spread, as in a larger log."""
RAY = REPO / ".venv-ray" / "bin" / "python"


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines for each engine. Raises RuntimeError if a byte differs, or if an engine is not installed."""
    say(f"engines: {GROUPS} groups, {GROUPS * SLOTS} responses, replayed here, on Spark and on Ray")
    with node() as settings, tempfile.TemporaryDirectory(prefix="streamward-bench-") as scratch:
        archived = Archive(store=f"{scratch}/archive", segment_records=SEGMENT_RECORDS)
        settings = settings.model_copy(update={"archive": archived})
        preload(settings, GROUPS)
        sync.sync(settings, READ)
        for name, python in (("spark", environment.PYTHON), ("ray", RAY)):
            here, expected = _replayed(settings, Path(sys.executable), "none", Path(scratch))
            there, held = _replayed(settings, python, name, Path(scratch))
            if held != expected:
                raise RuntimeError(f"{name} wrote other bytes than this machine: {held} and not {expected}")
            for case, since in (("", "seconds"), (", engine running", "work_s")):
                yield line(
                    "engines",
                    f"replay of {GROUPS * SLOTS} archived responses on {name.capitalize()}{case}",
                    ours=there[since],
                    peer=here[since],
                    unit="s",
                    ratio=here[since] / there[since],
                    peer_is="a replay without an engine; the same bytes",
                    events=GROUPS * EVENTS,
                )


def _replayed(settings: Settings, python: Path, on: str, scratch: Path) -> tuple[dict[str, float], str]:
    """Replay in a process of its own; return what it says, and a sha256 of what it wrote, which is then removed."""
    if not python.exists():
        raise RuntimeError(f"{python} is missing; run `make setup-{on}`")
    env = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    own = environment.variables(scratch) if on == "spark" else {}
    done = subprocess.run(
        [str(python), "-m", "tests.plugins.distributed.benchmarks.spread", on, str(scratch)],
        cwd=REPO,
        env={**env, **own, **to_env(settings), "PYTHONPATH": str(REPO)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    say(f"  {on}: {found}")
    held = json.dumps({label: [str(row) for row in rows] for label, rows in taken(settings).items()}, sort_keys=True)
    return found, hashlib.sha256(held.encode()).hexdigest()
