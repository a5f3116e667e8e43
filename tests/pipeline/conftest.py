"""What several tests of the whole loop share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.engines.base_model import Base, load_base
from streams.kafka.node import process as broker
from streams.settings.model import Broker, Model
from tests.support.models.tiny import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder. The node that commands start in it is stopped."""
    yield tmp_path
    broker.stop(Broker(data_dir=tmp_path / ".streamward" / "kafka"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model."""
    return load_base(Model(base=str(save_tiny(tmp_path_factory.mktemp("tiny")))))
