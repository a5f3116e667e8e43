"""Where a demo leaves its settings, so that commands typed in its folder find its log, and what it never touches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.demo.options import DemoOptions, check, finds_settings, leave_settings, settings_of
from streams.errors import SettingsError
from streams.settings.load import CONFIG_FILE, load, save

USERS = "[topics]\nprefix = 'mine.'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the demo runs in, without settings of anybody's."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("STREAMWARD_"):
            monkeypatch.delenv(name)
    return tmp_path


def started(options: DemoOptions, bootstrap: str = "127.0.0.1:21000") -> Path:
    """Do with the settings what a run of the demo does, and return its own settings file."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    config = save(settings_of(options, bootstrap), options.data_dir, by="streamward demo")
    leave_settings(config)
    return config


def test_a_command_in_the_folder_of_the_demo_has_its_settings() -> None:
    config = started(DemoOptions())
    assert finds_settings(config)
    assert load() == load(file=config)
    assert load().kafka.bootstrap == "127.0.0.1:21000"
    assert load().broker.data_dir == Path(".streamward/demo/kafka")


def test_settings_of_the_user_are_read_by_the_demo_and_left_as_they_are() -> None:
    Path(CONFIG_FILE).write_text(USERS)
    config = started(DemoOptions())
    assert Path(CONFIG_FILE).read_text() == USERS
    assert not finds_settings(config)
    assert load(file=config).topics.prefix == "mine."


def test_a_run_takes_no_option_from_the_run_before() -> None:
    started(DemoOptions(overrides=("batches.groups=3",), engine="scripted"))
    started(DemoOptions(), "127.0.0.1:22000")
    assert (load().batches.groups, load().policy.engine) == (load(file=Path(os.devnull)).batches.groups, "transformers")
    assert load().kafka.bootstrap == "127.0.0.1:22000"


def test_of_two_demos_in_one_folder_the_later_is_found() -> None:
    first, second = (started(DemoOptions(data_dir=Path(name)), f"127.0.0.1:{name}") for name in ("21001", "21002"))
    assert not finds_settings(first)
    assert finds_settings(second)
    assert load().kafka.bootstrap == "127.0.0.1:21002"


def test_what_a_user_makes_of_the_file_stays_once_its_first_line_is_gone() -> None:
    started(DemoOptions())
    own = Path(CONFIG_FILE).read_text().partition("\n")[2] + "\n[topics]\nprefix = 'mine.'\n"
    Path(CONFIG_FILE).write_text(own)
    assert not finds_settings(started(DemoOptions()))
    assert Path(CONFIG_FILE).read_text() == own


def test_a_file_of_the_users_elsewhere_is_read_and_goes_before_the_one_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.toml").write_text(USERS)
    monkeypatch.setenv("STREAMWARD_CONFIG", "own.toml")
    config = started(DemoOptions())
    assert not finds_settings(config)  # STREAMWARD_CONFIG wins over the folder
    assert load(file=config).topics.prefix == "mine."
    monkeypatch.delenv("STREAMWARD_CONFIG")
    assert finds_settings(config)
    assert settings_of(DemoOptions(), "127.0.0.1:0").topics.prefix != "mine."
    assert settings_of(DemoOptions(config=Path("own.toml")), "127.0.0.1:0").topics.prefix == "mine."


def test_a_folder_that_takes_no_file_is_no_failure(folder: Path) -> None:
    Path(CONFIG_FILE).mkdir()  # a folder by that name, since tests of root could write anywhere
    assert not leave_settings(
        save(settings_of(DemoOptions(config=Path(os.devnull)), "h:1"), folder.parent, by="streamward demo")
    )


@pytest.mark.parametrize("name", [".", "..", "../.."])
def test_a_demo_is_not_kept_in_the_folder_one_works_in_since_fresh_would_delete_it(name: str) -> None:
    with pytest.raises(SettingsError, match="name a folder for the demo alone"):
        check(DemoOptions(data_dir=Path(name)))


def test_the_command_that_resumes_has_all_that_makes_it_this_demo() -> None:
    assert DemoOptions().to_resume() == ["demo", "--steps", "30"]
    one = DemoOptions(steps=3, engine="scripted", data_dir=Path("a b"), overrides=("batches.groups=4",))
    assert one.to_resume() == [
        "--set", "batches.groups=4", "demo", "--steps", "13", "--data-dir", "a b", "--engine", "scripted"
    ]  # fmt: skip
