"""The demo: a model learns one-digit sums, or to act in an environment, from generated tasks.

    seed ──► train tasks, as many as needed ──► the loop ──► the score on 35 held-out ones, every second version

Everything is stored in one folder, the Kafka node included.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from streams.demo import loop_run as loop
from streams.demo.loop_plan import ONE_MACHINE, Plan, PlannedTasks
from streams.demo.progress import Progress
from streams.engines.vllm import launch as vllm_launch
from streams.errors import SettingsError
from streams.evaluation.suite import Suite
from streams.kafka import times
from streams.kafka.node import process as broker
from streams.plugins.installed import plugin_entries
from streams.processes.child import free_port
from streams.settings.load import load, load_with_origins
from streams.settings.model import Settings
from streams.stages.tasks import suites
from streams.stages.tasks.generators import LookBack, TaskSpec, families_of_plugins, generate

POLICY = "demo"
HELD_OUT_TASKS = 35
"""Questions for each evaluated version: of sums, every held-out one of two one-digit numbers."""
LEARNS_BEST = {
    "calculator": {"batches.groups": "8"},
    "lookup": {"batches.groups": "8"},
    "guess": {"trainer.learning_rate": "4e-4"},
}
"""Settings by task, in addition to those of all tasks (docs/experiments.md)."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Plan):
    """Options of a run of the demo."""

    command: ClassVar[str] = "demo"
    done_hint: ClassVar[str] = "all steps are done: give more --steps to continue, or --fresh to start over"

    steps: int = 20
    minutes: float = 8.0
    data_dir: Path = Path(".streamward/demo")
    task: str = "sums"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the task's family."""
    seed: int = 0
    server_port: int | None = None
    """Address of the server for agents; None: from the settings."""
    engine: str = "transformers"
    fresh: bool = False

    @property
    def folder(self) -> Path:
        """The folder of all files."""
        return self.data_dir

    @property
    def starts_node(self) -> bool:
        """The demo has a node of its own."""
        return True

    @property
    def starts_companions(self) -> bool:
        """The demo is for looking at."""
        return True

    @property
    def in_environment(self) -> bool:
        """Whether its tasks are episodes. Raises as `generate`."""
        spec = TaskSpec(family=self.task, count=1, purpose="eval", policy=POLICY, options=self.options)
        return any(task.environment is not None for task in generate(spec, now_ms=0))

    @property
    def names_servers(self) -> bool:
        """Whether the user named vLLM servers that already run."""
        return any(override.startswith("policy.servers=") for override in self.overrides)

    def settings(self, bootstrap: str | None = None) -> Settings:
        """Return the user's settings, with folders of the demo's own; the rest is set as one machine learns best.

        Raises SettingsError if an override does not fit.
        """
        folder, engine = self.data_dir, f"policy.engine={self.engine}"
        _, origins = load_with_origins(file=self.file, overrides=[engine, *self.overrides])
        best = ONE_MACHINE | LEARNS_BEST.get(self.task, {})
        chosen = [
            f"kafka.bootstrap={bootstrap or '127.0.0.1:0'}",
            f"policy.name={POLICY}",
            engine,
            *(f"{key}={value}" for key, value in best.items() if key not in origins),
            f"broker.data_dir={folder / 'kafka'}",
            f"adapters.store={folder / 'adapters'}",
            f"trainer.checkpoints={folder / 'checkpoints'}",
            *([f"model.base={self.model}"] if self.model else []),
            *([f"policy.server_folder={folder / 'served'}"] if self.engine == "vllm" else []),
            *([] if self.server_port is None else [f"serve.port={self.server_port}"]),
            # without weights nothing is trained, so no batch is ever too far ahead of the version that answers
            *(
                ['policy.script={"accuracy": 0.5}', f"batches.max_policy_lag={self.steps}"]
                if self.engine == "scripted"
                else []
            ),
        ]
        return load(file=self.file, overrides=[*chosen, *self.overrides])

    def tasks(self, settings: Settings, progress: Progress) -> PlannedTasks:
        """Return the train tasks that are not in the log yet, without end."""
        spec = TaskSpec(
            family=self.task, count=sys.maxsize, seed=self.seed, purpose="train", policy=POLICY, options=self.options
        )
        endless = generate(spec, now_ms=times.now_ms())
        return PlannedTasks(itertools.islice(endless, progress.train_tasks[self.task], None))

    def suite(self) -> Suite:
        """Return the held-out tasks."""
        return suites.generated(self.task, count=HELD_OUT_TASKS, seed=self.seed, options=self.options)

    @property
    def look_back(self) -> LookBack | None:
        """Shows more of a run that has done all its steps, if its family has it."""
        family = families_of_plugins().get(self.task)
        return None if family is None else family.look_back

    def to_continue(self) -> list[str]:
        """Return the arguments of a run that adds ten steps to this one."""
        plain = DemoOptions()
        overrides = self.overrides[:-1] if self.starts_vllm else self.overrides  # the last one named its server
        words = [] if self.config is None else ["--config", str(self.config)]
        words += [word for override in overrides for word in ("--set", override)]
        words += ["demo", "--steps", str(self.steps + 10)]
        for name in ("data_dir", "model", "task", "seed", "engine"):
            if (value := getattr(self, name)) != getattr(plain, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        if self.options:
            words += ["--options", json.dumps(dict(self.options))]
        return words


def steps_of(task: str) -> int:
    """Return how many versions a demo on these tasks makes by default."""
    family = families_of_plugins().get(task)
    return DemoOptions.steps if family is None else family.demo_steps


def fault(text: str) -> str:
    """Return the setting of `PART=SHARE`. Raises SettingsError for a part that no plugin breaks."""
    part, _, share = text.partition("=")
    faults = plugin_entries(lambda plugin: plugin.faults, "part to break", ())
    if part not in faults:
        raise SettingsError(f"--break {text}: expected PART=SHARE with one of {', '.join(faults) or 'no part'}")
    return f"{faults[part][1]}={share}"


def check(options: DemoOptions) -> None:
    """Raise SettingsError for impossible options, before anything is started."""
    if options.steps < 1:
        raise SettingsError(f"--steps {options.steps}: at least one step is needed")
    if options.minutes <= 0:
        raise SettingsError(f"--minutes {options.minutes:g}: expected more than 0")
    check_folder(options.data_dir)
    if options.engine == "vllm" and not options.names_servers:
        vllm_launch.python_with_vllm()  # raises, with instructions, if it is not set


def check_folder(folder: Path) -> None:
    """Raise SettingsError for a folder that --fresh must not delete."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise SettingsError(f"--data-dir {folder}: name a folder for the demo alone, not one you work in")


def run(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run the demo and return its report. Raises as `check` and `loop.run`."""
    check(options)
    if options.engine == "vllm" and not options.names_servers:
        server = f"policy.servers=http://127.0.0.1:{free_port()}"
        options = replace(options, overrides=(*options.overrides, server), starts_vllm=True)
    if options.in_environment and not any(override.startswith("serve.port=") for override in options.overrides):
        options = replace(options, server_port=free_port())
    if options.fresh and options.data_dir.exists():
        broker.stop(options.settings().broker)
        shutil.rmtree(options.data_dir)
    return loop.run(options, console)
