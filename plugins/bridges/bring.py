"""An adapter that was trained elsewhere becomes the next version of a policy here.

    folder, recipe ──► checked against the base, the policy and the log ──► adapter store ──► adapters: trained
                                                                             read back ──► is it the one?

The version takes the place of the next batch, which has to be in the log, or the groups that it samples would be of a
version that has taken more batches than there are. The parent is compared and swapped: of two versions made from one
parent, the first in the log counts. From there on it is treated like any trained version: canary, promotion,
evaluation, retention, and training continues from it (trainer/versions/adopt_version.py). Nothing is written before
everything has been checked.

Not covered: data that no log has. An adapter that was trained on such can be merged into a base (docs/bridges.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from plugins.bridges import foreign
from plugins.bridges.foreign import ForeignAdapter, ForeignRecipe
from schemas.conventions import UNCHANGED, trained_elsewhere
from schemas.events import AdapterEvent, Batch, derive_id
from schemas.serde import Poison
from streams.adapters import signing, store
from streams.adapters.decisions import AdapterHistory, find_version, read_history
from streams.adapters.store import manifest_of
from streams.adapters.versions import Version, manifest_digest
from streams.engines.base_model import Base, load_base
from streams.errors import EventError, RefusedError, SettingsError
from streams.files import Scratch
from streams.kafka import times
from streams.kafka.history import LogHistory
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.versions import checkpoint
from trainer.versions.announce import announce
from trainer.versions.differences import has_same_effect

SHAPE = ("trainer.lora_rank", "trainer.lora_alpha", "trainer.lora_targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOrder:
    """The adapter to import, and as which version."""

    policy: str
    parent: int
    folder: Path
    recipe: ForeignRecipe
    actor: str


@dataclass(frozen=True, slots=True)
class ImportedVersion:
    """The imported version."""

    event: AdapterEvent
    left_out: list[str]
    """Files of the folder that are not part of an adapter."""
    again: bool
    """Whether it was there already, and nothing was written now."""


def bring(settings: Settings, order: ImportOrder) -> ImportedVersion:
    """Make the adapter in a folder the version after `order.parent`. The same order again changes nothing.

    Raises NotFoundError for a missing file or parent; RefusedError for an adapter of another base, shape or policy, one
    that is not finite, a parent that is no longer the newest version, or whose batch is not in the log, or if a trainer
    of the policy runs on this machine; SettingsError if the base cannot be loaded or the store not be written; LogError
    if the log fails.
    """
    _check_recipe(order)
    adapter = foreign.read(order.folder)
    with checkpoint.hold(settings.trainer.checkpoints, order.policy):
        return _import(settings, order, adapter)


def _import(settings: Settings, order: ImportOrder, adapter: ForeignAdapter) -> ImportedVersion:
    history = read_history(settings, order.policy)
    parent = find_version(history.state, order.parent)
    base = load_base(settings.model)
    if parent.base_digest not in (None, base.base_digest):
        raise RefusedError(
            f"version {parent.version} of {order.policy} was trained on base {(parent.base_digest or '')[:12]}, and "
            f"model.base={settings.model.base} in {settings.model.dtype} has {base.base_digest[:12]}; set model.base "
            "and model.dtype to what the policy has"
        )
    _check_shape(settings, history, order.parent)
    foreign.check_base(settings, base, adapter, order.recipe)
    with Scratch("import") as scratch:
        folder = scratch / "adapter"
        foreign.write(settings, base, adapter, folder)
        event = _event(settings, order, base, parent.trained_batches)
        if (existing := history.trained_event(event.version)) is not None:
            _check_same(existing, event, folder)
            return ImportedVersion(existing, adapter.other_files, again=True)
        _check_next(settings, order.policy, parent)
        event = _with_effect(settings, event, parent, folder)
        event = _announce(settings, event, folder)
    return ImportedVersion(event, adapter.other_files, again=False)


def _announce(settings: Settings, event: AdapterEvent, folder: Path) -> AdapterEvent:
    """Return the event with its files. Raises RefusedError if another process was faster; LogError."""
    try:
        announced = announce(settings, event, folder, by_bytes=False)
    except RefusedError as exc:
        uri = store.uri_of(settings.adapters.store, event.policy, event.version)
        raise RefusedError(
            f"{uri}: version {event.version} of {event.policy} is stored with other bytes, and the log does not know "
            "it yet: a trainer of this policy is about to announce it, or was killed before. Let it finish, and import "
            "after its version; a folder that no trainer will announce can be deleted"
        ) from exc
    if announced is None:
        raise RefusedError(
            f"version {event.version} of {event.policy} was made by another process meanwhile, so this one counts for "
            "nothing; train from that version, and import again"
        )
    return announced


# --- what it must agree with ------------------------------------------------------------------------------------------


def _check_recipe(order: ImportOrder) -> None:
    """Raise RefusedError if the recipe is of another policy or parent."""
    for name, recorded, ordered in (
        ("policy", order.recipe.policy, order.policy),
        ("parent_version", order.recipe.parent_version, order.parent),
    ):
        if recorded not in (None, ordered):
            raise RefusedError(
                f"the recipe says {name} {recorded}, and the command {ordered}; name the recipe that belongs to "
                f"{order.folder}, or correct one of them"
            )


def _check_shape(settings: Settings, history: AdapterHistory, parent: int) -> None:
    """Raise SettingsError if the settings make another adapter than the parent's recipe did."""
    parent_event = history.trained_event(parent)
    for name in SHAPE if parent_event is not None else ():
        section, _, key = name.partition(".")
        setting = str(getattr(getattr(settings, section), key))
        if parent_event is not None and parent_event.recipe.get(name, setting) != setting:
            raise SettingsError(
                f"{name}={setting}, and version {parent} of {history.state.policy} was trained with "
                f"{parent_event.recipe[name]}; set what the policy has"
            )


def _check_same(existing: AdapterEvent, event: AdapterEvent, folder: Path) -> None:
    """Raise RefusedError if the version is there and is another one."""
    by = trained_elsewhere(existing.recipe)
    if by == trained_elsewhere(event.recipe) and existing.files == manifest_of(folder):
        return
    origin = f"trained elsewhere ({by})" if by else f"{existing.actor}: {existing.reason}"
    raise RefusedError(
        f"version {event.parent_version} of {event.policy} is no longer the newest: version {existing.version} was "
        f"made from it ({origin}), with other bytes (sha256 {manifest_digest(existing.files)[:12]}). Nothing was "
        "written. Train from the newest version, and import with that as --parent"
    )


def _check_next(settings: Settings, policy: str, parent: Version) -> None:
    """Raise RefusedError if the batch is not there whose place the version takes."""
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    log = LogHistory(settings)
    first, end = log.bounds(["batches"])[tp]
    decoded = (record.decode(Batch) for record in log.read({tp: first}, {tp: end}))
    batches = [batch for batch in decoded if not isinstance(batch, Poison) and batch.policy == policy]
    sequences = [batch.sequence for batch in batches]
    if max(sequences, default=-1) < parent.trained_batches:
        newest = f"the newest is {max(sequences)}" if sequences else "there is none"
        raise RefusedError(
            f"batch {parent.trained_batches} of {policy} is not in the log yet ({newest}), and version "
            f"{parent.version + 1} takes its place; wait until batches.groups groups are complete, or make the adapter "
            "a base under another policy.name"
        )


# --- what it changes --------------------------------------------------------------------------------------------------


def _with_effect(settings: Settings, event: AdapterEvent, parent: Version, folder: Path) -> AdapterEvent:
    """Return the event, which says so if the adapter in `folder` answers as its parent or the base model does."""
    is_unchanged = _is_unchanged(settings, event.policy, parent, folder)
    effect = ""
    if is_unchanged:
        effect = f"; changes nothing: it answers as version {parent.version} does"
    elif has_same_effect(folder, None):
        effect = "; it answers as the base model does: each lora_B is 0"
    metrics = {**event.metrics, UNCHANGED: float(is_unchanged)}
    return replace(event, metrics=metrics, reason=event.reason + effect)


def _is_unchanged(settings: Settings, policy: str, parent: Version, folder: Path) -> bool:
    """Return whether the adapter has its parent's weights; False if the store no longer holds those."""
    if parent.uri is None:
        return has_same_effect(folder, None)
    signer = signing.expected_signer(settings.adapters, policy, parent.version)
    with Scratch("import") as scratch:
        try:
            return has_same_effect(
                folder, store.fetch(settings.adapters.store, parent.uri, parent.files, scratch, signer)
            )
        except EventError:
            return False


# --- making it --------------------------------------------------------------------------------------------------------


def _event(settings: Settings, order: ImportOrder, base: Base, sequence: int) -> AdapterEvent:
    """Return the event of the version, in place of batch `sequence`, without its files."""
    version, recipe = order.parent + 1, order.recipe.plain()
    model = {"model.base": settings.model.base, "model.dtype": settings.model.dtype}
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    shape = {name: str(getattr(settings.trainer, name.partition(".")[2])) for name in SHAPE}
    return AdapterEvent(
        event_id=derive_id(order.policy, version, "trained"),
        policy=order.policy,
        created_at=times.now_ms(),
        version=version,
        kind="trained",
        actor=order.actor,
        reason=f"trained elsewhere ({trained_elsewhere(recipe)}), in place of batch {sequence}",
        parent_version=order.parent,
        base_digest=base.base_digest,
        first_batch=0,
        last_batch=sequence,
        recipe=recipe | model | digests | shape,
        metrics=order.recipe.metrics,
    )
