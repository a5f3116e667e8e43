"""Settings of a test whose model is the tiny one."""

from __future__ import annotations

import pytest

from streams.engines.base_model import Base
from streams.kafka import admin
from streams.settings.model import Model, Settings


@pytest.fixture
def settings(settings: Settings, base: Base) -> Settings:
    """Settings of this test's own topics, which exist, with the tiny model as base."""
    tiny = settings.model_copy(update={"model": Model(base=base.model.config._name_or_path)})
    admin.apply_topics(tiny)
    return tiny
