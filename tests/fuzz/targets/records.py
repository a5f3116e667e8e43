"""What is in the log: payloads, headers, dead letters, and the notes of commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas import serde, versions
from schemas.convert import from_plain
from schemas.events import EVENTS, Coordinates, DeadLetter
from streams.kafka.record import Record, dead_letter, encoded, key_of, trace_of
from streams.kafka.topics import topics
from streams.observability import trace_context
from streams.settings.model import Settings
from tests.fuzz.target import Check, target

AT = Coordinates("tasks", 0, 7)


def kind_of(payload: bytes) -> Any:
    """Return the event whose schema a payload names, or any."""
    schema = versions.files().by_id(int.from_bytes(payload[1:5], "big"))
    return next((kind for kind in EVENTS if schema is not None and kind.__name__ == schema.event), EVENTS[0])


@target("events", light=2000)
def events(folder: Path) -> Check:
    """A payload is a Poison, or an event that is written and read again as the same one."""

    def check(data: bytes) -> str | None:
        kind = kind_of(data)
        event = serde.decode(data, kind)
        if isinstance(event, serde.Poison):
            return f"{event.reason}: {event.error}"
        assert serde.decode(serde.encode(event), kind) == event
        return None

    return check


@target("columns", light=300)
def columns(folder: Path) -> Check:
    """The bulk decoder gives each payload the verdict and the values that serde gives it."""
    from streams.arrow.decode import decode

    def check(data: bytes) -> str | None:
        kind = kind_of(data)
        one = serde.decode(data, kind)
        found = decode(kind, [Record(AT, 0, b"k", data)])
        if isinstance(one, serde.Poison):
            assert [(bad.reason, bad.error) for bad in found.bad] == [(one.reason, one.error)]
            return f"{one.reason}: {one.error}"
        assert not found.bad and len(found.table) == 1, found.bad
        return None

    return check


@target("headers", light=500)
def headers(folder: Path) -> Check:
    """Any key, payload and headers fit into a dead letter, which keeps them, and has a trace or none."""

    def check(data: bytes) -> str | None:
        key, _, rest = data.partition(b"\n")
        payload, _, lines = rest.partition(b"\n")
        pairs = [line.partition(b"=") for line in lines.split(b"\n") if line]
        named = tuple((name.decode(errors="replace"), value) for name, _, value in pairs)
        letter = dead_letter(Record(AT, 0, key, payload, named), stage="policy", reason="undecodable", error="odd")
        assert serde.decode(serde.encode(letter), DeadLetter) == letter
        assert key_of(letter, topics(Settings().topics)["dead-letters"]) == key
        trace = trace_context.of_headers(named)
        assert trace_of(letter).keys() <= {trace_context.HEADER}
        own = trace is None or trace_context.parse(trace.traceparent) == trace
        return None if own else "a trace that is not its own"

    return check


@target("dead-letters", "json", light=500)
def dead_letters(folder: Path) -> Check:
    """A dead letter that anybody wrote can be closed, and has an original or an error; or it decides, or is Poison."""
    from streams.errors import EventError
    from streams.tools.dead_letters.letters import Letter, decision, parse
    from streams.tools.dead_letters.originals import copied

    def check(data: bytes) -> str | None:
        try:
            event = from_plain(DeadLetter, json.loads(data))
            payload = serde.encode(event)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, serde.EncodeError):
            return "no event"  # which the target `events` is for
        found = parse(Record(AT, 0, b"k", payload))
        trace_of(event)
        if not isinstance(found, Letter):
            return f"{found.reason}: {found.error}" if isinstance(found, serde.Poison) else None
        encoded(decision(found, "dropped", 1, "for good", now_ms=0), topics(Settings().topics)["dead-letters"])
        original = copied(found, event)
        return str(original) if isinstance(original, EventError) else None

    return check


@target("commit-notes", "json", light=500)
def commit_notes(folder: Path) -> Check:
    """The metadata of a commit is a note, or none."""
    from streams.worker.changelogs import END, Extent, distrust, read_note

    def check(data: bytes) -> str | None:
        text = data.decode(errors="replace") + END
        distrust({"c": Extent(0, 5)}, [text], committed=True)
        return None if read_note(text) else "no note"

    return check
