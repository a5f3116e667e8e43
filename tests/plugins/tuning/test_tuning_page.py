"""docs/tuning.md tells the truth: its commands make a version of a file, another one on top, and both again.

In `make test-docs` a tiny model takes the place of the real one; `make test-full` walks the page as its reader would.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.support.models.chat_tiny import chat_tokenizer
from tests.support.models.tiny import save_tiny
from tests.support.thoroughness import FULL

pytestmark = [pytest.mark.kafka, pytest.mark.docs]

PAGE = "docs/tuning.md"


def test_every_command_of_the_page_prints_what_the_page_says(folder: Path) -> None:
    model = ""
    if not FULL:
        tiny = save_tiny(folder / "tiny")
        chat_tokenizer().save_pretrained(tiny)
        model = f'\n[model]\nbase = "{tiny}"\n'
    readme.check_page(PAGE, folder, more=model, limit_s=500)
