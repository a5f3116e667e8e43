"""The worker process of the sandbox: one score at a time, then the next.

    stdin   length, pickle (id, limit, memory, name, settings, task, response)      from the parent, which is trusted
    stdout  length, JSON {"id", …} with "ready" | "changed" | "prepared" | "value", … | "reason", "error", …

It trusts its parent, but its parent does not trust it: answers are JSON, with the id of their request. What a scorer
prints goes to stderr. A process that a scorer forks has no part in this: it cannot read requests, nor answer them. A
worker whose parent died ends too: between scores when its stdin closes, during one by an alarm. A worker that imported
a file which has changed since says so instead of scoring, and is replaced by one that imports it again.

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
from collections.abc import Callable
from typing import Any, BinaryIO

from streams.scorers.registry import Scorer, load
from streams.scorers.verdict import ScoreError

FRAME = struct.Struct(">I")
START_ID = ""
"""Id of the frame that says that a worker has started."""
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_imported: dict[str, int] = {}
"""Files that scorers imported, outside of the libraries, and when each was changed before, in ns."""


def main() -> None:
    """Score until stdin ends. Arguments are folders to look for modules in, after all others."""
    sys.path.extend(sys.argv[1:])
    serve(_one)


def serve(one: Callable[[BinaryIO, bytes], None]) -> None:
    """Answer the frames on stdin one by one, until it ends. What is printed meanwhile goes to stderr."""
    inbox, outbox = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=inbox.close)
    os.register_at_fork(after_in_child=outbox.close)
    send(outbox, START_ID, {"ready": os.getpid()})
    while header := _read(inbox, FRAME.size):
        one(outbox, _read(inbox, FRAME.unpack(header)[0]))


def _read(inbox: BinaryIO, size: int) -> bytes:
    """Return `size` bytes; fewer at the end of the stream."""
    data = bytearray()
    while len(data) < size and (chunk := inbox.read(size - len(data))):
        data += chunk
    return bytes(data)


def _one(outbox: BinaryIO, frame: bytes) -> None:
    pid = os.getpid()
    request_id, limit_s, memory_bytes, name, settings, task, response = pickle.loads(frame)  # noqa: S301 - from our parent
    version = f"{name}/unknown"
    try:
        if (file := next((file for file, at in _imported.items() if _changed_ns(file) != at), None)) is not None:
            send(outbox, request_id, {"changed": file})
            return
        limit_memory(memory_bytes)
        scorer = _load(name)
        version = scorer.version
        send(outbox, request_id, {"prepared": version})
        if response is None:
            return  # it was only to be loaded
        signal.setitimer(signal.ITIMER_REAL, 2 * limit_s + 1)  # unhandled: ends a worker whose parent is gone
        verdict = scorer(task, response, settings)
        answer: dict[str, Any] = {
            "value": verdict.value,
            "components": verdict.components,
            "rationale": verdict.rationale,
            "steps": verdict.steps,
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
    if os.getpid() != pid:  # a scorer forked, and this is its child
        os._exit(0)
    send(outbox, request_id, {**answer, "version": version})


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


def limit_memory(memory_bytes: int) -> None:
    """Let allocations beyond this fail with MemoryError, where the system supports it."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def send(outbox: BinaryIO, request_id: str, answer: dict[str, Any]) -> None:
    """Write the answer to a request."""
    body = json.dumps({**answer, "id": request_id}).encode()
    data = FRAME.pack(len(body)) + body
    while data:
        data = data[outbox.write(data) :]
