"""Run the suites that others wrote against the server, and compare what they find with what they found before.

    python -m tests.strangers [SUITE …]           default: all; exit 1 if one finds something else, or does not end
    python -m tests.strangers [SUITE …] --write   write what they find, and the exchanges that `make test` repeats

    suite ──► one_suite.py: a process with a Kafka node and a server of its own ──► findings ──► findings.json
                 └──► its output: LOGS/SUITE.log, whose end is shown if the suite does not end

`make test-strangers` installs what they need into .venv-strangers. Two run at a time, since most of them wait for
programs of theirs; those that measure how long another caller waits run alone. suites.py has the list.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.strangers.described import ROOT
from tests.strangers.suites import SUITES

WRITE = "--write"
AT_ONCE = 2
LOGS = ROOT / ".streamward" / "strangers"
LAST = 30
"""Lines of a suite's output that are shown if it does not end."""


class Outcome(NamedTuple):
    """What a suite found; None if it did not end."""

    name: str
    findings: dict[str, Any] | None
    seconds: float

    @property
    def changes(self) -> list[str]:
        """What it finds that it did not find before."""
        before = _findings(SUITES[self.name].file)
        findings = self.findings or {}
        return [line for name, found in findings.items() for line in _changes(name, before.get(name), found)]

    @property
    def result(self) -> str:
        """How it ended, in a word or two."""
        if self.findings is None:
            return "DID NOT END"
        return "NOT AS BEFORE" if self.changes else "as before"


def main() -> int:
    """Return the exit code."""
    writes = WRITE in sys.argv[1:]
    chosen = [name for name in sys.argv[1:] if name != WRITE] or list(SUITES)
    if unknown := sorted(set(chosen) - set(SUITES)):
        print(f"no suite is called {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(_run, (name for name in chosen if not SUITES[name].alone)))
    outcomes += [_run(name) for name in chosen if SUITES[name].alone]
    good = sum(outcome.findings is not None if writes else outcome.result == "as before" for outcome in outcomes)
    print()
    for outcome in outcomes:
        print(f"{outcome.name:<18}{_minutes(outcome.seconds):>6}  {outcome.result}")
    if writes:
        _write(outcomes)
    what = "were written" if writes else "find what they found before"
    print(f"{good} of {len(outcomes)} suites {what}, in {_minutes(time.monotonic() - began)}")
    return int(good < len(outcomes))


def _run(name: str) -> Outcome:
    """Run a suite as a process of its own."""
    print(f"{name} …", flush=True)
    log, began = LOGS / f"{name}.log", time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, log.open("wb") as output:
        file = Path(temporary) / "findings.json"
        writes = [WRITE] if WRITE in sys.argv[1:] else []
        command = [sys.executable, "-m", "tests.strangers.one_suite", name, str(file), *writes]
        subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        findings = _findings(file) if file.exists() else None
    outcome = Outcome(name, findings, time.monotonic() - began)
    end = [] if findings is not None else log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST:]
    lines = [f"{name}: {outcome.result}, {_minutes(outcome.seconds)}; {log.relative_to(ROOT)} has its output"]
    print(*lines, *outcome.changes, *end, sep="\n", flush=True)
    return outcome


def _changes(place: str, before: Any, now: Any) -> list[str]:
    """Return a line for each place where findings differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        return [line for name in names for line in _changes(f"{place}: {name}", before.get(name), now.get(name))]
    if before == now:
        return []
    was, is_now = (json.dumps(value, ensure_ascii=False) for value in (before, now))
    return [f"  {place}: before {was}, now {is_now}"]


def _write(outcomes: list[Outcome]) -> None:
    """Write the findings of the suites that ended; those of others stay."""
    for outcome in outcomes:
        file = SUITES[outcome.name].file
        found = _findings(file) | (outcome.findings or {})
        file.write_text(json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _findings(file: Path) -> dict[str, Any]:
    findings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return findings


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
