"""The plan of a run of the loop: `streamward demo` and `streamward up` have one each.

Plan ──► settings, train tasks, held-out questions, when to stop ──► run.py
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from schemas.events import Task
from streams.demo.progress import Progress
from streams.evaluation.suite import Suite
from streams.settings.load import CONFIG_FILE, ENV_CONFIG, is_of_user
from streams.settings.model import Settings
from streams.stages.tasks.generators import LookBack

THREADS = min(os.cpu_count() or 1, 4)
"""For the policy and for the trainer, which take turns; a small model gains nothing from more."""
ONE_MACHINE = {
    "policy.threads": str(THREADS),
    "trainer.threads": str(THREADS),
    "trainer.micro_groups": "4",
    # not divided by a group's spread: early groups differ in form alone, which must not weigh like being right
    "advantages.formula": "dr_grpo",
    # on-policy: sampling and training take turns with all cores, and each step learns the most it can
    "batches.max_policy_lag": "0",
    "batches.zero_variance": "keep",
}
"""Settings with which all processes on one machine learn the most per minute (docs/experiments.md)."""


class PlannedTasks(NamedTuple):
    """Train tasks that are not in the log yet."""

    tasks: Iterator[Task]
    note: str = ""
    """How many there are, and how many are in the log; empty if they have no end."""


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """One run: its settings, tasks and held-out questions, and when it stops."""

    command: ClassVar[str]
    """The streamward command that makes such a plan."""
    done_hint: ClassVar[str]
    """The message when there is nothing left to do."""

    steps: int | None
    """Adapter versions after which to stop; None: when all tasks are done."""
    minutes: float | None
    model: str | None = None
    starts_vllm: bool = False
    """Whether the run starts the server in policy.servers itself."""
    config: Path | None = None
    """The settings file named by --config."""
    overrides: tuple[str, ...] = ()

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where settings, output of the processes and report are written."""

    @property
    @abstractmethod
    def starts_node(self) -> bool:
        """Whether the log is on the embedded node, which the run starts and keeps up."""

    @abstractmethod
    def settings(self, bootstrap: str | None = None) -> Settings:
        """Return the settings of a run; with the address of the log once it is known.

        Raises SettingsError if an override does not fit.
        """

    @abstractmethod
    def tasks(self, settings: Settings, progress: Progress) -> PlannedTasks:
        """Return the train tasks that are not in the log yet."""

    def tasks_again(self, settings: Settings) -> Iterator[Task]:
        """Return train tasks to repeat, if the last ones do not fill a step."""
        return iter(())

    def task_ids(self) -> set[str] | None:
        """Return the ids of its train tasks; None if every train task in the log is one of them."""
        return None

    @abstractmethod
    def suite(self) -> Suite | None:
        """Return the held-out questions; None: versions are not evaluated."""

    @abstractmethod
    def to_continue(self) -> list[str] | None:
        """Return the arguments of a run that continues this one, if there is an obvious one."""

    @property
    def in_environment(self) -> bool:
        """Whether some of its tasks are episodes: the server for agents and the built-in agent then answer them."""
        return False

    @property
    def asks_prompts(self) -> bool:
        """Whether some of its tasks are prompts, which the policy agent answers."""
        return not self.in_environment

    @property
    def tasks_to_answer(self) -> Sequence[Task]:
        """Its tasks to serve or to evaluate."""
        return ()

    @property
    def asks_to_train(self) -> bool:
        """Whether some of its tasks are to be trained on."""
        return True

    @property
    def owns_node(self) -> bool:
        """Whether the embedded node belongs to this run, which stops it even if it ran before."""
        return True

    @property
    def endless(self) -> bool:
        """Whether the run waits for other tasks when its own are done."""
        return False

    @property
    def starts_companions(self) -> bool:
        """Whether it starts what plugins have for a demo, such as a page to look at it."""
        return False

    @property
    def look_back(self) -> LookBack | None:
        """Shows more of a run that has done all its steps; None: nothing does."""
        return None

    @property
    def by(self) -> str:
        """The program named in this run's files."""
        return f"streamward {self.command}"

    @property
    def file(self) -> Path | None:
        """The settings file to read; what a run left in this folder is ignored: its options were for that run."""
        own = Path(CONFIG_FILE)
        if self.config is not None or ENV_CONFIG in os.environ:
            return self.config
        return own if is_of_user(own) else Path(os.devnull)
