"""docs/fork.md tells the truth: its commands print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.support.log.shared_node import SharedNode

PREFIX = "forked."
"""Of the page's topics."""


@pytest.mark.kafka
@pytest.mark.docs
def test_every_command_of_the_page_prints_what_the_page_says(
    kafka_bootstrap: str, shared_node: SharedNode, tmp_path: Path
) -> None:
    try:
        more = f'\n[kafka]\nbootstrap = "{kafka_bootstrap}"\n'
        readme.check_page("docs/fork.md", tmp_path, more=more, limit_s=500)
    finally:
        shared_node.delete_topics(PREFIX)
