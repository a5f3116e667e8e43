"""Make the engine serve a version, or decide what happens to the tasks if it cannot.

    version ──► served already, or an outside model that may be asked ────────────► go
            ├─► its folder is cached, or fetched and verified ──► engine.serve ───► go
            └─► cannot be loaded ──► never again: dead letter, its tasks go to the version before it
                                 ├─► candidate, store unreachable: its tasks go to the primary for RETRY_S
                                 └─► base, or the store is unreachable: this process ends, its supervisor retries

During a canary two versions alternate, and a suite may ask for others in between. So the folders of primary and
candidate stay, as do those of the last few versions served: swapping back reads nothing from the store.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from streams.adapters.admission.policy_log import PolicyLog
from streams.adapters.local import fetch_version
from streams.adapters.router import BASE, VersionRouter
from streams.engines.outside import outside_model
from streams.engines.protocol import Engine
from streams.errors import EventError
from streams.files import Scratch
from streams.kafka.reader import fetch
from streams.kafka.tracked import TrackedConsumer
from streams.observability.tracing.spans import Value
from streams.observability.tracing.tracer import Tracer
from streams.settings.model import Settings

CACHED = 4
"""Number of most recently served folders that are kept, in addition to primary and candidate."""
RETRY_S = 30.0
"""Delay until a candidate that the store did not return is tried again; meanwhile its tasks go to the primary."""

log = logging.getLogger("streamward.policy")


class AdapterCache:
    """The local folders of adapters, and the engine that serves them. Call `close` at the end."""

    def __init__(self, settings: Settings, engine: Engine, router: VersionRouter, capacity: int = CACHED) -> None:
        """Start with an empty folder of its own."""
        self._settings, self._engine, self._router, self._capacity = settings, engine, router, capacity
        self._scratch = Scratch("adapters")
        self._root = self._scratch.folder
        self._folders: dict[int, Path] = {}
        """Folders in the order in which they were last served."""

    def close(self) -> None:
        """Remove the folders."""
        self._scratch.close()

    def serve(self, version: int) -> None:
        """Return once the engine serves `version`. Raises EventError if it cannot, and then keeps serving the old one.

        With reason store_unreachable a later attempt may succeed; any other reason is the adapter's fault.
        """
        if self._engine.served_version == version:
            return
        folder = None if version == BASE else self._folder(version)
        self._engine.serve(version, folder)
        if folder is not None:
            self._folders.pop(version, None)
            self._folders[version] = folder
        self._tidy()
        log.info("%s: serving version %d", self._settings.policy.name, version)

    def _folder(self, version: int) -> Path:
        folder = self._folders.get(version)
        if folder is not None and folder.is_dir():
            return folder
        has_weights = self._engine.name != "scripted"
        base_digest = self._engine.base_digest if has_weights else None
        adapter = self._router.adapters.versions[version]
        return fetch_version(self._settings, adapter, base_digest, self._root / str(version))

    def folder(self, version: int) -> Path | None:
        """Return the folder of a version that was served; None for the base."""
        return self._folders.get(version)

    def _tidy(self) -> None:
        needed = {self._router.primary, self._router.candidate, *list(self._folders)[-self._capacity :]}
        needed -= {version for version in needed if version is not None and self._router.is_retired(version)}
        for version in self._folders.keys() - needed:
            del self._folders[version]
        for folder in self._root.iterdir():
            if not folder.name.isdecimal() or int(folder.name) not in self._folders:
                shutil.rmtree(folder, ignore_errors=True)


class VersionLoader:
    """Makes the engine serve versions. Call `close` at the end."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        policy_log: PolicyLog,
        consumer: TrackedConsumer,
        tracer: Tracer,
        capacity: int = CACHED,
    ) -> None:
        """`consumer` writes the dead letters of versions that cannot be loaded."""
        self._settings, self._engine, self._log, self._consumer = settings, engine, policy_log, consumer
        self._tracer = tracer
        self._router = policy_log.state(settings.policy.name).router
        self._cache = AdapterCache(settings, engine, self._router, capacity)
        self._retry_at = 0.0
        self._loaded: set[int] = set()
        """Versions that `load_new` has tried."""

    def close(self) -> None:
        """Remove the local copies of adapters."""
        self._cache.close()

    def folder(self, version: int) -> Path | None:
        """Return the local folder of a version that was served; None for the base."""
        return self._cache.folder(version)

    def load_new(self) -> None:
        """Load the versions that answer from now on, once: a broken one is refused before any task needs it. Raises as
        `serve`.
        """
        router = self._router
        while answering := {router.candidate, router.primary} - {None, *self._loaded}:
            version = max(version for version in answering if version is not None)
            self._loaded.add(version)
            self.serve(version)

    def retry_unreachable(self) -> None:
        """Once RETRY_S have passed, retry a candidate that the store did not return."""
        if time.monotonic() >= self._retry_at:
            self._router.unreachable.clear()

    def serve(self, version: int) -> str | None:
        """Make the engine serve `version`, unless another server does; return why it cannot, None if it does.

        Raises EventError if no fallback exists, or the error may pass: another process may succeed.
        """
        router = self._router
        if version in router.unusable:
            return f"the adapter of version {version} could not be loaded; see the dead letters of stage policy"
        if router.is_retired(version):
            return f"version {version} is retired and its files are gone; pin the task to one that is not"
        before, outside = self._engine.served_version, router.outside(version)
        try:
            if outside is not None:
                outside_model.check(outside, self._settings.outside)
                return None
            self._load(version)
        except EventError as exc:
            if exc.reason == "store_unreachable" and version == router.candidate:
                router.unreachable.add(version)
                self._retry_at = time.monotonic() + RETRY_S
                log.warning("version %d gets the canary's tasks for %g s: %s", router.primary, RETRY_S, exc)
            elif version == BASE or exc.reason == "store_unreachable":
                raise
            else:
                self._give_up(version, exc)
            return str(exc)
        if before != version:
            self._log.follow()  # loading takes time
        return None

    def _load(self, version: int) -> None:
        """Make the engine serve a version of ours. Raises EventError."""
        began_ms = time.time() * 1000
        try:
            self._cache.serve(version)
        except EventError as exc:
            if exc.reason != "store_unreachable":  # that one is tried again
                self._report_sync(version, began_ms, exc.reason)
            raise
        self._report_sync(version, began_ms, None)

    def _report_sync(self, version: int, began_ms: float, error: str | None) -> None:
        """Report the first load of a version that has a trace."""
        announced = self._router.announced_in.pop(version, None)
        if announced is None:
            return
        known = self._router.adapters.versions[version]
        attributes: dict[str, Value | None] = {
            "streamward.policy": self._settings.policy.name,
            "streamward.adapter_version": version,
            "rl.sync.source": known.uri,
            "rl.sync.bytes": sum(file.bytes for file in known.files),
        }
        self._tracer.report_sync(announced, attributes, began_ms, error)

    def _give_up(self, version: int, error: EventError) -> None:
        """Never try `version` again, and write a dead letter for the event that announced it."""
        router, place = self._router, self._router.trained_at[version]
        tasks = "its canary's tasks" if version == router.candidate else "unpinned tasks"
        router.unusable.add(version)
        log.error("%s: version %d cannot be used, %s go to version %d", place, version, tasks, router.primary)
        record = fetch(self._settings, [place], outage=self._log.outage)[place]
        self._consumer.dead_letter(record, error.reason, str(error))
