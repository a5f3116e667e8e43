"""A replay on an engine beside one on this machine: the same experiment, written twice, byte by byte.

    write ──► sync, in small segments ──► `replay run` here ──► its topics, removed ──► `replay run --on` ──► the same?

Commands run in the engine's environment, where they find what a user's would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import admin

from schemas.events import Task
from schemas.serde import encode
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import KEYED_BY_TASK, Topic, topics
from streams.settings.load import to_env
from streams.settings.model import Settings
from streams.tools.archive import sync
from streams.tools.replay import driver, experiments
from tests.support.factories import T0
from tests.support.log.in_memory import TROUBLES, Log
from tests.support.log.replay_source import BEGUN_MS, contents, trained

ROOT = Path(__file__).parents[3]
NAME = "one"
EARLIER_MS = T0 - BEGUN_MS
"""A broker takes no records of next year."""
READ = (*KEYED_BY_TASK, "adapters")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def archived(settings: Settings) -> Settings:
    """Write a log in which everything that can be wrong with a task is, and archive it; return its settings."""
    kept = settings.archive.model_copy(update={"segment_records": 50})
    for_ever = settings.topics.model_copy(update={"retention_days": 0})
    source = settings.model_copy(update={"archive": kept, "topics": for_ever})
    cluster.apply_topics(source)
    log = Log([[trouble] for trouble in (*TROUBLES, *TROUBLES[::-1])] + [[], [], [], []], seed=3)
    named = topics(source.topics)
    with Producer(source) as producer:
        producer.send(trained(1))
        for (label, partition), records in log.records.items():
            for record in records:
                at, at_ms = (named[label].name, partition), record.timestamp_ms - EARLIER_MS
                producer.send_bytes(at, record.key, _earlier(record), timestamp_ms=at_ms)
    with Producer(source) as producer:
        for made in driver.join_encoded(source, processes=1):
            label = "groups" if made.topic == named["groups"].name else "dead-letters"
            producer.send_bytes((made.topic, _partition(made.key, named[label])), made.key, made.payload)
    sync.sync(source, (*READ, "groups"))
    return source


def _partition(key: bytes | None, topic: Topic) -> int:
    return 0 if key is None else partition_of(key.decode(errors="replace"), topic.partitions)


def _earlier(record: Record) -> bytes:
    """Return the payload with a deadline as much earlier as the record is."""
    event = record.decode(Task)
    if isinstance(event, Task) and event.deadline_at is not None:
        return encode(replace(event, deadline_at=event.deadline_at - EARLIER_MS))
    return record.payload or b""


def streamward(python: Path, settings: Settings, *args: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a command with a python, outside this repository's folder."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("STREAMWARD_", "RAY_"))}
    own |= {"PYTHONPATH": str(ROOT), **to_env(settings), **env}
    done = subprocess.run(
        [str(python), "-m", "streamward", *args], env=own, cwd=cwd, capture_output=True, text=True, timeout=500
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def replayed(python: Path, settings: Settings, *more: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run the replay."""
    args = ("replay", "run", NAME, "--no-train", "--skip-bad", "--groups", "2", "--folder", str(cwd / NAME), *more)
    return streamward(python, settings, *args, env=env, cwd=cwd)


def own(settings: Settings) -> Settings:
    """Return the settings of the experiment's log."""
    return experiments.of(settings, experiments.find(settings, NAME))


def taken(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the experiment's topics hold, and remove them: it can then be written again."""
    mine = own(settings)
    held = contents(mine)
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_topics([topic.name for topic in topics(mine.topics).values()]).values():
        future.result()
    return held


def nothing_written(settings: Settings) -> bool:
    """Return whether the source's log has no experiment, and no experiment a topic."""
    mine = f"{settings.topics.prefix}{experiments.PREFIX}"
    return not experiments.read(settings) and not any(name.startswith(mine) for name in cluster.describe(settings))


def other_release(folder: Path) -> Path:
    """Return a folder with another Streamward: a comment more in one of its files."""
    for package in ("plugins", "schemas", "streams", "trainer"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "streams" / "output.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    return folder


def without_schema(folder: Path) -> Path:
    """Return a folder with a Streamward from before the newest schema, as it would say of itself."""
    other_release(folder)
    lock = folder / "schemas" / "lock.json"
    lock.write_text(json.dumps(json.loads(lock.read_text(encoding="utf-8"))[:-1]), encoding="utf-8")
    return folder


def no_streamward(folder: Path) -> Path:
    """Return a folder that hides ours, as if it were not installed."""
    folder.mkdir(exist_ok=True)
    for package in ("schemas", "streams"):
        text = f"raise ModuleNotFoundError(\"No module named '{package}'\")\n"
        (folder / f"{package}.py").write_text(text, encoding="utf-8")
    return folder


def exported(python: Path, settings: Settings, name: str, *more: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Export prompts into a folder of this name."""
    args = ("export", str(cwd / name), "--format", "prompts", "--skip-bad", *more)
    return streamward(python, settings, *args, env=env, cwd=cwd)


def files(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def damage(settings: Settings) -> None:
    """Change a byte in the middle of one segment, whose size and footer stay."""
    path = next(folder_of(settings, "responses").rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def folder_of(settings: Settings, label: str) -> Path:
    """Return the folder of an archived topic."""
    return Path(settings.archive.store) / topics(settings.topics)[label].name
