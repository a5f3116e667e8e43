"""`streamward --help`: its wall time beside that of Python itself, and which heavy modules it imports.

Not covered: shells that complete commands, which start the same way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.side_by_side import by_turns, line, median_s, say

HEAVY = ("torch", "vllm", "transformers", "peft", "trl", "faust", "confluent_kafka", "fastavro", "numpy", "matplotlib")
LIMIT_S = 0.2
_IMPORTED = """
import sys
from streams.cli import main
sys.argv = ["streamward", "--help"]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def run() -> Iterator[dict[str, Any]]:
    """Yield one line; the ratio is the limit of 0.2 s to ours."""
    say("help: the command against an empty program, by turns")
    command = Path(sys.executable).with_name("streamward")
    measured = by_turns(
        {
            "ours": lambda: subprocess.run([command, "--help"], check=True, capture_output=True),
            "peer": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        },
        rounds=11,
    )
    imported = subprocess.run([sys.executable, "-c", _IMPORTED], check=True, capture_output=True, text=True).stderr
    heavy = sorted(set(HEAVY) & set(imported.split()))
    ours = median_s(measured["ours"])
    yield line(
        "help",
        "streamward --help",
        ours=ours,
        peer=median_s(measured["peer"]),
        unit="s",
        ratio=LIMIT_S / ours,
        target=1.0,
        peer_is=f"python -c pass; the ratio is {LIMIT_S} s to ours",
        heavy_imports=heavy,
    )
