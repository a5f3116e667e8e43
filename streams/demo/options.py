"""What a run of the demo may change, the settings this makes, and how commands find them afterwards.

    DemoOptions ──► settings_of ──► Settings ──► DATA_DIR/streamward.toml, for the demo's own processes
                                                 ./streamward.toml, for what is typed in this folder next

A `streamward.toml` that the demo did not write is the user's: it is read like any other settings file and never
overwritten. The demo does not read its own, or the options of one run would silently become those of the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streams.engines.vllm import launch as vllm_launch
from streams.errors import SettingsError
from streams.settings.load import CONFIG_FILE, ENV_CONFIG, load
from streams.settings.model import Settings

POLICY = "demo"
THREADS = min(os.cpu_count() or 1, 4)
"""For the policy and for the trainer, which take turns; a model this small gains nothing from more."""
BY = "streamward demo"
_OURS = f"# Written by `{BY}`"
_HEAD = f"{_OURS} so that commands typed here find its log. The next demo here overwrites it unless this line is gone."


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What a run of the demo may change."""

    data_dir: Path = Path(".streamward/demo")
    minutes: float = 8.0
    steps: int = 20
    model: str | None = None
    generator: str = "sums"
    engine: str = "transformers"
    fresh: bool = False
    starts_vllm: bool = False
    """Whether the demo starts the server in policy.servers itself."""
    config: Path | None = None
    """The settings file named by --config."""
    overrides: tuple[str, ...] = ()

    @property
    def names_servers(self) -> bool:
        """Whether the user named vLLM servers that already run."""
        return any(override.startswith("policy.servers=") for override in self.overrides)

    def to_resume(self) -> list[str]:
        """Return the arguments of a run that adds ten steps to this one."""
        plain = DemoOptions()
        overrides = self.overrides[:-1] if self.starts_vllm else self.overrides  # the last one named its server
        words = [] if self.config is None else ["--config", str(self.config)]
        words += [word for override in overrides for word in ("--set", override)]
        words += ["demo", "--steps", str(self.steps + 10)]
        for name in ("data_dir", "model", "generator", "engine"):
            if (value := getattr(self, name)) != getattr(plain, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return words


def check(options: DemoOptions) -> None:
    """Raise SettingsError for impossible options, before anything is started."""
    if options.steps < 1:
        raise SettingsError(f"--steps {options.steps}: at least one step is needed")
    if options.minutes <= 0:
        raise SettingsError(f"--minutes {options.minutes:g}: expected more than 0")
    if Path.cwd().is_relative_to(options.data_dir.resolve()):  # --fresh deletes it
        raise SettingsError(f"--data-dir {options.data_dir}: name a folder for the demo alone, not one you work in")
    if options.engine == "vllm" and not options.names_servers:
        vllm_launch.python_with_vllm()  # raises, with what to do, if there is none


def settings_of(options: DemoOptions, bootstrap: str) -> Settings:
    """Return the settings of a demo. Raises SettingsError if an override does not fit."""
    folder = options.data_dir
    chosen = [
        f"kafka.bootstrap={bootstrap}",
        f"policy.name={POLICY}",
        f"policy.engine={options.engine}",
        f"policy.threads={THREADS}",
        f"trainer.threads={THREADS}",
        "trainer.micro_groups=4",
        # not divided by a group's spread: early groups differ in form alone, which must not weigh like being right
        "advantages.formula=dr_grpo",
        # on-policy: sampling and training take turns with all cores, and each step learns the most it can
        "batches.max_policy_lag=0",
        "batches.zero_variance=keep",
        f"broker.data_dir={folder / 'kafka'}",
        f"adapters.store={folder / 'adapters'}",
        f"trainer.checkpoints={folder / 'checkpoints'}",
        *([f"model.base={options.model}"] if options.model else []),
        *([f"policy.server_folder={folder / 'served'}"] if options.engine == "vllm" else []),
        # without weights nothing is trained, so no batch is ever too far ahead of the version that answers
        *(
            ['policy.script={"accuracy": 0.5}', f"batches.max_policy_lag={options.steps}"]
            if options.engine == "scripted"
            else []
        ),
    ]
    nothing = ENV_CONFIG not in os.environ and _is_ours(Path(CONFIG_FILE))
    file = options.config or (Path(os.devnull) if nothing else None)
    return load(file=file, overrides=[*chosen, *options.overrides])


# --- ./streamward.toml ------------------------------------------------------------------------------------------------


def leave_settings(config: Path) -> bool:
    """Write the settings in `config` to ./streamward.toml too, unless that file is the user's own.

    Returns whether commands without --config now use them, as `finds_settings` does.
    """
    here = Path(CONFIG_FILE)
    if _is_ours(here) or not os.path.lexists(here):
        try:
            here.write_text(_for_this_folder(config))
        except OSError:  # a folder that cannot be written to: the commands are then printed with --config
            return False
    return finds_settings(config)


def finds_settings(config: Path, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether a command typed in this folder without --config uses the settings that `leave_settings` left."""
    try:
        return ENV_CONFIG not in env and Path(CONFIG_FILE).read_text() == _for_this_folder(config)
    except (OSError, UnicodeDecodeError):
        return False


def _for_this_folder(config: Path) -> str:
    _, _, settings = config.read_text().partition("\n")
    return f"{_HEAD}\n{settings}"


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text().startswith(_OURS)
    except (OSError, UnicodeDecodeError):
        return False
