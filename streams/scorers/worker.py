"""The worker process of the sandbox: one score at a time, then the next.

    stdin   length, pickle (limit, memory, name, settings, task, response)      from the parent, which is trusted
    stdout  length, JSON {"ready"} | {"changed"} | {"prepared"} | {"value", …} | {"reason", "error", …}

It trusts its parent, but its parent does not trust it: answers are JSON. What a scorer prints goes to stderr. A worker
whose parent died ends too: between scores when its stdin closes, during one by an alarm. A worker that imported a file
which has changed since says so instead of scoring, and is replaced by one that imports it again.

This contains accidents, not attackers: a scorer runs with the rights of the user.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import signal
import struct
import sys
import sysconfig
import traceback
from typing import Any, BinaryIO

from streams.scorers.registry import Scorer, load
from streams.scorers.verdict import ScoreError

FRAME = struct.Struct(">I")
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_imported: dict[str, int] = {}
"""Files that scorers imported, outside of the libraries, and when each was changed before, in ns."""


def main() -> None:
    """Serve until stdin ends."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    _send(outbox, {"ready": os.getpid()})
    while header := inbox.read(FRAME.size):
        _one(outbox, inbox.read(FRAME.unpack(header)[0]))


def _one(outbox: BinaryIO, frame: bytes) -> None:
    limit_s, memory_bytes, name, settings, task, response = pickle.loads(frame)  # noqa: S301 - from our parent
    version = f"{name}/unknown"
    try:
        if (file := next((file for file, at in _imported.items() if _changed_ns(file) != at), None)) is not None:
            _send(outbox, {"changed": file})
            return
        _limit_memory(memory_bytes)
        scorer = _load(name)
        version = scorer.version
        _send(outbox, {"prepared": version})
        signal.setitimer(signal.ITIMER_REAL, 2 * limit_s + 1)  # unhandled: ends a worker whose parent is gone
        verdict = scorer(task, response, settings)
        answer: dict[str, Any] = {
            "value": verdict.value,
            "components": verdict.components,
            "rationale": verdict.rationale,
        }
    except ScoreError as exc:
        answer = {"reason": exc.reason, "error": str(exc), "again": exc.again}
    except MemoryError:
        answer = {"reason": "memory", "error": f"{name} needed more than {memory_bytes} bytes", "again": True}
    except BaseException as exc:  # SystemExit and KeyboardInterrupt too
        at = traceback.extract_tb(exc.__traceback__)[-1]
        error = f"{name} raised {type(exc).__name__}: {str(exc)[:1000]} ({at.filename}, line {at.lineno})"
        answer = {"reason": "exception", "error": error, "again": True}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _send(outbox, {**answer, "version": version})


def _load(name: str) -> Scorer:
    """Return the scorer, and note the files that it imports."""
    before = sys.modules.keys() | set()
    try:
        return load(name)
    finally:
        for module in sys.modules.keys() - before:
            file = getattr(sys.modules[module], "__file__", None)
            if file is not None and not file.startswith(_LIBRARIES):
                _imported[file] = _changed_ns(file)


def _changed_ns(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _limit_memory(memory_bytes: int) -> None:
    """Let allocations beyond this fail with MemoryError, where the system supports it."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def _send(outbox: BinaryIO, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    outbox.write(FRAME.pack(len(body)) + body)
    outbox.flush()
