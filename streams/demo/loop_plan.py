"""What a run of the loop is asked to do: `streamward demo` and `streamward up` have a plan each.

Plan ──► settings, train tasks, held-out questions, when to stop ──► run.py
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from schemas.events import Task
from streams.demo.progress import Progress
from streams.demo.settings_file import is_left_here
from streams.evaluation.suite import Suite
from streams.settings.load import ENV_CONFIG
from streams.settings.model import Settings

THREADS = min(os.cpu_count() or 1, 4)
"""For the policy and for the trainer, which take turns; a model this small gains nothing from more."""
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


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """One run: what it may change, and what it is asked."""

    command: ClassVar[str]
    """Of streamward, that makes such a plan."""
    done_hint: ClassVar[str]
    """What to say when there is nothing left to do."""

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
    def embedded(self) -> bool:
        """Whether the log is the embedded node's, which the run then starts and keeps up."""

    @abstractmethod
    def settings(self, bootstrap: str | None = None) -> Settings:
        """Return the settings of a run; with the address of the log once it is known.

        Raises SettingsError if an override does not fit.
        """

    @abstractmethod
    def tasks(self, settings: Settings, progress: Progress) -> Iterator[Task]:
        """Return the train tasks that are not in the log yet."""

    @abstractmethod
    def suite(self) -> Suite | None:
        """Return the held-out questions; None if no version is asked any."""

    @abstractmethod
    def to_continue(self) -> list[str] | None:
        """Return the arguments of a run that goes further than this one, if there is an obvious one."""

    @property
    def in_environment(self) -> bool:
        """Whether some of its tasks are episodes: the server for agents and the built-in agent then answer them."""
        return False

    @property
    def asks_prompts(self) -> bool:
        """Whether some of its tasks are prompts, which the policy agent answers."""
        return not self.in_environment

    @property
    def owns_node(self) -> bool:
        """Whether the embedded node is there for this run alone, and is stopped even if it ran before."""
        return True

    @property
    def endless(self) -> bool:
        """Whether the run waits for tasks of others when its own are done."""
        return False

    @property
    def shows_page(self) -> bool:
        """Whether the page is served while it runs."""
        return False

    @property
    def by(self) -> str:
        """What wrote this run's files."""
        return f"streamward {self.command}"

    @property
    def file(self) -> Path | None:
        """The settings file to read. What a run left in this folder is none: its options were for that run."""
        nothing = ENV_CONFIG not in os.environ and is_left_here()
        return self.config or (Path(os.devnull) if nothing else None)
