"""Identify the program of an agent, for the records of its runs.

    a command line, module:function, a class ──► the file that has its code ──► sha256 ──┐
                                     the working folder ──► git ──► commit, dirty ───────┴─► AgentProgram

It is read once, when the process that runs the agent starts. The command line is recorded unchanged, so secrets belong
in the environment.

Not covered: imports of that file that are untracked or outside the working folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from schemas.events import AgentProgram
from streams.files import sha256_of

PROGRAM_CHARACTERS = 1000
"""Longest command line or file name that is recorded."""
GIT_S = 10.0
"""How long git may take to answer."""


def program_of(command: str | None, entry_point: str | None) -> AgentProgram:
    """Return the program of a command line or an entry point, or of the built-in agent, which plays episodes."""
    if command is not None:
        return of_command(command)
    return describe("--environments") if entry_point is None else of_entry_point(entry_point)


def of_command(line: str) -> AgentProgram:
    """Return the program of a command line: its code is in the first file that an argument names, else in the
    program."""
    words = shlex.split(line)
    named = next((word for word in words[1:] if os.path.isfile(word)), None)
    return describe(line, named or shutil.which(words[0]))


def of_entry_point(name: str) -> AgentProgram:
    """Return the program of `package.module:function`, without importing it."""
    places: list[str] | None = [os.getcwd(), *sys.path]
    file = None
    for part in name.partition(":")[0].split("."):
        spec = PathFinder.find_spec(part, places)
        file, places = (None, []) if spec is None else (spec.origin, spec.submodule_search_locations)
    return describe(name, file)


def of_class(kind: type) -> AgentProgram:
    """Return the program of an agent that is a class."""
    module = sys.modules.get(kind.__module__)
    return describe(f"{kind.__module__}:{kind.__qualname__}", getattr(module, "__file__", None))


def describe(program: str, file: str | None = None) -> AgentProgram:
    """Return the program of this name with its code in `file`, and the commit of the working folder."""
    path = None if file is None or not os.path.isfile(file) else Path(file).absolute()
    commit = _git("rev-parse", "--verify", "HEAD")
    # untracked files are left out: the folders of runs are untracked
    changes = None if commit is None else _git("status", "--porcelain", "--untracked-files=no")
    return AgentProgram(
        program=program[:PROGRAM_CHARACTERS],
        file=None if path is None else _name(path)[-PROGRAM_CHARACTERS:],
        sha256=None if path is None else sha256_of(path),
        commit=commit,
        dirty=None if changes is None else bool(changes),
    )


def _name(path: Path) -> str:
    """Return the name of a file, with its folders below the working folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _git(*arguments: str) -> str | None:
    """Return git's output about the working folder; None outside a work tree, or without git."""
    command = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
