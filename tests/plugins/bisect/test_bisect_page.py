"""docs/bisect.md tells the truth: its commands print what it says of a run where a word was paid for from version 9."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.settings.load import save
from tests import readme
from tests.plugins.bisect.planted import plant
from tests.support.log.shared_node import own_topics


@pytest.mark.kafka
@pytest.mark.docs
@pytest.mark.usefixtures("torch_as_before")
def test_every_command_of_the_page_prints_what_the_page_says(kafka_bootstrap: str, tmp_path: Path) -> None:
    run = plant(own_topics(kafka_bootstrap, {"policy_partitions": 1}), tmp_path / "plant", 1, "word")
    rest = save(run.settings, tmp_path, by="a test").read_text()
    more = "\n" + rest[rest.index("[") :].replace('[policy]\nname = "planted"', "")
    readme.check_page("docs/bisect.md", tmp_path, more=more, limit_s=500)
