"""What every command shares: settings, output, exit codes and signals.

    streamward [--config --set --log-level] COMMAND ... ──► Call ──► the command
                                        any exception ──► one message on stderr ──► exit code

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failed, 2 usage or settings, 3 not found, 4 refused,
5 unreachable, 75 stopped by a watchdog (start it again), 130 interrupted. This is the one place where an error becomes
a message and a code. A reader that leaves early (`| head`) is no error.

Not covered: Windows' notion of signals.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.errors import StreamwardError

if TYPE_CHECKING:
    from streams.settings.model import Settings

INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class AppContext:
    """One call of the program: what its global options said."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    log_level: str = "info"
    working: bool = False
    """Whether this is a long-running process, whose stderr somebody keeps."""

    @functools.cached_property
    def loaded(self) -> tuple[Settings, dict[str, str]]:
        """The settings, and where each that is not a default came from. Raises SettingsError."""
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

    def again(self, *command: str) -> list[str]:
        """Return the command line of a process with the same global options that runs `command`."""
        config = [] if self.config is None else ["--config", str(self.config)]
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-m", "streams.cli", "--log-level", self.log_level, *config, *overrides, *command]


pass_call = click.make_pass_decorator(AppContext, ensure=True)


class Guarded(click.Group):
    """The root: whatever a command raises ends here."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn what it raises into a message on stderr and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # whoever read our stdout has enough; nothing more may be written to it, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except StreamwardError as exc:
            _say(str(exc))
            ctx.exit(exc.exit_code)
        except Exception as exc:
            if type(exc).__module__ in ("schemas.versions", "schemas.serde"):  # import nothing of ours, errors included
                _say(str(exc))
                ctx.exit(1)
            _say(_unexpected(exc, ctx.find_object(AppContext) or AppContext()))
            ctx.exit(1)


def _say(message: str, label: str = "Error: ") -> None:
    import logging

    from streams.observability import logging as program_log

    as_json = program_log.is_json()
    line = program_log.json_line(logging.ERROR, "streamward", message) if as_json else f"{label}{message}"
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _unexpected(exc: Exception, call: AppContext) -> str:
    """Return one line about an error nobody foresaw; its traceback goes to stderr, or to a file that the line names."""
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


def output_option(command: F) -> F:
    """Add `--output`; the command gets `output`, which is table or jsonl."""

    def settle(_: click.Context, __: click.Parameter, value: str | None) -> str:
        from streams.output import output_or_default

        return output_or_default(value)

    return click.option(
        "--output",
        type=click.Choice(["table", "jsonl"]),
        callback=settle,
        help="How to print; a table on a terminal and jsonl in a pipe unless said.",
    )(command)


def source_option(command: F) -> F:
    """Add `--source`; the command gets `source`, which is auto, log or archive."""
    return click.option(
        "--source",
        type=click.Choice(["auto", "log", "archive"]),
        default="auto",
        show_default=True,
        help="Where to look; auto: the archive, and the log behind it.",
    )(command)


def end_at_signals() -> None:
    """Let SIGTERM and Ctrl-C end the process with exit code 0, until somebody else takes them: nothing is in hand."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, end)


@contextlib.contextmanager
def until_stopped() -> Iterator[Event]:
    """Yield an event that SIGTERM or Ctrl-C sets. A second Ctrl-C kills; a second SIGTERM changes nothing.

    A supervisor's SIGTERM often follows a Ctrl-C that the terminal sent to all, and must not cut the draining short.
    """
    import logging

    from streams.observability import logging as program_log

    stop = Event()
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, _: object) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not stop.is_set():
            stop.set()
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
