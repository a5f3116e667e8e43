"""What several tests of the whole loop share."""

from __future__ import annotations

import pytest

from streams.engines.base_model import Base, load_base
from streams.settings.model import Model
from tests.support.models.tiny import save_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model."""
    return load_base(Model(base=str(save_tiny(tmp_path_factory.mktemp("tiny")))))
