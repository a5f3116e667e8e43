"""Experiments: replays of this log into logs of their own, and their results.

    experiments: started, stopped, failed, finished ──► fold ──► Experiment: selection, ranges, settings, counts, state
    settings, NAME ──► settings of its log: the same topics under <prefix>experiment.NAME., adapters in its own folder

Live processes do not subscribe to topics with another prefix, so they do not see experiments, and every command works
on one with `--config FOLDER/streamward.toml`. Its origin is recorded in the source log.

On one machine a second process that runs the same experiment is refused; on two machines nothing prevents it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from schemas.events import ExperimentEvent, ExperimentKind, SourceRange, derive_id
from schemas.faults import excerpt, nearest
from schemas.serde import Poison
from streams import files
from streams.errors import NotFoundError, SettingsError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.kafka.producer import Producer
from streams.settings.load import flatten, override
from streams.settings.model import NOT_RECIPE, Settings

PREFIX = "experiment."
FOLDER = Path(".streamward/experiments")
DECIDING = ("advantages", "batches", "model", "trainer")
"""Sections of the settings that decide the result of an experiment."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment, as the fold of its events."""

    name: str
    policy: str
    created_at: int
    kind: ExperimentKind
    """Of its last event."""
    reason: str
    code_version: str
    selection: Mapping[str, str]
    settings: Mapping[str, str]
    changed: tuple[str, ...]
    ranges: tuple[SourceRange, ...]
    folder: Path
    counts: Mapping[str, int] = field(default_factory=dict)
    events: tuple[ExperimentEvent, ...] = ()


# --- names and settings -----------------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise SettingsError for an invalid name: it becomes part of topic names and of paths."""
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"experiment {excerpt(name)}: expected 1 to 60 of a-z, 0-9, - and _, a letter or digit first, e.g. dr-grpo"
        )


def settings_of(source: Settings, name: str, folder: Path, changes: Mapping[str, Any], origin: str) -> Settings:
    """Return the settings of the experiment's own log; `changes` by dotted key.

    Raises SettingsError, naming `origin`, for an invalid key or value.
    """
    fixed = {
        "topics.prefix": f"{source.topics.prefix}{PREFIX}{name}.",
        "topics.retention_days": 0,  # its records are as old as those they were copied from
        "policy.name": name,
        "trainer.checkpoints": folder / "checkpoints",
        "trainer.off_policy": True,
        "adapters.store": str(folder / "adapters"),
    }
    if conflicts := sorted(fixed.keys() & changes.keys()):
        raise SettingsError(f"{origin}: {conflicts[0]} is set by the experiment itself; leave it out")
    return override(source, {**changes, **fixed}, origin)


def of(source: Settings, experiment: Experiment) -> Settings:
    """Return the settings of an experiment, as its events record them. Raises SettingsError."""
    fixed = ("trainer.off_policy", "scorers", "prompt")
    changes = {key: text for key, text in experiment.settings.items() if key not in fixed}
    return settings_of(source, experiment.name, experiment.folder, changes, f"experiment {experiment.name}")


def deciding(settings: Settings) -> dict[str, str]:
    """Return every setting that decides the result of an experiment, as text."""
    return {
        key: str(value)
        for key, value in flatten(settings)
        if key.partition(".")[0] in DECIDING and key not in NOT_RECIPE
    }


def hold(folder: Path, name: str) -> AbstractContextManager[None]:
    """Lock an experiment for this process. Raises RefusedError naming the process that has it."""
    return files.hold(folder, refusal=f"experiment {name} is being worked on", way_out="wait, or stop it")


# --- events -----------------------------------------------------------------------------------------------------------


def read(settings: Settings) -> dict[str, Experiment]:
    """Return every experiment of this log by name, the oldest first.

    Raises NotFoundError without the topic, LogError if the broker does not answer.
    """
    experiments: dict[str, Experiment] = {}
    for record in read_topic(settings, "experiments"):
        event = record.decode_placed(ExperimentEvent, settings.topics.policy_partitions)
        if not isinstance(event, Poison):
            experiments[event.experiment] = fold(experiments.get(event.experiment), event)
    return dict(sorted(experiments.items(), key=lambda item: item[1].created_at))


def fold(experiment: Experiment | None, event: ExperimentEvent) -> Experiment:
    """Return an experiment after `event`; the first describes the replay, and each its progress."""
    if experiment is None:
        return Experiment(
            name=event.experiment,
            policy=event.policy,
            created_at=event.created_at,
            kind=event.kind,
            reason=event.reason,
            code_version=event.code_version,
            selection=event.selection,
            settings=event.settings,
            changed=event.changed,
            ranges=event.ranges,
            folder=Path(event.metadata.get("folder", str(FOLDER / event.experiment))),
            counts=event.counts,
            events=(event,),
        )
    return replace(
        experiment,
        kind=event.kind,
        reason=event.reason,
        code_version=event.code_version,
        counts={**experiment.counts, **event.counts},
        events=(*experiment.events, event),
    )


def find(settings: Settings, name: str) -> Experiment:
    """Return the experiment called `name`. Raises NotFoundError with the nearest name."""
    experiments = read(settings)
    if name not in experiments:
        raise NotFoundError(f"{settings.topics.prefix}* has no experiment {name!r}; {nearest(name, experiments)}")
    return experiments[name]


class Journal:
    """Writes the events of one experiment."""

    def __init__(self, settings: Settings, experiment: Experiment, *, actor: str) -> None:
        self._settings, self._actor = settings, actor
        self._about, self._written = experiment, len(experiment.events)

    def write(self, kind: ExperimentKind, reason: str, counts: Mapping[str, int] | None = None) -> None:
        """Write an event, and return when it is acknowledged. Raises LogError if the log refuses."""
        about = self._about
        event = ExperimentEvent(
            event_id=derive_id("experiment", about.name, about.policy, self._written),
            experiment=about.name,
            created_at=times.now_ms(),
            metadata={"folder": str(about.folder)},
            kind=kind,
            policy=about.policy,
            actor=self._actor,
            reason=reason,
            code_version=files.code_version(),
            selection=dict(about.selection),
            settings=dict(about.settings),
            counts=dict(counts or {}),
            changed=about.changed,
            ranges=about.ranges,
        )
        with Producer(self._settings) as producer:
            producer.send(event)
        self._written += 1
