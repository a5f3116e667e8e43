"""The original records of dead letters, whether the log confirms them, and whether a retry may help.

    Letter ──► originals: the copy in the dead letter, or if that had no room the record at the source
           ──► forgery: what shows that no stage can have written it

If a record has a header twice, its dead letter keeps the last value; a header without a value becomes empty.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from schemas.events import Coordinates, DeadLetter
from schemas.serde import Poison, decode
from streams.errors import EventError, UndecodableEvent
from streams.kafka import admin
from streams.kafka.reader import fetch
from streams.kafka.record import Record
from streams.kafka.topics import KEYED_BY_TASK, Topic, topics
from streams.settings.model import Settings
from streams.tools.dead_letters.letters import Letter
from streams.topics.reasons import HOPELESS

READS: Mapping[str, tuple[str, ...]] = {
    "policy": ("tasks", "adapters"),
    "scoring": ("responses",),
    "advantages": KEYED_BY_TASK,
    "batches": ("groups",),
    "rollouts": ("adapters", "groups"),
    "trainer": ("groups", "batches"),
}
"""By stage, the topics that its dead letters are about."""


class Original(NamedTuple):
    """The record that could not be used, as it was."""

    key: bytes | None
    payload: bytes | None
    headers: dict[str, bytes]


def originals(settings: Settings, letters: list[Letter]) -> Iterator[tuple[Letter, Original | EventError]]:
    """Yield each dead letter with the record it is about, or with the error that hides it.

    Raises LogError if a dead letter is gone, or the broker does not answer.
    """
    records = fetch(settings, [letter.at for letter in letters])
    large = sources(settings, [letter.source for letter in letters if _is_large(letter.event)])
    for letter in letters:
        if _is_large(letter.event):
            yield letter, _found(letter, large.get(letter.source, LetterSource(None, 0)).record)
            continue
        event = records[letter.at].decode(DeadLetter)
        assert isinstance(event, DeadLetter)  # noqa: S101 - it was decoded once already
        yield letter, copied(letter, event)


def copied(letter: Letter, event: DeadLetter) -> Original | EventError:
    """Return the record as its dead letter has copied it, or the error that hides it."""
    try:
        return Original(
            key=_bytes(event.key),
            payload=_bytes(event.payload),
            headers={name: _bytes(value) or b"" for name, value in event.headers.items()},
        )
    except ValueError as exc:  # what is not ASCII is no binascii.Error
        return UndecodableEvent(
            f"{letter.at}: key, payload or a header of this dead letter is not base64 ({exc}). Take the original from "
            f"{letter.source}, if it is still there, and check what stage {event.stage} writes"
        )


class LetterSource(NamedTuple):
    """What is at the source of a dead letter now."""

    record: Record | None
    end: int
    """The end of its partition; 0 if the partition does not exist."""


def sources(settings: Settings, wanted: Iterable[Coordinates]) -> dict[Coordinates, LetterSource]:
    """Return what is at those of these coordinates that are of this deployment. Raises LogError without an answer."""
    labels = {topic.name: label for label, topic in topics(settings.topics).items()}
    ours = [at for at in wanted if at.topic in labels]
    bounds = admin.offsets(settings, {labels[at.topic] for at in ours}) if ours else {}
    within = {at: range(*bounds.get((at.topic, at.partition), (0, 0))) for at in ours}
    records = fetch(settings, [at for at in ours if at.offset in within[at]])
    return {at: LetterSource(records.get(at), within[at].stop) for at in ours}


def _is_large(event: DeadLetter) -> bool:
    return event.key_sha256 is not None or event.payload_sha256 is not None


def _found(letter: Letter, record: Record | None) -> Original | EventError:
    """Return the original of a dead letter that has only its digests."""
    if record is not None and _has_digests(letter.event, record):
        return Original(record.key, record.payload, {name: value or b"" for name, value in record.headers})
    why = "it is no longer there" if record is None else "another record is there"
    return UndecodableEvent(
        f"{letter.at}: the record at {letter.source} ({letter.payload_bytes or 0} bytes) was too large for its dead "
        f"letter, and {why}. Restore it from the archive, or close the dead letter with `streamward admin dlq drop`"
    )


def _has_digests(event: DeadLetter, record: Record) -> bool:
    digests = (None if data is None else hashlib.sha256(data).hexdigest() for data in (record.key, record.payload))
    return (event.key_sha256, event.payload_sha256) == tuple(digests)


def forgery(settings: Settings, letters: Sequence[Letter], original: Original, source: LetterSource) -> str | None:
    """Return what shows that no stage can have written these dead letters, all about one source; None if nothing does.

    The source is on a topic of this deployment.
    """
    at = letters[0].source
    labels = {topic.name: label for label, topic in topics(settings.topics).items()}
    for letter in letters:
        if labels[at.topic] not in READS.get(letter.event.stage, ()):
            return f"{letter.event.stage} does not read {labels[at.topic]}"
    if at.offset >= source.end:
        return f"the partition ends at {source.end}, so no such record was ever read"
    record = source.record
    if record is not None and (record.key, record.payload) != (original.key, original.payload):
        return "the record there has another key or payload than its dead letter"
    return None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


# --- reasons ----------------------------------------------------------------------------------------------------------

BYTES_DECIDE = ("not_avro", "unknown_schema", "wrong_event", "undecodable", "contradictory")
"""Reasons that decoding gives; whether the cause is fixed is tried out."""


def hopeless(letter: Letter, topic: Topic, original: Original) -> str | None:
    """Return why a redrive cannot help, or None if it may, once the cause is fixed."""
    reason, stage = letter.event.reason, letter.event.stage
    if stage == "trainer" and topic.label == "groups":
        return "the step was trained without this group, which batches would now drop as a duplicate"
    if reason in BYTES_DECIDE:
        found = decode(original.payload, topic.event)
        if isinstance(found, Poison):
            return f"it cannot be decoded here either, {found.reason}: {found.error}"
    why = HOPELESS.get(reason)
    return None if why is None else f"{reason}: {why}"
