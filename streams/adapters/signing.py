"""Sign adapters, and verify their signatures.

    files, manifest.json + adapters.signing_key ──► sign   ──► model.sig, next to the manifest in the store
    the same, fetched    + adapters.verify_key  ──► verify ──► nothing, or EventError (bad_signature)

The signature is that of sigstore's package `model-signing` with an elliptic-curve key: a bundle that names the sha256
of every file, checked offline. The manifest is among the files, and it names policy and version, so a signed adapter
cannot be put in another's place. The signature is not part of the adapter: two signatures of the same bytes differ,
while a version that is trained again has the same files.

Keys are PEM files on the curves P-256, P-384 and P-521, without a password. To make a pair:

    openssl ecparam -name prime256v1 -genkey -noout -out adapters.key
    openssl ec -in adapters.key -pubout -out adapters.pub

Only one key is used at a time; keyless signatures are not supported.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from schemas import json_text
from schemas.events import AdapterFile
from streams.errors import EventError, SettingsError
from streams.files import Scratch, sha256_of
from streams.settings.model import Adapters

if TYPE_CHECKING:
    from model_signing import signing, verifying

MANIFEST = "manifest.json"
SIGNATURE = "model.sig"
"""Name of the signature in the store: the one that the command `model_signing` expects."""
MAX_BYTES = 1 << 20
"""A larger signature or manifest is not read: an adapter has a few files, with a line for each."""


class ExpectedSigner(NamedTuple):
    """The key that must have signed a version."""

    key: Path
    """The public key."""
    policy: str
    version: int


def expected_signer(adapters: Adapters, policy: str, version: int) -> ExpectedSigner | None:
    """Return the signer that a version must have; None if none is required (adapters.verify_key)."""
    return None if adapters.verify_key is None else ExpectedSigner(adapters.verify_key, policy, version)


def check_signing_key(adapters: Adapters) -> None:
    """Raise SettingsError if adapters must be signed and cannot be."""
    if adapters.signing_key is not None:
        _signer(adapters.signing_key)


def check_verify_key(adapters: Adapters) -> None:
    """Raise SettingsError if signatures must be verified and cannot be."""
    if adapters.verify_key is not None:
        _verifier(adapters.verify_key)


def manifest_text(policy: str, version: int, files: Iterable[AdapterFile]) -> bytes:
    """Return the stored form of a version's manifest."""
    listed = [{"path": file.path, "sha256": file.sha256, "bytes": file.bytes} for file in files]
    return json.dumps({"policy": policy, "version": version, "files": listed}, indent=1).encode()


def sign(local: Path, names: Iterable[str], manifest: bytes, *, label: str, key: Path) -> bytes:
    """Return a signature of the files called `names` in `local`, and of `manifest`.

    `label` is their name in the signature; it is never compared. Raises SettingsError if the key cannot be used.
    """
    signer = _signer(key)
    with Scratch("signing") as scratch:
        folder, signature = scratch / label, scratch / SIGNATURE
        folder.mkdir()
        for name in names:
            shutil.copyfile(local / name, folder / name)
        (folder / MANIFEST).write_bytes(manifest)
        signer.sign(folder, signature)
        return signature.read_bytes()


def verify(
    folder: Path, files: Iterable[AdapterFile], manifest: bytes, signature: bytes, signer: ExpectedSigner
) -> None:
    """Return if `signature` is that of `signer` on `manifest` and on all that is in `folder`, which holds `files`.

    Raises EventError (bad_signature) if it is not, SettingsError if the key cannot be used.
    """
    verifier = _verifier(signer.key)
    path = folder / MANIFEST
    with Scratch("signing") as scratch:
        (scratch / SIGNATURE).write_bytes(signature)
        path.write_bytes(manifest)
        try:
            verifier.verify(folder, scratch / SIGNATURE)
        except Exception as exc:  # untrusted input is parsed first, which may raise anything
            raise untrusted(signer, f"its signature does not hold: {type(exc).__name__}: {exc}") from exc
        finally:
            path.unlink()
    signed = json_text.parse(manifest)
    if signed != json.loads(manifest_text(signer.policy, signer.version, files)):
        raise untrusted(signer, f"its signature is for version {signed.get('version')} of {signed.get('policy')}")


def untrusted(signer: ExpectedSigner, problem: str) -> EventError:
    """Return the error for an adapter without a trusted signature."""
    return EventError(
        f"version {signer.version} of {signer.policy}: {problem}; expected one made with the private half of "
        f"{signer.key} (adapters.verify_key); it is not served: publish it with adapters.signing_key, or find out "
        "which process wrote to the store",
        reason="bad_signature",
    )


def fingerprint(key: Path) -> str:
    """Return a digest of a public key. Raises SettingsError if it cannot be read."""
    with _usable("adapters.verify_key", key):
        return sha256_of(key)


def _signer(key: Path) -> signing.Config:
    with _usable("adapters.signing_key", key):
        from model_signing import signing

        return signing.Config().use_elliptic_key_signer(private_key=key)


def _verifier(key: Path) -> verifying.Config:
    with _usable("adapters.verify_key", key):
        from model_signing import verifying

        return verifying.Config().use_elliptic_key_verifier(public_key=key)


@contextlib.contextmanager
def _usable(setting: str, key: Path) -> Iterator[None]:
    """Translate errors about a key or a missing package to SettingsError."""
    try:
        yield
    except ImportError as exc:
        raise SettingsError(
            f"{setting}={key}: signatures need the package model-signing ({exc}); install it with "
            "`pip install 'streamward[signing]'`, or leave the setting out"
        ) from exc
    except Exception as exc:  # OSError, ValueError, TypeError, UnsupportedAlgorithm: the key's file may hold anything
        raise SettingsError(
            f"{setting}={key}: not a key that can be used: {type(exc).__name__}: {exc}; give a PEM file with a "
            f"{'private' if 'signing' in setting else 'public'} key on the curve P-256, P-384 or P-521, without a "
            "password (streams/adapters/signing.py says how to make a pair)"
        ) from exc
