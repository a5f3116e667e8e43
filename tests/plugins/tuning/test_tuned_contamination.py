"""No version is tuned on what a suite holds out, unless somebody says so; and a suite may be newer than a version."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from streams.cli.root import cli
from streams.engines.base_model import Base
from streams.errors import ContaminatedError
from streams.rows.training_gate import TrainingCheck
from streams.settings.model import Settings
from tests.plugins.tuning.test_tuned_versions import DPO, SFT, lines, made
from tests.support.commands import invoke
from tests.support.gates import gated
from tests.support.log.held_out_tasks import CLEAN, LEAKED, evaluate, submit, suite_file
from tests.support.models.chat_tiny import base
from tests.support.models.tiny_log import trained, write
from tests.support.models.tiny_settings import settings
from tests.support.processes import environment
from trainer import fleet

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before"), gated]


def test_no_file_with_a_held_out_question_is_tuned_on_and_the_command_says_so_with_exit_code_4(
    settings: Settings, tmp_path: Path
) -> None:
    guarded = {**environment(settings), "STREAMWARD_GUARD__SUITE": str(suite_file(tmp_path, "21, 22"))}
    for method, row in (("sft", SFT), ("dpo", DPO)):
        file = lines(tmp_path / f"{method}.jsonl", row)
        command = ("tune", method, str(file), "--batch", "1")
        refused = CliRunner().invoke(cli, command, env=guarded)
        assert refused.exit_code == 4 and f'{method}.jsonl:1: "21 22" is question 0 of suite cities@' in refused.stderr
        assert CliRunner().invoke(cli, (*command, "--allow-contaminated"), env=guarded).exit_code == 0
    (sft, dpo) = trained(settings)
    assert sft.metadata["contamination"] == dpo.metadata["contamination"] and sft.metadata[CONTAMINATION_ALLOWED_BY]


def test_no_groups_of_a_held_out_question_are_tuned_on(settings: Settings, base: Base) -> None:
    submit(settings, base, 0, LEAKED)
    write(settings, base, range(1))
    evaluate(settings, LEAKED)
    check = TrainingCheck(settings).check_source
    with pytest.raises(ContaminatedError, match="2 groups of default: contaminated"):
        made(settings, "sft", check=check)
    assert trained(settings) == []
    assert made(settings, "sft").metadata == {}, "without the gate"


# --- a suite that is newer than the version ---------------------------------------------------------------------------


def test_a_suite_that_is_added_later_is_looked_for_in_what_versions_were_trained_on(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    for sequence, text in enumerate((CLEAN, LEAKED, "Who wrote Faust?")):
        submit(settings, base, sequence, text)
    write(settings, base, range(2))
    fleet.run(settings, steps=2, stop=threading.Event())
    file = lines(tmp_path / "answers.jsonl", SFT)
    made(settings, "sft", file=file)
    write(settings, base, range(2, 3))
    fleet.run(settings, steps=1, stop=threading.Event())
    later = str(suite_file(tmp_path, LEAKED.lower(), "who wrote faust", "21 22"))
    show = ("adapters", "show", "--suite", later, "--output")
    found = {version: json.loads(invoke(settings, *show, "jsonl", str(version)).stdout) for version in (1, 2, 3, 4)}
    contamination = {version: row["contamination"] for version, row in found.items()}
    questions = {
        version: [(part["questions"], part["versions"]) for part in of_version["suites"]]
        for version, of_version in contamination.items()
    }
    assert questions == {1: [], 2: [([0], [2])], 3: [([0], [2])], 4: [([0, 1], [2, 4])]}
    assert [len(of_version["not_looked_at"]) for of_version in contamination.values()] == [0, 0, 1, 1]
    table = invoke(settings, *show, "table", "4").stdout
    assert "trained on 2 questions of suite cities@" in table and "file answers.jsonl of version 3" in table
    assert "trained on" not in invoke(settings, "adapters", "show", "4", "--output", "table").stdout
