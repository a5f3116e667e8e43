"""The loop on a user's own tasks: on the embedded node, or on the Kafka in the settings.

    a file of tasks ──► those that are not in the log yet, as many as are wanted ──► the loop, until all have a fate

The log, the adapters and the checkpoints are where the settings say, so every other command in the same folder finds
them. Interrupted, and run again with the same tasks, it continues.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from schemas.events import Task
from streams.demo.loop_plan import ONE_MACHINE, Plan, PlannedTasks
from streams.demo.progress import Progress
from streams.errors import SettingsError
from streams.evaluation.suite import Suite
from streams.kafka.node import process as node
from streams.kafka.node.config import read_node
from streams.settings.load import BOOTSTRAP, UP_FOLDER, load, load_with_origins
from streams.settings.model import Settings
from streams.stages.tasks import suites
from streams.stages.tasks.episodes import episode_player
from streams.stages.tasks.lines import EPOCH, epochs
from streams.stages.tasks.submit import known_ids

WITHOUT_WEIGHTS = "1000000"
"""batches.max_policy_lag of an engine without weights: nothing is trained, so nothing may wait for the trainer."""
OPEN_PLACES = ("waiting", "sampled", "scored", "grouped")
"""Places of train tasks that may still be in the next batches."""


@dataclass(frozen=True, kw_only=True)
class UpPlan(Plan):
    """A run on tasks of one's own."""

    command: ClassVar[str] = "up"
    done_hint: ClassVar[str] = "all tasks are done: give more tasks, --epochs or --steps to continue"

    train: tuple[Task, ...] | None = None
    """None: serve and train on what others submit, until stopped."""
    modules: tuple[str, ...] = ()
    """Of the scorers named on the command line: they may be imported, also from the working folder."""
    environments: tuple[str, ...] = ()
    """References named on the command line: they may be opened, their modules also from the working folder."""
    held_out: tuple[Task, ...] = ()
    """Questions for every second version, never trained on."""

    @property
    def folder(self) -> Path:
        """The folder of this run's output; the log and the adapters are where the settings say."""
        return UP_FOLDER

    @property
    def owns_node(self) -> bool:
        """The node belongs to the folder."""
        return False

    @property
    def endless(self) -> bool:
        """Whether the plan has no tasks of its own."""
        return self.train is None

    @property
    def in_environment(self) -> bool:
        """Whether some of its tasks are episodes."""
        return any(task.environment is not None for task in (*(self.train or ()), *self.held_out))

    @property
    def asks_prompts(self) -> bool:
        """Whether some of its tasks are prompts, or others may submit some."""
        return self.endless or any(task.environment is None for task in (*(self.train or ()), *self.held_out))

    @cached_property
    def tasks_to_answer(self) -> Sequence[Task]:
        """Its tasks to serve or to evaluate."""
        return [task for task in self.train or () if task.purpose != "train"]

    @property
    def asks_to_train(self) -> bool:
        """Whether some of its tasks are to be trained on, or others may submit some."""
        return self.train is None or len(self.tasks_to_answer) < len(self.train)

    @property
    def starts_node(self) -> bool:
        """Whether no Kafka was named, or the one that was is this folder's node."""
        settings, origins = load_with_origins(file=self.file, overrides=self.overrides)
        own = read_node(settings.broker.data_dir)
        return BOOTSTRAP not in origins or (own is not None and own.bootstrap == settings.kafka.bootstrap)

    def settings(self, bootstrap: str | None = None) -> Settings:
        """Return the user's settings; the rest is set as one machine learns best."""
        settings, origins = load_with_origins(file=self.file, overrides=self.overrides)
        chosen = dict(ONE_MACHINE)
        if settings.policy.engine == "scripted":
            chosen["batches.max_policy_lag"] = WITHOUT_WEIGHTS
        if self.modules:
            chosen["scoring.modules"] = ", ".join((*self.modules, "."))
        if self.environments:
            chosen |= episode_player().settings_to_open(self.environments)
        open_keys = [f"{key}={value}" for key, value in chosen.items() if key not in origins]
        named = [] if self.model is None else [f"model.base={self.model}"]
        address = [] if bootstrap is None else [f"{BOOTSTRAP}={bootstrap}"]
        return load(file=self.file, overrides=[*open_keys, *self.overrides, *named, *address])

    def tasks(self, settings: Settings, progress: Progress) -> PlannedTasks:
        """Return the tasks that are not in the log yet, in their order.

        Raises SettingsError if all of the plan's fill no step, with those that are in flight.
        """
        tasks, to_train = _unknown(settings, self.train or ()), len(self.train or ()) - len(self.tasks_to_answer)
        new = sum(task.purpose == "train" for task in tasks)
        groups, count = settings.batches.groups, new + sum(progress.places[place] for place in OPEN_PLACES)
        if new and max(count, to_train) < groups:
            tasks_fill = "1 train task fills" if count == 1 else f"{count} train tasks fill"
            raise SettingsError(
                f"{tasks_fill} no training step of {groups} groups (batches.groups): give more tasks, "
                f"--epochs {math.ceil(groups / count)}, or --set batches.groups={count}"
            )
        if self.train is None:
            return PlannedTasks(iter(()))
        kind = f"{'train ' * (not self.tasks_to_answer)}tasks"
        old = len(self.train) - len(tasks)
        return PlannedTasks(iter(tasks), f"{len(self.train)} {kind}: {len(tasks)} new, {old} known (in the log)")

    def task_ids(self) -> set[str] | None:
        """Return the ids of the given tasks; None if there are none."""
        return None if self.train is None else {task.task_id for task in self.train}

    def tasks_again(self, settings: Settings) -> Iterator[Task]:
        """Return the tasks of one epoch more, those that are not in the log yet."""
        if not settings.learning.fill_last_step:
            return iter(())
        train = [task for task in self.train or () if task.purpose == "train"]
        once = [task for task in train if EPOCH not in task.metadata]
        count = len(train) // max(len(once), 1)
        return iter(_unknown(settings, list(epochs(once, count + 1))[len(train) :]))

    def suite(self) -> Suite | None:
        """Return the held-out questions."""
        return suites.of_tasks("held-out", self.held_out) if self.held_out else None

    def to_continue(self) -> None:
        """Return None: there is no obvious command."""
        return None

    def delete_all(self) -> None:
        """Stop the node, and delete log, adapters, checkpoints and output.

        Raises SettingsError if the log is not on this folder's node, or one of them is not below `.streamward`.
        """
        if not self.starts_node:
            raise SettingsError(
                "--fresh: the log is not on a node of this folder (kafka.bootstrap): take another topics.prefix instead"
            )
        settings, own = self.settings(), self.folder.parent.absolute()
        stores = {"broker.data_dir": settings.broker.data_dir, "trainer.checkpoints": settings.trainer.checkpoints}
        places = {"adapters.store": settings.adapters.store, **{key: str(path) for key, path in stores.items()}}
        for key, place in places.items():
            if own not in Path(os.path.abspath(place)).parents:
                raise SettingsError(f"--fresh deletes only what is below {own.name}: delete {key}={place} by hand")
        node.stop(settings.broker)
        for place in (*places.values(), str(self.folder)):
            shutil.rmtree(place, ignore_errors=True)


def _unknown(settings: Settings, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that are not in the log yet."""
    submitted = known_ids(settings, [task.task_id for task in tasks])
    return [task for task in tasks if task.task_id not in submitted]
