"""What all looks at the sources share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_search_for_garbage() -> Iterator[None]:
    """Search for no garbage: the trees of all sources are a million objects that stay."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
