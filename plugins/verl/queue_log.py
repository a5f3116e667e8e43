"""Every queue as the log has it: who may write to it now.

queues ──► a thread that follows ──► QueueState of each
a put is in the log ──► where does `queues` end? ──► followed until there ──► its opening is still the newest
"""

from __future__ import annotations

from threading import Lock

from plugins.verl.queue_state import QueueState, fold, refusal
from schemas.events import Coordinates, QueueEvent
from streams.errors import RefusedError
from streams.kafka.named_states import FollowedStates, RegistryShape
from streams.kafka.reader import PartitionReader
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

QUEUES = RegistryShape("queues", "queue", QueueEvent, lambda name: QueueState(queue=name), refusal, fold)


class QueueLog(FollowedStates[QueueEvent, QueueState]):
    """Every queue, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None) -> None:
        """With `outage` it waits for an unreachable broker.

        Raises NotFoundError without the topic, LogError if the broker does not answer.
        """
        super().__init__(settings, QUEUES, outage)
        self._topic = topics(settings.topics)["queues"]
        self._asking = Lock()
        self._end_reader = PartitionReader(settings, {}, outage=outage and outage.of_another_thread())
        """Asks where the topic ends. A client that a thread polls answers no other thread."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._end_reader.close()

    def current(self, queue: str) -> QueueState:
        """Return a queue after all that is in the log now. Raises LogError."""
        tp = (self._topic.name, partition_of(queue, self._topic.partitions))
        with self._asking:
            _, end = self._end_reader.bounds(tp)
        self._wait_for(Coordinates(*tp, end - 1))
        return self.state(queue)

    def check_epoch(self, queue: str, epoch: int) -> None:
        """Raise RefusedError if a later opening has taken the queue from this one."""
        state = self.current(queue)
        if state.epoch != epoch:
            raise RefusedError(
                f"queue {queue} was opened as epoch {state.epoch} by {state.writer}, and this process writes as epoch "
                f"{epoch}: what it writes no longer counts. End this program, or give each its own queue"
            )

    def append(self, event: QueueEvent) -> QueueState:
        """Write an event, and return its queue once it was read back. Raises LogError."""
        self._write(event)
        return self.state(event.queue)
