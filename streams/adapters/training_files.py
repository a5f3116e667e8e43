"""Uploaded files of questions or examples, in the store of the adapters.

    bytes ──► each line is a JSON object ──► STORE/_files/file-SHA256/{content, file.json} ──► read back, hash compared

A file is named by the sha256 of its bytes, or of the tenant and its bytes: the same bytes are the same file for all
users of a tenant, another tenant's are a different file, and a file never changes. In a folder it appears by one
rename; in an object store `file.json` is written last, and a file without it does not exist. No policy can be called
`_files`.

A job's order contains its questions, so the file may be deleted once the job is created. A tuning job reads its
examples from here, so its file has to stay until the job has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from schemas import json_text
from schemas.file_text import FileTextError, json_objects
from streams.adapters.store import ABANDONED_S, is_local, open_store, rename_folder
from streams.errors import JobRequestError, NotFoundError, SettingsError
from streams.files import sync

FOLDER = "_files"
CONTENT, ABOUT = "content", "file.json"
FILE_ID = re.compile(r"file-[0-9a-f]{64}")
LONGEST_NAME = 255
MOST_LINES = 500_000
MOST_VALUES = 10_000
"""Of a line: parsing more would keep other threads of a server from running."""
PURPOSE = "fine-tune"
"""The purpose that OpenAI's clients give a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFile:
    """The metadata of an uploaded file."""

    file_id: str
    filename: str
    size_bytes: int
    created_at: int
    """Milliseconds since the epoch."""
    purpose: str
    tenant: str | None = None
    """Its owner."""


class FileLine(NamedTuple):
    """A line that is not empty."""

    number: int
    """From 1."""
    value: dict[str, Any]


def lines_of(raw: bytes) -> list[FileLine]:
    """Return the lines of a file.

    Raises JobRequestError if there are too many, or with the number of the first that is no JSON object, or too much.
    """
    if raw.count(b"\n") > MOST_LINES or raw.count(b"\r") > MOST_LINES:
        raise JobRequestError(f"the file has more than {MOST_LINES:,} lines; upload it as several files", "file")
    try:
        lines = [FileLine(number, fields) for number, fields in json_objects(raw, most_values=MOST_VALUES)]
    except FileTextError as exc:
        place = "the file" if exc.line is None else f"line {exc.line}"
        raise JobRequestError(f"{place}: {exc}", "file") from exc
    if not lines:
        raise JobRequestError("the file has no line; write one JSON object a line", "file")
    return lines


def put(store: str, raw: bytes, *, filename: str, purpose: str, now_ms: int, tenant: str | None = None) -> TrainingFile:
    """Keep a file; return it as it was kept first, if the tenant has these bytes.

    Raises JobRequestError for a line that is no JSON object, SettingsError if the store cannot be used.
    """
    lines_of(raw)
    if not filename or len(filename) > LONGEST_NAME:
        raise JobRequestError(
            f"the file's name has {len(filename)} characters; 1 to {LONGEST_NAME} are allowed", "file"
        )
    file = TrainingFile(
        file_id=_id(raw, tenant),
        filename=filename,
        size_bytes=len(raw),
        created_at=now_ms,
        purpose=purpose,
        tenant=tenant,
    )
    about = json.dumps(asdict(file)).encode()
    with _open_folder(store, f"{filename} cannot be written") as (fs, root):
        if (existing := _about(fs, root, file.file_id)) is not None:
            return existing
        if is_local(fs):
            _put_folder(Path(root), file.file_id, {CONTENT: raw, ABOUT: about})
        else:
            fs.makedirs(f"{root}/{file.file_id}", exist_ok=True)
            for name, content in ((CONTENT, raw), (ABOUT, about)):
                fs.pipe_file(f"{root}/{file.file_id}/{name}", content)
        return _about(fs, root, file.file_id) or file


def find(store: str, file_id: str, tenant: str | None = None) -> TrainingFile:
    """Return the metadata of a file of `tenant`; None: of any tenant. Raises NotFoundError; SettingsError if the store
    cannot be used.
    """
    with _open_folder(store, f"{file_id} cannot be read") as (fs, root):
        file = _about(fs, root, file_id)
    if file is None or tenant not in (None, file.tenant):
        raise NotFoundError(f"there is no file {file_id[:80]!r}: it was never uploaded here, or was deleted")
    return file


def content(store: str, file_id: str, tenant: str | None = None) -> bytes:
    """Return the bytes of a file. Raises as `find`; SettingsError, too, if the store has other bytes."""
    about = find(store, file_id, tenant)
    with _open_folder(store, f"{file_id} cannot be read") as (fs, root):
        raw: bytes = fs.cat_file(f"{root}/{file_id}/{CONTENT}")
    if _id(raw, about.tenant) != file_id:
        raise SettingsError(f"{file_id}: the store has other bytes than were uploaded; delete it, and upload it again")
    return raw


def list_files(store: str, tenant: str | None = None) -> list[TrainingFile]:
    """Return every file of `tenant`, or of all, the oldest first. Raises SettingsError if the store cannot be used."""
    with _open_folder(store, "the files cannot be listed") as (fs, root):
        if not fs.exists(root):
            return []
        names = [str(path).rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False)]
        files = [file for name in names if (file := _about(fs, root, name)) is not None]
    visible = [file for file in files if tenant in (None, file.tenant)]
    return sorted(visible, key=lambda file: (file.created_at, file.file_id))


def delete(store: str, file_id: str, tenant: str | None = None) -> None:
    """Delete a file. Raises as `find`."""
    find(store, file_id, tenant)
    already_deleted = contextlib.suppress(FileNotFoundError)  # another one was quicker
    with _open_folder(store, f"{file_id} cannot be deleted") as (fs, root), already_deleted:
        fs.rm_file(f"{root}/{file_id}/{ABOUT}")  # without it, the rest is no file any more
        fs.rm(f"{root}/{file_id}", recursive=True)


@contextlib.contextmanager
def _open_folder(store: str, what: str) -> Iterator[tuple[Any, str]]:
    """Give the file system, and the folder of files in it. Raises SettingsError for whatever the store says."""
    fs, root = open_store(store)
    fs.invalidate_cache()
    try:
        yield fs, f"{root.rstrip('/')}/{FOLDER}"
    except OSError as exc:
        raise SettingsError(f"adapters.store={store}: {what}: {exc}; make room, or check who may write there") from exc


def _id(raw: bytes, tenant: str | None) -> str:
    """Return the id of a file; no line of JSON begins with a name and a zero byte."""
    return f"file-{hashlib.sha256(raw if tenant is None else tenant.encode() + bytes(1) + raw).hexdigest()}"


def _about(fs: Any, root: str, file_id: str) -> TrainingFile | None:
    """Return what the store says of a file; None if it is not there whole."""
    if FILE_ID.fullmatch(file_id) is None:
        return None
    try:
        content = json_text.parse(fs.cat_file(f"{root}/{file_id}/{ABOUT}"))
        tenant = content.get("tenant")
        return TrainingFile(
            **{name: kind(content[name]) for name, kind in _FIELDS.items()},
            tenant=None if tenant is None else str(tenant),
        )
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


_FIELDS = {"file_id": str, "filename": str, "size_bytes": int, "created_at": int, "purpose": str}


def _put_folder(root: Path, name: str, contents: dict[str, bytes]) -> None:
    """Write to a temporary folder, then rename it."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".uploading-*"):  # by an upload that was killed
        if left.stat().st_mtime < time.time() - ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=".uploading-", dir=root))
    try:
        for part, raw in contents.items():
            (half / part).write_bytes(raw)
        for path in (*half.iterdir(), half):
            sync(path)
        half.chmod(0o755)  # mkdtemp made it ours alone
        if not (root / name / ABOUT).exists():
            shutil.rmtree(root / name, ignore_errors=True)  # by a deletion that was killed
        rename_folder(half, root / name)
        sync(root)
    finally:
        shutil.rmtree(half, ignore_errors=True)
