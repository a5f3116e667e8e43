"""One module per kind of fault; importing this package fills `matrix.FAULTS`."""

from tests.chaos.faults import (
    agents,
    brokers,
    growth,
    hostile,
    improvers,
    logs,
    peers,
    processes,
    records,
    sample_queues,
    threads,
    trainer,
    training_calls,
)

__all__ = [
    "agents",
    "brokers",
    "growth",
    "hostile",
    "improvers",
    "logs",
    "peers",
    "processes",
    "records",
    "sample_queues",
    "threads",
    "trainer",
    "training_calls",
]
