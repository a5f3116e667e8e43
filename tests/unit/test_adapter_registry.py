"""adapter_registry.json: what it says of the versions of a policy, and that no reader sees half of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from schemas.events import AdapterFile
from streams.cli import adapter_registry
from streams.errors import SettingsError
from tests.support.factories import adapter_event, evaluated, promoted, state_after, trained

FILE = AdapterFile(path="adapter_model.safetensors", sha256="a" * 64, bytes=7)


def test_the_file_names_every_version_who_serves_and_where_each_is(tmp_path: Path) -> None:
    state = state_after(
        [
            trained(1, policy="p", uri="store/p/1", files=(FILE,), base_digest="b" * 64, metrics={"loss": 0.5}),
            trained(2, policy="p"),
            evaluated(1, 0.75, policy="p"),
            promoted(1, policy="p", expected_version=0),
            adapter_event("canary_started", 2, policy="p", expected_version=1, share=0.1),
        ]
    )
    content = adapter_registry.registry(state, "smollm2")
    assert {name: content[name] for name in ("policy", "base_model", "active", "candidate")} == {
        "policy": "p",
        "base_model": "smollm2",
        "active": "p@1",
        "candidate": "p@2",
    }
    first, second = content["adapters"]["p@1"], content["adapters"]["p@2"]
    assert (first["status"], first["path"], first["parent"], first["share"]) == ("primary", "store/p/1", None, None)
    assert first["files"] == [{"path": FILE.path, "bytes": 7, "sha256": "a" * 64}]
    assert first["metrics"] == {"loss": 0.5} and [one["exact"] for one in first["evaluations"].values()] == [0.75]
    assert (second["status"], second["parent"], second["share"]) == ("canary", "p@1", 0.1)
    path = tmp_path / "adapter_registry.json"
    adapter_registry.write(path, content)
    assert json.loads(path.read_text()) == content


def test_the_base_model_alone_is_no_adapter() -> None:
    content = adapter_registry.registry(state_after([]), "smollm2")
    assert (content["active"], content["adapters"], content["updated_at"]) == (None, {}, None)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "adapter_registry.json"
    adapter_registry.write(path, {"old": True})
    with monkeypatch.context() as full:

        def no_room(_: int) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(os, "fsync", no_room)
        with pytest.raises(SettingsError, match="No space left"):
            adapter_registry.write(path, {"new": True})
    assert [(one.name, json.loads(one.read_text())) for one in tmp_path.iterdir()] == [(path.name, {"old": True})]
    with pytest.raises(SettingsError, match="--registry"):
        adapter_registry.write(tmp_path / "none" / "a.json", {})
