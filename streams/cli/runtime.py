"""What every command shares: settings, output, exit codes and signals.

    streamward [--config --set --log-level] COMMAND ... ──► AppContext ──► the command
                                        any exception ──► one message on stderr ──► exit code

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 refused,
5 unreachable, 75 stopped by a watchdog (start it again), 130 interrupted. This is the one place where an error becomes
a message and a code. A reader that leaves early (`| head`) is not an error.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.errors import LogError, SettingsError, StreamwardError

if TYPE_CHECKING:
    from streams.settings.model import Settings
    from streams.tools.archive.history import Source
    from streams.tools.distributed.engine import EngineName

DEMO = Path(".streamward/demo")
"""Where `streamward demo` keeps its log unless it is given another folder."""
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class AppContext:
    """One run of the program: its global options, and the settings they lead to."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    log_level: str = "info"
    working: bool = False
    """Whether this is a long-running process, whose stderr is kept."""
    source: str | None = None
    """Where the command reads, if that is to be chosen with --source."""

    @functools.cached_property
    def loaded(self) -> tuple[Settings, dict[str, str]]:
        """The settings, and the origin of each that is not a default. Raises SettingsError."""
        from streams.observability import logging as program_log
        from streams.settings.load import load_with_origins

        settings, origins = load_with_origins(file=self.config, overrides=self.overrides)
        program_log.use_format(settings.logging.format)
        if settings.schemas.registry_url:
            from streams.kafka.registry import client as schema_registry

            schema_registry.use(settings)
        return settings, origins

    @property
    def settings(self) -> Settings:
        """The settings. Raises SettingsError."""
        return self.loaded[0]

    @functools.cached_property
    def settings_to_write(self) -> Settings:
        """The settings of a command that writes to the log. If nothing names a Kafka, says so on stderr.

        Raises SettingsError.
        """
        from streams.settings.load import default_address

        settings, origins = self.loaded
        if unnamed := default_address(settings, origins):
            click.echo(f"warning: {unnamed}", err=True)
        return settings

    def refuse_one_policy(self, command: str) -> None:
        """Raise SettingsError if a policy is named for a process that is to serve them all."""
        settings, origins = self.loaded
        if (origin := origins.get("policy.name")) is not None:
            raise SettingsError(
                f"{command} --fleet serves every policy, and policy.name={settings.policy.name} ({origin}) names one: "
                "leave --fleet out, or policy.name; which policies a fleet serves is fleet.policies"
            )

    def again(self, *command: str) -> list[str]:
        """Return the command line of a process with the same global options that runs `command`."""
        config = [] if self.config is None else ["--config", str(self.config)]
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-m", "streams.cli", "--log-level", self.log_level, *config, *overrides, *command]


pass_call = click.make_pass_decorator(AppContext, ensure=True)


class Guarded(click.Group):
    """The root group: whatever a command raises ends here."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn what it raises into a message on stderr and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except click.UsageError as exc:
            _name_nearest_command(exc)
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # the reader of stdout has left: nothing more may be written to it, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except StreamwardError as exc:
            _say(stopped_node_hint(exc, ctx.find_object(AppContext)) or str(exc))
            ctx.exit(exc.exit_code)
        except Exception as exc:  # nobody else is left to catch it
            _say(str(exc) if _is_ours(exc) else _unexpected(exc, ctx.find_object(AppContext) or AppContext()))
            ctx.exit(1)


def _name_nearest_command(exc: click.UsageError) -> None:
    """Add to the message about an unknown command those whose names are near, or all there are."""
    group = None if exc.ctx is None else exc.ctx.command
    unknown = re.fullmatch(r"No such command '(.+)'\.", exc.message)
    if unknown is None or not isinstance(group, click.Group):
        return
    import difflib

    near = difflib.get_close_matches(unknown[1], group.commands, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(group.commands))}"
    exc.message = f"No such command '{unknown[1]}'; {hint}"


def stopped_node_hint(exc: StreamwardError, call: AppContext | None) -> str | None:
    """Return the way out if the broker that does not answer is an embedded node that is stopped, a demo's included."""
    if exc.exit_code != LogError.exit_code or call is None or "loaded" not in vars(call):
        return None
    from streams.kafka.node.config import remembered
    from streams.kafka.retry import BrokerUnreachable
    from streams.settings.load import CONFIG_FILE

    if not isinstance(exc, BrokerUnreachable):
        return None
    kafka, here = call.settings.kafka, call.settings.broker.data_dir
    for folder in dict.fromkeys((here, DEMO / "kafka")):
        node, own = remembered(folder), folder.parent / CONFIG_FILE
        if node is None or _is_running(folder):
            continue
        if folder == here:
            config = [] if call.config is None else ["--config", str(call.config)]
            options = [*config, *(part for override in call.overrides for part in ("--set", override))]
        else:
            options = ["--config", str(own)] if own.exists() else ["--set", f"broker.data_dir={folder}"]
        start = shlex.join(["streamward", *options, "broker", "start"])
        if node.bootstrap == kafka.bootstrap.replace("localhost", "127.0.0.1"):
            archived = call.source == "auto" and _is_there(call.settings.archive.store)
            instead = ", or read only what is archived with --source archive" if archived else ""
            return f"the node in {folder}, which is {kafka.bootstrap}, is stopped; start it with `{start}`{instead}"
        if folder != here and own.exists() and "kafka.bootstrap" not in call.loaded[1]:
            return f"{exc}. A demo ran here; start its node with `{start}`, and give this command the same --config"
    return None


def _is_running(folder: Path) -> bool:
    """Return whether the node of this folder runs. The image has not all that this imports, and never had a node."""
    from streams.kafka.node import process
    from streams.settings.model import Broker

    return process.status(Broker(data_dir=folder)) is not None


def _is_there(store: str) -> bool:
    """Return whether there may be an archive; an object store is not asked."""
    return "://" in store or Path(os.path.expanduser(store)).is_dir()


def _is_ours(exc: Exception) -> bool:
    """Whether `schemas` raised it on purpose: its errors are outside our tree, since it imports nothing of ours."""
    from schemas.serde import EncodeError
    from schemas.versions import SchemaError

    return isinstance(exc, EncodeError | SchemaError)


def _say(message: str, label: str = "Error: ") -> None:
    import logging

    from streams.observability import logging as program_log

    as_json = program_log.is_json()
    line = program_log.json_line(logging.ERROR, "streamward", message) if as_json else f"{label}{message}"
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _unexpected(exc: Exception, call: AppContext) -> str:
    """Return one line about an unforeseen error; its traceback goes to stderr, or to a file that the line names."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(exc))
    first = str(exc).partition("\n")[0]
    what = f"this should not happen: {type(exc).__name__}: {first}"
    if call.working or call.log_level == "debug":
        _say(text, label="")
        return what
    try:
        with tempfile.NamedTemporaryFile("w", prefix="streamward-", suffix=".traceback", delete=False) as file:
            file.write(text)
    except OSError:
        return f"{what}. See the traceback with `streamward --log-level debug ...`"
    return f"{what}. The traceback is in {file.name}; `streamward --log-level debug ...` prints it"


def user_name() -> str:
    """Return the name of who runs this; in a container, whose user may have none, its number."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def json_object(text: str, option: str) -> dict[str, Any]:
    """Return what `option` was given. Raises SettingsError if it is no JSON object."""
    from schemas import json_text

    try:
        found = json_text.parse(text)
    except ValueError as exc:
        raise SettingsError(f"{option} {text}: not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise SettingsError(f'{option} {text}: expected a JSON object, e.g. {{"terms": 3}}')
    return found


def output_option(command: F) -> F:
    """Add `--output`; the command gets `output`, which is table or jsonl."""
    return _output_option("jsonl", "jsonl")(command)


def json_option(command: F) -> F:
    """Add `--output` for a command whose result is one object; the command gets `output`, which is table or json."""
    return _output_option("json", "one JSON object")(command)


def _output_option(machine: str, what: str) -> Callable[[F], F]:
    def settle(_: click.Context, __: click.Parameter, value: str | None) -> str:
        from streams.output import output_or_default

        return output_or_default(value, machine=machine)

    return click.option(
        "--output",
        type=click.Choice(["table", machine]),
        callback=settle,
        help=f"How to print.  [default: table on a terminal, {what} in a pipe]",
    )


def source_option(command: F) -> F:
    """Add `--source`; the command gets `source`, which is auto, log or archive."""

    def note(ctx: click.Context, _: click.Parameter, value: str) -> str:
        ctx.ensure_object(AppContext).source = value
        return value

    return click.option(
        "--source",
        type=click.Choice(["auto", "log", "archive"]),
        default="auto",
        show_default=True,
        callback=note,
        help="Where to read; auto: the archive, then the log after it.",
    )(command)


def on_option(command: F) -> F:
    """Add `--on`; the command gets `on`, which is ray, spark or None. Give it to `archive_for` with the source."""
    return click.option(
        "--on",
        type=click.Choice(["ray", "spark"]),
        default=None,
        help="Spread the work on the archive over a cluster. [default: this machine]",
    )(command)


def archive_for(on: EngineName | None, source: Source) -> Source:
    """Return where a command reads that may run on an engine, which reads the archive. Raises SettingsError."""
    if on is not None and source == "log":
        raise SettingsError(
            f"--on {on} reads the archive, and --source log the broker; leave one of them out (`streamward archive "
            "sync` archives what is new)"
        )
    return source if on is None else "archive"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import large libraries in this block: a fifth of the time was the search for garbage, of which they have none.

    They are left out of every later search, too, also of the one at the end of the process, which took torch a second.
    """
    atexit.register(gc.freeze)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_at_signals() -> None:
    """Let SIGTERM and Ctrl-C end the process with exit code 0, until other handlers are set."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, end)


@contextlib.contextmanager
def until_stopped() -> Iterator[Event]:
    """Yield an event that SIGTERM or Ctrl-C sets. A second Ctrl-C kills; a second SIGTERM changes nothing.

    A supervisor's SIGTERM often follows a Ctrl-C that the terminal sent to every process, and must not cut draining
    short.
    """
    import logging

    from streams.observability import logging as program_log
    from streams.processes.signals import SignalledEvent

    stop, asked = SignalledEvent(), False
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _: object) -> None:
        nonlocal asked
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not asked:
            asked = True
            stop.set_in_handler()
            hint = "; Ctrl-C again kills" if number == signal.SIGINT else ""
            line = f"stopping, in-flight work is finished first{hint}"
            if program_log.is_json():
                line = program_log.json_line(logging.INFO, "streamward", line)
            with contextlib.suppress(OSError):
                os.write(2, f"{line}\n".encode())

    for sign in before:
        signal.signal(sign, ask)
    try:
        yield stop
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def begin(call: AppContext, what: str, reads: str) -> None:
    """Refuse to run without topics, and log what starts, so that silence afterwards means waiting."""
    import logging

    from streams.kafka import admin

    settings = call.settings
    admin.check_topics(settings, patient=True)
    where = f"{settings.topics.prefix}* at {settings.kafka.bootstrap}"
    logging.getLogger("streams.cli").info("%s starts, reads %s of %s", what, reads, where)
