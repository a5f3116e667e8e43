"""What a mistyped command, option or setting may have meant: names of all three are looked at.

No such command 'statu'  ──► did you mean status?
No such option: --port   ──► of `serve`: did you mean the setting serve.port, as in --set serve.port=… before it?
no setting 'broker.port' ──► did you mean `streamward broker start --port`?
"""

from __future__ import annotations

import re

import click


def name_nearest(exc: click.UsageError) -> None:
    """Add what may have been meant to the message about an unknown command or option."""
    if exc.ctx is None:
        return
    if isinstance(exc, click.NoSuchOption):
        key = None if exc.possibilities else _setting_like(exc.option_name, exc.ctx)
        if key is not None:
            exc.message += f"; did you mean the setting {key}? As in --set {key}=VALUE, before the command"
        return
    group, unknown = exc.ctx.command, re.fullmatch(r"No such command '(.+)'\.", exc.message)
    if unknown is None or not isinstance(group, click.Group):
        return
    import difflib

    near = difflib.get_close_matches(unknown[1], group.commands, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(group.commands))}"
    exc.message = f"No such command '{unknown[1]}'; {hint}"


def _setting_like(option: str, ctx: click.Context) -> str | None:
    """Return the setting with an option's name: in the section of the command, or the only one there is."""
    from streams.settings.load import flatten
    from streams.settings.model import Settings

    name = option.lstrip("-").replace("-", "_")
    keys = [key for key, _ in flatten(Settings()) if key.partition(".")[2] == name]
    of_command = [key for key in keys if key.partition(".")[0] in ctx.command_path.split()]
    return next(iter(of_command or (keys if len(keys) == 1 else [])), None)


def option_like(key: str, program: click.Group) -> str | None:
    """Return the command with an option that has a setting's name, e.g. `streamward broker start --port`."""
    section, _, name = key.partition(".")
    group, option = program.commands.get(section), f"--{name.replace('_', '-')}"
    if not isinstance(group, click.Group):
        return None
    for command in group.commands.values():
        if any(option in parameter.opts for parameter in command.params):
            return f"`streamward {section} {command.name} {option}`"
    return None
