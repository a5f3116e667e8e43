"""Make an engine serve a version, and keep at hand what it may be asked for next.

    version ──► served already ──────────────────────────────────────► go
            └─► its folder is kept, or fetched and verified ─► engine.serve ─► folders nobody needs are removed

With a canary under way two versions answer by turns, and a suite may ask further ones in between. So the folders of
primary and candidate stay, and those of the last few versions served: a swap reads nothing from the store.

Not covered: what an engine itself keeps of a version; see `Engine.serve`.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from streams.adapters import signing, store
from streams.engines.protocol import Engine
from streams.errors import EventError
from streams.files import Scratch
from streams.settings.model import Settings
from streams.stages.policy.versions import BASE, VersionRouter

KEPT = 4
"""Versions whose folders stay after they were served last, beside those of primary and candidate."""

log = logging.getLogger("streamward.policy")


class AdapterCache:
    """The local folders of adapters, and the engine they are handed to. Use `close` at the end."""

    def __init__(self, settings: Settings, engine: Engine, arms: VersionRouter) -> None:
        """Begin with an empty folder of its own."""
        self._settings, self._engine, self._arms = settings, engine, arms
        self._scratch = Scratch("adapters")
        self._root = self._scratch.folder
        self._folders: dict[int, Path] = {}
        """The one served last is last."""

    def close(self) -> None:
        """Remove the folders."""
        self._scratch.close()

    def serve(self, version: int) -> None:
        """Return once the engine serves `version`. Raises EventError if it cannot; then it serves what it did before.

        With reason store_unreachable it may be able to later; any other is the adapter's own fault.
        """
        if self._engine.served_version == version:
            return
        folder = None if version == BASE else self._folder(version)
        self._engine.serve(version, folder)
        if folder is not None:
            self._folders.pop(version, None)
            self._folders[version] = folder
        self._tidy()
        log.info("serving version %d", version)

    def _folder(self, version: int) -> Path:
        kept = self._folders.get(version)
        if kept is not None and kept.is_dir():
            return kept
        adapter = self._arms.adapters.versions[version]
        if adapter.uri is None:
            raise EventError(
                f"version {version} was trained without a uri; nothing can be loaded", reason="bad_adapter"
            )
        if self._engine.name != "scripted":  # which has no weights that an adapter could fit
            store.check_base(adapter.uri, adapter.base_digest, self._engine.base_digest)
        signed = signing.expected(self._settings.adapters, self._settings.policy.name, version)
        return store.fetch(adapter.uri, adapter.files, self._root / str(version), signed)

    def _tidy(self) -> None:
        needed = {self._arms.primary, self._arms.candidate, *list(self._folders)[-KEPT:]}
        needed -= {version for version in needed if version is not None and self._arms.is_retired(version)}
        for version in self._folders.keys() - needed:
            del self._folders[version]
        for folder in self._root.iterdir():
            if not folder.name.isdecimal() or int(folder.name) not in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
