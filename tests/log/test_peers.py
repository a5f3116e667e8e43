"""The peers of the join's benchmark on a real broker: each makes the groups that our driver makes of the same log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.settings.model import Settings
from tests.benchmarks.peers import PeerUnavailable, check, kafka_streams, quix_streams
from tests.skips import needs

pytestmark = pytest.mark.kafka


def test_kafka_streams_joins_a_shuffled_log_with_doubles_as_our_driver_does(made: Settings, tmp_path: Path) -> None:
    try:
        peer = kafka_streams(tmp_path)
    except PeerUnavailable as exc:
        pytest.skip(needs(str(exc), "make test, with network access"))
    check(peer, made)


def test_quix_streams_joins_a_shuffled_log_with_doubles_as_our_driver_does(made: Settings) -> None:
    try:
        peer = quix_streams(install=False)
    except PeerUnavailable as exc:
        pytest.skip(needs(str(exc), "make bench BENCH=join"))
    check(peer, made)
