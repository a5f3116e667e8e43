"""What an archive's files promise each other: whole or not there, and of two of one name the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.events import Reward
from streams.errors import LogError, SettingsError
from streams.tools.archive.columns import table_schema
from streams.tools.archive.store import HALF, Store
from streams.tools.archive.tables import ArchiveTable
from tests.support.doubles.object_store import bucket


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path}")


def test_of_two_files_of_one_name_the_first_stays(store: Store) -> None:
    assert store.create("t/0/1.json", b"first")
    assert not store.create("t/0/1.json", b"second")
    assert store.read("t/0/1.json") == b"first"
    assert store.names("t/0") == ["1.json"]


def test_a_file_is_there_under_its_name_and_nothing_else_is(store: Store) -> None:
    with store.half("t/0") as half:
        half.write_bytes(b"x" * 10)
        store.put(half, "t/0/a.parquet")
    assert store.names("t/0") == ["a.parquet"]
    with store.open("t/0/a.parquet") as file:
        assert file.read() == b"x" * 10
    store.remove("t/0/a.parquet")
    store.remove("t/0/a.parquet")
    assert (store.names("t/0"), store.read("t/0/a.parquet")) == ([], None)


def test_a_folder_that_is_not_there_holds_nothing(store: Store) -> None:
    assert store.names("t") == []


def test_what_fails_halfway_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.half("t/0") as half:
        half.write_bytes(b"x")
        raise ZeroDivisionError
    assert store.names("t/0") == []


def test_what_a_killed_writer_left_is_swept_away_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    killed = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from streams.tools.archive.store import Store\n"
        "with Store(sys.argv[1]).half('t') as half: half.write_bytes(b'x'); os._exit(9)"
    )
    root = str(Path(__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path), root], check=False).returncode == 9
    store = Store(str(tmp_path))
    (left,) = store.names("t")
    assert left.startswith(HALF)
    with store.half("t") as mine:
        store.sweep("t")
        assert store.names("t") == [mine.name]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = r"archive\.store=.*file: t cannot be written: .*set archive\.store to a place"
    with pytest.raises(LogError, match=expected), Store(str(tmp_path / "file")).half("t"):
        pytest.fail("there is no such folder")


def test_credentials_are_those_of_the_environment_or_of_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(monkeypatch) as url:
        assert set(Store(url).options) == {"aws_allow_http"}
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        file = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        with pytest.raises(SettingsError, match=r"no credentials for archive\.store=s3://bucket in it"):
            Store(url)
        file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
        store = Store(url)
        assert store.create("t/x", b"1") and store.read("t/x") == b"1"


def test_a_url_without_a_driver_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match=r"archive\.store=nosuch://x: .*use a folder"):
        Store("nosuch://x")


@pytest.mark.parametrize("name", ["a[1]", "a^b", "a|b", "a\\b", "a\tb", "my%20archive"])
def test_a_folder_that_delta_s_driver_does_not_take_is_a_wrong_setting(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / name)
    for folder in (name, f"{name}/archive", "link"):
        with pytest.raises(SettingsError, match=r"Delta's driver takes no folder with .* name another one"):
            Store(str(tmp_path / folder))


@pytest.mark.parametrize("name", [*"""!"#$%&'()*+,-.:;<=>?@_`{}~""", "my archive #1 (50% für Ulm)"])
def test_an_archive_s_files_and_its_log_are_in_the_one_folder_that_its_setting_names(name: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / f"a{name}b"))
    assert store.create("t/x", b"1") and _create_table(store)
    assert [path.name for path in tmp_path.iterdir()] == [f"a{name}b"]
    assert store.names("t") == ["_delta_log", "x"]


def _create_table(store: Store) -> bool:
    table = ArchiveTable(store, "t", "rewards", table_schema(Reward))
    table.create({0: 0})
    state = table.load()
    return state is not None and sorted(state.extents) == [0]
