"""Shared by all commands: settings, output, exit codes and signals.

    streamward [--config --set --log-level] COMMAND ... ──► AppContext ──► the command
                                        any exception ──► one message on stderr ──► exit code

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 refused,
5 unreachable, 75 stopped by a watchdog (start it again), 130 interrupted. Only this module turns an error into
a message and a code. A reader that leaves early (`| head`) is not an error.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.cli.nearest import name_nearest, option_like
from streams.errors import LogError, SettingsError, StreamwardError, UnknownSettingError

if TYPE_CHECKING:
    from streams.settings.model import Settings
    from streams.tools.archive.history import Source
    from trainer.export.batch_rows import ExportCheck

DEMO = Path(".streamward/demo")
"""Default folder of `streamward demo`."""
ALLOW_CONTAMINATED = "--allow-contaminated"
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

F = TypeVar("F", bound=Callable[..., Any])


def several(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds these options and arguments to a command, in the order of its help."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


reason_option = click.option("--reason", default="asked for", show_default=True, help="Why; it is recorded.")
actor_option = click.option("--actor", metavar="NAME", help="Actor to record.  [default: your user name]")


@dataclass
class AppContext:
    """One run of the program: its global options, and the settings they lead to."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    log_level: str = "info"
    working: bool = False
    """Whether this is a long-running process, whose stderr is kept."""
    source: str | None = None
    """The value of --source, for commands that have it."""
    persons_read: Collection[str] = ()
    """Those whose sealed words were opened."""

    @functools.cached_property
    def settings_and_origins(self) -> tuple[Settings, dict[str, str]]:
        """The settings, and the origin of each that is not a default. Raises SettingsError."""
        from schemas import key_source
        from streams.egress import use_egress
        from streams.kafka.subject_keys import use_keys
        from streams.observability import logging as program_log
        from streams.settings.load import load_with_origins

        settings, origins = load_with_origins(file=self.config, overrides=self.overrides)
        program_log.use_format(settings.logging.format)
        use_egress(settings.egress)
        use_keys(settings)
        self.persons_read = key_source.collect_reads(whole_process=True)
        if settings.schemas.registry_url:
            from streams.kafka.registry import client as schema_registry

            schema_registry.use(settings)
        return settings, origins

    @property
    def settings(self) -> Settings:
        """The settings. Raises SettingsError."""
        return self.settings_and_origins[0]

    @functools.cached_property
    def settings_to_write(self) -> Settings:
        """The settings of a command that writes to the log. Warns on stderr if nothing names a Kafka.

        Raises SettingsError.
        """
        from streams.settings.load import default_address

        settings, origins = self.settings_and_origins
        warning = default_address(settings, origins)
        if warning:
            click.echo(f"warning: {warning}", err=True)
        return settings

    def refuse_one_policy(self, command: str) -> None:
        """Raise SettingsError if the settings name a policy for a process that serves all of them."""
        settings, origins = self.settings_and_origins
        origin = origins.get("policy.name")
        if origin is not None:
            raise SettingsError(
                f"{command} --fleet serves every policy, and policy.name={settings.policy.name} ({origin}) names one: "
                "leave out --fleet or policy.name; fleet.policies selects the policies of a fleet"
            )

    def again(self, *command: str) -> list[str]:
        """Return the command line that runs `command` in another process with the same global options."""
        config = [] if self.config is None else ["--config", str(self.config)]
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-m", "streams.cli", "--log-level", self.log_level, *config, *overrides, *command]


pass_call = click.make_pass_decorator(AppContext, ensure=True)


class VersionNumber(click.IntRange):
    """The number of a version, as `20` or as tables show it, `v20`."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises BadParameter."""
        digits = value.removeprefix("v") if isinstance(value, str) else value
        if isinstance(digits, str) and not digits.removeprefix("-").isdecimal():
            self.fail(f"{value!r} is no version; give its number, such as 20 or v20", param, ctx)
        return int(super().convert(digits, param, ctx))


class InOrder(click.Group):
    """A group whose help lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


class _LazyNames(Sequence[str]):
    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        self._names = names

    def __getitem__(self, index: Any) -> Any:
        return self._names()[index]

    def __len__(self) -> int:
        return len(self._names())


def plugin_choice(names: Callable[[], Sequence[str]]) -> click.Choice[str]:
    """Return a choice of names to which plugins add: looked up when it is used, so that no import reads plugins."""
    choice: click.Choice[str] = click.Choice(())
    choice.choices = _LazyNames(names)
    return choice


class PluginOption(click.Option):
    """An option of a `plugin_choice`, which the help leaves out while plugins add no name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its row of the help."""
        is_offered = isinstance(self.type, click.Choice) and len(self.type.choices) > 0
        return super().get_help_record(ctx) if is_offered else None


class Guarded(click.Group):
    """The root group, which handles every exception of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; --help and completion already need the plugins."""
        try:
            return super().parse_args(ctx, args)
        except StreamwardError as exc:
            _print_error(str(exc))
            ctx.exit(exc.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn an exception into a message on stderr and an exit code."""
        try:
            try:
                result = super().invoke(ctx)
            finally:
                _record_reads(ctx.find_object(AppContext), ctx.invoked_subcommand)
            sys.stdout.flush()
            return result
        except click.UsageError as exc:
            name_nearest(exc)
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # the reader of stdout has closed it: write nothing more, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except StreamwardError as exc:
            _print_error(self._message_of(exc, ctx.find_object(AppContext)))
            ctx.exit(exc.exit_code)
        except Exception as exc:  # the last handler: any command may raise anything
            _print_error(str(exc) if _is_ours(exc) else _bug_report(exc, ctx.find_object(AppContext) or AppContext()))
            ctx.exit(1)

    def _message_of(self, exc: StreamwardError, call: AppContext | None) -> str:
        """Return the message of an error, with the option that was meant by an unknown setting."""
        if isinstance(exc, UnknownSettingError) and (option := option_like(exc.key, self)) is not None:
            return f"{exc.problem}; did you mean {option}?"
        return stopped_node_hint(exc, call) or str(exc)


def _record_reads(call: AppContext | None, command: str | None) -> None:
    """Record whose sealed words a command of a user has opened. Raises LogError."""
    if call is not None and call.persons_read and not call.working:
        from streams.kafka.person_reads import record_reads

        record_reads(call.settings, call.persons_read, user=user_name(), command=command or "")


def stopped_node_hint(exc: StreamwardError, call: AppContext | None) -> str | None:
    """Return the way out if the unreachable broker is a stopped embedded node, here or of a demo."""
    if exc.exit_code != LogError.exit_code or call is None or "settings_and_origins" not in vars(call):
        return None
    from streams.kafka.node.config import read_node
    from streams.kafka.retry import BrokerUnreachable
    from streams.settings.load import CONFIG_FILE

    if not isinstance(exc, BrokerUnreachable):
        return None
    kafka, data_dir = call.settings.kafka, call.settings.broker.data_dir
    for folder in dict.fromkeys((data_dir, DEMO / "kafka")):
        node, config_file = read_node(folder), folder.parent / CONFIG_FILE
        if node is None or _is_running(folder):
            continue
        if folder == data_dir:
            config = [] if call.config is None else ["--config", str(call.config)]
            options = [*config, *(part for override in call.overrides for part in ("--set", override))]
        else:
            options = ["--config", str(config_file)] if config_file.exists() else ["--set", f"broker.data_dir={folder}"]
        start = shlex.join(["streamward", *options, "admin", "broker", "start"])
        if node.bootstrap == kafka.bootstrap.replace("localhost", "127.0.0.1"):
            archived = call.source == "auto" and _may_exist(call.settings.archive.store)
            instead = ", or read only the archive with --source archive" if archived else ""
            return f"the node in {folder}, which is {kafka.bootstrap}, is stopped; start it with `{start}`{instead}"
        if folder != data_dir and config_file.exists() and "kafka.bootstrap" not in call.settings_and_origins[1]:
            return f"{exc}. A demo ran here; start its node with `{start}`, and give this command the same --config"
    return None


def _is_running(folder: Path) -> bool:
    """Return whether the node of this folder runs; imported late, since the images have no node."""
    from streams.kafka.node import process
    from streams.settings.model import Broker

    return process.status(Broker(data_dir=folder)) is not None


def _may_exist(store: str) -> bool:
    """Return whether there may be an archive; an object store is not queried."""
    return "://" in store or Path(os.path.expanduser(store)).is_dir()


def _is_ours(exc: Exception) -> bool:
    """Return whether `schemas` raised it on purpose: its errors are outside our tree, since it imports none of it."""
    from schemas.serde import EncodeError
    from schemas.versions import SchemaError

    return isinstance(exc, EncodeError | SchemaError)


def _print_error(message: str, label: str = "Error: ") -> None:
    import logging

    from streams.observability import logging as program_log
    from streams.output import printable

    as_json = program_log.is_json()
    text = "\n".join(map(printable, f"{label}{message}".split("\n")))
    line = program_log.json_line(logging.ERROR, "streamward", message) if as_json else text
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _bug_report(exc: Exception, call: AppContext) -> str:
    """Return one line about an unexpected error; its traceback goes to stderr, or to a file that the line names."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(exc))
    first = str(exc).partition("\n")[0]
    message = f"this should not happen: {type(exc).__name__}: {first}"
    if call.working or call.log_level == "debug":
        _print_error(text, label="")
        return message
    try:
        with tempfile.NamedTemporaryFile("w", prefix="streamward-", suffix=".traceback", delete=False) as file:
            file.write(text)
    except OSError:
        return f"{message}. See the traceback with `streamward --log-level debug ...`"
    return f"{message}. The traceback is in {file.name}; `streamward --log-level debug ...` prints it"


def user_name() -> str:
    """Return the user's name, or in a container without one the user's number."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def json_object(text: str, option: str) -> dict[str, Any]:
    """Return the value of `option`. Raises SettingsError if it is not a JSON object."""
    from schemas import json_text

    try:
        value = json_text.parse(text)
    except ValueError as exc:
        raise SettingsError(f"{option} {text}: not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise SettingsError(f'{option} {text}: expected a JSON object, e.g. {{"terms": 3}}')
    return value


def output_option(command: F) -> F:
    """Add `--output`; the command gets `output`, which is table or jsonl."""
    return _output_option("jsonl", "jsonl")(command)


def json_option(command: F) -> F:
    """Add `--output` for a command whose result is one object; the command gets `output`, which is table or json."""
    return _output_option("json", "one JSON object")(command)


def _output_option(machine: str, description: str) -> Callable[[F], F]:
    def settle(_: click.Context, __: click.Parameter, value: str | None) -> str:
        from streams.output import output_or_default

        return output_or_default(value, machine=machine)

    return click.option(
        "--output",
        type=click.Choice(["table", machine]),
        callback=settle,
        help=f"Output format.  [default: table on a terminal, {description} in a pipe]",
    )


def allow_option(command: F) -> F:
    """Add `--allow-contaminated`; the command gets `allow_contaminated`."""
    return click.option(
        ALLOW_CONTAMINATED, is_flag=True, help="Let in questions that a suite holds out; your name is recorded."
    )(command)


def export_check(settings: Settings, allow_contaminated: bool) -> ExportCheck:
    """Return the check of batches that another trainer gets."""
    from streams.rows.training_gate import TrainingCheck

    return TrainingCheck(settings, allowed_by=user_name() if allow_contaminated else None).check_export


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
        help="Source of the records; auto: the archive, then the log after it.",
    )(command)


def archive_for(on: str | None, source: Source) -> Source:
    """Return the source of a command: an engine reads the archive. Raises SettingsError if --source contradicts it."""
    if on is not None and source == "log":
        raise SettingsError(
            f"--on {on} reads the archive, and --source log the broker; leave one of them out (`streamward admin "
            "archive sync` archives new records)"
        )
    return source if on is None else "archive"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import large libraries in this block without garbage collection, which took a fifth of the time.

    Their objects are frozen: later collections skip them, also the one at exit (`end_garbage`).
    """
    atexit.register(end_garbage)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_garbage() -> None:
    """Let the collection at exit skip everything: with torch it took a second.

    Not where DuckDB is loaded, whose client prints every object that is left then, a hundred lines of them.
    """
    if "_duckdb" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()


def end_at_signals() -> None:
    """Let SIGTERM and Ctrl-C end the process with exit code 0, until other handlers are set."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, end)


@contextlib.contextmanager
def until_stopped() -> Iterator[Event]:
    """Yield an event that SIGTERM or Ctrl-C sets. A second Ctrl-C kills; a second SIGTERM changes nothing.

    A supervisor's SIGTERM often follows a Ctrl-C that the terminal sent to every process, and must not interrupt
    draining.
    """
    import logging

    from streams.observability import logging as program_log
    from streams.processes.signals import SignalledEvent

    stop, stopping = SignalledEvent(), False
    previous = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT)}

    def request_stop(number: int, _: object) -> None:
        nonlocal stopping
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not stopping:
            stopping = True
            stop.set_in_handler()
            hint = "; Ctrl-C again kills" if number == signal.SIGINT else ""
            line = f"stopping once in-flight work is finished{hint}"
            if program_log.is_json():
                line = program_log.json_line(logging.INFO, "streamward", line)
            with contextlib.suppress(OSError):
                os.write(2, f"{line}\n".encode())

    for sign in previous:
        signal.signal(sign, request_stop)
    try:
        yield stop
    finally:
        for sign, handler in previous.items():
            signal.signal(sign, handler)


def begin(call: AppContext, process: str, topics: str) -> None:
    """Check the topics and log the start of a process, so that silence afterwards means waiting."""
    import logging

    from streams.kafka import admin

    settings = call.settings
    admin.check_topics(settings, patient=True)
    address = f"{settings.topics.prefix}* at {settings.kafka.bootstrap}"
    logging.getLogger("streams.cli").info("%s starts, reads %s of %s", process, topics, address)
