"""Store adapters where every process can fetch them, atomically.

    trainer ──publish──► STORE/POLICY/VERSION/{adapter files, manifest.json} ──fetch──► a verified folder ──► engine
    tune    ──publish──► STORE/POLICY/VERSION-DIGEST/…                       ──remove─► nothing
                         with a key, model.sig next to them

The store is a folder, or any URL that fsspec knows. In a folder a version appears by one rename; in an object store its
manifest is written last, and a version without a manifest does not exist. The log has the files of a version and their
sha256; stored files are used only if they match. A version never changes. The log also has the address that the
store had then: in a store that was moved or copied since, the version is found by its last two parts, POLICY/VERSION.

Only safetensors and JSON are accepted, since reading them runs no code. Pickles are refused when publishing and when
fetching. With a verify key (streams/adapters/signing.py), nothing is fetched without its signature. The signature is
not part of the adapter, which is identified by the hashes of its files; an existing signature is never replaced.

All trainers of a policy make the same bytes of a version, so they share its folder. A tuning may want the number of a
version that a trainer is making, and the log decides between them; so its folder is also named by its bytes, and no two
candidates of a number meet. If two trainers do write different bytes for one version to an object store at the same
moment, the mixture fails its hashes when it is fetched.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from schemas.events import AdapterFile
from streams.adapters import signing
from streams.adapters.signing import MANIFEST, SIGNATURE
from streams.errors import EventError, RefusedError, SettingsError
from streams.files import sha256_of, sync
from streams.settings.model import FOLDER_NAME

NAME = re.compile(FOLDER_NAME)
"""Valid names of policies and files, which become parts of a path."""
SUFFIXES = (".safetensors", ".json")
LEFT_OUT = ("README.md", ".gitattributes")
"""Files that peft writes next to an adapter; not published."""
CHUNK_BYTES = 1 << 20
CANDIDATE = re.compile(r"[1-9]\d*-[0-9a-f]{12}")
"""Folder name of a version that is also named by its bytes."""
ABANDONED_S = 3600.0
"""After this long without a change, a half-written folder is abandoned."""


def publish(
    local: Path, store: str, policy: str, version: int, signing_key: Path | None = None, *, by_bytes: bool = False
) -> tuple[str, tuple[AdapterFile, ...]]:
    """Put the files of folder `local` into the store; return their URI and manifest. The same bytes again are a no-op.

    With `signing_key` they are signed; a version that was stored without a signature gets one. `by_bytes` names its
    folder by them, too, for a version that other processes may make at the same time.

    Raises RefusedError if this version is stored with other bytes, or if `local` holds other kinds of files;
    SettingsError if the store, or the key, cannot be used.
    """
    fs, target = _place(store, policy, version)
    files = manifest_of(local)
    manifest = signing.manifest_text(policy, version, files)
    if by_bytes:
        target = f"{target}-{hashlib.sha256(manifest).hexdigest()[:12]}"
    uri = str(fs.unstrip_protocol(target))

    def extra_files() -> dict[str, bytes]:
        """Return the stored files other than the adapter's, the manifest last."""
        extras: dict[str, bytes] = {}
        if signing_key is not None:
            names, label = [file.path for file in files], f"{policy}-{version}"
            extras[SIGNATURE] = signing.sign(local, names, manifest, label=label, key=signing_key)
        return extras | {MANIFEST: manifest}

    try:
        if not _is_there(fs, target, uri, manifest):
            if is_local(fs):
                _put_folder(local, Path(target), files, extra_files())
            else:
                _put_objects(fs, local, target, files, extra_files())
            if not _is_there(fs, target, uri, manifest):
                raise OSError(f"{target} exists without a {MANIFEST}, which no publisher of ours leaves behind")
        if signing_key is not None and not fs.exists(f"{target}/{SIGNATURE}"):
            add_file(fs, f"{target}/{SIGNATURE}", extra_files()[SIGNATURE])
    except OSError as exc:
        raise SettingsError(
            f"adapters.store={store}: version {version} of {policy} cannot be written: {exc}; make room, or set "
            "adapters.store to a place that can be written"
        ) from exc
    return uri, files


def fetch(
    store: str, uri: str, files: Iterable[AdapterFile], cache: Path, signed: signing.ExpectedSigner | None = None
) -> Path:
    """Return a folder below `cache` that holds exactly `files`, each with its sha256; copied if it does not exist yet.

    `uri` and `files` are those in the log, chosen by any process that can write events: nothing outside `store` is
    opened. `signed` names the signer that is required, if any. Raises EventError: bad_adapter if the uri leads
    elsewhere or to something else, bad_signature if no trusted signature is there, store_unreachable if the store does
    not answer (which may pass); SettingsError if a package for this kind of store, or for signatures, is not installed.
    """
    files = tuple(files)
    for file in files:
        if not _is_allowed(file.path):
            raise _bad(uri, f"the event names {file.path!r}", f"plain names that end in {' or '.join(SUFFIXES)}")
    if not files:
        raise _bad(uri, "the event names no files", "a manifest with at least one file")
    # the signer is part of the name: a folder that exists was verified when it was created
    vouched = None if signed is None else (signing.fingerprint(signed.key), signed.policy, signed.version)
    key = hashlib.sha256(json.dumps([sorted((f.path, f.sha256, f.bytes) for f in files), vouched]).encode()).hexdigest()
    folder = cache / key[:32]
    if folder.is_dir():
        if _agrees(folder, files):
            return folder
        shutil.rmtree(folder)  # damaged after it was verified
    fs, source = inside_store(store, uri)
    cache.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=".fetching-", dir=cache))
    try:
        _check_names(fs, source, uri, files)
        for file in files:
            _copy(fs, f"{source}/{file.path}", half / file.path, uri, file)
        if signed is not None:
            manifest, signature = (_small(fs, f"{source}/{name}", signed) for name in (MANIFEST, SIGNATURE))
            signing.verify(half, files, manifest, signature, signed)
        rename_folder(half, folder)
    except FileNotFoundError as exc:
        raise _bad(uri, f"{exc} is missing", "every file of its manifest") from exc
    except (NotADirectoryError, IsADirectoryError) as exc:
        raise _bad(uri, str(exc), "a folder of plain files") from exc
    except OSError as exc:
        raise _unreachable(uri, exc) from exc
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


def check_base(uri: str, trained_on: str | None, served: str) -> None:
    """Check by digests of weights that an adapter fits the served base model (engines/base_model.py).

    Names are not compared: one base model has many. An event without a digest is about an adapter trained elsewhere.

    Raises EventError (wrong_base).
    """
    if trained_on is not None and trained_on != served:
        raise EventError(
            f"adapter {uri}: it was trained on the base model {trained_on[:12]}, and this agent serves {served[:12]}; "
            "it is not served: set model.base and model.dtype to what the trainer has",
            reason="wrong_base",
        )


def uri_of(store: str, policy: str, version: int) -> str:
    """Return the URI of a version in this store, whether it exists or not.

    Raises RefusedError for an invalid name, SettingsError if the store cannot be opened.
    """
    fs, target = _place(store, policy, version)
    return str(fs.unstrip_protocol(target))


def is_of(store: str, policy: str, version: int, uri: str | None) -> bool:
    """Return whether a URI of the log leads to a valid folder of this version in the store."""
    plain = uri_of(store, policy, version)
    try:
        fs, path = inside_store(store, uri or "")
    except EventError:
        return False
    here = str(fs.unstrip_protocol(path))
    return here == plain or (here.startswith(f"{plain}-") and CANDIDATE.fullmatch(here.rpartition("/")[2]) is not None)


def _place(store: str, policy: str, version: int) -> tuple[Any, str]:
    if not NAME.fullmatch(policy) or version < 1:
        raise RefusedError(
            f"policy {policy!r} version {version}: cannot be kept in a store; a policy is named with letters, digits, "
            "'.', '_' and '-', first a letter or digit, and its adapters are numbered from 1"
        )
    fs, root = open_store(store)
    return fs, f"{root.rstrip('/')}/{policy}/{version}"


def size_of(store: str, uri: str) -> int:
    """Return the size of a version in the store, in bytes; 0 if it is missing."""
    try:
        fs, path = inside_store(store, uri)
    except EventError:
        return 0
    fs.invalidate_cache()
    return int(fs.du(path)) if fs.exists(path) else 0


def remove(store: str, uri: str) -> bool:
    """Delete a version from the store, its manifest first; return whether it existed.

    The caller decides whether it may be deleted. Raises EventError if it is not in this store, SettingsError if the
    store cannot be written.
    """
    fs, path = inside_store(store, uri)
    fs.invalidate_cache()
    try:
        if not fs.exists(path):
            return False
        if fs.exists(f"{path}/{MANIFEST}"):
            fs.rm_file(f"{path}/{MANIFEST}")  # without it, the other files are no longer a version
        fs.rm(path, recursive=True)
    except OSError as exc:
        raise SettingsError(f"adapter {uri}: cannot be deleted: {exc}; check who may write to the store") from exc
    return True


def abandoned_folders(store: str, policy: str, uris: Collection[str | None] = ()) -> list[Path]:
    """Return the folders that killed publishers left in a folder store: half-written ones, and those of tuned versions
    that are not among `uris`, which the log names.

    An object store has no half-written ones: the next publish of a version completes it.
    """
    fs, place = _place(store, policy, 1)
    folder = Path(place).parent
    if not is_local(fs) or not folder.is_dir():
        return []
    before = time.time() - ABANDONED_S
    named = {uri.rpartition("/")[2] for uri in uris if uri is not None}
    left = [path for path in folder.iterdir() if path.name not in named]
    left = [path for path in left if path.name.startswith(".") or CANDIDATE.fullmatch(path.name)]
    return sorted(path for path in left if path.is_dir() and path.stat().st_mtime < before)


def manifest_of(local: Path) -> tuple[AdapterFile, ...]:
    """Return name, sha256 and size of each file in folder `local`, by name.

    Raises RefusedError if it holds anything except safetensors and JSON (peft's other files are left out).
    """
    paths = sorted(path for path in local.iterdir() if path.name not in LEFT_OUT) if local.is_dir() else []
    for path in paths:
        if not path.is_file() or not _is_allowed(path.name):
            raise RefusedError(
                f"{path}: only plain files that end in {' or '.join(SUFFIXES)} are published, since reading them "
                "runs no code; save the adapter with safetensors and take everything else out of its folder"
            )
    if not any(path.suffix == ".safetensors" for path in paths):
        raise RefusedError(f"{local}: holds no .safetensors file, so it is no adapter; save the adapter there first")
    return tuple(AdapterFile(path=path.name, sha256=sha256_of(path), bytes=path.stat().st_size) for path in paths)


def _is_allowed(name: str) -> bool:
    return NAME.fullmatch(name) is not None and name.endswith(SUFFIXES) and name != MANIFEST


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system and the path in it. Raises SettingsError if no driver for the URL is installed."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as exc:
        raise SettingsError(f"adapters.store={url}: {exc}; install the driver, or use a folder") from exc
    return fs, str(path)


def inside_store(store: str, uri: str) -> tuple[Any, str]:
    """Return the file system of the store, and the path in it of the version that the log has at `uri`.

    Raises EventError: bad_adapter if it is outside, and no version is at POLICY/VERSION in the store;
    store_unreachable.
    """
    fs, root = open_store(store)
    base = str(fs.unstrip_protocol(root)).rstrip("/") + "/"
    is_below = uri.startswith(base)
    parts = uri.removeprefix(base).split("/") if is_below else uri.split("/")[-2:]
    path, are_names = "/".join((root.rstrip("/"), *parts)), all(NAME.fullmatch(part) for part in parts)
    try:
        is_here = are_names and (is_below or fs.exists(f"{path}/{MANIFEST}"))
    except OSError as exc:
        raise _unreachable(uri, exc) from exc
    if not is_here:
        raise EventError(
            f"adapter {uri[:200]}: it is not in this agent's store; expected a folder below {base}, or a copy of it "
            "there; it is not served: set adapters.store to the store that the trainer publishes to, or find out who "
            "wrote this event",
            reason="bad_adapter",
        )
    return fs, path


def is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


# --- writing ---------------------------------------------------------------------------------------------------------


def _is_there(fs: Any, target: str, uri: str, manifest: bytes) -> bool:
    """Whether this version is in the store. Raises RefusedError if it has other bytes there."""
    fs.invalidate_cache()
    try:
        stored = fs.cat_file(f"{target}/{MANIFEST}")
    except FileNotFoundError:
        return False
    if stored != manifest:
        raise RefusedError(
            f"{uri}: this version is there with other bytes, and a version never changes; publish under the next "
            "version, or find out which of two trainers of this policy is one too many"
        )
    return True


def _put_folder(local: Path, target: Path, files: Iterable[AdapterFile], extras: Mapping[str, bytes]) -> None:
    """Write next to the target, then rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for file in files:
            shutil.copyfile(local / file.path, half / file.path)
        for name, content in extras.items():
            (half / name).write_bytes(content)
        for path in (*half.iterdir(), half):
            sync(path)
        half.chmod(0o755)  # mkdtemp made it private
        rename_folder(half, target)
        sync(target.parent)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _put_objects(fs: Any, local: Path, target: str, files: Iterable[AdapterFile], extras: Mapping[str, bytes]) -> None:
    """Write the manifest last."""
    fs.makedirs(target, exist_ok=True)
    for file in files:
        fs.put_file(str(local / file.path), f"{target}/{file.path}")
    for name, content in extras.items():
        fs.pipe_file(f"{target}/{name}", content)


def add_file(fs: Any, path: str, content: bytes) -> None:
    """Write a file atomically into an existing folder of the store."""
    if not is_local(fs):
        fs.pipe_file(path, content)
        return
    target = Path(path)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parents[1]) as scratch:
        half = Path(scratch) / target.name
        half.write_bytes(content)
        sync(half)
        half.replace(target)
    sync(target.parent)


def rename_folder(half: Path, whole: Path) -> None:
    """Rename a folder into place, unless another process just did."""
    try:
        half.rename(whole)
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


# --- reading ---------------------------------------------------------------------------------------------------------


def _check_names(fs: Any, source: str, uri: str, files: Iterable[AdapterFile]) -> None:
    """Refuse a folder that holds more or less than `files` and the manifest; a signature may be there."""
    fs.invalidate_cache()
    names = {str(path).rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(source, detail=False)}
    expected = {file.path for file in files} | {MANIFEST}
    if MANIFEST not in names:
        raise _bad(uri, f"it has no {MANIFEST}, so it was never written whole", "a published version")
    if names - {SIGNATURE} != expected:
        odd = ", ".join(sorted(names - expected - {SIGNATURE})) or "nothing else"
        raise _bad(
            uri, f"it lacks {', '.join(sorted(expected - names)) or 'nothing'} and has {odd}", "its manifest's files"
        )


def _copy(fs: Any, source: str, target: Path, uri: str, file: AdapterFile) -> None:
    digest, size = hashlib.sha256(), 0
    if not _is_plain(fs, source):
        raise _bad(uri, f"{file.path} is no plain file", "plain files")
    with fs.open(source, "rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            size += len(chunk)
            if size > file.bytes:
                raise _bad(uri, f"{file.path} has more than {file.bytes} bytes", f"{file.bytes} bytes, as the log says")
            digest.update(chunk)
            writer.write(chunk)
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        problem = f"{file.path} has {size} bytes with sha256 {digest.hexdigest()}"
        raise _bad(uri, problem, f"{file.bytes} bytes with {file.sha256}, as the log says")


def _is_plain(fs: Any, path: str) -> bool:
    """Whether opening it returns at once; opening a pipe waits for its writer."""
    return bool(fs.info(path)["type"] == "file")


def _small(fs: Any, path: str, signed: signing.ExpectedSigner) -> bytes:
    """Return the content of a file. Raises EventError (bad_signature) if it is missing, too large or not a plain
    file."""
    name = path.rsplit("/", 1)[-1]
    try:
        if not _is_plain(fs, path):
            raise signing.untrusted(signed, f"its {name} is no plain file")
        with fs.open(path, "rb") as reader:
            content: bytes = reader.read(signing.MAX_BYTES + 1)
    except FileNotFoundError:
        raise signing.untrusted(signed, f"it has no signature ({name})") from None
    if len(content) > signing.MAX_BYTES:
        raise signing.untrusted(signed, f"its {name} has more than {signing.MAX_BYTES} bytes")
    return content


def _agrees(folder: Path, files: Iterable[AdapterFile]) -> bool:
    digests = {path.name: sha256_of(path) for path in folder.iterdir()}
    return digests == {file.path: file.sha256 for file in files}


def _unreachable(uri: str, exc: OSError) -> EventError:
    return EventError(
        f"adapter {uri}: the store does not answer: {exc}; try again, or check the network and the store's access",
        reason="store_unreachable",
    )


def _bad(uri: str, problem: str, expected: str) -> EventError:
    return EventError(
        f"adapter {uri}: {problem}; expected {expected}; it is not served: restore the store, or train the version "
        "again",
        reason="bad_adapter",
    )
