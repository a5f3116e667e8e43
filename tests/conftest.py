"""What all tests share: one real Kafka node for the run, and settings that keep each test's topics its own.

The node starts with the first test that asks for it, and ends with the run; also if the run is killed (`embedded` sees
to that). Tests never clean up topics: their prefix is theirs alone.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from streams.observability.logging import StderrLog
from streams.settings.model import Adapters, Archive, Broker, Kafka, Settings, Topics, Trainer
from tests.schedule import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.skips import pytest_terminal_summary as pytest_terminal_summary
from tests.support.thoroughness import FULL, examples

hypothesis.settings.register_profile(  # without a deadline: a busy machine is no failure
    "streamward", deadline=None, max_examples=examples(100), derandomize=not FULL, database=None
)
hypothesis.settings.load_profile("streamward")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without a search for garbage, and leave what they imported out of every later search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this run a temporary folder of its own: what processes leave there that a test kills goes with the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of an Apache Kafka node, one for all tests."""
    from streams.kafka.node import process as broker

    with broker.embedded(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    """Settings for the shared node: topics with a prefix of this test's own, everything else under its folder.

    They have fewer partitions than the defaults. Thousands of them cost the node a third of its time, and every look at
    a topic begins with a list of all.
    """
    return Settings(
        kafka=Kafka(bootstrap=kafka_bootstrap),
        topics=Topics(prefix=f"test-{uuid.uuid4().hex[:12]}.", partitions=4, policy_partitions=2),
        trainer=Trainer(checkpoints=tmp_path / "checkpoints"),
        adapters=Adapters(store=str(tmp_path / "adapters")),
        archive=Archive(store=str(tmp_path / "archive")),
        broker=Broker(data_dir=tmp_path / "kafka"),
    )


@pytest.fixture
def made(settings: Settings) -> Settings:
    """Settings whose topics exist."""
    from streams.kafka import admin

    admin.apply_topics(settings)
    return settings


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """Take back what a trainer sets for the whole process."""
    import torch

    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)  # as tests/support/models/tiny.py


@pytest.fixture
def nowhere() -> Settings:
    """Settings of a port where nothing listens."""
    return Settings(kafka=Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.5))


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Put the log set-up back that a command replaces, so that no line it held back comes out in a later test."""
    root = logging.getLogger()
    level, handlers = root.level, [handler for handler in root.handlers if not isinstance(handler, StderrLog)]
    root.handlers[:] = handlers
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
