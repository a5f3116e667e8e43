"""Check where the keys of persons are, for `doctor`.

    privacy.key_folder ──► apart from the log, the archive and the adapters? readable by others? ──► DoctorFinding

Not covered: keys that a command has, and encryption of disks, which no process can see.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from plugins.privacy.privacy_settings import Privacy
from streams.settings.model import Settings
from streams.tools.doctor import DoctorFinding

AT_REST = "whether its disk is encrypted cannot be seen from here (docs/privacy.md)"


def check_keys(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield one finding about the key store; none without one."""
    rule = settings.of_plugin(Privacy)
    if rule.command:
        yield DoctorFinding("keys", "ok", "privacy.command has the keys; where it keeps them cannot be seen from here")
    if not rule.key_folder:
        return
    folder = Path(os.path.expanduser(rule.key_folder)).resolve()
    for name, place in _places(settings):
        if folder == place or place in folder.parents:
            what = f"privacy.key_folder={folder} is in {name}={place}: its backups would have the keys, too"
            yield DoctorFinding("keys", "failed", what, "Move the keys out of it, and set privacy.key_folder", 1)
            return
    if not folder.is_dir():
        yield DoctorFinding("keys", "ok", f"{folder} does not exist yet; it is made with the first key")
        return
    shared = [path for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if shared:
        what = f"{shared[0]} can be reached by other users, as can {len(shared) - 1} more in {folder}"
        yield DoctorFinding("keys", "failed", what, f"Take their rights: `chmod -R go= {folder}`", 1)
        return
    yield DoctorFinding("keys", "ok", f"{folder} is apart from the log, and of one user; {AT_REST}")


def _places(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the folders that the keys may not be in."""
    yield "broker.data_dir", settings.broker.data_dir.resolve()
    for name, store in (("archive.store", settings.archive.store), ("adapters.store", settings.adapters.store)):
        if "://" not in store:
            yield name, Path(os.path.expanduser(store)).resolve()
