"""A wall clock that is wrong, for chosen processes, and that jumps while they run.

    wrong_clock(-7200) ──► two variables for a child ──► time.time(), datetime.now(), librdkafka: 2 hours back
    set_clock(variables, 86_400) ──► the same child, within a second: 1 day ahead

`wrong_clock.c` stands between the child and libc (LD_PRELOAD). Monotonic clocks are right, and waits take as long as
they were meant to. The child's own children inherit the environment, and the clock with it.

Not covered: what wrong_clock.c says, above all that waits which stand when a real clock is set back last longer; a
broker whose clock is wrong (its JVM could run so; the topics keep the clients' timestamps); other systems than Linux.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.disks import NotShown

SOURCE = Path(__file__).with_name("wrong_clock.c")
FILE = "WRONG_CLOCK_FILE"
SETTLED_S = 0.2
"""After this long every process sees an offset that was set: ten times a second it looks."""
_numbers = itertools.count()


def wrong_clock(offset_s: float = 0.0) -> dict[str, str]:
    """Return what a child's environment needs, besides, for a wall clock `offset_s` seconds ahead; below 0: behind.

    Each call gives a clock of its own. Raises NotShown where it cannot be done: not Linux, no C compiler, another libc.
    """
    library = _library()
    file = library.with_name(f"offset-{next(_numbers)}")
    others = os.environ.get("LD_PRELOAD")
    preload = f"{library}:{others}" if others else str(library)
    variables = {"LD_PRELOAD": preload, FILE: str(file)}
    set_clock(variables, offset_s)
    return variables


def set_clock(variables: Mapping[str, str], offset_s: float) -> None:
    """Let the clock of the children that run with `variables` jump to `offset_s` seconds from the true time."""
    file = Path(variables[FILE])
    draft = file.with_suffix(".draft")
    draft.write_text(f"{offset_s:.9f}\n")
    draft.replace(file)


@functools.cache
def _library() -> Path:
    """Compile wrong_clock.c, once for this process, into a folder that goes with the process."""
    if not sys.platform.startswith("linux"):
        raise NotShown(f"a wrong clock needs LD_PRELOAD and glibc; this is {sys.platform}")
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise NotShown("a wrong clock needs a C compiler; neither cc nor gcc nor clang is on PATH")
    folder = Path(tempfile.mkdtemp(prefix="streamward-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "wrong_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise NotShown(f"{SOURCE.name} cannot be compiled here: {done.stderr.strip()[:500]}")
    asked = "import time; print(time.time())"
    environment = {**os.environ, "LD_PRELOAD": str(library), FILE: str(folder / "trial")}
    (folder / "trial").write_text("-1000000000")
    told = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, timeout=60)
    if told.returncode != 0 or not 0 < float(told.stdout) < 1_200_000_000:
        raise NotShown(f"wrong_clock.so does not move Python's clock here: {(told.stdout + told.stderr).strip()[:500]}")
    return library
