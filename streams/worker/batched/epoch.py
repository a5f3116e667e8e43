"""The work since the last checkpoint, and how much of it is acknowledged.

    records handled ──► results sent ──► all acknowledged ──► rows sent ──► all acknowledged ──► their offsets committed

So a row never says that a group has left before its record is in the log, and a commit never covers records before
their rows are written. Meanwhile the next epoch is under way: nothing waits, and the order holds, since later sends
belong to a later epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.events import Coordinates
from streams.kafka.record import TopicPartition

OnAck = Callable[[Coordinates], None]


class Epoch:
    """One epoch. Open while records are handled; closed with the rows and offsets of that moment."""

    def __init__(self) -> None:
        self.unacknowledged = 0
        self.rows: list[tuple[TopicPartition, bytes, bytes | None]] | None = None
        """Rows to send once the results are acknowledged; None if it is open or they were sent."""
        self.offsets: dict[TopicPartition, int] = {}
        """Offsets to commit once the rows are acknowledged, too."""

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
        """Close it with these rows and offsets."""
        self.rows, self.offsets = rows, offsets
