"""The root of the command line: its options, and its commands in sections.

Commands are thin: each imports what it needs inside its body, so that `streamward --help` imports click and no more,
and calls a function elsewhere that does the work. A module here has one command or one family of commands.
"""

from __future__ import annotations

import os
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import click

from streams.cli.administration import admin
from streams.cli.agents import agents
from streams.cli.ask import ask, reward
from streams.cli.audit import audit
from streams.cli.demo import demo
from streams.cli.evaluate import evaluate
from streams.cli.events import events
from streams.cli.experiments import replay
from streams.cli.export import export
from streams.cli.improve import improve
from streams.cli.mcp import mcp
from streams.cli.nearest import commands_below
from streams.cli.policy import policy
from streams.cli.query import query
from streams.cli.reproduce import reproduce
from streams.cli.rollout import adapters
from streams.cli.route_commands import RouteCommand, RoutedCommand
from streams.cli.runs import runs
from streams.cli.runtime import AppContext, Guarded
from streams.cli.scoring import scoring
from streams.cli.serve import chat, serve
from streams.cli.settings import config
from streams.cli.status import doctor, status
from streams.cli.streams import streams
from streams.cli.tasks import tasks
from streams.cli.train import train
from streams.cli.up import up
from streams.errors import SettingsError
from streams.plugins.choice import read_choice, use_choice
from streams.plugins.installed import plugin_entries
from streams.plugins.plugin import Plugin, PluginCommand
from streams.processes.signals import WITH_PARENT, end_with_parent

SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Start here": (status, doctor, up, demo),
    "Run the loop": (streams, scoring, policy, train, serve),
    "Ask and reward": (tasks, ask, chat, reward),
    "Look at the log": (events, runs, adapters, query, audit),
    "Train and compare": (evaluate, replay, reproduce, improve),
    "Connect": (agents, mcp, export),
    "Operate": (config, admin),
}
"""The commands by what a user wants, in the order in which --help lists them."""
COMPLETION = """\b
Shell completion; add one of these lines:
  eval "$(_STREAMWARD_COMPLETE=bash_source streamward)"     in ~/.bashrc
  eval "$(_STREAMWARD_COMPLETE=zsh_source streamward)"      in ~/.zshrc
  _STREAMWARD_COMPLETE=fish_source streamward | source      in ~/.config/fish/config.fish

\b
Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 refused, 5 unreachable,
75 stopped by a watchdog (start it again), 130 interrupted."""


class CommandLine(Guarded):
    """The root group, whose help has a section for each of SECTIONS, and those that commands of plugins name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, section by section."""
        choose_plugins(ctx)
        return [*(str(command.name) for commands in _usable().values() for command in commands), *plugin_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; one of a plugin is imported now."""
        choose_plugins(ctx)
        command = super().get_command(ctx, cmd_name)
        if command is not None and not _is_usable(command):
            return None
        if command is None and (declaration := plugin_commands().get(cmd_name)) is not None:
            command = _load(cmd_name, *declaration)
        for path, declaration in _commands_of_plugins().items():  # of each plugin after those that it requires
            *groups, name = path.split()
            if groups[:1] == [cmd_name]:
                group: Any = reduce(lambda outer, inner: outer.commands[inner], groups[1:], command)
                group.add_command(_load(name, *declaration), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with their columns aligned."""
        width = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - width - 6
        rows = {
            title: [(f"{command.name:<{width}}", command.get_short_help_str(limit)) for command in commands]
            for title, commands in _usable().items()
        }
        for name, (_, command) in plugin_commands().items():
            rows.setdefault(command.section, []).append((f"{name:<{width}}", command.help))
        for title, lines in rows.items():
            with formatter.section(title):
                formatter.write_dl(lines)


def _usable() -> dict[str, list[click.Command]]:
    """Return the commands by section, without groups that have none, since no loaded plugin adds any."""
    return {title: [command for command in commands if _is_usable(command)] for title, commands in SECTIONS.items()}


def _is_usable(command: click.Command) -> bool:
    if not isinstance(command, click.Group) or command.commands:
        return True
    return any(path.startswith(f"{command.name} ") for path in _commands_of_plugins())


def choose_plugins(ctx: click.Context) -> None:
    """Let --config and --set choose the plugins, before one of them is needed."""
    use_choice(read_choice(ctx.params.get("config"), ctx.params.get("overrides") or ()))


def plugin_commands() -> dict[str, tuple[Plugin, PluginCommand]]:
    """Return the commands that plugins add to the root, by name. Raises as `_commands_of_plugins`."""
    return {name: declaration for name, declaration in _commands_of_plugins().items() if " " not in name}


@cache
def _commands_of_plugins() -> dict[str, tuple[Plugin, PluginCommand]]:
    """Return the commands of plugins by path, a group of one before the commands that others add to it.

    Raises SettingsError if one is there already, or its group is not.
    """
    of_core = {path: isinstance(command, click.Group) for path, command in commands_below(cli)}
    groups = [path for path, is_group in of_core.items() if is_group]
    commands = plugin_entries(lambda plugin: plugin.commands, "command", of_core)
    for number, (name, (plugin, _)) in enumerate(commands.items()):
        group = name.rpartition(" ")[0]
        if group and group not in groups and group not in list(commands)[:number]:
            raise SettingsError(
                f"plugin {plugin.name}: its command {name} is of no group; there are {', '.join(groups)}"
            )
    return commands


def _load(name: str, plugin: Plugin, declared: PluginCommand) -> click.Command:
    if not declared.method:
        command: click.Command = plugin.load(declared.command)
        return command
    route = RouteCommand(declared.method, declared.help, declared.arguments, declared.columns)
    return RoutedCommand(name, declared.command, route)


@click.group(cls=CommandLine, epilog=COMPLETION, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    is_eager=True,
    help="Read settings from this TOML file instead of ./streamward.toml.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    is_eager=True,
    help="Set one value; overrides file and environment. May be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level to print on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default=None,
    help="Format of the lines on stderr; short for --set logging.format=...",
)
@click.version_option(package_name="streamward", prog_name="streamward")
@click.pass_context
def cli(
    ctx: click.Context, config: Path | None, overrides: tuple[str, ...], log_level: str, log_format: str | None
) -> None:
    """GRPO from a Kafka log: tasks, responses, rewards and adapters are records, and the log is the only truth.

    Settings come from defaults, then streamward.toml, then STREAMWARD_SECTION__KEY in the environment, then --set;
    `streamward config show` shows the origin of each. Data goes to stdout and everything else to stderr. In a pipe it
    is JSON, or with STREAMWARD_OUTPUT=table in the environment a table.
    """
    from streams.observability import logging as program_log

    if log_format is not None:
        overrides = (*overrides, f"logging.format={log_format}")
    if os.environ.pop(WITH_PARENT, None) is not None:
        end_with_parent()
    program_log.set_up(log_level)
    ctx.obj = AppContext(config=config, overrides=_without_secrets(ctx, overrides), log_level=log_level)


def _without_secrets(ctx: click.Context, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Move secrets into the environment until the command ends, where child processes find them.

    Every user of the machine can read a command line.
    """
    if not overrides:
        return ()
    from streams.settings.load import secret_variable

    public = []
    for override in overrides:
        key, _, value = override.partition("=")
        variable = secret_variable(override)
        if variable is None:
            public.append(override)
            continue
        ctx.call_on_close(partial(_set_variable, variable, os.environ.get(variable)))
        _set_variable(variable, value)
        click.echo(
            f"warning: every user of this machine can read --set {key} in the list of processes; set {variable}, or "
            f"{variable}_FILE",
            err=True,
        )
    return tuple(public)


def _set_variable(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


for section in SECTIONS.values():
    for command in section:
        cli.add_command(command)
