"""A run of `streamward demo`, and what its log says.

    streamward demo ──► the log, read after the run ──► MeasuredRun

The time of a score is the record of its evaluation in the log. Evaluations are part of our time.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.events import AdapterEvent, Response, Task
from streams.demo.demo_options import DemoOptions
from streams.demo.progress import Progress
from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.kafka.reader import PartitionReader
from streams.kafka.topics import LABELS
from streams.settings.model import Model
from tests.benchmarks.compare.measured_run import Attempts, Limits, MeasuredRun, attempts, failure
from tests.benchmarks.compare.trl_run import GROUP_SIZE
from tests.benchmarks.loop import REPO

CODE_LINES = 1
"""`streamward demo`; its task is built in, and needs no settings."""


def measure(run: MeasuredRun, folder: Path, limits: Limits) -> None:
    """Run the demo as the arm of `run`, and fill that in."""
    words = ["demo", "--task", run.task, "--seed", str(run.seed), "--data-dir", "demo"]
    words += ["--model", limits.model] if limits.model != Model().base else []
    words += ["--steps", str(limits.steps)] if limits.steps else []
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-m", "streamward", *words]
    ended = attempts(lambda _: command, folder, env=env, kills=run.kills, limit_s=limits.seconds, paused_s=lambda: 0.0)
    run.code_lines, run.peak_bytes, run.error = CODE_LINES, ended.peak_bytes, failure(ended, folder)
    run.seconds = round(ended.spans[-1][1] - ended.spans[0][0], 1)
    fill(run, _read(folder / "demo"), ended)


@dataclass
class DemoLog:
    """What the log of a demo holds, times in seconds since the epoch."""

    answers: list[tuple[float, Response]] = field(default_factory=list)
    """To train tasks."""
    scores: list[tuple[float, int, float]] = field(default_factory=list)
    """When each version was evaluated, and its score."""
    versions: list[float] = field(default_factory=list)
    """When each was trained."""
    sent: list[float] = field(default_factory=list)
    """When each train task was submitted."""
    step: int = 16
    """Groups in a batch."""
    never_trained: int = 0


def _read(folder: Path) -> DemoLog:
    """Return what the log in the folder of a demo holds; its node is started and stopped for that."""
    options = DemoOptions(data_dir=folder)
    settings = options.settings()
    node = broker.ensure(settings.broker)
    try:
        settings = options.settings(node.bootstrap)
        bounds = admin.offsets(settings, LABELS)
        starts = {tp: first for tp, (first, _) in bounds.items()}
        progress, log = Progress(settings), DemoLog(step=settings.batches.groups)
        training: set[str] = set()
        responses: list[tuple[float, Response]] = []
        with PartitionReader(settings, starts, ends={tp: end for tp, (_, end) in bounds.items()}) as reader:
            for records in reader.batches(outage=None):
                for record in records:
                    at = record.timestamp_ms / 1000
                    match progress.fold(record):
                        case Task(purpose="train", task_id=task_id):
                            training.add(task_id)
                            log.sent.append(at)
                        case Response() as response:
                            responses.append((at, response))
                        case AdapterEvent(kind="trained"):
                            log.versions.append(at)
                        case AdapterEvent(kind="evaluated", metrics=metrics, version=version):
                            log.scores.append((at, version, metrics.get("exact", 0.0)))
        log.answers = sorted(
            ((at, response) for at, response in responses if response.task_id in training), key=lambda answer: answer[0]
        )
        log.never_trained = progress.places["left out"]
        return log
    finally:
        broker.stop(settings.broker)


def fill(run: MeasuredRun, log: DemoLog, ended: Attempts) -> None:
    """Fill in a run from its log."""
    begun = ended.spans[0][0]
    for at, version, score in sorted(log.scores):
        sampled = sum(response.completion_tokens for answered, response in log.answers if answered <= at)
        run.points.append((round(at - begun, 2), version, sampled, round(score, 4)))
    run.tokens = sum(response.completion_tokens for _, response in log.answers)
    run.lost = losses(log, [end for _, end in ended.spans[:-1]])


def losses(log: DemoLog, kills: Sequence[float]) -> dict[str, float]:
    """Return what the kills cost, at most: what was sampled at a kill is not in the log, so that all answers that the
    batch lacked count as lost, each with the time since the policy could have begun it.
    """
    seconds, in_flight = 0.0, 0
    for kill in kills:
        answered = len({(answer.task_id, answer.slot) for at, answer in log.answers if at <= kill})
        versions = sum(at <= kill for at in log.versions)
        lacking = (versions + 1) * log.step * GROUP_SIZE - answered
        marks = [at for at, _ in log.answers] + log.versions + log.sent
        last = max((at for at in marks if at <= kill), default=kill)
        if any(at <= kill for at in log.sent):
            seconds += max(0, lacking) * (kill - last)
            in_flight += -(-max(0, lacking) // GROUP_SIZE)
    slots = Counter((response.task_id, response.slot) for _, response in log.answers)
    again, seen = 0, set()
    for _, response in log.answers:
        key = response.task_id, response.slot
        again += response.completion_tokens if key in seen else 0
        seen.add(key)
    twice = {task_id for (task_id, _), times in slots.items() if times > 1}
    return {
        "trajectory_s": round(seconds, 1),
        "served_twice": len(twice) + in_flight,
        "never_trained": log.never_trained,
        "tokens_again": again,
    }
