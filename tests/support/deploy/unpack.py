"""What a tar file holds, put into a folder."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(packed: Path, folder: Path) -> None:
    """Put every file into `folder`, and none elsewhere; Python before 3.11.4 has no word for that, and believes it."""
    with tarfile.open(packed) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:
            files.extractall(folder)  # noqa: S202 - of our own commit, or Apicurio's release
