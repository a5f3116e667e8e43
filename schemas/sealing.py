"""Seal a person's words with the key of that person, and open them again.

    event with a subject ──► the whole record ──► AES-SIV ──► `sealed`, the last field of
                        └──► the same with placeholders ────► the record in the log
                                                └ associated data: all its bytes before `sealed`

So a ciphertext opens in its own record alone, and no field in clear can be changed next to it. AES-SIV (RFC 5297) needs
no nonce and gives the same bytes for the same event, so that a duplicate or a replay is recognised as one.

Keys are those of schemas/key_source.py.

Not covered: fields in clear say when, how long and how good an answer was, and of which task.
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from schemas.avro_schema import Shape, shapes
from schemas.conventions import (
    CONTAMINATION_ALLOWED_BY,
    CONVERSATION,
    CONVERSATION_TASKS,
    COST,
    GIVEN_FINISH,
    PINNED,
    POLICY_LAG,
    REDACTED,
    SELFPLAY_RUN,
    SELFPLAY_TASKS,
    SOURCE_SHA256,
    TASK_PARTS,
    THREAD,
    THREAD_TASK,
    TOOL_IDS,
    WAITS_FOR,
    WITHHELD,
)
from schemas.event_types import PersonalJson
from schemas.events import ANSWERED_TASK, HANDOFF, PROGRAM_RUN, RUN_TASK
from schemas.key_source import AlteredError, ErasedError, current, note_read
from schemas.tokens import VIEWS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

ERASED_BEFORE = b"\0"
"""`sealed` of an event whose subject was erased before it was written: there is nothing to open."""


def seal(subject: str, bound: bytes, content: Callable[[], bytes]) -> bytes:
    """Return the ciphertext of `content`, which opens with `bound` alone. Raises UnknownKeyError."""
    try:
        cipher = _cipher(current().key_of(subject))
    except ErasedError:
        return ERASED_BEFORE
    return cipher.encrypt(content(), [bound])


def unseal(subject: str, bound: bytes, sealed: bytes) -> bytes:
    """Return the content of a ciphertext. Raises ErasedError, UnknownKeyError or AlteredError."""
    if sealed == ERASED_BEFORE:
        raise ErasedError
    from cryptography.exceptions import InvalidTag

    try:
        content = _cipher(current().key_of(subject)).decrypt(sealed, [bound])
    except (InvalidTag, ValueError) as exc:
        raise AlteredError from exc
    note_read(subject)
    return content


def salt(subject: str) -> str:
    """Return what a digest of this subject's words begins with, so that it tells nothing without the key.

    Raises as `KeySource.salt_of`.
    """
    return hmac.digest(current().salt_of(subject), b"digest", "sha256").hex()


@lru_cache(maxsize=4096)
def _cipher(key: bytes) -> AESSIV:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(key)


# --- what stays in clear ----------------------------------------------------------------------------------------------

_kept_metadata = {
    *(POLICY_LAG, PINNED, THREAD, CONVERSATION, CONVERSATION_TASKS, THREAD_TASK, TASK_PARTS, WAITS_FOR, TOOL_IDS),
    *(*SOURCE_SHA256, COST, CONTAMINATION_ALLOWED_BY, SELFPLAY_RUN, SELFPLAY_TASKS),
    *(RUN_TASK, PROGRAM_RUN, HANDOFF, ANSWERED_TASK, WITHHELD, REDACTED, GIVEN_FINISH),
    *("purpose", "suite", "suite_size", "suite_index", "success_reward", "epoch", "resubmitted_from"),
}
"""Keys of metadata that the system writes, whose values say nothing of a person's words."""
ORIGIN = "origin."
"""Prefix of others that it writes."""


def keep_metadata(keys: Iterable[str]) -> None:
    """Leave the values of these metadata in clear."""
    _kept_metadata.update(keys)


def clear_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Return the entries of metadata that stay in clear."""
    return {key: value for key, value in metadata.items() if key in _kept_metadata or key.startswith(ORIGIN)}


@cache
def placeholders(kind: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that returns plain values of an event (schemas/convert.py) without those that are personal."""
    changes = {name: change for name, shape in shapes(kind).items() if (change := _change(shape)) is not None}
    return lambda values: {**values, **{name: change(values[name]) for name, change in changes.items()}}


def _change(shape: Shape) -> Callable[[Any], Any] | None:
    """Return how a field's value changes; None if it stays."""
    change = _blank(shape) if shape.personal else _change_within(shape)
    if change is None or not shape.optional:
        return change
    return lambda value: None if value is None else change(value)


def _change_within(shape: Shape) -> Callable[[Any], Any] | None:
    if shape.item is not None:
        of_item = _change(shape.item)
        return None if of_item is None else lambda items: [of_item(item) for item in items]
    record: Any = shape.base
    is_personal = dataclasses.is_dataclass(shape.base) and any(map(_change, shapes(record).values()))
    return placeholders(record) if is_personal else None


def _blank(shape: Shape) -> Callable[[Any], Any]:
    """Return what takes the place of a personal value: the same length, and no content."""
    if shape.base is str:
        text = "{}" if shape.personal is PersonalJson else ""
        return lambda _: text
    if shape.base in VIEWS:
        return lambda value: bytes(len(value))
    if shape.base is dict:
        return clear_metadata
    if shape.base is tuple and shape.item is not None and shape.item.base is str:
        return lambda texts: [""] * len(texts)
    raise TypeError(f"{shape} cannot be personal; mark the fields within it")
