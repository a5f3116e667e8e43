"""A format of a stranger's plugin, as docs/plugins.md has it, is given the batches that the trainer here would take."""

from __future__ import annotations

import json
import re
from pathlib import Path

from streams.engines.base_model import Base
from streams.files import sha256_of
from streams.settings.model import Settings
from tests.import_graph import ROOT
from tests.support.models.tiny_log import groups_of, write
from tests.support.models.tiny_settings import settings
from tests.support.stranger_plugin import run_with

__all__ = ["settings"]


def test_the_format_of_the_page_gets_each_batch_once_with_its_options(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    section = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8").partition("\n## A format of export\n")[2]
    (module,) = re.findall(r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(module)
    described = tmp_path / "mine-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[streamward.plugins]\nmine = mine:PLUGIN\n")
    write(settings, base, range(2))

    done = run_with(
        tmp_path, "export", "out", "--format", "mine", "--batch", "0-1", "--ranks", "2", "--output", "jsonl",
        settings=settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["batches"] == [0, 1]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == json.loads((tmp_path / "out" / "recipe.json").read_text())["framework"] == "mine"
    for sequence, about in enumerate(manifest["batches"]):
        file = tmp_path / "out" / f"step-{sequence}.json"
        assert about.pop("files") == {file.name: sha256_of(file)}
        first, second = json.loads(file.read_text()).pop("shares")
        assert {**json.loads(file.read_text()), "shares": None} == {**about, "shares": None}
        expected = [response for group in groups_of(base, sequence) for response in group.responses]
        assert [row["reward"] for row in first] == [response.reward for response in expected[::2]]
        assert [row["tokens"] for row in second] == [list(one.completion_token_ids) for one in expected[1::2]]

    refused = run_with(tmp_path, "export", "more", "--format", "sft", "--ranks", "2", settings=settings)
    assert refused.returncode == 2 and "mine, not sft" in refused.stderr
