"""Run scorers that may hang, crash or exhaust memory in processes that can be killed.

    (name, settings, task, response) ──► a free worker ──► Verdict, or ScoreError(timeout | crashed | memory | …)

At the time limit a worker's process group is killed, and the next score gets a new worker; also when a file that the
worker imported has changed since. Workers are started when first needed, so a deployment without such scorers pays
nothing.

A worker serves one score after another, so a scorer may leave something behind: a forked process, a thread, bytes in
the pipe (streams/processes/worker_pipe.py). A score that crashed a used worker is retried in a fresh one, and that
result counts. It does not protect against hostile code, and does not limit CPU, disk and network.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import queue
from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Any

from schemas.events import Response, Task
from streams.processes.worker_pipe import START_LIMIT_S, WorkerError, WorkerKind, WorkerProcess, bad_answer
from streams.scorers.verdict import ScoreError, Verdict, check_verdict

log = logging.getLogger(__name__)

SCORER = WorkerKind("streams.scorers.scorer_worker", "a scorer's worker", "scoring.timeout_s")
MEMORY_BYTES = 2 * 1024**3
"""Maximum data of one worker."""


class Sandbox:
    """Worker processes, at most `processes` of them. Threads may call `score` together; each waits for a worker."""

    def __init__(
        self,
        processes: int,
        timeout_s: float,
        *,
        folders: Sequence[str] = (),
        variables: str = "",
    ) -> None:
        """`folders` are searched for modules after the interpreter's own path; `variables`: scoring.variables."""
        self.timeout_s = timeout_s
        self._folders, self._variables = tuple(folders), variables
        self._closed = False
        self._alive: set[ScorerProcess] = set()
        self._free: queue.LifoQueue[ScorerProcess | None] = queue.LifoQueue()
        for _ in range(processes):
            self._free.put(None)

    def score(self, name: str, settings: dict[str, Any], task: Task, response: Response) -> Verdict:
        """Return the verdict of the scorer `name`. Raises ScoreError: timeout, crashed, memory, exception,
        not_a_number, and the scorer's own reasons.
        """
        worker = self._free.get()
        try:
            while True:
                if self._closed:
                    raise ScoreError(f"{name} was not scored: the sandbox is closed", reason="crashed")
                if worker is not None and worker.is_spoilt():
                    self._end(worker)
                    worker = None
                if worker is None:
                    worker = ScorerProcess(self._folders, self._variables)
                    self._alive.add(worker)
                was_used, request_id = worker.scores > 0, token_hex(16)
                body = (request_id, MEMORY_BYTES, name, settings, task, response)
                try:
                    return worker.score(name, request_id, pickle.dumps(body), self.timeout_s)
                except _ModuleChanged as exc:
                    log.warning("%s has changed on disk; scorers are loaded again from here on", exc)
                    self._end(worker)
                    worker = None
                except ScoreError as exc:
                    if exc.reason in _KILLING:
                        self._end(worker)
                        worker = None
                    if not (was_used and exc.reason in _INHERITED):
                        raise
                except BaseException:  # KeyboardInterrupt too: an answer that was not read would be the next one's
                    self._end(worker)
                    worker = None
                    raise
        finally:
            self._free.put(worker)

    def load(self, name: str) -> None:
        """Import the scorer `name` in a separate worker. Raises ScoreError if that fails."""
        worker, request_id = ScorerProcess(self._folders, self._variables), token_hex(16)
        try:
            worker.load(name, request_id, pickle.dumps((request_id, MEMORY_BYTES, name, {}, None, None)))
        finally:
            worker.dispose()

    def _end(self, worker: ScorerProcess) -> None:
        worker.dispose()
        self._alive.discard(worker)

    def close(self) -> None:
        """Kill the workers; running scores end as crashed."""
        self._closed = True
        for worker in list(self._alive):
            worker.kill()
        with contextlib.suppress(queue.Empty):
            while True:  # idle workers; the caller of a busy one disposes of it
                idle = self._free.get_nowait()
                if idle is not None:
                    idle.dispose()


_KILLING = {"timeout", "crashed", "memory"}
_INHERITED = {"crashed", "memory"}
"""An error that an earlier scorer in the same worker may have caused."""


class _ModuleChanged(Exception):
    """A file that a worker imported has changed since, so the worker must be replaced."""


class ScorerProcess(WorkerProcess):
    """A process that scores."""

    def __init__(self, folders: Sequence[str], variables: str) -> None:
        """`folders` are searched last for modules. Raises ScoreError if it does not start."""
        self.scores = 0
        """Scores begun so far."""
        with _score_errors():
            super().__init__(SCORER, folders, variables)

    def score(self, name: str, request_id: str, body: bytes, timeout_s: float) -> Verdict:
        """Return the worker's verdict on one pickled request. Raises ScoreError, _ModuleChanged."""
        self.scores += 1
        with _score_errors():
            answer = self._begin(name, request_id, body)
            if "changed" in answer:
                raise _ModuleChanged(str(answer["changed"]))
            if "prepared" in answer:
                answer = self.receive(name, "answer", timeout_s, request_id)
            if "reason" in answer:
                raise _failure(name, answer)
            try:
                fields = (answer["value"], answer["components"], answer["rationale"])
                verdict = Verdict(*fields, str(answer["version"]), answer["steps"])
            except KeyError as exc:
                raise bad_answer(name) from exc
        return check_verdict(verdict, name)

    def load(self, name: str, request_id: str, body: bytes) -> None:
        """Import the scorer that a pickled request without a response names. Raises ScoreError."""
        with _score_errors():
            answer = self._begin(name, request_id, body)
            if "prepared" not in answer:
                raise _failure(name, answer)

    def _begin(self, name: str, request_id: str, body: bytes) -> dict[str, Any]:
        """Send a request, and return its first answer, which comes once the scorer is imported."""
        self.write(name, body, START_LIMIT_S)
        return self.receive(name, "be imported", START_LIMIT_S, request_id)


@contextlib.contextmanager
def _score_errors() -> Iterator[None]:
    """Turn WorkerError into ScoreError."""
    try:
        yield
    except WorkerError as exc:
        raise ScoreError(str(exc), reason=exc.reason, again=exc.again) from exc


def _failure(name: str, answer: dict[str, Any]) -> Exception:
    """Return the error in an answer."""
    try:
        error, reason, again = str(answer["error"]), str(answer["reason"]), bool(answer["again"])
        return ScoreError(error, reason=reason, again=again, version=str(answer["version"]))
    except KeyError:
        return bad_answer(name)
