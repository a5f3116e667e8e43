"""The files of saved weights as one tar archive.

the folder of a version in the store ──► its files, by name ──► tar, the same bytes for the same files
"""

from __future__ import annotations

import io
import tarfile

from streams.adapters.store import inside_store
from streams.errors import EventError, NotFoundError

TAR = "application/x-tar"


def archive(store: str, uri: str) -> bytes:
    """Return the files in a folder of the store. Raises NotFoundError if there is none of this address."""
    packed = io.BytesIO()
    try:
        fs, folder = inside_store(store, uri)
        names = sorted(path.rpartition("/")[2] for path in fs.ls(folder, detail=False))
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name in names:
                content = fs.cat_file(f"{folder}/{name}")
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    except (FileNotFoundError, EventError) as exc:
        raise NotFoundError(f"the files of these weights are not in the store: {uri}") from exc
    return packed.getvalue()
