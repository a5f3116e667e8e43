"""What a process has for itself is its own while it lives, and nobody's after it, however it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.errors import RefusedError
from streams.holding import hold

ROOT = Path(__file__).parents[2]


@contextmanager
def another(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run `code` in a process that then waits; it is killed when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path\nfrom streams.holding import *\n{code}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_is_held_is_refused_with_who_has_it_and_free_once_that_one_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "place"
    wait = "\n    print('ready', flush=True); input()"
    with another(f"with hold(Path({str(folder)!r}), refusal='it is worked on', way_out='wait'):{wait}") as holder:
        expected = rf"{folder}: it is worked on by process {holder.pid} on .*; stop it"
        with pytest.raises(RefusedError, match=expected), hold(folder, refusal="it is worked on", way_out="stop it"):
            pytest.fail("two have it")
    with hold(folder, refusal="", way_out=""):
        assert (folder / "lock").read_text().startswith(f"process {os.getpid()} on ")
