"""Whether the examples that a version was made of can still be read: some may be of persons who were erased since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from schemas.events import AdvantagedGroup, Coordinates
from schemas.serde import Poison
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.kafka.record import Record

AT_ONCE = 64
"""Groups in memory."""


def refuse_erased(groups: Iterable[tuple[Record, int | None]]) -> None:
    """Raise RefusedError if examples are erased, or cannot be opened here.

    `groups`: each record with the number of its examples; None: all its responses.
    """
    counts = Counter[str]()
    for record, examples in groups:
        group = record.decode_closed(AdvantagedGroup)
        if isinstance(group, Poison):
            continue
        opened = record.decode(AdvantagedGroup) if group.sealed else group
        state = opened.reason if isinstance(opened, Poison) else "read"
        counts[state] += len(group.responses) if examples is None else examples
    total, erased = counts.total(), counts["erased"]
    if erased:
        raise RefusedError(
            f"not reproducible: {erased} of {total} examples are erased, and the version was made with them. Start "
            "after the last version that learnt from one (--from-version)"
        )
    if sealed := total - counts["read"]:
        raise RefusedError(
            f"{sealed} of {total} examples are sealed, and this process cannot open them; set its key store"
        )


def records_in_parts(history: History, places: Sequence[Coordinates]) -> Iterator[Record]:
    """Yield the records at these places."""
    for begin in range(0, len(places), AT_ONCE):
        yield from history.fetch(places[begin : begin + AT_ONCE]).values()
