"""Run the whole loop on one machine: broker, stream worker, scoring, policy, trainer, and a live view.

    Plan ──► train tasks, as many as are wanted ──► the loop, five processes ──► adapters ──► held-out scores

Where tasks are episodes in an environment, the server for agents and the built-in agent answer them.
The log is the only state: stop at any time, and run the same command to resume. A process that dies is restarted, and
so is the embedded Kafka node.

Not covered: several policies. Run the processes by hand for that (`streamward streams`, `scoring`, `policy`, `train`).
"""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from schemas.events import Task
from streams.demo import loop_report as report
from streams.demo.failed_scores import FailedScores
from streams.demo.learning_watch import LearningWatch
from streams.demo.loop_plan import Plan
from streams.demo.loop_report import Display
from streams.demo.players import CHILD, PLAYERS, child_env, command
from streams.demo.progress import Progress
from streams.demo.restarts import RestartedProcesses, memory_bytes
from streams.demo.settings_file import leave_settings
from streams.engines.base_model import folder_of
from streams.engines.vllm import launch as vllm_launch
from streams.evaluation import suite_tasks as evaluate
from streams.evaluation.suite import Suite
from streams.kafka import admin, times
from streams.kafka.node import process as broker
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import LABELS
from streams.plugins.installed import plugin_entries
from streams.plugins.plugin import Companion
from streams.processes.signals import SignalledEvent
from streams.settings.load import save
from streams.settings.model import Settings

EVALUATE_EVERY = 2
WAITING_BATCHES = 2
"""How many batches' worth of tasks are kept waiting, so that the policy agent never runs dry."""
TICK_S = 0.25
NODE_CHECK_S = 0.5
PROCESSES: dict[str, tuple[str, ...]] = {
    "streams": ("streams",),
    "scoring": ("scoring",),
    "policy": ("policy",),
    "train": ("train",),
}
"""Arguments of `streamward` by process."""
RESCORE = ("admin", "rescore", "--failed", "--output", "table")
STOPS_LAST = ("serve", "vllm")
"""Processes that others need to finish their work, in the order in which they are stopped."""


@dataclass
class LoopRun:
    """One run of the loop: its plan, and its state."""

    plan: Plan
    settings: Settings
    suite: Suite | None
    progress: Progress
    watch: LearningWatch
    processes: RestartedProcesses
    display: Display
    producer: Producer
    started_at: float
    stopping: SignalledEvent = field(default_factory=SignalledEvent)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    """Train tasks that are in the log or were sent."""
    all_sent: bool = False
    """Whether there is no further train task."""
    again: Iterator[Task] | None = None
    """Tasks to repeat, where the remaining ones do not fill a step; None until they are needed."""
    is_filled: bool = False
    """Whether no task is left that would fill the last step."""

    @property
    def trains(self) -> bool:
        """Whether there is a model to train; the scripted engine has none."""
        return self.settings.policy.engine != "scripted"

    def is_hopeless(self) -> bool:
        """Return whether the run has to end since it teaches nothing."""
        return not self.plan.endless and self.watch.stop_reason() is not None

    def failure(self) -> str | None:
        """Return why the run failed; None if it did not, or has no tasks of its own."""
        return None if self.plan.endless else self.watch.failure(trains=self.trains and self.plan.asks_to_train)

    def is_finished(self) -> bool:
        """Return whether all steps or all tasks are done, and the version they end with was scored."""
        progress = self.progress
        return self._has_done_all() and (self.suite is None or self.last_version() in progress.held_out)

    def last_version(self) -> int | None:
        """Return the version that this run ends with; None if that is not known yet."""
        if not self.trains:
            return 0
        return self.progress.versions if self.all_done() else self.plan.steps

    def _has_done_all(self) -> bool:
        return (self.plan.steps is not None and self._steps_left(self.plan.steps) <= 0) or self.all_done()

    def _steps_left(self, steps: int) -> int:
        return steps - (self.progress.versions if self.trains else self.progress.batches)

    def room(self) -> int:
        """Return how many train tasks to send now; 0 while enough wait, or while the last steps have what they need."""
        progress, groups = self.progress, self.settings.batches.groups
        unread = self.sent - sum(progress.train_tasks.values())
        room, worth_sending = WAITING_BATCHES * groups - progress.places["waiting"] - unread, groups // 2
        if self.plan.steps is not None:
            needed = self._steps_left(self.plan.steps) * groups - self._under_way() - progress.window() - unread
            room, worth_sending = min(room, needed), min(worth_sending, needed)
        return room if room >= max(worth_sending, 1) else 0

    def all_done(self) -> bool:
        """Return whether every task has left, but for those that wait for a batch they cannot fill."""
        window = self.progress.window()
        return (
            self._is_quiet()
            and self.progress.has_answered(self.plan.tasks_to_answer)
            and (not window or (self.is_filled and window < self.settings.batches.groups))
        )

    def missing_groups(self) -> int:
        """Return how many groups the last step lacks, if no task is under way that could fill it; else 0."""
        window, groups = self.progress.window(), self.settings.batches.groups
        has_all_steps = self.plan.steps is not None and self.progress.batches >= self.plan.steps
        return groups - window if self._is_quiet() and 0 < window < groups and not has_all_steps else 0

    def _is_quiet(self) -> bool:
        """Return whether all train tasks were sent and none is on its way to a group, or in a batch.

        A task that lacks a score which its scorer gave up on does not count.
        """
        read = sum(self.progress.train_tasks.values()) >= self.sent
        return self.all_sent and read and self._under_way() == 0

    def _under_way(self) -> int:
        places = self.progress.places
        under_way = places["waiting"] + places["sampled"] + places["scored"] - self.progress.stalled_tasks()
        return under_way + (places["batched"] if self.trains else 0)


def run(plan: Plan, console: Console) -> dict[str, Any]:
    """Run the loop until all is done, its time is over or it is interrupted; return the report.

    Raises SettingsError for impossible options, LogError if the broker does not start.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    settings = plan.settings()
    if settings.policy.engine != "scripted":
        console.print(f"making {settings.model.base} ready (half a minute the first time) …", style="dim")
        folder_of(settings.model.base)
    with _log(plan, settings, console) as bootstrap:
        settings = plan.settings(bootstrap)
        use_keys(settings)
        config = save(settings, plan.folder, by=plan.by)
        leave_settings(config)
        admin.apply_topics(settings)
        result = _loop(plan, settings, config, console)
        if plan.look_back is not None and result["finished"] and not result["interrupted"]:
            plan.look_back(settings, plan.folder, console.print)
        return result


@contextmanager
def _log(plan: Plan, settings: Settings, console: Console) -> Iterator[str]:
    """Start the embedded node, if it is to be used, and yield the address of the log."""
    if not plan.starts_node:
        yield settings.kafka.bootstrap
        return
    console.print(f"starting Apache Kafka in {settings.broker.data_dir} …", style="dim")
    stays = broker.status(settings.broker) is not None and not plan.owns_node
    node = broker.ensure(settings.broker)
    try:
        yield node.bootstrap
    finally:
        if not stays:
            broker.stop(settings.broker)


def _loop(plan: Plan, settings: Settings, config: Path, console: Console) -> dict[str, Any]:
    started_at = time.monotonic()
    starts = {tp: first for tp, (first, _) in admin.offsets(settings, LABELS).items()}
    suite = plan.suite()
    with (
        PartitionReader(settings, starts) as reader,
        Producer(settings) as producer,
        RestartedProcesses(plan.folder / "logs", _child_env(plan)) as processes,
        Display(console, steps=plan.steps, scored=suite is not None, started_at=started_at) as display,
    ):
        progress = Progress(settings)
        _catch_up(reader, progress)
        task_ids = plan.task_ids()
        watch = LearningWatch(progress, 0 if task_ids is None else progress.leftovers(task_ids))
        run = LoopRun(plan, settings, suite, progress, watch, processes, display, producer, started_at)
        tasks, note = plan.tasks(settings, run.progress)
        run.sent = sum(run.progress.train_tasks.values())
        with _interruptible(run.stopping):
            if run.progress.counts["tasks"]:
                display.say(
                    f"resuming: {run.progress.counts['tasks']} tasks and {run.progress.versions} adapters in the log"
                )
            if note:
                display.say(note)
            _feed(run, tasks)
            had_work = not run.is_finished() or run.progress.failures.rescorable > 0
            if not had_work:
                display.say(plan.done_hint)
            else:
                _start(run, config)
                with _keep_node_up(run), closing(_failed_scores(run, config)) as failed_scores:
                    _work(run, reader, tasks, failed_scores)
        interrupted = run.stopping.is_set()
        if processes.children:
            display.say("stopping: in-flight work is finished first")
        processes.stop([name for name in processes.children if name not in STOPS_LAST])
        for name in STOPS_LAST:
            processes.stop([name] if name in processes.children else [])
        _catch_up(reader, run.progress)
    result = report.summarize(
        run.progress,
        loop_s=time.monotonic() - started_at,
        data_dir=plan.folder,
        peak_bytes=run.peak_bytes,
        ending=report.LoopEnding(
            interrupted, run.is_finished(), run.failure() if had_work and not interrupted else None
        ),
    )
    report.write(result, run.progress, plan.folder)
    report.show(result, run.progress, console, config, plan)
    return result


def _child_env(plan: Plan) -> dict[str, str]:
    if plan.starts_vllm:
        return vllm_launch.environment() | CHILD
    return child_env()


def _start_vllm(run: LoopRun) -> None:
    """Start the server, and wait until it answers. Raises StreamwardError with its last output if it does not."""
    processes, (url,) = run.processes, run.settings.policy.server_urls
    processes.start("vllm", vllm_launch.server_for(run.settings))
    run.display.say(f"starting vLLM at {url}, which takes a minute (its output: {processes.log_file('vllm')})")
    vllm_launch.wait_until_up(url, processes.children["vllm"].process, processes.log_file("vllm"), run.stopping)


def _start(run: LoopRun, config: Path) -> None:
    if run.plan.starts_vllm:
        _start_vllm(run)
    for name, words in commands(run.plan, run.settings, trains=run.trains).items():
        run.processes.start(name, command(config, words))
    if run.plan.starts_companions:
        for name, (plugin, reference) in plugin_entries(lambda plugin: plugin.companions, "process", PROCESSES).items():
            companion: Companion = plugin.load(reference)(run.settings)
            run.processes.start(name, command(config, companion.words), needed=False)
            run.display.say(companion.message)


def commands(plan: Plan, settings: Settings, *, trains: bool) -> dict[str, tuple[str, ...]]:
    """Return the processes of a run, with the arguments of each."""
    left_out = {name for name, needed in (("train", trains), ("policy", plan.asks_prompts)) if not needed}
    processes = {name: words for name, words in PROCESSES.items() if name not in left_out}
    if plan.endless:
        declared = plugin_entries(lambda plugin: plugin.controllers, "process", processes)
        processes |= {name: words for name, (_, words) in declared.items()}
    if plan.in_environment:
        processes |= {"serve": PLAYERS["serve"], "agents": (*PLAYERS["agents"], settings.serve.url)}
    return processes


def _catch_up(reader: PartitionReader, progress: Progress) -> None:
    """Fold every record of the log so far. Raises LogError if the broker does not answer."""
    ends = {tp: end for tp, (_, end) in admin.offsets(progress.settings, LABELS).items()}
    reader.assign(reader.position, ends)
    for records in reader.batches(outage=None):
        for record in records:
            progress.fold(record)
    reader.assign(reader.position)


@contextmanager
def _keep_node_up(run: LoopRun) -> Iterator[None]:
    """Restart the embedded node whenever it has ended, from a thread; writers wait for it."""
    if not run.plan.starts_node:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(NODE_CHECK_S):
            if broker.status(run.settings.broker) is None:
                run.display.say("kafka ended; restarting it")
                broker.ensure(run.settings.broker)

    thread = threading.Thread(target=watch, name="node watch")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _failed_scores(run: LoopRun, config: Path) -> FailedScores:
    """Return the answers without a score, to try again at once if an earlier run left some."""
    rescore, log = command(config, RESCORE), run.processes.log_file("rescore")
    failed_scores = FailedScores(rescore, _child_env(run.plan), run.settings.scoring, log)
    if run.progress.failures.rescorable:
        failed_scores.try_again()
    return failed_scores


def _work(run: LoopRun, reader: PartitionReader, tasks: Iterator[Task], failed_scores: FailedScores) -> None:
    """Submit tasks, watch the processes and draw until the run is over."""
    next_memory = 0.0
    minutes = run.plan.minutes
    deadline = math.inf if minutes is None else run.started_at + minutes * 60
    while failed_scores.is_pending or not (run.is_finished() or run.is_hopeless()):
        if run.stopping.is_set() or time.monotonic() >= deadline:
            return
        for record in reader.poll(5000, TICK_S):
            run.progress.fold(record)
        _feed(run, tasks)
        was_pending, again = failed_scores.is_pending, [*failed_scores.check(run.progress.failures.rescorable)]
        if was_pending and not failed_scores.is_pending:
            _catch_up(reader, run.progress)  # with the scores that were written before it ended
        for line in (*run.processes.check(), *run.watch.warnings(), *again):
            run.display.say(line)
        if time.monotonic() >= next_memory:
            _measure(run)
            next_memory = time.monotonic() + 2.0
        run.display.update(run.progress, sum(run.peak_bytes.values()))


def _feed(run: LoopRun, tasks: Iterator[Task]) -> None:
    """Submit train tasks as needed, and the held-out tasks of each version that is due."""
    progress, steps = run.progress, run.plan.steps
    now_ms = times.now_ms()
    if steps is None or progress.versions < steps:
        if room := run.room():
            sent = list(itertools.islice(tasks, room))
            for task in sent:
                run.producer.send(task)
            run.sent += sum(task.purpose == "train" for task in sent)
            run.all_sent = len(sent) < room and not run.plan.endless
        _fill_last_step(run)
    if run.suite is not None:
        last = run.last_version()
        due = {0, *([] if last is None else [last])}
        due |= {*range(0, progress.versions + 1, EVALUATE_EVERY)} if run.trains else set()
        for version in sorted(due - progress.evaluations):
            if version > progress.primary and not run.all_done():  # answered in its turn
                continue
            progress.evaluations.add(version)
            policy, submitted = run.settings.policy.name, progress.submitted[version, run.suite.name]
            for task in evaluate.evaluation(run.suite, policy=policy, version=version, now_ms=now_ms):
                if task.task_id not in submitted:
                    run.producer.send(task)
    run.producer.flush()


def _fill_last_step(run: LoopRun) -> None:
    """Repeat tasks if the remaining ones do not fill a step."""
    missing = 0 if run.is_filled else run.missing_groups()
    if not missing:
        return
    if run.again is None:
        run.again = run.plan.tasks_again(run.settings)
    tasks = list(itertools.islice(run.again, missing))
    run.is_filled = len(tasks) < missing
    if run.is_filled:
        return
    run.sent += missing
    for task in tasks:
        run.producer.send(task)
    run.display.say(f"the last step lacks {missing} groups: as many tasks are asked again (learning.fill_last_step)")


def _measure(run: LoopRun) -> None:
    node = broker.status(run.settings.broker) if run.plan.starts_node else None
    now = {run.plan.command: memory_of_this_process(), **run.processes.memory_bytes()}
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
def _interruptible(stopping: SignalledEvent) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `stopping`; the second ends the process as usual."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _: object) -> None:
        stopping.set_in_handler()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
