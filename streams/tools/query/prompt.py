"""An interactive shell for queries.

    line ──► .command, or SQL until `;` ──► Session.run ──► formats       an error is printed, and the shell continues

`Shell.feed` takes a line and returns whether more are needed, without a terminal. `interact` feeds it from one, with
history, completion, and a continuation prompt; Ctrl-C ends the running statement, or empties the line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import duckdb

from streams import output as show
from streams.errors import SettingsError, StreamwardError
from streams.files import home_folder
from streams.tools.query import formats
from streams.tools.query.session import Session

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

FORMATS = tuple(name for name in formats.FORMATS if name != "parquet")
HELP = """\
.help               this
.tables             the views, and what a row of each is
.schema VIEW        the columns of a view
.output FORMAT      {formats}
.refresh            include what was written to the log since
.quit               leave (or Ctrl-D)
Anything else is SQL, on one line or several, and runs at `;`."""
PROMPT, CONTINUATION = "streamward> ", "        ... "


class Shell:
    """Commands and statements of a person, run in a session."""

    def __init__(self, session: Session, *, output: str, out: TextIO, err: TextIO) -> None:
        self.session = session
        self._output = output
        self._out = out
        self._err = err
        self._lines: list[str] = []

    @property
    def prompt(self) -> str:
        """What to show before the next line."""
        return CONTINUATION if self._lines else PROMPT

    def feed(self, line: str) -> bool:
        """Take one line; return whether more are wanted."""
        word = line.strip()
        if not self._lines and word.startswith("."):
            return self._catch_errors(lambda: self._command(word))
        if not self._lines and not word:
            return True
        self._lines.append(line)
        sql = "\n".join(self._lines)
        if is_whole(sql):
            self._lines.clear()
            return self._catch_errors(lambda: self._run(sql))
        return True

    def forget(self) -> None:
        """Drop the lines of a statement that was not ended."""
        self._lines.clear()

    def end(self) -> None:
        """Run what was not ended with `;`."""
        sql = "\n".join(self._lines)
        self._lines.clear()
        if sql.strip():
            self._catch_errors(lambda: self._run(sql))

    def _catch_errors(self, act: Callable[[], bool]) -> bool:
        try:
            return act()
        except StreamwardError as exc:
            self._say(f"Error: {exc}")
        except KeyboardInterrupt:
            self._say("interrupted")
        return True

    def _command(self, line: str) -> bool:
        name, _, argument = line.partition(" ")
        argument = argument.strip().rstrip(";")
        match name:
            case ".quit" | ".exit":
                return False
            case ".help":
                self._print(HELP.format(formats=", ".join(FORMATS)))
            case ".tables":
                width = max(map(len, self.session.views))
                for view in self.session.views.values():
                    self._print(f"{view.name:{width}}  {view.about}")
            case ".schema" if argument:
                columns = self.session.columns(argument)
                width = max(len(column) for column, _ in columns)
                for column, kind in columns:
                    self._print(f"{column:{width}}  {kind}")
            case ".output" if argument in FORMATS:
                self._output = argument
            case ".output":
                self._say(f"Error: .output takes {', '.join(FORMATS)}; it is {self._output}")
            case ".refresh":
                self.session = self.session.renew()
            case _:
                self._say(f"Error: {show.printable(line)}: no such command; .help lists them")
        return True

    def _run(self, sql: str) -> bool:
        statement = self.session.parse(sql)
        labels = self.session.labels(statement)
        self.session.check(labels)
        count = formats.write(self.session.run(sql), self._output, self._out)
        self._out.flush()
        if not count and self._err.isatty():
            self._say("no rows")
        for line in self.session.omissions(labels):
            self._say(line)
        return True

    def _print(self, text: str) -> None:
        self._out.write(text + "\n")

    def _say(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()


def is_whole(sql: str) -> bool:
    """Return whether a statement is ended: by a `;` that is in no string and no comment."""
    tokens = [position for position, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    return bool(tokens) and sql.encode()[tokens[-1] :].startswith(b";")


def feed_all(shell: Shell, lines: Iterable[str]) -> None:
    """Feed lines to a shell until it quits or they end."""
    for line in lines:
        if not shell.feed(line.rstrip("\n")):
            return
    shell.end()


# --- at a terminal ----------------------------------------------------------------------------------------------------


def interact(shell: Shell) -> None:
    """Read lines from the terminal until the person quits."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    talk: PromptSession[str] = PromptSession(
        history=FileHistory(str(_history())), completer=_completer(shell.session), complete_while_typing=False
    )
    shell.feed(".tables")
    while True:
        try:
            line = talk.prompt(shell.prompt)
        except KeyboardInterrupt:
            shell.forget()
            continue
        except EOFError:
            return
        if not shell.feed(line):
            return


def words(session: Session) -> dict[str, str]:
    """Return what can be completed: commands, views, columns and SQL's own words, each with what it is."""
    completions = {
        name: "SQL" for (name,) in session.con.execute("SELECT upper(keyword_name) FROM duckdb_keywords()").fetchall()
    }
    for view in session.views:
        completions |= {column: kind for column, kind in session.columns(view)}
    completions |= dict.fromkeys(session.views, "view")
    return completions | dict.fromkeys((".help", ".tables", ".schema", ".output", ".refresh", ".quit"), "command")


def _completer(session: Session) -> Completer:
    from prompt_toolkit.completion import WordCompleter

    completions = words(session)
    meta: dict[Any, Any] = {name: kind[:40] for name, kind in completions.items()}
    return WordCompleter(sorted(completions), ignore_case=True, meta_dict=meta, WORD=False)


def _history() -> Path:
    """Return the history file, readable only by its owner."""
    with contextlib.suppress(OSError, SettingsError):
        folder = Path(os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state") / "streamward"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "query_history"
        path.touch(mode=0o600)
        return path
    return Path(os.devnull)
