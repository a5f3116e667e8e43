"""The whole loop on one machine: broker, stream worker, scoring, policy, trainer; with a live view.

    seed ──► train tasks, as many as are wanted ──► the loop, five processes ──► adapters ──► held-out scores

Everything is stored in one folder. The log in it is the only state: stop at any time, and run the same command to
resume. A process that dies is restarted, and so is the Kafka node.

Not covered: more than one policy, and any cluster but the embedded one. The same processes run by hand against any
Kafka (`streamward streams`, `scoring`, `policy`, `train`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from schemas.events import Task
from streams.demo import report
from streams.demo.options import BY, POLICY, DemoOptions, leave_settings, settings_of
from streams.demo.processes import Processes, memory_bytes
from streams.demo.progress import Progress
from streams.demo.report import Display
from streams.engines.base_model import folder_of
from streams.engines.vllm import launch as vllm_launch
from streams.evaluation import run as evaluate
from streams.kafka import admin, times
from streams.kafka.node import process as broker
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.topics import LABELS
from streams.settings.load import save
from streams.settings.model import Settings
from streams.stages.tasks import suites
from streams.stages.tasks.generators import TaskSpec, generate

SEED = 0
HELD_OUT_TASKS = 35
"""Questions asked of each evaluated version: every held-out sum of two one-digit numbers."""
EVALUATE_EVERY = 2
WAITING_BATCHES = 2
"""How many batches' worth of tasks are kept waiting, so that the policy agent never runs dry."""
TICK_S = 0.25
NODE_CHECK_S = 0.5
CHILD = {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
"""Set in the environment of every process that the demo starts."""
PROCESSES = ("streams", "scoring", "policy", "train")


@dataclass
class DemoRun:
    """One run of the loop: its options, and what it has seen."""

    options: DemoOptions
    settings: Settings
    progress: Progress
    processes: Processes
    display: Display
    producer: Producer
    started_at: float
    stopping: threading.Event = field(default_factory=threading.Event)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether there is a model to train; the scripted engine has none."""
        return self.options.engine != "scripted"

    def finished(self) -> bool:
        """Return whether all steps are done, and the version they end with was scored."""
        progress, steps = self.progress, self.options.steps
        if not self.trains:
            return progress.batches >= steps and 0 in progress.held_out
        return progress.versions >= steps and steps in progress.held_out


def run(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run the loop until its steps are done, its time is over or it is interrupted; return the report.

    Raises SettingsError for impossible options, LogError if the broker does not start.
    """
    if options.engine == "vllm" and not options.names_servers:
        server = f"policy.servers=http://127.0.0.1:{vllm_launch.free_port()}"
        options = replace(options, overrides=(*options.overrides, server), starts_vllm=True)
    if options.fresh and options.data_dir.exists():
        broker.stop(settings_of(options, "127.0.0.1:0").broker)
        shutil.rmtree(options.data_dir)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    settings = settings_of(options, "127.0.0.1:0")
    if options.engine != "scripted":
        console.print(f"making {settings.model.base} ready (half a minute the first time) …", style="dim")
        folder_of(settings.model.base)
    console.print(f"starting Apache Kafka in {settings.broker.data_dir} …", style="dim")
    node = broker.ensure(settings.broker)
    try:
        settings = settings_of(options, node.bootstrap)
        config = save(settings, options.data_dir, by=BY)
        leave_settings(config)
        admin.apply_topics(settings)
        return _loop(options, settings, config, console)
    finally:
        broker.stop(settings.broker)


def _loop(options: DemoOptions, settings: Settings, config: Path, console: Console) -> dict[str, Any]:
    started_at = time.monotonic()
    starts = {tp: first for tp, (first, _) in admin.offsets(settings, LABELS).items()}
    with (
        PartitionReader(settings, starts) as reader,
        Producer(settings) as producer,
        Processes(options.data_dir / "logs", _child_env(options)) as processes,
        Display(console, steps=options.steps, started_at=started_at) as display,
    ):
        run = DemoRun(options, settings, Progress(settings), processes, display, producer, started_at)
        _catch_up(reader, run.progress)
        tasks = _tasks(options, run.progress)
        resumed = bool(run.progress.counts["tasks"])
        with _interruptible(run.stopping):
            if resumed:
                display.say(
                    f"resuming: {run.progress.counts['tasks']} tasks and {run.progress.versions} adapters in the log"
                )
            if run.finished():
                display.say("all steps are done: give more --steps to continue, or --fresh to start over")
            else:
                _start(run, config)
                with _node_kept_up(run):
                    _work(run, reader, tasks)
        interrupted = run.stopping.is_set()
        if processes.children:
            display.say("stopping: in-flight work is finished first")
        processes.stop([name for name in processes.children if name != "vllm"])  # which they need to finish
        processes.stop()
        _catch_up(reader, run.progress)
    result = report.of(
        run.progress,
        loop_s=time.monotonic() - started_at,
        data_dir=options.data_dir,
        peak_bytes=run.peak_bytes,
        interrupted=interrupted,
        finished=run.finished(),
    )
    report.write(result, run.progress, options.data_dir)
    report.show(result, run.progress, console, config, options)
    return result


def _child_env(options: DemoOptions) -> dict[str, str]:
    if options.starts_vllm:
        return vllm_launch.environment() | CHILD
    env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
    return env | CHILD


def _start_vllm(run: DemoRun) -> None:
    """Start the server, and wait until it answers. Raises StreamwardError with its last output if it does not."""
    processes, (url,) = run.processes, run.settings.policy.server_urls
    processes.start("vllm", vllm_launch.server_for(run.settings))
    run.display.say(f"starting vLLM at {url}, which takes a minute (its output: {processes.log_file('vllm')})")
    vllm_launch.wait_until_up(
        url,
        lambda: processes.children["vllm"].process.poll() is not None,
        lambda: processes.log_file("vllm").read_text(errors="replace")[-2000:],
        run.stopping,
    )


def _start(run: DemoRun, config: Path) -> None:
    if run.options.starts_vllm:
        _start_vllm(run)
    for name in PROCESSES:
        if name == "train" and not run.trains:
            continue
        run.processes.start(name, [sys.executable, "-m", "streams.cli", "--config", str(config), name])


def _catch_up(reader: PartitionReader, progress: Progress) -> None:
    """Fold everything that is in the log by now."""
    quiet = 0
    while quiet < 2:
        records = reader.poll(5000, 0.3)
        quiet = 0 if records else quiet + 1
        for record in records:
            progress.fold(record)


@contextmanager
def _node_kept_up(run: DemoRun) -> Iterator[None]:
    """Restart the Kafka node whenever it has ended, from a thread; writers wait for it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(NODE_CHECK_S):
            if broker.status(run.settings.broker) is None:
                run.display.say("kafka ended; restarting it")
                broker.ensure(run.settings.broker)

    thread = threading.Thread(target=watch, name="node watch")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _work(run: DemoRun, reader: PartitionReader, tasks: Iterator[Task]) -> None:
    """Submit tasks, watch the processes and draw until the run is over."""
    next_memory = 0.0
    deadline = run.started_at + run.options.minutes * 60
    while not run.stopping.is_set() and not run.finished() and time.monotonic() < deadline:
        for record in reader.poll(5000, TICK_S):
            run.progress.fold(record)
        _feed(run, tasks)
        for line in run.processes.check():
            run.display.say(line)
        if time.monotonic() >= next_memory:
            _measure(run)
            next_memory = time.monotonic() + 2.0
        run.display.update(run.progress, sum(run.peak_bytes.values()))


def _feed(run: DemoRun, tasks: Iterator[Task]) -> None:
    """Submit train tasks as needed, and the held-out tasks of each version that is due."""
    progress = run.progress
    now_ms = times.now_ms()
    if progress.versions < run.options.steps:
        wanted = WAITING_BATCHES * run.settings.batches.groups - progress.places["waiting"]
        if wanted >= run.settings.batches.groups // 2:
            for task in itertools.islice(tasks, wanted):
                run.producer.send(task)
    due = {0, run.options.steps, *range(0, progress.versions + 1, EVALUATE_EVERY)} if run.trains else {0}
    for version in sorted(due - progress.evaluations):
        if version > progress.primary:
            continue
        progress.evaluations.add(version)
        suite = suites.generated(run.options.generator, count=HELD_OUT_TASKS, seed=SEED)
        for task in evaluate.evaluation(suite, policy=POLICY, version=version, now_ms=now_ms):
            run.producer.send(task)
    run.producer.flush()


def _tasks(options: DemoOptions, progress: Progress) -> Iterator[Task]:
    """Return the train tasks that are not in the log yet, for ever."""
    spec = TaskSpec(family=options.generator, count=sys.maxsize, seed=SEED, purpose="train", policy=POLICY)
    endless = generate(spec, now_ms=times.now_ms())
    return itertools.islice(endless, progress.train_tasks[options.generator], None)


def _measure(run: DemoRun) -> None:
    node = broker.status(run.settings.broker)
    now = {"demo": memory_of_this_process(), **run.processes.memory_bytes()}
    if node is not None:
        now["kafka"] = memory_bytes(node.pid)
    for name, size in now.items():
        run.peak_bytes[name] = max(size, run.peak_bytes.get(name, 0))


def memory_of_this_process() -> int:
    """Return the proportional memory of this process alone, in bytes."""
    import psutil

    info = psutil.Process().memory_full_info()
    return int(getattr(info, "pss", info.rss))


@contextmanager
def _interruptible(stopping: threading.Event) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `stopping`; the second ends the process as usual."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _: object) -> None:
        stopping.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
