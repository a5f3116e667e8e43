"""What a signature promises: who asks for one gets what the trainer signed, as the version it was signed as."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from schemas.events import AdapterFile
from streams.adapters import signing
from streams.adapters.signing import SIGNATURE, ExpectedSigner
from streams.adapters.store import fetch, manifest_of, publish
from streams.errors import EventError, SettingsError
from streams.settings.model import Adapters
from tests import skips

pytest.importorskip("model_signing", reason=skips.SIGNING)


def key_pair(folder: Path, name: str = "adapters", curve: ec.EllipticCurve | None = None) -> tuple[Path, Path]:
    """Return the files of a new private key, and of its public half."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, pkcs8, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_pair(tmp_path)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "README.md").write_text("peft writes this")
    return folder


def refused(uri: str, files: tuple[AdapterFile, ...], into: Path, wanted: ExpectedSigner) -> str:
    """Return why nothing is served."""
    with pytest.raises(EventError) as caught:
        fetch(uri.rsplit("/", 2)[0], uri, files, into, wanted)
    assert caught.value.reason == "bad_signature"
    assert list(into.iterdir()) == []
    return str(caught.value)


def test_a_signed_adapter_is_fetched_without_its_signature(store: str, keys: tuple[Path, Path], tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), store, "p", 3, keys[0])
    folder = fetch(store, uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 3))
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_other_curves_sign_as_well(curve: ec.EllipticCurve, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, curve=curve)
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, private)
    assert fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", ExpectedSigner(public, "p", 1)).is_dir()


def test_the_identity_of_an_adapter_does_not_depend_on_its_signature(
    store: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    # a signature of the same bytes is another one each time, and a version trained again must come out the same
    local = adapter(tmp_path / "local")
    _, signed = publish(local, store, "p", 1, keys[0])
    _, plain = publish(local, f"{store}-2", "p", 1)
    assert signed == plain == manifest_of(local)


def test_publishing_again_keeps_the_signature_that_is_there(
    store: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    local = adapter(tmp_path / "local")
    uri, files = publish(local, store, "p", 1, keys[0])
    with fsspec.open(f"{uri}/{SIGNATURE}") as file:
        before = file.read()
    assert publish(local, store, "p", 1, keys[0]) == (uri, files)
    with fsspec.open(f"{uri}/{SIGNATURE}") as file:
        assert file.read() == before


def test_a_version_that_was_published_before_there_was_a_key_is_signed_by_publishing_it_again(
    store: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    local = adapter(tmp_path / "local")
    uri, files = publish(local, store, "p", 1)
    wanted = ExpectedSigner(keys[1], "p", 1)
    assert "it has no signature (model.sig)" in refused(uri, files, tmp_path / "cache", wanted)
    publish(local, store, "p", 1, keys[0])
    assert fetch(store, uri, files, tmp_path / "cache", wanted).is_dir()


def test_who_asks_for_no_signature_serves_signed_and_unsigned_adapters(
    store: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    one = publish(adapter(tmp_path / "local"), store, "p", 1, keys[0])
    two = publish(adapter(tmp_path / "local", b"second"), store, "p", 2)
    assert fetch(store, *one, tmp_path / "cache").is_dir()
    assert fetch(store, *two, tmp_path / "cache").is_dir()


def test_the_signature_of_a_stranger_is_refused(keys: tuple[Path, Path], tmp_path: Path) -> None:
    stranger, _ = key_pair(tmp_path, "stranger")
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, stranger)
    why = refused(uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))
    assert "version 1 of p: its signature does not hold" in why
    assert str(keys[1]) in why


def test_other_bytes_under_an_old_signature_are_refused_although_log_and_store_agree(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    # who can write to both, the log and the store, still cannot sign
    uri, _ = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    published = tmp_path / "store" / "p" / "1"
    (published / "adapter_model.safetensors").write_bytes(b"others!")
    files = manifest_of(adapter(tmp_path / "other", b"others!"))
    (published / "manifest.json").write_bytes(signing.manifest_text("p", 1, files))
    assert "does not hold" in refused(uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))


@pytest.mark.parametrize("wanted", [("p", 2), ("q", 1)])
def test_a_signed_adapter_cannot_be_put_in_the_place_of_another(
    keys: tuple[Path, Path], tmp_path: Path, wanted: tuple[str, int]
) -> None:
    # an old version, signed long ago, under the number of a new one: its signature is good, and not for this
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    why = refused(uri, files, tmp_path / "cache", ExpectedSigner(keys[1], *wanted))
    assert "its signature is for version 1 of p" in why


def test_a_file_that_was_not_signed_is_refused(keys: tuple[Path, Path], tmp_path: Path) -> None:
    local = adapter(tmp_path / "local")
    uri, _ = publish(local, str(tmp_path / "store"), "p", 1, keys[0])
    for folder in (local, tmp_path / "store" / "p" / "1"):
        (folder / "more.json").write_text("{}")
    assert "does not hold" in refused(uri, manifest_of(local), tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))


DAMAGED: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"\xff\xfe"),
    "another JSON": lambda path: path.write_text("[]"),
    "no fields": lambda path: path.write_text("{}"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "bent": lambda path: path.write_bytes(path.read_bytes().replace(b'"sig":"ME', b'"sig":"MF')),
    "endless": lambda path: path.write_bytes(b" " * (signing.MAX_BYTES + 1)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_signature_is_refused(how: str, keys: tuple[Path, Path], tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    DAMAGED[how](tmp_path / "store" / "p" / "1" / SIGNATURE)
    refused(uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))


def test_what_was_fetched_unverified_is_not_taken_for_verified(keys: tuple[Path, Path], tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1)
    fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache")
    with pytest.raises(EventError, match="it has no signature"):
        fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))


def test_what_was_verified_for_one_key_is_not_taken_for_verified_for_another(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", ExpectedSigner(keys[1], "p", 1))
    _, other = key_pair(tmp_path, "other")
    for wanted in (ExpectedSigner(other, "p", 1), ExpectedSigner(keys[1], "p", 2), ExpectedSigner(keys[1], "q", 1)):
        with pytest.raises(EventError, match=r"version . of .: its signature"):
            fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", wanted)


def test_what_was_verified_is_served_without_the_store(keys: tuple[Path, Path], tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    wanted = ExpectedSigner(keys[1], "p", 1)
    folder = fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", wanted)
    shutil.rmtree(tmp_path / "store")
    assert fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", wanted) == folder


def test_no_signature_is_expected_without_a_key(keys: tuple[Path, Path]) -> None:
    assert signing.expected_signer(Adapters(), "p", 1) is None
    assert signing.expected_signer(Adapters(verify_key=keys[1]), "p", 1) == (keys[1], "p", 1)


@pytest.mark.parametrize("content", [None, b"", b"not a key"])
def test_a_key_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    key = tmp_path / "key.pem"
    if content is not None:
        key.write_bytes(content)
    for check, adapters in (
        (signing.check_signing_key, Adapters(signing_key=key)),
        (signing.check_verify_key, Adapters(verify_key=key)),
    ):
        with pytest.raises(SettingsError, match=r"adapters\.\w+_key=.*key\.pem: not a key that can be used"):
            check(adapters)


def test_keys_in_each_others_place_are_refused_at_the_start(keys: tuple[Path, Path]) -> None:
    private, public = keys
    with pytest.raises(SettingsError, match="give a PEM file with a private key"):
        signing.check_signing_key(Adapters(signing_key=public))
    with pytest.raises(SettingsError, match="give a PEM file with a public key"):
        signing.check_verify_key(Adapters(verify_key=private))


def test_without_keys_nothing_is_asked_for() -> None:
    signing.check_signing_key(Adapters())
    signing.check_verify_key(Adapters())


def test_the_command_of_the_package_verifies_what_lies_in_the_store(keys: tuple[Path, Path], tmp_path: Path) -> None:
    # anybody can check a signature without Streamward
    publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "p", 1, keys[0])
    published = tmp_path / "store" / "p" / "1"
    command = [
        sys.executable,
        "-m",
        "model_signing",
        "verify",
        "key",
        str(published),
        "--signature",
        str(published / SIGNATURE),
    ]
    done = subprocess.run([*command, "--public_key", str(keys[1])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
