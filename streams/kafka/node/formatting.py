"""Format a new folder with Kafka's StorageTool, and cache the result for the next one.

    the first folder of these jars ──► StorageTool (a Java of its own) ──► log/ ──► ~/.cache/streamward
    every later one ──► the cached bootstrap.checkpoint, and a meta.properties of its own

The checkpoint holds the features of this Kafka version at their newest levels, and nothing of the folder. Without
the cached file (no home folder, a cache that cannot be written), Java formats every new folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from streams.errors import LogError, SettingsError
from streams.files import cache_folder
from streams.kafka.node import jvm
from streams.kafka.node.config import new_id, write_private

META, CHECKPOINT = "meta.properties", "bootstrap.checkpoint"
LIMIT_S = 120.0
"""Time limit for Java to format a folder, with room for a busy machine."""


def format_folder(data_dir: Path, java: list[str], classpath: str, cluster_id: str) -> None:
    """Format the folder of a node, whose server.properties are there. Raises LogError with what Java says."""
    cached = _cached_checkpoint(classpath)
    target = data_dir / "log"
    if cached is not None and cached.exists():
        target.mkdir(exist_ok=True)
        shutil.copyfile(cached, target / CHECKPOINT)
        lines = ("version=1", "node.id=1", f"directory.id={new_id()}", f"cluster.id={cluster_id}")
        write_private(target / META, "\n".join(lines) + "\n")  # last, and whole: with it the folder is formatted
        return
    tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id]
    config = data_dir / "server.properties"
    try:
        result = subprocess.run(
            [*tool, "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as exc:
        raise LogError(f"{data_dir}: formatting took over {LIMIT_S:g} s, on a machine that is too busy") from exc
    if result.returncode != 0:
        output = result.stdout.decode(errors="replace").strip()
        raise LogError(f"{data_dir}: Kafka could not format the folder (exit {result.returncode}); it says:\n{output}")
    if cached is not None:
        _keep(target / CHECKPOINT, cached)


def _cached_checkpoint(classpath: str) -> Path | None:
    """Return the cached checkpoint of these jars, which may not exist yet; None without a cache folder."""
    try:
        files = [(jar.name, jar.stat().st_size) for jar in jvm.jars(classpath)]
        return cache_folder("java") / f"format-{hashlib.sha256(repr(files).encode()).hexdigest()[:16]}.checkpoint"
    except (OSError, SettingsError):  # SettingsError: the user has no home folder
        return None


def _keep(checkpoint: Path, cached: Path) -> None:
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as copy:
            copy.write(checkpoint.read_bytes())
        Path(copy.name).replace(cached)
