"""What a process has for itself is its own while it lives, and nobody's after it, however it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.errors import RefusedError
from streams.files import Scratch, hold

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test and of its children."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@contextmanager
def another(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run `code` in a process that then waits; it is killed when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path\nfrom streams.files import *\n{code}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_is_held_is_refused_with_who_has_it_and_free_once_that_one_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "place"
    wait = "\n    print('ready', flush=True); input()"
    with another(f"with hold(Path({str(folder)!r}), refusal='it is worked on', way_out='wait'):{wait}") as holder:
        expected = rf"{folder}: it is worked on by process {holder.pid} on .*; stop it"
        with pytest.raises(RefusedError, match=expected), hold(folder, refusal="it is worked on", way_out="stop it"):
            pytest.fail("two have it")
    with hold(folder, refusal="", way_out=""):
        assert (folder / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_what_a_killed_process_left_goes_with_the_next_of_its_kind_and_what_is_in_use_stays(temporary: Path) -> None:
    make = "made = Scratch('unit'); (made.folder / 'x').write_text('x'); print('ready', flush=True); input()"
    with another(make):
        pass
    (killed,) = temporary.iterdir()
    with Scratch("other"):
        assert (killed / "x").exists()
    with another(make):
        (living,) = temporary.iterdir()
        assert living != killed
        with Scratch("unit") as mine:
            assert set(temporary.iterdir()) == {living, mine}
            assert (living / "x").exists()


def test_a_process_that_ends_leaves_nothing_whether_it_closed_or_not(temporary: Path) -> None:
    code = (
        "from streams.files import Scratch\nkept = Scratch('unit')\nprint(kept.folder)\n"
        "with Scratch('unit') as folder: print(folder)\nraise SystemExit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 3
    assert {Path(line).parent for line in ended.stdout.splitlines()} == {temporary}
    assert list(temporary.iterdir()) == []


def test_closing_twice_removes_nothing_of_the_next(temporary: Path) -> None:
    first = Scratch("unit")
    first.close()
    with Scratch("unit") as second:
        first.close()
        assert list(temporary.iterdir()) == [second]
