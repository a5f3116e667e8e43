"""Which versions the engine has ready, as the log decides.

    adapters ──► VersionRouter ──► primary and candidate are loaded as soon as they are known
                             └───► a version that a call names is loaded when it is asked for

A version that cannot be loaded is not tried again before a restart, and the one before it answers.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from schemas.events import AdapterEvent
from schemas.serde import Poison
from streams.adapters import serving
from streams.adapters.local import fetch_version
from streams.adapters.router import BASE, VersionRouter
from streams.engines.protocol import TokenEngine
from streams.errors import CallError, EventError
from streams.files import Scratch
from streams.kafka.admin import offsets
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import Record, partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

KEPT = 4
"""Versions that stay loaded besides primary and candidate: those that were asked for last."""
log = logging.getLogger("streamward.agents")


class PolicyVersions:
    """The fold of one policy's adapters, and an engine that has what answers."""

    def __init__(self, settings: Settings, engine: TokenEngine, folder: Path) -> None:
        """Begin before anything was trained; `folder` gets the adapters."""
        self._settings, self.engine, self._folder = settings, engine, folder
        self.policy = settings.policy.name
        self.router = VersionRouter(self.policy)
        self._lock = threading.Lock()
        self._loaded = {BASE}
        self._used, self._uses = dict[int, int](), count()
        """When each version was last asked for, as a number of uses."""

    def version_for(self, name: str, key: str, pin: int | None) -> int:
        """Return the version that answers a call of model `name`. Raises CallError (not_found).

        `key` decides which side of a canary it is on; `pin` is what its trajectory may use alone.
        """
        policy, at, number = name.partition("@")
        if policy != self.policy:
            raise CallError("not_found", f"there is no model {name}; this server has {self.policy}", "model")
        if at:
            asked = int(number) if number.isdecimal() and len(number) < 10 else -1
            if pin not in (None, asked):
                what = f"version {pin} answers all runs of this task; ask for {policy}, not for {name}"
                raise CallError("invalid", what, "model")
            pin = asked
        if pin is None:
            return serving.answers(self.router.serving, key)
        if pin not in self.router.statuses:
            what = f"{self.policy} has no version {number or pin}; its newest is {serving.newest(self.router.serving)}"
            raise CallError("not_found", what, "model")
        if self.router.is_retired(pin):
            raise CallError("not_found", f"version {pin} is retired and its files are gone", "model")
        return pin

    def load(self, version: int) -> None:
        """Return once the engine has `version` ready. Raises EventError."""
        with self._lock:
            if version not in self._loaded:
                self._fetch(version)
                self._loaded.add(version)
            self._tidy()

    def use(self, version: int) -> bool:
        """Return whether the engine has `version`, which is asked for now: those that are not for long are unloaded."""
        self._used[version] = next(self._uses)
        return version in self._loaded

    def unload(self) -> None:
        """Leave the engine no adapter of this policy; those whose answers are in progress finish."""
        with self._lock:
            self._drop(self._loaded - {BASE})

    def _fetch(self, version: int) -> None:
        base_digest = None if self.engine.name == "scripted" else self.engine.base_digest
        found, folder = self.router.adapters.versions[version], self._folder / str(version)
        self.engine.load(version, fetch_version(self._settings, found, base_digest, folder))
        log.info("version %d of %s is loaded", version, self.policy)

    def _tidy(self) -> None:
        others = self._loaded - {BASE, self.router.primary, self.router.candidate}
        self._drop(sorted(others, key=lambda version: self._used.get(version, -1))[:-KEPT])

    def _drop(self, versions: Iterable[int]) -> None:
        for version in tuple(versions):
            self._loaded.remove(version)
            self.engine.unload(version)
            shutil.rmtree(self._folder / str(version), ignore_errors=True)

    def load_what_answers(self) -> None:
        """Load primary and candidate; one that cannot be loaded is not tried again, and the one before it answers."""
        for version in (self.router.candidate, self.router.primary):
            if version is None or version in self._loaded:
                continue
            try:
                self.load(version)
            except EventError as exc:
                if exc.reason == "store_unreachable":
                    log.warning("version %d of %s is not loaded yet: %s", version, self.policy, exc)
                    continue
                self.router.unusable.add(version)
                log.error("version %d cannot be used, version %d answers: %s", version, self.router.primary, exc)


class ServedVersions(PolicyVersions):
    """Those of one policy, as the log has them. Use as a context manager."""

    def __init__(self, settings: Settings, engine: TokenEngine, outage: BrokerOutage) -> None:
        """Read the log, and load what answers. Raises LogError, NotFoundError for a topic that is missing."""
        self._scratch = Scratch("served")
        super().__init__(settings, engine, self._scratch.folder)
        tp = topics(settings.topics)["adapters"].name, partition_of(self.policy, settings.topics.policy_partitions)
        first, end = offsets(settings, ["adapters"])[tp]
        for record in read(settings, {tp: first}, {tp: end}, outage=outage):
            self._take(record)
        self._reader = PartitionReader(settings, {tp: end}, outage=outage)
        self.load_what_answers()

    def __enter__(self) -> ServedVersions:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()
        self._scratch.close()

    def follow(self, stop: threading.Event) -> None:
        """Take in decisions until `stop` is set. Raises LogError."""
        while not stop.is_set():
            for record in self._reader.poll():
                self._take(record)
            self.load_what_answers()

    def _take(self, record: Record) -> None:
        event = record.decode(AdapterEvent)
        if isinstance(event, Poison):
            log.warning("skipped: %s", event.error, extra=record.log_extra)
        elif event.policy == self.policy:
            self.router.take(event)
