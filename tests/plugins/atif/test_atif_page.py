"""docs/atif.md tells the truth: its commands print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.support.log.shared_node import SharedNode


@pytest.mark.kafka
@pytest.mark.docs
def test_every_command_of_the_page_prints_what_the_page_says(shared_node: SharedNode, tmp_path: Path) -> None:
    readme.check_page_at(shared_node, "docs/atif.md", tmp_path, prefix="atif.")
