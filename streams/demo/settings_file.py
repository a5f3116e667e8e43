"""The settings file that a run leaves in the working folder, so that later commands there find its log.

    FOLDER/streamward.toml, for the run's own processes ──► ./streamward.toml, for commands typed in this folder

A `streamward.toml` that a run did not write belongs to the user: it is read as usual and never overwritten. A run
ignores the file of an earlier run; otherwise that run's options would silently apply to this one.
"""

from __future__ import annotations

import os
from pathlib import Path

from streams.settings.load import CONFIG_FILE, ENV_CONFIG, move_settings

_MARK = "# Written by `streamward "


def run_here() -> str | None:
    """Return the run, `up` or `demo`, that left the settings that commands in this folder use; None if none did."""
    file = Path(CONFIG_FILE)
    if ENV_CONFIG in os.environ or not _is_ours(file):
        return None
    return file.read_text().removeprefix(_MARK).partition("`")[0]


def leave_settings(config: Path) -> bool:
    """Write the settings in `config` to ./streamward.toml too, unless that file is the user's own.

    Returns whether commands without --config now use them, as `finds_settings` does.
    """
    local_file = Path(CONFIG_FILE)
    if _is_ours(local_file) or not os.path.lexists(local_file):
        try:
            local_file.write_text(_for_this_folder(config))
        except OSError:  # a folder that cannot be written to: the commands are then printed with --config
            return False
    return finds_settings(config)


def finds_settings(config: Path) -> bool:
    """Return whether a command typed in this folder without --config uses the settings that `leave_settings` left."""
    try:
        return ENV_CONFIG not in os.environ and Path(CONFIG_FILE).read_text() == _for_this_folder(config)
    except (OSError, UnicodeDecodeError):
        return False


def _for_this_folder(config: Path) -> str:
    head, _, settings = config.read_text().partition("\n")
    program = head.removeprefix(_MARK).partition("`")[0]
    reason = "so that commands typed here find its log. The next run here overwrites it unless this line is gone."
    return f"{_MARK}{program}` {reason}\n{move_settings(settings, config.parent, Path())}"


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text().startswith(_MARK)
    except (OSError, UnicodeDecodeError):
        return False
