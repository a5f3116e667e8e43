"""What was done since the last checkpoint, and how much of it is acknowledged.

    records handled ──► results sent ──► all acknowledged ──► rows sent ──► all acknowledged ──► their offsets committed

So a row never says that a group has left whose record is not in the log, and a commit never says that records are done
whose rows are not. Meanwhile the next epoch is under way: nothing waits, and one flaw of order cannot be: what is sent
later is in a later epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.events import Coordinates
from streams.kafka.record import TopicPartition

OnAck = Callable[[Coordinates], None]


class Epoch:
    """One of them. Open while records are handled; closed with the rows and offsets of that moment."""

    def __init__(self) -> None:
        self.unacknowledged = 0
        self.rows: list[tuple[TopicPartition, bytes, bytes | None]] | None = None
        """To be sent once the results are acknowledged; None: not closed, or they are sent."""
        self.offsets: dict[TopicPartition, int] = {}
        """To be committed once the rows are acknowledged, too."""

    def sends(self, on_ack: OnAck | None = None) -> OnAck:
        """Count a record that is being sent, and return what to call when it is acknowledged."""
        self.unacknowledged += 1
        if on_ack is None:
            return self._on_written

        def on_written(coordinates: Coordinates) -> None:
            self.unacknowledged -= 1
            on_ack(coordinates)

        return on_written

    def _on_written(self, _: Coordinates) -> None:
        self.unacknowledged -= 1

    def close(self, rows: list[tuple[TopicPartition, bytes, bytes | None]], offsets: dict[TopicPartition, int]) -> None:
        """End it with these rows and offsets."""
        self.rows, self.offsets = rows, offsets
