"""Replay a part of the log under other settings, into a log of its own, and train on it.

    select ──► copy ──► score again? ──► join ──► cut ──► train
    source     tasks, responses,         groups   batches  adapters        all below <prefix>experiment.NAME.
               rewards, group-control
         └───► ask again with another prompt (other_prompt.py)
               (copy and join of an archive may be spread over machines: streams/tools/spread.py)

The origin of an experiment is an event in the source's `experiments`; nothing else is written to the source, and no
offset is committed there. The order of each step's records follows from the step before, so a run that was stopped or
killed continues at the ends of its topics.

An experiment cannot be replayed: its adapters did not sample its responses. Replay its source instead.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.events import PromptUse, RewardSource
from streams.adapters import versions as adapters
from streams.errors import RefusedError, SettingsError
from streams.kafka import admin
from streams.kafka.group_names import SCORING, GroupScope
from streams.kafka.history import History, LogHistory
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.plugins.engines import require_package
from streams.settings.load import save
from streams.settings.model import Settings
from streams.tools.replay import experiments, other_prompt, recorded_lag, rescore, selection
from streams.tools.replay.copy import commit_ends, copy
from streams.tools.replay.experiments import Experiment, Journal
from streams.tools.replay.regroup import write_batches, write_groups
from streams.tools.replay.replay_context import Replay, ReplayProgress, Report, Stopped, Writer
from streams.tools.replay.selection import SelectedTasks, Selection
from streams.tools.spread import ArchiveEngine, connect

TICK_S = 0.5
"""Between two progress reports of the training."""
Condition = Callable[[Settings, str], set[str]]
"""Returns the ids of the tasks for which an SQL condition holds."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """The request of a replay."""

    name: str
    selection: Selection
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Other settings, by dotted key."""
    origin: str = "replay"
    """Where the settings come from, for messages."""
    scorers: tuple[RewardSource, ...] = ()
    prompt: PromptUse | None = None
    """Ask the tasks again with this prompt, in place of what was recorded."""
    steps: int | None = None
    """The most versions to train; None: one per batch."""
    train: bool = True
    folder: Path | None = None
    where: Condition | None = None
    """Needed with selection.where."""
    actor: str = "replay"

    @property
    def others(self) -> dict[str, str]:
        """Changes to the source that no setting makes."""
        scorers = {"scorers": rescore.as_text(self.scorers)} if self.scorers else {}
        return scorers | ({} if self.prompt is None else {"prompt": other_prompt.text_of(self.prompt)})

    @property
    def place(self) -> Path:
        """The experiment's folder."""
        return self.folder or experiments.FOLDER / self.name


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """How a run ended."""

    experiment: str
    kind: str
    """`finished` or `stopped`."""
    counts: Mapping[str, int]
    settings: Settings


def settings_of(source: Settings, request: ReplayRequest) -> Settings:
    """Return the settings of the experiment's log.

    Raises SettingsError for an invalid name, key or value, RefusedError if the source is an experiment.
    """
    experiments.check_name(request.name)
    if source.trainer.off_policy:
        raise RefusedError(
            f"{source.topics.prefix}* is an experiment's log, and its adapters did not sample its responses; "
            "replay the log it came from, with other settings"
        )
    return experiments.settings_of(source, request.name, request.place, request.changes, request.origin)


def select_tasks(source: Settings, history: History, request: ReplayRequest, about: Experiment) -> SelectedTasks:
    """Return the tasks of an experiment, new or resumed. Raises as `selection.choose` and `where` do."""
    selected = selection.from_plain(about.selection)
    among = None
    if selected.where is not None:
        if request.where is None:
            raise SettingsError("--where needs the query engine, which is not installed; use the other options")
        among = request.where(source, selected.where)
    return selection.choose(source, history, selected, about.ranges, among)


def new_experiment(source: Settings, history: History, request: ReplayRequest, settings: Settings) -> Experiment:
    """Return a new experiment, as it would be recorded now.

    Raises RefusedError if retention has deleted part of its range.
    """
    deciding, source_settings = experiments.deciding(settings), experiments.deciding(source)
    return Experiment(
        name=request.name,
        policy=request.selection.policy,
        created_at=0,
        kind="started",
        reason="",
        code_version="",
        selection=request.selection.plain(),
        settings=deciding | request.others,
        changed=tuple(sorted(key for key in deciding if deciding[key] != source_settings[key])) + tuple(request.others),
        ranges=selection.ranges_of(source, history, request.selection),
        folder=request.place,
    )


def run(
    source: Settings,
    request: ReplayRequest,
    history: History | None = None,
    *,
    stop: threading.Event,
    report: Report | None = None,
    on: str | None = None,
) -> ReplayResult:
    """Run an experiment, or resume it, until it is finished or `stop` is set.

    `on`: copy and join on this engine; `history` is then that of an archive.

    Raises SettingsError and RefusedError as `settings_of`; RefusedError if another experiment has this name, or part
    of the range is deleted; NotFoundError if no task is chosen; LogError if the log fails; what the trainer raises;
    with `on`, what `connect` and `ArchiveEngine.check_replayable` raise.
    """
    history = history or LogHistory(source)
    settings = settings_of(source, request)
    if request.prompt is not None and request.train:
        raise SettingsError("--prompt asks tasks again to compare, and trains nothing; add --no-train")
    if request.train and source.policy.engine == "scripted":
        raise SettingsError("policy.engine=scripted has no weights to train; leave the training out with --no-train")
    if on is not None:
        _refuse_engine(on, request)
    with experiments.hold(request.place, request.name), ExitStack() as connection:
        about, is_new = _begin(source, history, request, settings)
        chosen = select_tasks(source, history, request, about)
        engine = None
        if on is not None:
            engine = connection.enter_context(connect(on))
            engine.check_replayable(source, about.ranges)
        journal = Journal(source, about, actor=request.actor)
        journal.write("started", "requested" if is_new else "resumed")
        progress = ReplayProgress(stop) if report is None else ReplayProgress(stop, report)
        counts: Counter[str] = Counter(unreadable=chosen.unreadable)
        try:
            admin.apply_topics(settings)
            save(settings, request.place, by=f"streamward replay run {request.name}")
            with Producer(settings) as producer:
                replay = Replay(
                    source=source, settings=settings, history=history, about=about, keys=chosen.keys,
                    scorers=request.scorers, folder=request.place, writer=Writer(settings, producer), progress=progress,
                )  # fmt: skip
                if request.prompt is not None:
                    counts += other_prompt.ask(replay, request.prompt)
                else:
                    _write(replay, counts, engine)
            connection.close()
            if request.train:
                _train(settings, min(counts["batches"], request.steps or counts["batches"]), counts, progress)
        except Stopped:
            journal.write("stopped", "stopped by request", counts)
            return ReplayResult(experiment=request.name, kind="stopped", counts=counts, settings=settings)
        except Exception as exc:  # whatever ends the run is recorded, and raised again
            journal.write("failed", f"{type(exc).__name__}: {exc}", counts)
            raise
        journal.write("finished", "done" if request.train else "done, without training", counts)
    return ReplayResult(experiment=request.name, kind="finished", counts=counts, settings=settings)


def _refuse_engine(on: str, request: ReplayRequest) -> None:
    """Raise SettingsError if this cannot be replayed on an engine."""
    if request.scorers:
        raise SettingsError(f"--on {on} copies the recorded rewards, and --scorer gives new ones here; leave one out")
    if request.prompt is not None:
        raise SettingsError(f"--on {on} copies what was recorded, and --prompt asks again here; leave one out")
    require_package(on, "archive")


def _write(replay: Replay, counts: Counter[str], engine: ArchiveEngine | None) -> None:
    """Copy, score, join and cut, adding to `counts` after each step. Raises Stopped."""
    about, settings = replay.about, replay.settings
    trained, _ = recorded_lag.read(replay.source, replay.history, about.policy, about.ranges)
    if engine is not None:
        counts += engine.copy_and_join(replay, trained)
    else:
        counts += copy(replay)
    if replay.scorers:
        counts += rescore.rescore(replay)
    policies = GroupScope(stage="policy", fleet=settings.fleet, policy=settings.policy.name)
    commit_ends(settings, {policies.group: "tasks", SCORING: "responses"})
    if engine is None:
        counts += write_groups(replay, trained)
    counts += write_batches(replay)


def _begin(source: Settings, history: History, request: ReplayRequest, settings: Settings) -> tuple[Experiment, bool]:
    """Return the experiment, as it was recorded if it exists already, and whether it is new."""
    existing = experiments.read(source).get(request.name)
    if existing is not None:
        _check_same_request(existing, request, settings)
        return existing, False
    names = {topic.name for topic in topics(settings.topics).values()}
    if left := sorted(names & admin.describe(source).keys()):
        raise RefusedError(
            f"topic {left[0]} exists, but {source.topics.prefix}experiments has no experiment {request.name}; "
            "give this one another name, or delete those topics"
        )
    return new_experiment(source, history, request, settings), True


def _check_same_request(existing: Experiment, request: ReplayRequest, settings: Settings) -> None:
    """Raise RefusedError unless the request is the one that this experiment was started with."""
    recorded = dict(_identity(existing.selection)) | dict(existing.settings)
    requested = dict(_identity(request.selection.plain())) | experiments.deciding(settings) | request.others
    for key in sorted(recorded.keys() | requested.keys()):
        if recorded.get(key) != requested.get(key):
            raise RefusedError(
                f"experiment {existing.name} exists ({existing.kind}) with {key}={recorded.get(key)}, and this request "
                f"has {requested.get(key)}. Give this one another name, or repeat the first request to resume it "
                f"(`streamward replay show {existing.name}`)"
            )


def _identity(plain: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parts that identify a selection: an age as it was given, not the time that it meant then."""
    options = {name: text for name, text in plain.items() if name.startswith("--")}
    times = {"since_ms": "--since", "until_ms": "--until"}
    return options | {name: text for name, text in plain.items() if times.get(name) not in options}


def _train(settings: Settings, versions: int, counts: Counter[str], progress: ReplayProgress) -> None:
    """Train until there are so many versions, and count the `steps`. Raises Stopped, and what the trainer raises."""
    from trainer import fleet  # torch comes with them
    from trainer.versions import checkpoint

    folder = settings.trainer.checkpoints / settings.policy.name
    latest = checkpoint.latest(folder)
    done = latest[1].version if latest else 0
    counts["steps"] = adapters.read_state(settings, settings.policy.name).newest
    if min(done, counts["steps"]) < versions and not progress.stop.is_set():
        halt = threading.Event()
        if done >= versions:  # its checkpoint is there, but the version is not announced
            halt.set()
        else:
            halt = progress.stop
        with _report_versions(folder, versions, progress):
            fleet.run(settings, steps=max(1, versions - done), stop=halt)
        counts["steps"] = adapters.read_state(settings, settings.policy.name).newest
    if progress.stop.is_set() and counts["steps"] < versions:
        raise Stopped


@contextmanager
def _report_versions(folder: Path, versions: int, progress: ReplayProgress) -> Iterator[None]:
    """Report, from a thread, the newest version that has a checkpoint."""
    halt = threading.Event()

    def watch() -> None:
        while not halt.wait(TICK_S):
            newest = max((int(path.name[1:]) for path in folder.glob("v[0-9]*")), default=0)
            progress.report("training", newest, versions)

    thread = threading.Thread(target=watch, name="training progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        halt.set()
        thread.join()
        progress.report("training", versions, versions)
