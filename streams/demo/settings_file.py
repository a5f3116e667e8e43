"""The settings file that a run leaves in the working folder, so that later commands there find its log.

    FOLDER/streamward.toml, for the run's own processes ──► ./streamward.toml, for commands typed in this folder

A `streamward.toml` that a run did not write belongs to the user: it is read as usual and never overwritten; what `up`
chose besides is then found by streams/settings/load.py. A run ignores the file of an earlier run; otherwise that run's
options would silently apply to this one.
"""

from __future__ import annotations

import os
from pathlib import Path

from streams.errors import SettingsError
from streams.settings.load import CONFIG_FILE, ENV_CONFIG, WRITTEN_BY, is_of_run, is_of_user, load, move_settings


def run_here() -> str | None:
    """Return the run, `up` or `demo`, that left the settings that commands in this folder use; None if none did."""
    file = Path(CONFIG_FILE)
    if ENV_CONFIG in os.environ or not is_of_run(file):
        return None
    return file.read_text().removeprefix(WRITTEN_BY).partition("`")[0]


def leave_settings(config: Path) -> bool:
    """Write the settings in `config` to ./streamward.toml too, unless that file is the user's own.

    Returns whether commands without --config now use them, as `finds_settings` does.
    """
    local_file = Path(CONFIG_FILE)
    if not is_of_user(local_file):
        try:
            local_file.write_text(_for_this_folder(config))
        except OSError:  # a folder that cannot be written to: the commands are then printed with --config
            return False
    return finds_settings(config)


def finds_settings(config: Path) -> bool:
    """Return whether a command typed in this folder without --config uses the settings in `config`."""
    local_file = Path(CONFIG_FILE)
    if ENV_CONFIG not in os.environ and is_of_run(local_file) and local_file.read_text() == _for_this_folder(config):
        return True  # also where one of them has paths from the root
    try:
        return load() == load(file=config)
    except SettingsError:
        return False


def _for_this_folder(config: Path) -> str:
    head, _, settings = config.read_text().partition("\n")
    program = head.removeprefix(WRITTEN_BY).partition("`")[0]
    reason = "so that commands typed here find its log. The next run here overwrites it unless this line is gone."
    return f"{WRITTEN_BY}{program}` {reason}\n{move_settings(settings, config.parent, Path())}"
