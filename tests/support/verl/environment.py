"""verl as `make setup-verl` installs it, which takes a step on an exported batch.

.venv-verl/bin/python: its own DataProto and policy loss ──► take_step.py ──► a PEFT folder
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PYTHON = Path(__file__).parents[3] / ".venv-verl" / "bin" / "python"


class NoVerl(Exception):
    """It is not installed."""


def step(file: Path, into: Path, numbers: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Have verl take a step on a batch, with these numbers, and write the adapter to `into`; return what it read.

    Raises NoVerl, and RuntimeError with its own words.
    """
    if not PYTHON.exists():
        raise NoVerl("verl in .venv-verl")
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(Path(__file__).with_name("take_step.py")), str(file), str(into)],
        input=json.dumps(numbers), env={**os.environ, "PYTHONPATH": ""}, cwd=scratch, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"verl ends with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
