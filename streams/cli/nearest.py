"""What a mistyped command, option or setting may have meant: names of all three are looked at.

No such command 'statu'  ──► did you mean status?
No such command 'topics' ──► did you mean admin topics?
No such option: --set    ──► of `up`: it stands before the command, as in `streamward --set … up`
extra argument (demo)    ──► of `adapters list`: did you mean --policy demo?
No such option: --port   ──► of `serve`: did you mean the setting serve.port, as in --set serve.port=… before it?
no setting 'broker.port' ──► did you mean `streamward admin broker start --port`?
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

NO_NUMBER = r" is not a valid integer( range)?\.$"


def name_nearest(exc: click.UsageError) -> None:
    """Add what may have been meant to the message about an unknown command or option."""
    if exc.ctx is None:
        return
    if isinstance(exc, click.NoSuchOption):
        _explain_option(exc, exc.ctx)
        return
    if isinstance(exc, click.MissingParameter) and isinstance(exc.param, click.Option):
        exc.message = exc.message or str(exc.param.help)
        return
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        exc.message = re.sub(NO_NUMBER, f" is not a whole number{_limits(exc.param.type)}", exc.message)
        return
    if (extra := re.match(r"Got unexpected extra arguments? \(([^\s)]+)", exc.message)) is not None:
        option = _option_for(extra[1], exc.ctx.command)
        exc.message += f"; did you mean {option} {extra[1]}?" if option else ""
        return
    group, unknown = exc.ctx.command, re.fullmatch(r"No such command '(.+)'\.", exc.message)
    if unknown is None or not isinstance(group, click.Group):
        return
    import difflib

    below = [path for path, _ in commands_below(group) if path.endswith(f" {unknown[1]}")]
    names = group.list_commands(exc.ctx)
    near = (below or difflib.get_close_matches(unknown[1], names))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(names))}"
    exc.message = f"No such command '{unknown[1]}'; {hint}"


def commands_below(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group with its path, such as `admin topics apply`; of plugins those loaded."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands_below(command, f"{prefix}{name} ")


def _limits(kind: click.ParamType) -> str:
    """Return the limits of a number, in words."""
    if not isinstance(kind, click.IntRange):
        return ""
    limits = [f"at {word} {limit}" for word, limit in (("least", kind.min), ("most", kind.max)) if limit is not None]
    return f", {' and '.join(limits)}" if limits else ""


def _explain_option(exc: click.NoSuchOption, ctx: click.Context) -> None:
    """Add to the message about an unknown option where it stands, or the setting of this name."""
    root = ctx.find_root()
    if ctx is not root and any(exc.option_name in parameter.opts for parameter in root.command.params):
        exc.possibilities = None
        _, _, command = ctx.command_path.partition(" ")
        exc.message += f" in {command}; it stands before the command, as in `streamward {exc.option_name} … {command}`"
        return
    key = None if exc.possibilities else _setting_like(exc.option_name, ctx)
    if key is not None:
        exc.message += f"; did you mean the setting {key}? As in --set {key}=VALUE, before the command"


def _option_for(value: str, command: click.Command) -> str | None:
    """Return the option of a command that a value was probably meant for: a version's number, a name."""
    options = {option for parameter in command.params for option in parameter.opts}
    meant = ("--version",) if re.fullmatch(r"v?\d+", value) else ("--policy", "--name")
    return next((option for option in meant if option in options), None)


def _setting_like(option: str, ctx: click.Context) -> str | None:
    """Return the setting with an option's name: in the section of the command, or the only one there is."""
    from streams.settings.load import build, flatten

    name = option.lstrip("-").replace("-", "_")
    keys = [key for key, _ in flatten(build({})) if key.partition(".")[2] == name]
    of_command = [key for key in keys if key.partition(".")[0] in ctx.command_path.split()]
    return next(iter(of_command or (keys if len(keys) == 1 else [])), None)


def option_like(key: str, program: click.Group) -> str | None:
    """Return the command with an option that has a setting's name, e.g. `streamward admin broker start --port`."""
    section, _, name = key.partition(".")
    option = f"--{name.replace('_', '-')}"
    for path, command in commands_below(program):
        if path.split()[-2:-1] == [section] and any(option in parameter.opts for parameter in command.params):
            return f"`streamward {path} {option}`"
    return None
