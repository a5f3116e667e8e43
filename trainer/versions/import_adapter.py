"""Continue training from a version that was trained elsewhere.

    adapters: trained, imported ──► newest ──► its files, from the store ──► Learner, at that version ──► the next batch
                                                                                 the optimizer's state is fresh

Such a version takes the place of the batch of its parent's number, so the next batch is that of its own. Its
optimizer's state is unknown, so the step after it begins with a fresh one, and the recipe of that step says so. A
checkpoint of an earlier version is then of no use, and one of the same version belongs to a history that the log did
not take.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from schemas.conventions import OPTIMIZER
from streams.adapters import signing, store
from streams.adapters.versions import Version
from streams.errors import EventError, NotFoundError, RefusedError, SettingsError
from streams.files import Scratch
from streams.settings.model import Settings
from trainer.versions.checkpoint import State
from trainer.versions.learner import Learner

log = logging.getLogger(__name__)


def newest(versions: Mapping[int, Version]) -> Version | None:
    """Return the newest version that was trained elsewhere, if there is one."""
    imported = [version for version in versions.values() if version.trained_elsewhere is not None]
    return max(imported, key=lambda version: version.version, default=None)


def begin(settings: Settings, policy: str, learner: Learner, imported: Version) -> None:
    """Bring a learner at version 0 to a version that was trained elsewhere.

    Raises SettingsError if it is of another model or shape, NotFoundError if its files are deleted, RefusedError if the
    store does not hold what the log says.
    """
    number = imported.version
    origin = f"version {number} of {policy} was trained elsewhere ({imported.trained_elsewhere})"
    if imported.base_digest not in (None, learner.base_digest):
        raise SettingsError(
            f"{origin} on base {(imported.base_digest or '')[:12]}, but model.base={settings.model.base} has "
            f"{learner.base_digest[:12]}; restore model.base and model.dtype, or train under another policy.name"
        )
    if imported.uri is None or imported.status == "retired":
        raise NotFoundError(
            f"{origin}, and its files are no longer in the store: it is retired. Training cannot continue without "
            "them; train under another policy.name"
        )
    with Scratch("import") as scratch:
        try:
            signed = signing.expected_signer(settings.adapters, policy, number)
            folder = store.fetch(settings.adapters.store, imported.uri, imported.files, scratch, signed)
        except EventError as exc:
            raise RefusedError(f"{origin}: {exc}") from exc
        learner.begin(folder, number)
    log.info("%s: training continues from it with batch %d and a fresh optimizer", origin, number)


def with_fresh_optimizer(state: State, imported: Version | None) -> State:
    """Return the state of a step with that in its recipe, if it is the first after an imported version."""
    if imported is None or state.version != imported.version + 1:
        return state
    words = f"fresh behind version {imported.version}, which was trained elsewhere"
    return replace(state, recipe=state.recipe | {OPTIMIZER: words})
