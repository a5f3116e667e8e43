"""One module per kind of fault; importing this package fills `matrix.FAULTS`."""

from tests.chaos.faults import brokers, growth, logs, peers, processes, records, trainer

__all__ = ["brokers", "growth", "logs", "peers", "processes", "records", "trainer"]
