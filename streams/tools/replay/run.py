"""Replay a part of the log under other settings, into a log of its own, and train on it.

    select ──► copy ──► score again? ──► join ──► cut ──► train
    source     tasks, responses,         groups   batches  adapters        all below <prefix>experiment.NAME.
               rewards, group-control

Where it came from is an event in the source's `experiments`; nothing else of the source is written, and nothing of it
is committed. Each step writes in an order that follows from the one before it, so a run that was stopped or killed goes
on where its topics end.

`plan` does the same up to the batches without writing anything, and says what would come out.

Not covered: replaying an experiment. Its adapters are another line's than its responses; replay its source instead.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.events import RewardSource
from streams.adapters import versions as adapters
from streams.errors import RefusedError, SettingsError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.load import save
from streams.settings.model import Settings
from streams.tools.archive.history import History, Log
from streams.tools.replay import experiments, recorded_lag, rescore, selection
from streams.tools.replay.copy import CopyProgress, Renaming, Stopped, Writer, committed, copy
from streams.tools.replay.experiments import Experiment, Journal
from streams.tools.replay.regroup import write_batches, write_groups
from streams.tools.replay.selection import SelectedTasks, Selection

TICK_S = 0.5
"""Between two looks at how far the training came."""
Where = Callable[[Settings, str], set[str]]
"""Returns the ids of the tasks for which an SQL condition holds."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What is asked for."""

    name: str
    selection: Selection
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Other settings, by dotted key."""
    origin: str = "replay"
    """Where they come from, for messages."""
    scorers: tuple[RewardSource, ...] = ()
    steps: int | None = None
    """Versions to train at most; None: one a batch."""
    train: bool = True
    folder: Path | None = None
    where: Where | None = None
    """Needed with selection.where."""
    actor: str = "replay"

    @property
    def place(self) -> Path:
        """The experiment's folder."""
        return self.folder or experiments.FOLDER / self.name


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What came of a run."""

    experiment: str
    kind: str
    """`finished` or `stopped`."""
    counts: Mapping[str, int]
    settings: Settings


def settings_of(source: Settings, request: ReplayRequest) -> Settings:
    """Return the settings of the experiment's log.

    Raises SettingsError for a name, a key or a value that cannot be, RefusedError if the source is an experiment.
    """
    experiments.check_name(request.name)
    if source.trainer.off_policy:
        raise RefusedError(
            f"{source.topics.prefix}* is an experiment's log, and its responses are of another line of adapters; "
            "replay the log it came from, with other settings"
        )
    return experiments.settings_of(source, request.name, request.place, request.changes, request.origin)


def chosen_of(source: Settings, history: History, request: ReplayRequest, about: Experiment) -> SelectedTasks:
    """Return the tasks of an experiment, new or resumed. Raises as `selection.choose` and `where` do."""
    selected = selection.from_plain(about.selection)
    among = None
    if selected.where is not None:
        if request.where is None:
            raise SettingsError("--where needs the query engine, which is not installed; use the other options")
        among = request.where(source, selected.where)
    return selection.choose(source, history, selected, about.ranges, among)


def about_of(source: Settings, history: History, request: ReplayRequest, own: Settings) -> Experiment:
    """Return a new experiment as it would be recorded now. Raises RefusedError if retention has cut its range."""
    now, then = experiments.deciding(own), experiments.deciding(source)
    scorers = {"scorers": rescore.as_text(request.scorers)} if request.scorers else {}
    return Experiment(
        name=request.name,
        policy=request.selection.policy,
        created_at=0,
        kind="started",
        reason="",
        code_version="",
        selection=request.selection.plain(),
        settings=now | scorers,
        changed=tuple(sorted(key for key in now if now[key] != then[key])) + tuple(scorers),
        ranges=selection.ranges_of(source, history, request.selection),
        folder=request.place,
    )


def run(
    source: Settings,
    request: ReplayRequest,
    history: History | None = None,
    *,
    stop: threading.Event,
    told: Callable[[str, int, int | None], None] | None = None,
) -> ReplayResult:
    """Run an experiment, or go on with it, until it is finished or `stop` is set.

    Raises SettingsError and RefusedError as `settings_of`; RefusedError if another experiment has this name, or the
    range is cut; NotFoundError if no task is chosen; LogError if the log fails; what the trainer raises.
    """
    history = history or Log(source)
    own = settings_of(source, request)
    if request.train and source.policy.engine == "scripted":
        raise SettingsError("policy.engine=scripted has no weights to train; leave the training out with --no-train")
    with experiments.hold(request.place, request.name):
        about, is_new = _begin(source, history, request, own)
        chosen = chosen_of(source, history, request, about)
        journal = Journal(source, about, actor=request.actor)
        journal.write("started", "asked for" if is_new else "asked to go on")
        watch = CopyProgress(stop) if told is None else CopyProgress(stop, told)
        counts: Counter[str] = Counter()
        try:
            _work(source, own, history, request, about, chosen, watch, counts)
        except Stopped:
            journal.write("stopped", "asked to stop", counts)
            return ReplayResult(experiment=request.name, kind="stopped", counts=counts, settings=own)
        except Exception as exc:
            journal.write("failed", f"{type(exc).__name__}: {exc}", counts)
            raise
        journal.write("finished", "done" if request.train else "done, without training", counts)
    return ReplayResult(experiment=request.name, kind="finished", counts=counts, settings=own)


def _begin(source: Settings, history: History, request: ReplayRequest, own: Settings) -> tuple[Experiment, bool]:
    """Return the experiment, as it was recorded if it began before, and whether it is new."""
    known = experiments.read(source).get(request.name)
    if known is not None:
        _refuse_another(known, request, own)
        return known, False
    mine = {topic.name for topic in topics(own.topics).values()}
    if left := sorted(mine & admin.describe(source).keys()):
        raise RefusedError(
            f"topic {left[0]} exists, and {source.topics.prefix}experiments knows of no experiment {request.name}; "
            "give this one another name, or delete what is left of that one"
        )
    return about_of(source, history, request, own), True


def _refuse_another(known: Experiment, request: ReplayRequest, own: Settings) -> None:
    """Raise RefusedError unless what is asked for is what this experiment began as."""
    scorers = {"scorers": rescore.as_text(request.scorers)} if request.scorers else {}
    new_since = experiments.deciding(Settings())  # a setting that was not there then had no effect
    then = new_since | dict(_identity(known.selection)) | dict(known.settings)
    now = dict(_identity(request.selection.plain())) | experiments.deciding(own) | scorers
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise RefusedError(
                f"experiment {known.name} exists ({known.kind}) with {key}={then.get(key)}, and now it is asked for "
                f"with {now.get(key)}. Give the other one another name, or ask for the same to go on with it "
                f"(`streamward experiments show {known.name}`)"
            )


def _identity(plain: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a selection says, an age as it was given and not as the time it meant then."""
    given = {name: text for name, text in plain.items() if name.startswith("--")}
    times = {"since_ms": "--since", "until_ms": "--until"}
    return given | {name: text for name, text in plain.items() if times.get(name) not in given}


def _work(
    source: Settings,
    own: Settings,
    history: History,
    request: ReplayRequest,
    about: Experiment,
    chosen: SelectedTasks,
    watch: CopyProgress,
    counts: Counter[str],
) -> None:
    """Copy, score, join, cut and train; `counts` tells how far it came. Raises Stopped."""
    admin.apply_topics(own)
    save(own, request.place, by=f"streamward replay run {request.name}")
    trained, _ = recorded_lag.read(source, history, about.policy, about.ranges)
    with Producer(own) as producer:
        writer = Writer(own, producer)
        renaming = Renaming(policy=about.policy, name=own.policy.name, scorers=request.scorers)
        counts += copy(source, history, about.ranges, chosen.keys, renaming, writer, watch)
        counts["unreadable"] += chosen.unreadable
        if request.scorers:
            starts, ends = selection.bounds(writer.ranges("responses"), topics(own.topics)["responses"].name)
            counts += rescore.rescore(own, Log(own), starts, ends, request.scorers, writer, watch)
        committed(own, {f"policy-{own.policy.name}": "tasks", "scoring": "responses"})
        counts += write_groups(own, writer, trained, watch, request.place)
        counts += write_batches(own, writer, watch)
    if request.train:
        _train(own, min(counts["batches"], request.steps or counts["batches"]), counts, watch)


def _train(own: Settings, wanted: int, counts: Counter[str], watch: CopyProgress) -> None:
    """Train up to version `wanted`, and count the `steps`. Raises Stopped, and what the trainer raises."""
    from trainer import checkpoint, consumer  # torch comes with them

    folder = own.trainer.checkpoints / own.policy.name
    found = checkpoint.latest(folder)
    done = found[1].version if found else 0
    counts["steps"] = adapters.read_state(own, own.policy.name).newest
    if min(done, counts["steps"]) < wanted and not watch.stop.is_set():
        over = threading.Event()
        if done >= wanted:  # its checkpoint is there, and the version is not announced
            over.set()
        else:
            over = watch.stop
        with _told_of_versions(folder, wanted, watch):
            consumer.run(own, steps=max(1, wanted - done), stop=over)
        counts["steps"] = adapters.read_state(own, own.policy.name).newest
    if watch.stop.is_set() and counts["steps"] < wanted:
        raise Stopped


@contextmanager
def _told_of_versions(folder: Path, wanted: int, watch: CopyProgress) -> Iterator[None]:
    """Tell, from a thread, which version has a checkpoint."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(TICK_S):
            newest = max((int(path.name[1:]) for path in folder.glob("v[0-9]*")), default=0)
            watch.told("training", newest, wanted)

    thread = threading.Thread(target=look, name="training watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        watch.told("training", wanted, wanted)
