"""What a deployment starts, taken as the program itself takes it: its command line and its environment.

command ──► click's own parser, down to the last command    nothing is run
environment, mounted files ──► streams.settings.load         as the process would
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from streams.cli.root import cli
from streams.settings.load import ENV_CONFIG, load
from streams.settings.model import Settings


def parsed(arguments: Sequence[str]) -> str:
    """Return the command that these arguments name, `admin topics apply`. Raises click.UsageError for wrong ones."""
    command: click.Command = cli
    rest, names, parent = list(arguments), [], None
    while True:
        context = command.make_context(names[-1] if names else "streamward", rest, parent=parent)
        if not isinstance(command, click.Group):
            return " ".join(names)
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return " ".join(names)
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        command, parent = found, context
        names.append(name)


def loaded(environment: Mapping[str, str]) -> Settings:
    """Return the settings that a process with this environment has. Raises SettingsError for what nobody knows."""
    return load(env={ENV_CONFIG: os.devnull, **environment})
