"""What a user's code imports: `streamward`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamward
from streams import cli, scorers
from streams.plugins.public import public_names
from streams.tools.query import session
from streams.tools.runs import run_archive, run_tracker


def test_the_package_gives_what_a_users_code_needs() -> None:
    given = (streamward.connect, streamward.entry_point, streamward.main)
    assert given == (session.connect, scorers.entry_point, cli.main)
    assert (streamward.RunTracker, streamward.RunArchiveService) == (
        run_tracker.RunTracker,
        run_archive.RunArchiveService,
    )
    assert {*streamward.__all__, *public_names()} <= set(dir(streamward))


def test_what_it_does_not_have_is_named_with_what_it_has() -> None:
    has = ", ".join([*streamward.__all__, *public_names()])
    with pytest.raises(AttributeError, match=f"no 'conect' in streamward; it has {has} and __version__"):
        _ = streamward.conect


def test_importing_it_loads_nothing_of_the_application() -> None:
    code = "import sys; import streamward; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "streamward" in done.stdout.split()
    assert not {"streams", "trainer", "schemas", "pydantic", "duckdb", "torch"} & set(done.stdout.split())


def test_a_source_tree_that_is_not_installed_says_so_and_works() -> None:
    code = (
        "import importlib.metadata as metadata, sys\n"
        "find = metadata.Distribution.from_name\n"
        "def missing(name):\n"
        "    if name == 'streamward':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return find(name)\n"
        "metadata.Distribution.from_name = missing\n"
        "import gateway.document, streamward, streams.files\n"
        "document = gateway.document.document()\n"
        "print(streamward.__version__, document['info']['version'], streams.files.code_version()[:6])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["source"] * 3
