"""The text of a PDF, read in a process of its own: whatever a file makes pypdf do, it takes no more than PDF_S.

    data ──► worker: pypdf, with little memory ──► {"pages": […]}, or {"problem": a sentence}

A process is kept for the next file, since an import takes half a second; one that was late is killed.
"""

from __future__ import annotations

import io
import logging
import threading
from typing import Any

from streams.processes.worker_pipe import AnswerPipe, WorkerError, WorkerKind, WorkerProcess, limit_memory, serve

PDF_S = 20.0
"""Time limit of a file, seconds."""
MEMORY_BYTES = 1 << 30
MOST_BYTES = 64 << 20
"""Of the text of a file, as JSON."""
_KIND = WorkerKind(__name__, "the reader of PDF", "")
_ID = "file"
_lock = threading.Lock()
_idle: list[WorkerProcess] = []


def text_of_pdf(data: bytes) -> str:
    """Return the text of its pages. Raises ValueError that says why not."""
    with _lock:
        worker = _idle.pop() if _idle else None
    try:
        if worker is not None and worker.is_spoilt():
            worker.dispose()
            worker = None
        worker = worker or WorkerProcess(_KIND, [])
        worker.write("the file", data, PDF_S)
        answer = worker.receive("the file", "be read", PDF_S, _ID, most_bytes=MOST_BYTES)
    except WorkerError as exc:
        if worker is not None:
            worker.dispose()
        late = f"it takes longer than {PDF_S:g} s; print it again, or convert it to text"
        raise ValueError(late if exc.reason == "timeout" else str(exc)) from exc
    with _lock:
        _idle.append(worker)
    if "problem" in answer:
        raise ValueError(str(answer["problem"]))
    return "\n\n".join(map(str, answer["pages"]))


def main() -> None:
    """Read files until stdin ends."""
    import pypdf

    logging.disable()  # it has a line for each oddity of a file
    limit_memory(MEMORY_BYTES)

    def answer(answers: AnswerPipe, data: bytes) -> None:
        result: dict[str, Any]
        try:
            result = {"pages": [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(data)).pages]}
        except Exception as exc:  # pypdf raises what the bytes of a broken file lead it to
            result = {"problem": f"{type(exc).__name__}: {str(exc)[:500]}"}
        answers.send(_ID, result)

    serve(answer)
