"""Continue training from a version that no batch made here: it was tuned, trained elsewhere, or is an outside model.

    adapters: trained ──► newest adopted ──► its files, from the store ──► Learner, at that version ──► the next batch
                                                                            the optimizer's state is fresh

The next batch is trained onto the newest version, whatever made it. A version that this trainer did not make has no
optimizer state, so the next step begins with a fresh one, as its recipe records. An imported version took the place of
a batch, a tuned one took none. A checkpoint of an earlier version is then useless, and one of the same version comes
from a step that lost its number to the adopted one.

An outside model has no weights. The next batch is then trained onto the weights of the version before it, and has the
number after it.
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
    """Return the newest version that no batch made here, if any."""
    adopted = [version for version in versions.values() if origin(version) is not None]
    return max(adopted, key=lambda version: version.version, default=None)


def origin(version: Version) -> str | None:
    """Return the origin of a version that no batch made here; None for any other."""
    if version.outside is not None:
        return f"given to {version.outside.model} at {version.outside.url}"
    if version.tuned_by is not None:
        return f"tuned by {version.tuned_by}"
    return None if version.trained_elsewhere is None else f"trained elsewhere ({version.trained_elsewhere})"


def begin(settings: Settings, policy: str, learner: Learner, weights: Version, number: int | None = None) -> None:
    """Bring a learner at version 0 to the `weights` of a version, as version `number`; None: its own.

    Raises SettingsError if it is of another model or shape, NotFoundError if its files are deleted, RefusedError if the
    store's files differ from the log.
    """
    number = weights.version if number is None else number
    if not weights.version:
        learner.begin(None, number, weights.trained_batches)
        return
    name = f"version {weights.version} of {policy} was {origin(weights) or 'trained on batches'}"
    if weights.base_digest not in (None, learner.base_digest):
        raise SettingsError(
            f"{name} on base {(weights.base_digest or '')[:12]}, but model.base={settings.model.base} has "
            f"{learner.base_digest[:12]}; restore model.base and model.dtype, or train under another policy.name"
        )
    if weights.uri is None or weights.status == "retired":
        raise NotFoundError(
            f"{name}, and its files are no longer in the store: it is retired. Training cannot continue without "
            "them; train under another policy.name"
        )
    with Scratch("adopt") as scratch:
        try:
            signed = signing.expected_signer(settings.adapters, policy, weights.version)
            folder = store.fetch(settings.adapters.store, weights.uri, weights.files, scratch, signed)
        except EventError as exc:
            raise RefusedError(f"{name}: {exc}") from exc
        learner.begin(folder, number, weights.trained_batches)
    log.info("%s: training continues from it with batch %d and a fresh optimizer", name, weights.trained_batches)


def with_fresh_optimizer(state: State, adopted: Version | None) -> State:
    """Return the state of a step, with the fresh optimizer in its recipe if it is the first after an adopted
    version."""
    if adopted is None or state.version != adopted.version + 1:
        return state
    how = "was trained elsewhere" if adopted.tuned_by is None else "was tuned"
    how = how if adopted.outside is None else "answers elsewhere"
    words = f"fresh behind version {adopted.version}, which {how}"
    return replace(state, recipe=state.recipe | {OPTIMIZER: words})
