"""What each case, file and fixture takes, in seconds and CPU seconds: each run writes it, and it orders the next one.

    a case ends ──► its report ──► the process that began the run ──► .pytest_cache/times.json ──► tests.house --times
                                                                      tests/seconds.json ──┴──► the longest file first

CPU seconds are those of the test's process and of its child processes that have ended; on a busy machine they alone can
be compared. A child that ends later counts for the case that runs then, and the node that workers share for none.

A file is never split among workers: its tests share fixtures. If one of minutes begins last, the other workers wait.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import fork_server

ROOT = Path(__file__).parents[1]
SEED = Path(__file__).with_name("seconds.json")
"""Seconds and CPU seconds of each file that takes SHORT_S or more, for the first run of a clone."""
SHORT_S = 1.0

Spent = tuple[float, float]
"""Seconds, and CPU seconds."""
Times = dict[str, dict[str, dict[str, Spent]]]
"""Of each file its "cases" and its "fixtures", by name."""


def now() -> Spent:
    """Return the time, and the CPU time of this process and of its children and forks that have ended."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), sum(use.ru_utime + use.ru_stime for use in uses) + fork_server.cpu_s


def total(each: Iterable[Spent]) -> Spent:
    """Return the sums."""
    seconds, cpu = zip((0.0, 0.0), *each, strict=True)
    return sum(seconds), sum(cpu)


class Measurement:
    """The plugin of one process of a run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = now()
        self._fixtures: dict[str, Spent] = {}
        self._run: Times = defaultdict(lambda: {"cases": {}, "fixtures": {}})

    def pytest_collection_finish(self) -> None:
        """Begin the first case here."""
        self._last = now()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Measure a fixture without those that it is made of."""
        (began, cpu), name = now(), fixturedef.argname
        try:
            return (yield)
        finally:
            ended, used = now()
            self._fixtures[name] = total([self._fixtures.get(name, (0, 0)), (ended - began, used - cpu)])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write into the report what was spent since the last one; pytest-xdist carries it to the first process."""
        report = yield
        (began, cpu), self._last = self._last, now()
        report.spent = (self._last[0] - began, self._last[1] - cpu)
        report.fixtures, self._fixtures = self._fixtures, {}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what the three parts of a case took. A worker that died reports nothing about its last one."""
        file, _, case = report.nodeid.partition("::")
        measured = getattr(report, "fixtures", {})
        for kind, spent in (("cases", {case: getattr(report, "spent", (0, 0))}), ("fixtures", measured)):
            known = self._run[file][kind]
            known |= {name: total([known.get(name, (0, 0)), each]) for name, each in spent.items()}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what the run measured. A file of which it chose cases keeps what the others took before."""
        if hasattr(session.config, "workerinput") or not self._run:
            return
        chosen = session.config.option.keyword or any("::" in argument for argument in session.config.args)
        times = read(self._file)
        for file, measured in self._run.items():
            known = times.get(file, {}) if chosen else {}
            times[file] = {kind: known.get(kind, {}) | spent for kind, spent in measured.items()}
        self._file.parent.mkdir(exist_ok=True)
        part = self._file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(times), encoding="utf-8")
        part.replace(self._file)


def file_of(root: Path) -> Path:
    """Return where runs below `root` write."""
    return root / ".pytest_cache" / "times.json"


def read(file: Path) -> Times:
    """Return what runs have measured, of the test files that still exist."""
    times: Times = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: kinds for name, kinds in times.items() if (file.parents[1] / name).exists()}


def of_files(times: Times) -> dict[str, Spent]:
    """Return what each file took."""
    return {file: total(kinds["cases"].values()) for file, kinds in times.items()}


def seconds() -> dict[str, float]:
    """Return how long each file took here, or, where it has not run here, elsewhere."""
    seed = json.loads(SEED.read_text(encoding="utf-8"))
    return {file: spent for file, (spent, _) in (seed | of_files(read(file_of(ROOT)))).items()}


def write_seed() -> None:
    """Write what the files took here for all; what has not run here stays, unless its file is gone."""
    seed = json.loads(SEED.read_text(encoding="utf-8")) | of_files(read(file_of(ROOT)))
    kept = {file: [round(each, 1) for each in spent] for file, spent in seed.items() if (ROOT / file).exists()}
    lines = [f"    {json.dumps(file)}: {spent}" for file, spent in sorted(kept.items()) if spent[0] >= SHORT_S]
    SEED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table(most: int = 20) -> Iterator[str]:
    """Yield the slowest files, cases and fixtures, a line each, by CPU seconds and by seconds."""
    times = read(file_of(ROOT))
    parts = [
        (kind, {f"{file}::{name}": spent for file, kinds in times.items() for name, spent in kinds[kind].items()})
        for kind in ("cases", "fixtures")
    ]
    for kind, every in (("files", of_files(times)), *parts):
        seconds, cpu = total(every.values())
        yield f"{len(every)} {kind}: {seconds:.0f} s, {cpu:.0f} CPU s"
        for place, unit in ((1, "CPU s"), (0, "s")):
            yield f"{'s':>9} {'CPU s':>8}  the slowest {kind} in {unit}"
            slowest = sorted(every.items(), key=lambda each: -each[1][place])[:most]
            yield from (f"{spent[0]:9.1f} {spent[1]:8.1f}  {name}" for name, spent in slowest)


def pytest_configure(config: pytest.Config) -> None:
    """Measure this run."""
    config.pluginmanager.register(Measurement(file_of(config.rootpath)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first. Tests of one file keep their order."""
    took = seconds()
    items.sort(key=lambda item: -took.get(item.nodeid.partition("::")[0], 0.0))
