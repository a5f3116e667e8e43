"""A batch in shares gives the gradient of the whole batch, and the same bytes whoever computes them."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from streams.errors import SettingsError
from streams.processes.child import ChildProcess
from tests.skips import IN_FULL
from tests.support import fork_server
from tests.support.models import rank_program
from tests.support.models.tiny import save_tiny, tiny_group, tiny_model
from tests.support.thoroughness import FULL
from trainer.ranks import launcher
from trainer.step.shares import split

ROOT = Path(__file__).parents[2]


# --- what a share is --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 5))
def test_shares_are_runs_of_neighbours_that_leave_no_group_out(lengths: list[int], count: int) -> None:
    model = tiny_model()
    groups = [tiny_group(model, seed, prompt=2 + length, slots=1) for seed, length in enumerate(lengths)]
    shares = split(groups, count)
    assert len(shares) == count
    assert [group for share in shares for group in share] == groups


def test_equal_groups_are_shared_equally() -> None:
    groups = [tiny_group(tiny_model(), 1, slots=2)] * 8
    assert [len(share) for share in split(groups, 4)] == [2, 2, 2, 2]
    assert [len(share) for share in split(groups, 1)] == [8]


# --- several processes ------------------------------------------------------------------------------------------------


def run(folder: Path, *changes: str) -> int:
    return launcher.run_ranks([sys.executable, "-m", rank_program.__name__, str(folder), *changes], 2)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "adapter").iterdir())}


class ForkedRank(fork_server.Fork, ChildProcess):
    """A rank that begins with its libraries imported. tests/pipeline/test_ranks.py starts real ones."""


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children import the tests' modules, and ours; where the run has a server of forks they have done so."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if fork_server.address is not None:
        monkeypatch.setattr(launcher, "ChildProcess", ForkedRank)


@pytest.mark.skipif(not FULL, reason=IN_FULL)  # tests/pipeline/test_ranks.py compares the bytes, too
@pytest.mark.usefixtures("importable", "torch_as_before")
def test_two_processes_give_the_bytes_that_one_gives_which_computes_both_shares(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        save_tiny(folder / "model")
    one, two = folders
    measured = rank_program.steps(rank_program.settings_of(one))
    assert run(two) == 0
    assert digests(two) == digests(one)
    assert json.loads((two / "metrics.json").read_text()) == measured


@pytest.mark.usefixtures("importable", "torch_as_before")
def test_a_base_in_parts_gives_the_bytes_of_one_process_that_holds_it_whole(tmp_path: Path) -> None:
    """Five groups, one a micro-batch: rank 0 has three and rank 1 two, each with a pass of the base as reference."""
    changes = {"micro_groups": 1, "beta": 0.1}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        save_tiny(folder / "model")
    measured = rank_program.steps(rank_program.settings_of(whole, **changes))
    assert (
        run(
            parts,
            "shard_base=true",
            "gradient_checkpointing=true",
            *[f"{name}={value}" for name, value in changes.items()],
        )
        == 0
    )
    assert digests(parts) == digests(whole)
    assert json.loads((parts / "metrics.json").read_text()) == measured
    for rank in range(2):
        line = re.search(r"holds (\d+) of the (\d+) bytes", (parts / f"rank-{rank}.log").read_text())
        assert line is not None
        here, everything = int(line[1]), int(line[2])
        adapter = sum(path.stat().st_size for path in (parts / "adapter").glob("*.safetensors"))
        assert here - adapter <= 0.51 * (everything - adapter)


@pytest.mark.usefixtures("importable")
def test_a_rank_that_would_compute_otherwise_is_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "model")
    assert run(tmp_path, "seed=5,6") == SettingsError.exit_code
    assert (
        "rank 1 of 2: trainer.seed is 6 here and 5 at rank 0; all ranks need the same settings"
        in capfd.readouterr().err
    )
    assert not (tmp_path / "adapter").exists()
