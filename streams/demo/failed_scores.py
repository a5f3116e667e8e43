"""Score answers again after a failed scorer's file has changed, as `streamward admin rescore --failed` does.

    answers without a score ──► has a module of scoring.modules changed? ──► `admin rescore`, a child ──► its counts

The scoring agent reloads a changed module itself, but answers that it has given up on stay without a score. They are
also scored again when the run begins, since the file may have been fixed in between.

Not covered: modules outside the working folder; they are assumed not to change during a run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from streams.processes.child import ChildProcess, last_lines
from streams.settings.model import Scoring

GRACE_S = 20.0
COUNTS_SHOWN = 6
"""Lines of its output that are repeated: the counts, and why scores failed again."""


class FailedScores:
    """Answers without a score, of one run of the loop."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], scoring: Scoring, log: Path) -> None:
        """`command` scores them again; its output goes to `log`."""
        self._command, self._env, self._log = command, dict(env), log
        self._modules = [name.partition(".")[0] for name in scoring.importable if name != "."]
        self._tried = self._files()
        self._is_due = False
        self._child: ChildProcess | None = None

    def try_again(self) -> None:
        """Score again although no file has changed: answers failed in an earlier run."""
        self._is_due = True

    @property
    def is_pending(self) -> bool:
        """Whether answers are being scored again, or will be at the next check."""
        return self._is_due or self._child is not None

    def check(self, answers: int) -> Iterator[str]:
        """Score again if there are such answers and a file has changed since the last time; yield what happens."""
        is_due, self._is_due = self._is_due, False
        if self._child is not None:
            yield from self._finish(self._child)
        elif answers and (is_due or self._files() != self._tried):
            self._tried = self._files()
            self._child = self._start()
            yield f"scoring: {answers} answers have no score and are scored again"

    def close(self) -> None:
        """End the child, which may finish first."""
        if self._child is not None:
            self._child.wait_at_most(GRACE_S)
            self._child.kill_group()

    def _start(self) -> ChildProcess:
        with self._log.open("wb") as log:
            return ChildProcess(self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _finish(self, child: ChildProcess) -> Iterator[str]:
        if child.poll() is not None:
            self._child = None
            counts = ", ".join(" ".join(line.split()) for line in last_lines(self._log, COUNTS_SHOWN))
            yield f"scoring: scored again: {counts}"

    def _files(self) -> dict[Path, int]:
        """Return when each file of the modules in the working folder was changed, ns."""
        files: list[Path] = []
        for name in dict.fromkeys(self._modules):
            files += [Path(f"{name}.py"), *Path(name).rglob("*.py")]
        return {file: file.stat().st_mtime_ns for file in files if file.exists()}
