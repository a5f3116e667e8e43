"""A process that knows secrets leaves no core file when it crashes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

PATTERN = Path("/proc/sys/kernel/core_pattern")
CRASH = "import os; {}; os.abort()"


def cores(folder: Path, before: str) -> list[Path]:
    """Return the core files of a process that does something, and crashes."""

    def may_leave_one() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    command = [sys.executable, "-c", CRASH.format(before)]
    ended = subprocess.run(command, cwd=folder, preexec_fn=may_leave_one, stderr=subprocess.DEVNULL, check=False)
    assert ended.returncode == -6
    return list(folder.glob("core*"))


def test_a_process_that_knows_secrets_leaves_no_core_file(tmp_path: Path) -> None:
    (tmp_path / "knows").mkdir()
    assert cores(tmp_path / "knows", "from streams.processes import core_files; core_files.leave_none()") == []
    if (
        not PATTERN.exists()
        or PATTERN.read_text().strip() != "core"
        or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    ):
        pytest.skip("processes leave no core files here in any case, so their absence shows nothing")
    assert cores(tmp_path, "pass") != [], "others do"
