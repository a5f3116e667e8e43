"""Peak memory of each process in the demo, and of all together.

Each process's own peak, in bytes: proportional set size (PSS), so that pages shared by several count once. The peaks
need not fall together, so their sum is an upper bound.

Not covered: the page cache of the log, which Linux gives back when it is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.side_by_side import line, say

LIMIT_GIB = 6.0
STEPS = 3
MINUTES = 1.2


def run() -> Iterator[dict[str, Any]]:
    """Yield one line; the ratio is the limit of 6 GiB to ours."""
    say(f"memory: the demo, fresh, {STEPS} steps or {MINUTES:g} minutes")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        command = [str(Path(sys.executable).with_name("streamward")), "demo", "--fresh", "--output", "json"]
        bounds = ["--steps", str(STEPS), "--minutes", str(MINUTES), "--data-dir", f"{folder}/demo"]
        done = subprocess.run([*command, *bounds], check=True, stdout=subprocess.PIPE, text=True)
        result = json.loads(done.stdout.splitlines()[-1])
    peaks = {name: round(size / 2**20) for name, size in sorted(result["peak_bytes"].items())}
    ours = sum(peaks.values()) / 1024
    yield line(
        "memory",
        "the demo, all processes",
        ours=ours,
        peer=LIMIT_GIB,
        unit="GiB",
        ratio=LIMIT_GIB / ours,
        target=1.0,
        peer_is="the limit",
        mib=peaks,
        adapters=result["adapters"],
    )
