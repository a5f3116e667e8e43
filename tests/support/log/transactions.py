"""A program of somebody else that writes to a partition of ours in transactions."""

from __future__ import annotations

import confluent_kafka as ck

from streams.kafka.record import TopicPartition
from tests.support.log.join_bench import wait_until


class Transactions:
    """Transactions of one producer in one partition; each leaves a marker, which takes an offset."""

    def __init__(self, bootstrap: str, tp: TopicPartition) -> None:
        self._tp, self._reader = tp, ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "log_level": 0})
        self._producer = ck.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{tp[0]}-{tp[1]}", "log_level": 0}
        )
        self._producer.init_transactions(60)

    def begin(self, *records: tuple[bytes, bytes]) -> None:
        """Write records, key and payload each, in a transaction that stays open."""
        self._producer.begin_transaction()
        for key, payload in records:
            self._producer.produce(self._tp[0], payload, key, self._tp[1])
        self._producer.flush(60)

    def end(self, *, commit: bool) -> None:
        """End the transaction, and wait for its marker."""
        open_end = self.end_of_partition()
        self._producer.commit_transaction(60) if commit else self._producer.abort_transaction(60)
        wait_until(lambda: self.end_of_partition() > open_end)

    def abort(self, *records: tuple[bytes, bytes]) -> None:
        """Write records in a transaction that is aborted."""
        self.begin(*records)
        self.end(commit=False)

    def commit(self, *records: tuple[bytes, bytes]) -> None:
        """Write records in a transaction that is committed."""
        self.begin(*records)
        self.end(commit=True)

    def end_of_partition(self) -> int:
        """Return the last stable offset."""
        return int(self._reader.get_watermark_offsets(ck.TopicPartition(*self._tp), 60)[1])

    def close(self) -> None:
        self._reader.close()
