"""Options that send work to a cluster: `--on` and `--launcher`. Their choices are the engines of installed plugins.

Nothing of a plugin but its declaration is imported before its engine is used. Without any engine the option is hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from streams.cli.runtime import PluginOption, plugin_choice
from streams.plugins.engines import EngineWork, engine_work, engines

F = TypeVar("F", bound=Callable[..., Any])


class EngineOption(PluginOption):
    """An option whose value is an engine that does one kind of work. A line of each follows its help."""

    def __init__(self, *names: Any, work: EngineWork, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.work = work

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its row of the help; None without any engine."""
        if (record := super().get_help_record(ctx)) is None:
            return None
        lines = "".join(f" {name}: {engine.help}." for name, (_, engine) in engines(self.work).items())
        return record[0], record[1] + lines


def engine_option(name: str, work: EngineWork, text: str) -> Callable[[F], F]:
    """Return a decorator that adds an option for the engines that do `work`."""
    names = plugin_choice(lambda: list(engines(work)))
    return click.option(name, cls=EngineOption, work=work, type=names, default=None, help=text)


def on_option(command: F) -> F:
    """Add `--on`; the command gets `on`, an engine's name or None, and passes it to `archive_for`."""
    text = "Distribute the work on the archive over a cluster, instead of this machine."
    return engine_option("--on", "archive", text)(command)


def agent_options(command: F) -> F:
    """Add `--on` and `--replicas`; the command gets `on`, an engine's name or None, and `replicas`."""
    command = click.option(
        "--replicas", type=click.IntRange(min=1), default=None, help="How many agents --on runs.  [default: 1]"
    )(command)
    return engine_option("--on", "agents", "Run agents on the nodes of a cluster until interrupted.")(command)


def on_engine(on: str | None, replicas: int | None) -> Callable[..., int] | None:
    """Return what runs agents on the engine, or None without --on. Raises UsageError if only their number is given."""
    if on is None and replicas is not None:
        raise click.UsageError("--replicas has no effect without --on; here, start the command as often as you like")
    run: Callable[..., int] | None = None if on is None else engine_work(on, "agents")
    return run


def refuse_options(command: str, on: str | None, replicas: int | None) -> None:
    """Raise UsageError if a command got an option that it does not take."""
    if on is not None or replicas is not None:
        raise click.UsageError(f"--on and --replicas have no effect on {command}")
