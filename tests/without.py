"""The tree without a plugin: copied, with what lies with the plugin left out, and checked there.

    this checkout ──► a folder without plugins/NAME, tests/plugins/NAME, docs/NAME.md, docs/examples/NAME
       ──► generated files made again, links to it and names of its files taken out
       ──► imports, --help, schemas, tests/lint, [make test]

A plugin that requires NAME goes with it. Nothing here knows a plugin by name, so a check that fails has found a list
that does, or code that needs one.

    the core alone: without plugins/ and gateway/ ──► the demo learns ──► audit, query, reproduce over its log
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from streams.plugins.installed import load_plugins

ROOT = Path(__file__).parents[1]
STREAMWARD = (sys.executable, "-m", "streams.cli")
Check = tuple[str, list[str]]
"""A name, and a command."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FILE_NAME = re.compile(r"`(([\w./-]+)(?:::\w+)?)`")
IMPORT_ALL = """
import importlib, sys
from tests.import_graph import PACKAGES, modules
for name in modules():
    if not name.endswith("__main__") and ".docs." not in name:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] in PACKAGES:
                sys.exit(f"{name}: {exc}")
"""
"""Packages of others may be missing: those of extras that are not installed."""
OPTIONAL = re.compile(r"(tests/|gateway/|plugins/)(?!__init__.py$)|docs/")
"""What the core alone lacks. The packages stay, empty: one that is installed would be imported in their place."""
LEARNT = """
import json, sys
held_out = json.load(open(".streamward/demo/report.json"))["held_out"]
sys.exit(held_out[-1]["exact"] < held_out[0]["exact"] + 0.5 and f"it learnt nothing: {held_out}")
"""


def removed_with(name: str) -> set[str]:
    """Return a plugin of this checkout and those that require it. Raises ValueError if it has no such plugin."""
    requires = {plugin.name: plugin.requires for plugin, _, version in load_plugins() if version is None}
    if name not in requires:
        raise ValueError(f"no plugin is called {name}; there are {', '.join(sorted(requires))}")
    removed = {name}
    while more := {other for other, needed in requires.items() if removed & {*needed}} - removed:
        removed |= more
    return removed


def files_without(removed: Iterable[str]) -> Iterator[Path]:
    """Yield the files of this checkout that do not lie with one of these plugins, relative to its root."""
    names = "|".join(removed) or "(?!)"
    return _files_but(re.compile(rf"((tests/)?plugins|docs/examples)/({names})\b|docs/({names})\.md$"))


def _files_but(left_out: re.Pattern[str]) -> Iterator[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, listed):
        if not left_out.match(name) and os.path.lexists(ROOT / name):
            yield Path(name)


def _copy(files: Iterable[Path], folder: Path) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, folder / file, follow_symlinks=False)


def copy_without(removed: Iterable[str], folder: Path) -> None:
    """Copy them into a folder, and take out of pages links and commands to what is not there, and rows of its tests."""
    names = {*removed}
    _copy(files_without(names), folder)
    commands = [re.escape(name) for plugin, _, _ in load_plugins() if plugin.name in names for name in plugin.commands]
    command = re.compile(rf"streamward(?=(?:\s+--\w+ (?:'[^']*'|\S+))*\s+(?:{'|'.join(commands) or '(?!)'})\b)")
    row = re.compile(rf"^\|.*`tests/plugins/(?:{'|'.join(names) or '(?!)'})/.*\n", re.MULTILINE)
    (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
    for page in [*folder.glob("*.md"), *folder.glob("docs/*.md"), *filter(Path.is_file, folder.glob("helm/**/*"))]:
        text = command.sub("", row.sub("", page.read_text(encoding="utf-8")))
        for pattern, place in ((LINK, page.parent), (FILE_NAME, folder)):
            text = pattern.sub(partial(_kept, place=place, folder=folder), text)
        page.write_text(text, encoding="utf-8")


def _kept(name: re.Match[str], *, place: Path, folder: Path) -> str:
    """Return a link or a file name, or its text alone if the file is in the checkout and not in the copy."""
    target = (place / name[2]).resolve()
    is_gone = target.is_relative_to(folder) and not target.exists() and (ROOT / target.relative_to(folder)).exists()
    return name[1] if is_gone else name[0]


def checks(with_tests: bool) -> Iterator[Check]:
    """Yield what is run in the copy without a plugin."""
    make = ["make", "--no-print-directory", "--old-file=.venv/ready-test"]
    yield "generated files", [*make, "docs"]
    yield "imports", [sys.executable, "-c", IMPORT_ALL]
    yield "help", [*STREAMWARD, "--help"]
    yield "schemas", [sys.executable, "-m", "schemas.generate", "--check"]
    yield "tests/lint", [sys.executable, "-m", "pytest", "-q", "tests/lint"]
    if with_tests:
        yield "make test", [*make, "test"]


def core_checks() -> Iterator[Check]:
    """Yield what is run in the copy of the core alone."""
    yield "help", [*STREAMWARD, "--help"]
    yield "demo", [*STREAMWARD, "demo", "--minutes", "30"]
    yield "it learnt", [sys.executable, "-c", LEARNT]
    yield "broker start", [*STREAMWARD, "admin", "broker", "start"]
    yield "audit", [*STREAMWARD, "audit"]
    yield "query", [*STREAMWARD, "query", "SELECT count(*) FROM groups"]
    yield "reproduce", [*STREAMWARD, "reproduce"]
    yield "broker stop", [*STREAMWARD, "admin", "broker", "stop"]


def run(name: str, *, with_tests: bool) -> int:
    """Check the tree without a plugin; print each check and what failed. Return the exit code."""
    removed = removed_with(name)
    print(f"without {', '.join(sorted(removed))}")
    return _checked(partial(copy_without, removed), checks(with_tests))


def run_core() -> int:
    """Check the core without gateway and plugins, as `run` does."""
    return _checked(partial(_copy, _files_but(OPTIONAL)), core_checks())


def _checked(copy: Callable[[Path], None], wanted: Iterable[Check]) -> int:
    with tempfile.TemporaryDirectory(prefix="streamward-without-") as scratch:
        folder = Path(scratch).resolve()
        copy(folder)
        failed = False
        for check, command in wanted:
            env = {**os.environ, "PYTHONPATH": str(folder)}
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            print(f"{'ok' if done.returncode == 0 else 'FAILED':7} {check}", flush=True)
            if done.returncode != 0:
                failed = True
                print(*(f"    {line}" for line in (done.stdout + done.stderr).splitlines()[-60:]), sep="\n", flush=True)
    return int(failed)
