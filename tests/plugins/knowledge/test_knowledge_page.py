"""docs/knowledge.md tells the truth: each of its commands prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.support.log.shared_node import SharedNode

pytestmark = [pytest.mark.kafka, pytest.mark.docs, pytest.mark.model]

PREFIX = "knowledge."
"""Of the page's topics."""


def test_every_command_of_the_page_prints_what_the_page_says(
    kafka_bootstrap: str, shared_node: SharedNode, tmp_path: Path
) -> None:
    try:
        more = f'\n[kafka]\nbootstrap = "{kafka_bootstrap}"\n'
        readme.check_page("docs/knowledge.md", tmp_path, more=more, limit_s=500)
    finally:
        shared_node.delete_topics(PREFIX)
