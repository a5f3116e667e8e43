"""Fetch the adapter of a version to this machine and verify it.

a version of the log ──► trained on this base? ──► signed as required? ──► every file as recorded ──► folder
"""

from __future__ import annotations

from pathlib import Path

from streams.adapters import signing, store
from streams.adapters.versions import Version
from streams.errors import EventError
from streams.settings.model import Settings


def fetch_version(settings: Settings, version: Version, base_digest: str | None, folder: Path) -> Path:
    """Return `folder` with the version's files. `base_digest`: that of the model that will run it; None: it has no
    weights. Raises EventError if the version cannot be used; with reason store_unreachable it may work later.
    """
    if version.outside is not None:
        problem = f"version {version.version} is {version.outside.model} at {version.outside.url}, and has no weights"
        raise EventError(problem, reason="bad_adapter")
    if version.uri is None:
        problem = f"version {version.version} was trained without a uri, so there is nothing to load"
        raise EventError(problem, reason="bad_adapter")
    if base_digest is not None:
        store.check_base(version.uri, version.base_digest, base_digest)
    signed = signing.expected_signer(settings.adapters, settings.policy.name, version.version)
    return store.fetch(settings.adapters.store, version.uri, version.files, folder, signed)
