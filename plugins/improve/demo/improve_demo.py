"""The demo of improvement: an agent serves sums, is judged, retrained on its good runs, and released.

    rounds of sums ──► answers ──► half judged by a rule, half by a person ──► data set ──► retraining
        ──► guard, canary ──► promoted                     then a judge that says yes to everything, and is stopped

Everything is stored in one folder, the Kafka node and the data sets included.
All decisions are made by the processes that users run; this one sends the questions and plays the person.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from plugins.improve.curation.curation_log import CurationLog, PersonDecision
from plugins.improve.curation.run_lookup import find_run
from plugins.improve.demo import improve_run, improve_tasks
from plugins.improve.demo.collapsed_judge import MODEL, collapsed_judge
from plugins.improve.demo.improve_tasks import CHECKED, JUDGED, REVIEWED, RoundSpec
from plugins.improve.demo.improve_watch import ImproveWatch
from plugins.improve.settings import Improve
from plugins.improve.triggers.rule import read_rule
from schemas.events import AdapterEvent
from streams.demo.demo_options import check_folder
from streams.demo.loop_plan import THREADS
from streams.demo.players import child_env, command
from streams.demo.restarts import RestartedProcesses
from streams.demo.settings_file import leave_settings
from streams.engines.base_model import folder_of
from streams.errors import SettingsError, StreamwardError
from streams.kafka import admin, times
from streams.kafka.node import process as broker
from streams.kafka.producer import Producer
from streams.output import printable
from streams.settings.load import load, save
from streams.settings.model import Settings
from streams.tools.archive import history
from streams.tools.views.log_view import LogView

FOLDER = Path(".streamward/improve-demo")
POLICY = "coach"
PERSON = "ann"
ENOUGH = 40
"""Promoted runs that start the retraining."""
READ = 60
"""Runs that the person reads in a round: enough to measure a judge by."""
GROUP_SIZE = 4
RULE = f"""\
name = "{POLICY}"
policy = "{POLICY}"
actions = ["tune"]

[when]
promotable = {ENOUGH}

[tune]
method = "sft"
dataset = "{POLICY}"
epochs = 6
batch = 8
"""


@dataclass(frozen=True, kw_only=True)
class ImproveDemo:
    """Options of the demo."""

    minutes: float = 15.0
    seed: int = 0
    model: str | None = None
    folder: Path = FOLDER
    fresh: bool = False
    """Whether a folder of an earlier run may be deleted."""
    config: Path | None = None
    """The settings file named by --config."""
    overrides: tuple[str, ...] = ()

    def settings(self, bootstrap: str, *, judge_url: str | None = None) -> Settings:
        """Return the settings of its processes."""
        chosen: dict[str, object] = {
            "kafka.bootstrap": bootstrap,
            "policy.name": POLICY,
            "policy.threads": THREADS,
            "trainer.threads": THREADS,
            "trainer.learning_rate": 3e-4,
            "trainer.seed": self.seed,
            "broker.data_dir": self.folder / "kafka",
            "adapters.store": self.folder / "adapters",
            "trainer.checkpoints": self.folder / "checkpoints",
            "rollouts.mode": "canary",
            "guard.suite": self.folder / "suite.yaml",
            "guard.max_latency_ratio": 100,  # what else runs on this machine decides it
            "canary.max_latency_ratio": 100,
            "canary.steps": "0.3,0.6",
            "canary.step_groups": 10,
            "improve.scenario_gates": f"{CHECKED}: min_score=1",
            "improve.promote_by_gates": CHECKED,
            **({} if self.model is None else {"model.base": self.model}),
            **({} if judge_url is None else {"scoring.judge_url": judge_url, "scoring.judge_model": MODEL}),
        }
        named = [f"{key}={value}" for key, value in chosen.items()]
        return load(file=self.config or Path(os.devnull), overrides=[*named, *self.overrides])


@dataclass
class ImproveDemoRun:
    """One run of the demo: what it asks with, and what it sees."""

    options: ImproveDemo
    settings: Settings
    producer: Producer
    watch: ImproveWatch
    improving: RestartedProcesses
    say: Callable[[str], None]
    deadline: float
    rounds: int = 0
    questions: dict[str, str] = field(default_factory=dict)
    """By the id of their task."""

    def until(self, met: Callable[[], bool], expected: str) -> None:
        self.watch.until(met, expected, deadline=self.deadline)

    def ask(self, scenarios: Sequence[str]) -> None:
        """Ask every question once, in these scenarios by turns, and wait until all are answered, scored and judged."""
        spec = RoundSpec(POLICY, self.options.seed, self.rounds, scenarios, GROUP_SIZE, times.now_ms())
        tasks = list(improve_tasks.served_tasks(spec))
        self.questions |= {task.task_id: task.messages[-1].content for task in tasks}
        groups = self.watch.groups + len(tasks)
        for task in tasks:
            self.producer.send(task)
        self.producer.flush()
        self.rounds += 1
        self.until(lambda: self.watch.groups >= groups, "answers")
        self.until(lambda: self.watch.runs_judged() >= GROUP_SIZE * groups, "verdicts")


def check(options: ImproveDemo) -> None:
    """Raise SettingsError for impossible options, before anything is started or deleted."""
    if options.minutes <= 0:
        raise SettingsError(f"--minutes {options.minutes:g}: expected more than 0")
    check_folder(options.folder)
    if options.folder.exists() and not options.fresh:  # each run is a whole one
        raise SettingsError(f"--data-dir {options.folder}: it has an earlier run; --fresh deletes it and starts over")


def run(options: ImproveDemo, console: Console) -> dict[str, Any]:
    """Run the demo and return its report.

    Raises StreamwardError if a step does not end in time, SettingsError for impossible options, LogError if
    the broker does not start.
    """
    folder, began = options.folder, time.monotonic()
    check(options)
    if folder.exists():
        broker.stop(options.settings("127.0.0.1:0").broker)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    improve_tasks.write_files(folder)
    (folder / "retrain.toml").write_text(RULE)
    with _demo(options, console, began) as demo:
        _serve_and_judge(demo)
        _retrain_and_release(demo)
        report = _report(demo) | _meet_collapsed_judge(demo)
    return report | {"seconds": round(time.monotonic() - began)}


@contextmanager
def _demo(options: ImproveDemo, console: Console, began: float) -> Iterator[ImproveDemoRun]:
    """Start the node, what answers and what improves; end all of it afterwards."""

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began:4.0f} s  {printable(line)}")

    settings = options.settings("127.0.0.1:0")
    say(f"making {settings.model.base} ready (half a minute the first time)")
    folder_of(settings.model.base)
    with ExitStack() as stack:
        node = broker.ensure(settings.broker)
        stack.callback(broker.stop, settings.broker)
        settings = options.settings(node.bootstrap)
        config = save(settings, options.folder, by="streamward improve demo")
        leave_settings(config)
        admin.apply_topics(settings)
        rule = options.folder / "retrain.toml"
        order = improve_run.ImproveOrder.of(rule, read_rule(rule))
        words = improve_run.commands(replace(order, datasets=options.folder / "data" / "autoretrain"))
        answering = stack.enter_context(RestartedProcesses(options.folder / "logs", child_env()))
        improving = stack.enter_context(RestartedProcesses(options.folder / "logs", child_env()))
        for name in ("policy", "scoring", "streams"):
            answering.start(name, command(config, (name,)))
        for name in words.keys() - {"streams"}:
            improving.start(name, command(config, words[name]))

        def check() -> None:
            for line in (*answering.check(), *improving.check()):
                say(line)

        producer = stack.enter_context(Producer(settings))
        watch = stack.enter_context(ImproveWatch(settings, check))
        yield ImproveDemoRun(options, settings, producer, watch, improving, say, deadline=began + 60 * options.minutes)


def _serve_and_judge(demo: ImproveDemoRun) -> None:
    """Ask until enough runs are promoted by the rule and by the person, and a data set is built of them."""
    watch = demo.watch
    while (watch.promotions(CHECKED) + watch.promotions(REVIEWED)) < ENOUGH:
        demo.ask((CHECKED, REVIEWED))
        read = _decide(demo, demo.settings, REVIEWED)
        demo.say(
            f"round {demo.rounds}: {watch.runs_judged()} runs; promoted: {watch.promotions(CHECKED)} by the rule, "
            f"{watch.promotions(REVIEWED)} by {PERSON}, who read {read}"
        )
    demo.until(lambda: bool(watch.builds), "a data set")
    build = watch.builds[-1]
    demo.say(f"data set {build.dataset}: {_in_words(build.counts)}; promoted by {_in_words(build.labellers)}")


def _decide(demo: ImproveDemoRun, settings: Settings, scenario: str) -> int:
    """Decide the first runs of a scenario that wait for a person, by the person's file; return how many those are."""
    answers = improve_tasks.read_persons_file(demo.options.folder)
    log, records = CurationLog(settings), history.of(settings)
    with closing(LogView(settings)) as view, view.snapshot() as snapshot:
        waiting = [placed.event for placed in log.review_queue() if placed.event.scenario == scenario][:READ]
        for event in waiting:
            question, text = demo.questions[event.task_id], demo.watch.answers[event.answer_id]
            decision = PersonDecision(
                verdict="promote" if text.strip() == answers[question] else "reject",
                actor=PERSON,
                reason=f"{question} {answers[question]}",
                expect=event.event_id,
            )
            log.decide(find_run(snapshot, records, event.answer_id), decision)
    demo.until(lambda: all(demo.watch.verdicts.pair(event.answer_id)[0] for event in waiting), "the person's verdicts")
    return len(waiting)


def _retrain_and_release(demo: ImproveDemoRun) -> None:
    """Wait for the retraining, and ask on until its version is promoted."""
    watch = demo.watch
    demo.until(lambda: bool(watch.crossings), "a reason to retrain")
    demo.say(f"retraining: {watch.crossings[-1].reason}")
    demo.until(lambda: watch.of_kind("trained") is not None, "a new version")
    demo.say("version 1 is trained")
    demo.until(lambda: watch.of_kind("judged") is not None, "the guard's verdict")
    demo.say(_decision_in_words(watch.of_kind("judged")))
    while (promoted := watch.of_kind("promoted")) is None:
        if (rejected := watch.of_kind("rejected")) is not None:
            raise StreamwardError(_decision_in_words(rejected))
        demo.ask((CHECKED, REVIEWED))
    demo.say(_decision_in_words(promoted))


def _meet_collapsed_judge(demo: ImproveDemoRun) -> dict[str, Any]:
    """Give the runs to a judge that promotes them all, and some to the person; return what came of it."""
    watch = demo.watch
    demo.improving.stop()
    with collapsed_judge() as url:
        judged = demo.options.settings(demo.settings.kafka.bootstrap, judge_url=url)
        folder = demo.options.folder / "judged"
        folder.mkdir()
        config = save(judged, folder, by="streamward improve demo")
        with RestartedProcesses(demo.options.folder / "logs", child_env()) as processes:
            processes.start("curate-judged", command(config, ("improve", "curate", "follow")))
            demo.ask((JUDGED,))
            read = _decide(demo, judged, JUDGED)
            demo.ask((JUDGED,))
            (agreement,) = CurationLog(judged).agreements().values()
            evidence = agreement.evidence(judged.of_plugin(Improve), ())
    verdicts = watch.machine_verdicts(JUDGED)
    promoted = sum(verdict.verdict == "promote" for verdict in verdicts)
    demo.say(
        f"a judge that says yes to all of {len(verdicts)} runs promoted {promoted}: {PERSON} read {read} of them, and "
        f"kappa is {evidence.kappa:.2f}, {evidence.low:.2f} at the lower end"
    )
    if promoted:
        raise StreamwardError(f"a judge that says yes to everything promoted {promoted} runs")
    return {"judge": {"runs": len(verdicts), "read": read, "kappa": evidence.kappa, "promoted": promoted}}


def _report(demo: ImproveDemoRun) -> dict[str, Any]:
    """Return what came of the retraining."""
    watch = demo.watch
    build = watch.builds[0]
    scores = {event.version: event.metrics for event in watch.adapters if event.kind == "evaluated"}
    return {
        "seed": demo.options.seed,
        "runs": watch.runs_judged(),
        "dataset": {"counts": dict(build.counts), "labellers": dict(build.labellers), "digest": build.digest},
        "jobs": len({crossing.job_id for crossing in watch.crossings}),
        "held_out": {version: metrics.get("success") for version, metrics in sorted(scores.items())},
        "serving": max(event.version for event in watch.adapters if event.kind == "promoted"),
    }


def _decision_in_words(event: AdapterEvent | None) -> str:
    return "" if event is None else f"version {event.version} {event.verdict or event.kind}: {event.reason}"


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
