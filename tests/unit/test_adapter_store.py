"""What the adapter store promises: a version is whole or not there, never changes, and is believed if it agrees."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from schemas.events import AdapterFile
from streams.adapters import store as adapter_store, stored_tensors
from streams.adapters.signing import ExpectedSigner
from streams.adapters.store import check_base, fetch, is_of, publish, remove, size_of, uri_of
from streams.errors import EventError, RefusedError, SettingsError


def adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "README.md").write_text("peft writes this")
    return folder


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def test_what_was_published_is_fetched_as_it_was(store: str, tmp_path: Path) -> None:
    local = adapter(tmp_path / "local")
    uri, files = publish(local, store, "default", 3)
    assert uri.startswith(("file:///", "memory://"))
    assert [file.path for file in files] == ["adapter_config.json", "adapter_model.safetensors"]
    folder = fetch(store, uri, files, tmp_path / "cache")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "adapter_config.json": b'{"r": 8}',
        "adapter_model.safetensors": b"weights",
    }
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_the_same_bytes_again_change_nothing(store: str, tmp_path: Path) -> None:
    local = adapter(tmp_path / "local")
    assert publish(local, store, "default", 1) == publish(local, store, "default", 1)


def test_other_bytes_under_the_same_version_are_refused_and_the_first_stay(store: str, tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), store, "default", 1)
    with pytest.raises(RefusedError, match="a version never changes"):
        publish(adapter(tmp_path / "other", b"other"), store, "default", 1)
    assert (fetch(store, uri, files, tmp_path / "cache") / "adapter_model.safetensors").read_bytes() == b"weights"


def test_a_relative_store_gives_a_uri_that_holds_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = adapter(tmp_path / "local")
    monkeypatch.chdir(tmp_path)
    uri, files = publish(local, "adapters", "default", 1)
    monkeypatch.chdir("/")
    assert fetch(str(tmp_path / "adapters"), uri, files, tmp_path / "cache").is_dir()


def test_a_publish_that_ends_halfway_leaves_no_version_and_can_be_repeated(tmp_path: Path) -> None:
    # A process killed in the middle of an object store's upload has written files and no manifest.
    store = f"memory://{uuid.uuid4().hex}"
    local = adapter(tmp_path / "local")
    with fsspec.open(f"{store}/default/1/adapter_model.safetensors", "wb") as half:
        half.write(b"wei")
    with pytest.raises(EventError, match="never written whole"):
        fetch(store, uri_of(store, "default", 1), adapter_store.manifest_of(local), tmp_path / "cache")
    uri, files = publish(local, store, "default", 1)
    assert fetch(store, uri, files, tmp_path / "cache").is_dir()


def test_a_folder_store_that_fills_up_shows_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    local = adapter(tmp_path / "local")
    monkeypatch.setattr("shutil.copyfile", no_space)
    with pytest.raises(SettingsError, match=r"cannot be written: .*No space left.*make room"):
        publish(local, str(tmp_path / "store"), "default", 1)
    assert list((tmp_path / "store" / "default").iterdir()) == []


@pytest.mark.parametrize("name", ["adapter_model.bin", "weights.pt", "state.pkl", "code.py", "folder"])
def test_what_is_neither_safetensors_nor_json_is_not_published(tmp_path: Path, name: str) -> None:
    local = adapter(tmp_path / "local")
    if name == "folder":
        (local / name).mkdir()
    else:
        (local / name).write_bytes(b"\x80\x04.")
    with pytest.raises(RefusedError, match=name):
        publish(local, str(tmp_path / "store"), "default", 1)
    assert not (tmp_path / "store").exists()


def test_a_folder_without_an_adapter_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"holds no \.safetensors file"):
        publish(tmp_path / "nothing", str(tmp_path / "store"), "default", 1)


@pytest.mark.parametrize("policy", ["../evil", "a/b", "..", ".hidden", "", "a\\b", "a\n"])
def test_a_policy_name_cannot_leave_the_store(tmp_path: Path, policy: str) -> None:
    with pytest.raises(RefusedError, match="a policy is named with letters"):
        publish(adapter(tmp_path / "local"), str(tmp_path / "store"), policy, 1)


def pickle_beside(folder: Path) -> None:
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")


TAMPERED: dict[str, Callable[[Path], object]] = {
    "sha256": lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"wEights"),
    "more than 7 bytes": lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"weights and more"),
    "has 3 bytes": lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"wei"),
    "lacks adapter_config.json": lambda folder: (folder / "adapter_config.json").unlink(),
    "has adapter_model.bin": pickle_beside,
    "has no manifest.json": lambda folder: (folder / "manifest.json").unlink(),
    "is missing": shutil.rmtree,
}


@pytest.mark.parametrize("message", TAMPERED)
def test_a_store_that_does_not_agree_with_the_log_is_not_served(tmp_path: Path, message: str) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "default", 1)
    TAMPERED[message](tmp_path / "store" / "default" / "1")
    with pytest.raises(EventError, match=message) as caught:
        fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache")
    assert caught.value.reason == "bad_adapter"
    assert uri in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../../etc/passwd.json", "adapter_model.bin", "/etc/x.json", "a/b.json", "manifest.json"]
)
def test_a_manifest_in_the_log_cannot_name_what_is_no_adapter_file(tmp_path: Path, path: str) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "default", 1)
    with pytest.raises(EventError, match="the event names") as caught:
        fetch(
            str(tmp_path / "store"), uri, (*files, AdapterFile(path=path, sha256="0" * 64, bytes=1)), tmp_path / "cache"
        )
    assert caught.value.reason == "bad_adapter"


ELSEWHERE = {
    "a scheme nobody knows": "nosuch://bucket/default/1",
    "a driver that is not installed": "s3://bucket/default/1",
    "another folder": "file:///etc/default/1",
    "a chain of schemes": "zip://default::file:///{store}/default/1",
    "a way out of the store": "file://{store}/../store/default/1",
    "a NUL": "file://{store}/default/1\x00",
    "a long name": "file://{store}/default/" + "1" * 300,
    "the store itself": "file://{store}/",
    "nothing": "",
}


@pytest.mark.parametrize("uri", ELSEWHERE.values(), ids=ELSEWHERE)
def test_only_what_is_in_the_store_is_opened_wherever_an_event_points(tmp_path: Path, uri: str) -> None:
    store = tmp_path / "store"
    _, files = publish(adapter(tmp_path / "local"), str(store), "default", 1)
    with pytest.raises(EventError, match="is not in this agent's store") as caught:
        fetch(
            str(store), uri.replace("{store}", str(store)).replace("default/1", "default/2"), files, tmp_path / "cache"
        )
    assert caught.value.reason == "bad_adapter"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "manifest.json"])
def test_a_pipe_in_the_store_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "default", 1)
    pipe = tmp_path / "store" / "default" / "1" / name
    pipe.unlink()
    os.mkfifo(pipe)
    signed = ExpectedSigner(tmp_path / "key.pub", "default", 1)
    (tmp_path / "key.pub").write_text("never read")
    with pytest.raises(EventError, match=f"{name} is no plain file"):
        fetch(str(tmp_path / "store"), uri, files, tmp_path / "cache", signed)


@pytest.mark.parametrize("path", ["file.json/1", "default/1/adapter_model.safetensors"])
def test_a_uri_of_something_else_in_the_store_is_the_adapters_fault(tmp_path: Path, path: str) -> None:
    # An unreachable store ends the agent, so that another process tries: nobody's event may do that.
    uri, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "default", 1)
    (tmp_path / "store" / "file.json").write_text("{}")
    with pytest.raises(EventError) as caught:
        fetch(str(tmp_path / "store"), uri.removesuffix("default/1") + path, files, tmp_path / "cache")
    assert caught.value.reason == "bad_adapter"


def test_a_version_that_was_fetched_is_served_without_the_store_and_repaired_with_it(
    store: str, tmp_path: Path
) -> None:
    uri, files = publish(adapter(tmp_path / "local"), store, "default", 1)
    folder = fetch(store, uri, files, tmp_path / "cache")
    assert fetch(store, f"{store}/gone/1", files, tmp_path / "cache") == folder
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    assert (fetch(store, uri, files, tmp_path / "cache") / "adapter_model.safetensors").read_bytes() == b"weights"


def test_versions_with_other_bytes_do_not_share_a_folder(store: str, tmp_path: Path) -> None:
    one = fetch(store, *publish(adapter(tmp_path / "one"), store, "default", 1), tmp_path / "cache")
    two = fetch(store, *publish(adapter(tmp_path / "two", b"second"), store, "default", 2), tmp_path / "cache")
    assert one != two
    assert (one / "adapter_model.safetensors").read_bytes() == b"weights"


def test_a_manifest_with_another_hash_than_the_store_is_not_served(store: str, tmp_path: Path) -> None:
    uri, files = publish(adapter(tmp_path / "local"), store, "default", 1)
    with pytest.raises(EventError, match="as the log says"):
        fetch(store, uri, [replace(file, sha256="0" * 64) for file in files], tmp_path / "cache")


def test_a_url_nobody_can_open_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="install the driver, or use a folder"):
        publish(adapter(tmp_path / "local"), "nosuch://bucket/path", "default", 1)


def test_the_manifest_in_the_store_says_what_the_log_says(tmp_path: Path) -> None:
    _, files = publish(adapter(tmp_path / "local"), str(tmp_path / "store"), "default", 1)
    manifest = json.loads((tmp_path / "store" / "default" / "1" / "manifest.json").read_text())
    assert tuple(AdapterFile(**file) for file in manifest["files"]) == files


def test_an_adapter_of_another_base_model_is_refused() -> None:
    with pytest.raises(
        EventError, match=r"trained on the base model aaaaaaaaaaaa, and this agent serves bbbbbbbbbbbb"
    ) as caught:
        check_base("file:///store/p/1", "a" * 64, "b" * 64)
    assert caught.value.reason == "wrong_base"


@pytest.mark.parametrize("trained_on", ["a" * 64, None])
def test_an_adapter_of_this_base_model_or_of_nobody_knows_which_is_not(trained_on: str | None) -> None:
    check_base("file:///store/p/1", trained_on, "a" * 64)


def test_a_store_that_was_moved_or_copied_has_its_versions_whatever_address_the_log_has(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    uri, files = publish(adapter(tmp_path / "local"), str(before), "default", 1)
    by_bytes, _ = publish(adapter(tmp_path / "local"), str(before), "default", 2, by_bytes=True)
    shutil.copytree(before, after)
    other = publish(adapter(tmp_path / "other", b"other"), str(after), "default", 3)[0]
    before.rename(tmp_path / "gone")
    for address in (uri, by_bytes, "s3://bucket/some/store/default/1"):
        folder = fetch(str(after), address, files, tmp_path / "cache")
        assert (folder / "adapter_model.safetensors").read_bytes() == b"weights"
        assert size_of(str(after), address) > 0
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(EventError, match=r"expected .* as the log says"):  # the digest is the proof
        fetch(str(after), other, files, tmp_path / "cache")
    with pytest.raises(EventError, match="is not in this agent's store"):
        fetch(str(after), "file:///before/default/4", files, tmp_path / "cache")
    assert is_of(str(after), "default", 1, uri) and is_of(str(after), "default", 2, by_bytes)
    assert not is_of(str(after), "default", 2, uri) and not is_of(str(after), "default", 4, "file:///x/default/4")
    assert remove(str(after), uri) and size_of(str(after), uri) == 0


def test_tensors_of_calls_are_found_in_a_store_that_was_moved_by_their_own_address_alone(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    uri, sha256 = stored_tensors.put(str(before), b"tensors")
    before.rename(after)
    assert stored_tensors.get(str(after), uri, sha256) == b"tensors"
    with pytest.raises(EventError, match="is no file of calls"):
        stored_tensors.get(str(after), uri.replace(sha256, "0" * 64), sha256)


@pytest.mark.parametrize("address", ["memory://store/default/1", "file:///before/default/1"])
def test_a_store_that_does_not_answer_is_unreachable_wherever_the_log_had_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str
) -> None:
    _, files = publish(adapter(tmp_path / "local"), "memory://store", "default", 1)

    def no_answer(*_: object, **__: object) -> None:
        raise OSError("no answer")

    for name in ("exists", "ls", "_open"):
        monkeypatch.setattr(MemoryFileSystem, name, no_answer)
    with pytest.raises(EventError, match="does not answer: no answer") as caught:
        fetch("memory://store", address, files, tmp_path / "cache")
    assert caught.value.reason == "store_unreachable"


def test_what_is_removed_is_gone_and_nothing_else(store: str, tmp_path: Path) -> None:
    one, files = publish(adapter(tmp_path / "local"), store, "default", 1)
    two, _ = publish(adapter(tmp_path / "local", b"second"), store, "default", 2)
    assert size_of(store, one) > len(b"weights")
    assert remove(store, one)
    assert size_of(store, one) == 0
    with pytest.raises(EventError, match="missing"):
        fetch(store, one, files, tmp_path / "cache")
    assert size_of(store, two) > 0
    assert not remove(store, one)
    assert publish(adapter(tmp_path / "local"), store, "default", 1) == (one, files)
