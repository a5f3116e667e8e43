"""Each way to drift is shown by a conversation that a stranger can check with transformers alone."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from plugins.drift.commands import use_template
from plugins.drift.ways import EXACT, OWN_CHAIN, WAYS, DriftModel, WayReport, reports
from streams.engines.base_model import load_tokenizer
from streams.errors import SettingsError
from streams.settings.model import Settings
from tests.plugins.drift.drift_table import lines, templates
from tests.support.commands import invoke

pytestmark = pytest.mark.model
MODEL = "smollm2-135m-instruct"


@cache
def _own() -> Any:
    return load_tokenizer(MODEL)


def tokenizer() -> Any:
    return copy.deepcopy(_own())


def with_template(name: str) -> Any:
    changed = tokenizer()
    use_template(changed, next(path for path in templates() if path.stem == name))
    return changed


def ways_of(changed: Any) -> dict[str, WayReport]:
    return {report.name: report for report in reports(DriftModel(changed))}


def test_tokens_of_smollm2_that_are_tokenized_again_are_others() -> None:
    own = tokenizer()
    found = ways_of(own)
    assert [name for name, report in found.items() if report.drift] == [
        "merged tokens", "blanks stripped", "control names", "truncation"
    ]  # fmt: skip
    assert all(report.here in (EXACT, "") for report in found.values())
    assert found["tool calls rewritten"].here == "", "its template has no tools"
    merged = found["merged tokens"].drift
    assert merged is not None and merged.conversation[-1].content == "so"
    assert own("s")["input_ids"] + own("o")["input_ids"] != own("so")["input_ids"]


def test_a_template_that_removes_reasoning_drifts_and_begins_a_chain_here() -> None:
    found = ways_of(with_template("qwen3"))
    reasoning, calls = found["reasoning removed"], found["tool calls rewritten"]
    assert reasoning.drift is not None and "think" in reasoning.drift.sampled and "think" not in reasoning.drift.again
    assert reasoning.here.startswith(OWN_CHAIN) and "leaves out a part of the answer" in reasoning.here
    assert calls.drift is not None and calls.drift.conversation[-1].tool_calls


def test_a_beginning_of_an_answer_that_history_lacks_is_a_drift() -> None:
    found = ways_of(with_template("gptoss"))["generation prompt"]
    assert found.drift is not None and found.drift.conversation[-1].content == "4" and found.here == EXACT


def test_the_token_that_begins_a_text_is_there_twice_only_where_the_tokenizer_adds_one() -> None:
    twice = tokenizer()
    bos = twice.bos_token
    twice.chat_template = "{{ bos_token }}" + twice.chat_template
    assert ways_of(twice)["beginning twice"].drift is None
    number = twice.convert_tokens_to_ids(bos)
    twice.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    found = ways_of(twice)["beginning twice"]
    assert found.drift is not None and found.drift.again.startswith(f"{bos}|{bos}") and found.here == EXACT


def test_a_cut_on_the_other_side_loses_the_beginning() -> None:
    left = tokenizer()
    left.truncation_side = "left"
    cut = ways_of(left)["truncation"].drift
    right = ways_of(tokenizer())["truncation"].drift
    assert cut is not None and right is not None
    assert cut.sampled.startswith(left.convert_ids_to_tokens(left("<|im_start|>")["input_ids"])[0])
    assert right.sampled.endswith("<|im_end|>") and not right.again.endswith("<|im_end|>")


def test_the_command_shows_each_way_and_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in invoke(Settings(), "drift", MODEL, "--output", "jsonl").stdout.splitlines()]
    assert [row["way"] for row in rows] == [way.name for way in WAYS]
    assert rows[0]["conversation"] == [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "so"}]
    assert rows[3] == rows[3] | {"drifts": None, "here": None}
    with pytest.raises(SettingsError, match="name a file with a Jinja chat template"):
        use_template(tokenizer(), tmp_path / "none.jinja")
    (tmp_path / "broken.jinja").write_text("{% for %}")
    broken = invoke(Settings(), "drift", MODEL, "--template", str(tmp_path / "broken.jinja"))
    assert broken.exit_code == 0 and "Traceback" not in broken.output


@pytest.mark.docs
def test_the_page_has_the_table_of_all_templates() -> None:
    page = Path("docs/drift.md").read_text().splitlines()
    assert [line for line in lines() if line not in page] == []
