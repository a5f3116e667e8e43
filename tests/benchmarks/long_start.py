"""How long processes and commands take to start on a long log: CPU time, wall-clock and peak memory.

    python -m tests.benchmarks long_start                 STREAMWARD_BENCH_RECORDS=100000,1000000 for other lengths

    LongLog, over 20 days, all of it read by the loop ──► each process, until /readyz or its page answers, then SIGTERM
                                                       └► each command, until it ends

The peer of a line is the same start on the shortest log, so the ratio says what grows: 1 does not grow. CPU time is the
measure, since wall-clock has the broker's share and that of other programs.

Not covered: a cold page cache, and `train`, which loads a model; it reads from the offsets in its checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import psutil

from streams.kafka import admin
from streams.kafka.client import consumer
from streams.kafka.topics import topics
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.benchmarks.long_log import LongLog
from tests.benchmarks.loop import LIMIT_S, REPO, node
from tests.benchmarks.side_by_side import line, say
from tests.support.log.secured_node import free_ports

RECORDS = [int(number) for number in os.environ.get("STREAMWARD_BENCH_RECORDS", "100000,1000000").split(",")]
OF_GROUP = 29.1
"""Records of a group: its task, eight responses, 16 rewards, group and run of three, and its share of the batches."""
DAYS = 20.0
TASK = '{"task_id": "fresh", "prompt": "1 + 1 =", "verifier": {"answer": "2"}, "reward_sources": ["exact"]}\n'
SCRIPT = '{"replies": [{"when": "?", "reply": "fine"}]}'
PROCESSES = {
    "policy": ("policy",),
    "scoring": ("scoring",),
    "streams": ("streams",),
    "serve": ("serve",),
    "jobs run": ("jobs", "run"),
    "page": ("page",),
}
COMMANDS = {
    "status": ("status",),
    "doctor": ("doctor",),
    "tasks submit": ("tasks", "submit"),
    "adapters list": ("adapters", "list"),
    "query, newest task": ("query", "FROM tasks ORDER BY created_at DESC LIMIT 1"),
    "audit": ("audit",),
}
INDEXED = ("tasks submit", "serve")
"""What keeps an index of a long log: the second start has it."""


class Taken(NamedTuple):
    """What one start took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run() -> Iterator[dict[str, Any]]:
    """Yield a line per start and length."""
    shortest: dict[str, Taken] = {}
    for records in RECORDS:
        with node() as plain, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
            settings = _settings(plain, Path(folder))
            say(f"long_start: {records} records are written")
            LongLog(settings, days=DAYS).write(round(records / OF_GROUP))
            _commit_all(settings)
            for name, taken in _starts(settings, Path(folder)):
                least = shortest.setdefault(name, taken)
                say(f"  {records} {name}: {taken}")
                yield line(
                    "long_start", f"{name}, {records} records", ours=taken.cpu_s, peer=least.cpu_s, unit="s of CPU",
                    ratio=least.cpu_s / taken.cpu_s, peer_is=f"{RECORDS[0]} records", wall_s=round(taken.wall_s, 2),
                    peak_mib=round(taken.peak_mib),
                )  # fmt: skip


def _settings(plain: Settings, folder: Path) -> Settings:
    tree = plain.model_dump()
    tree["policy"] |= {"name": "demo", "engine": "scripted", "script": SCRIPT}
    tree["adapters"]["store"], tree["worker"]["driver"] = str(folder / "adapters"), "loop"
    tree["archive"]["store"] = str(folder / "archive")
    return Settings.model_validate(tree)


def _commit_all(settings: Settings) -> None:
    """Commit the ends of all topics for the groups of the loop, as if it had read everything."""
    ends = [ck.TopicPartition(*tp, end) for tp, (_, end) in admin.offsets(settings, topics(settings.topics)).items()]
    for group in ("streams", "scoring", "policy-demo"):
        member = consumer(settings.kafka, {"group.id": settings.topics.prefix + group, "enable.auto.commit": False})
        member.commit(offsets=ends, asynchronous=False)
        member.close()


def _starts(settings: Settings, folder: Path) -> Iterator[tuple[str, Taken]]:
    for name, words in COMMANDS.items():
        if name == "tasks submit":
            (folder / "task.jsonl").write_text(TASK, encoding="utf-8")
            words = (*words, str(folder / "task.jsonl"))
        for again in ("", ", again")[: 1 + (name in INDEXED)]:
            yield name + again, _command(settings, words, folder)
    for name, words in PROCESSES.items():
        for again in ("", ", again")[: 1 + (name in INDEXED)]:
            yield name + again, _process(settings, words, folder)


def _command(settings: Settings, words: Sequence[str], folder: Path) -> Taken:
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            _line(words), cwd=REPO, env=_environment(settings, folder), stdout=output, stderr=output
        )
        peak = 0.0
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            peak = max(peak, _peak_mib(process.pid))
            time.sleep(0.02)
        _, status, used = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):  # doctor and audit have something to say of a log like this
            output.seek(0)
            say(f"    {' '.join(words)} ended with {process.returncode}: {output.read()[-600:].decode()}")
    return Taken(time.monotonic() - began, used.ru_utime + used.ru_stime, peak)


def _process(settings: Settings, words: Sequence[str], folder: Path) -> Taken:
    metrics, port = free_ports(2)
    env = _environment(settings, folder) | {"STREAMWARD_METRICS__PORT": str(metrics)}
    env |= {"STREAMWARD_SERVE__PORT": str(port), "STREAMWARD_PAGE__PORT": str(port)}
    url = f"http://127.0.0.1:{port}/" if words == ("page",) else f"http://127.0.0.1:{metrics}/readyz"
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(_line(words), cwd=REPO, env=env, stdout=output, stderr=output)
        try:
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > began + LIMIT_S:
                    output.seek(0)
                    say(f"    {' '.join(words)} did not start: {output.read()[-600:].decode()}")
                    break
                time.sleep(0.1)
            wall_s = time.monotonic() - began
            with psutil.Process(process.pid).oneshot() as _:
                times, peak = psutil.Process(process.pid).cpu_times(), _peak_mib(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return Taken(wall_s, times.user + times.system, peak)


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next((int(text.split()[1]) / 1024 for text in lines if text.startswith("VmHWM:")), 0.0)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=120):  # noqa: S310 - always http://
            return True
    except (urllib.error.URLError, OSError):
        return False


def _line(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "streams.cli", *words]


def _environment(settings: Settings, folder: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    return own | to_env(settings) | {"XDG_CACHE_HOME": str(folder / "cache")}
