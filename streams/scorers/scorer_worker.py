"""The worker process of the sandbox, which computes one score at a time.

    stdin   pickle (id, memory, name, settings, task, response)      from the parent, which is trusted
    stdout  JSON {"id", …} with "changed" | "prepared" | "value", … | "reason", "error", …

The pipes are those of streams/processes/worker_pipe.py. A worker reports a change of an imported file instead of
scoring, and is replaced by one that imports it again.
"""

from __future__ import annotations

import os
import pickle
import sys
import sysconfig
from typing import Any

from streams.processes.worker_pipe import AnswerPipe, describe_exception, limit_memory, serve
from streams.scorers.registry import Scorer, load
from streams.scorers.verdict import ScoreError

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_imported: dict[str, int] = {}
"""Files that scorers imported, except libraries, with their times of modification in ns."""


def main() -> None:
    """Score until stdin ends. Arguments are folders that are searched last for modules."""
    sys.path.extend(sys.argv[1:])
    serve(_answer)


def _answer(answers: AnswerPipe, request: bytes) -> None:
    request_id, memory_bytes, name, settings, task, response = pickle.loads(request)  # noqa: S301 - our parent's
    version = f"{name}/unknown"
    try:
        for file, changed_ns in _imported.items():
            if _changed_ns(file) != changed_ns:
                answers.send(request_id, {"changed": file})
                return
        limit_memory(memory_bytes)
        scorer = _load(name)
        version = scorer.version
        answers.send(request_id, {"prepared": version})
        if response is None:
            return  # it was only to be loaded
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
    except BaseException as exc:  # a scorer may raise anything, SystemExit and KeyboardInterrupt too
        answer = {"reason": "exception", "error": describe_exception(name, exc), "again": True}
    answers.send(request_id, {**answer, "version": version})


def _load(name: str) -> Scorer:
    """Return the scorer, and remember the files that it imports."""
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
