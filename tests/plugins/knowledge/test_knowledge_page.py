"""docs/knowledge.md tells the truth: each of its commands prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.support.log.shared_node import SharedNode

pytestmark = [pytest.mark.kafka, pytest.mark.docs, pytest.mark.model]


def test_every_command_of_the_page_prints_what_the_page_says(shared_node: SharedNode, tmp_path: Path) -> None:
    readme.check_page_at(shared_node, "docs/knowledge.md", tmp_path, prefix="knowledge.")
