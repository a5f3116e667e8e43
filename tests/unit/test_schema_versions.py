"""The schema files: nothing that has an id is ever edited, and every version reads every other."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from schemas import generate, versions
from schemas.events import EVENTS, Response, Reward
from schemas.versions import (
    FIRST_ID,
    FIRST_PLUGIN_ID,
    IDS_OF_A_PLUGIN,
    SchemaError,
    SchemaVersions,
    check,
    first_id_of,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The newest shipped schema of each event as its version 1."""
    lock = []
    for number, event in enumerate(EVENTS, start=FIRST_ID):
        text = versions.files().newest(event).text
        path = tmp_path / "avro" / event.__name__ / "1.avsc"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        digest = sha256(text.encode()).hexdigest()
        lock.append({"id": number, "event": event.__name__, "version": 1, "sha256": digest})
    (tmp_path / "lock.json").write_text(json.dumps(lock))
    return tmp_path


def lock_of(folder: Path) -> list[dict[str, Any]]:
    lock: list[dict[str, Any]] = json.loads((folder / "lock.json").read_text())
    return lock


NEWEST_ID = FIRST_ID + sum(1 for _ in (versions.FOLDER / "avro").rglob("*.avsc")) - 1
"""Of those shipped: ids count the versions of all events."""
NEXT_ID = FIRST_ID + len(EVENTS)
"""The first that is free in `folder`."""


def append(folder: Path, event: str, definition: dict[str, Any]) -> SchemaVersions:
    """Give `event` its next version, as `schemas.generate` would, and return all versions."""
    lock = lock_of(folder)
    version = 1 + sum(entry["event"] == event for entry in lock)
    text = json.dumps(definition)
    (folder / "avro" / event / f"{version}.avsc").write_text(text)
    digest = sha256(text.encode()).hexdigest()
    lock.append({"id": FIRST_ID + len(lock), "event": event, "version": version, "sha256": digest})
    (folder / "lock.json").write_text(json.dumps(lock))
    return SchemaVersions(folder)


def reward_schema() -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(versions.files().newest(Reward).text)
    return definition


def field(definition: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (field for field in definition["fields"] if field["name"] == name)
    return dict(found)


# --- the lock --------------------------------------------------------------------------------------------------------


def test_the_shipped_files_are_what_their_lock_says() -> None:
    assert [schema.id for schema in versions.files().schemas.values()] == list(range(FIRST_ID, NEWEST_ID + 1))
    assert all(versions.files().newest(event).event == event.__name__ for event in EVENTS)


def test_an_edited_schema_is_refused(folder: Path) -> None:
    path = folder / "avro" / "Reward" / "1.avsc"
    path.write_text(path.read_text().replace("double", "float"))
    with pytest.raises(SchemaError, match=r"Reward/1\.avsc has sha256 \w+, but lock\.json says .*never\s+edited"):
        SchemaVersions(folder)


def test_a_schema_file_that_is_gone_is_missed(folder: Path) -> None:
    (folder / "avro" / "Reward" / "1.avsc").unlink()
    with pytest.raises(SchemaError, match=r"Reward/1\.avsc is missing; it has id 1003\. Restore it"):
        SchemaVersions(folder)


def test_a_lock_that_is_gone_is_missed(folder: Path) -> None:
    (folder / "lock.json").unlink()
    with pytest.raises(SchemaError, match=r"lock\.json is missing; restore it"):
        SchemaVersions(folder)


def test_a_hole_in_the_ids_is_refused(folder: Path) -> None:
    lock = lock_of(folder)
    del lock[2]
    (folder / "lock.json").write_text(json.dumps(lock))
    with pytest.raises(SchemaError, match="has id 1004 in place of 1003; ids count up and are never reused"):
        SchemaVersions(folder)


def test_a_version_given_twice_is_refused(folder: Path) -> None:
    lock = lock_of(folder)
    lock.append({**lock[2], "id": FIRST_ID + len(lock)})
    (folder / "lock.json").write_text(json.dumps(lock))
    with pytest.raises(SchemaError, match="for version 1 of Reward after version 1"):
        SchemaVersions(folder)


@pytest.mark.parametrize("package", ["acme", "beta", "plugins", "zeta"])
def test_the_ids_of_a_plugin_are_in_a_range_of_its_own_that_the_framing_has_room_for(package: str) -> None:
    first = first_id_of(type("Event", (), {"__module__": f"{package}.events"}))
    assert FIRST_PLUGIN_ID <= first < 2**31 - IDS_OF_A_PLUGIN and first % IDS_OF_A_PLUGIN == 0
    assert first_id_of(Reward) == FIRST_ID < FIRST_PLUGIN_ID


def test_an_unknown_id_is_none() -> None:
    assert versions.files().by_id(0) is None
    assert versions.files().by_id(NEWEST_ID + 1) is None


# --- compatibility ---------------------------------------------------------------------------------------------------


def test_every_shipped_version_reads_every_other() -> None:
    assert list(check(versions.files())) == []


def test_a_new_field_with_a_default_is_compatible_both_ways(folder: Path) -> None:
    definition = reward_schema()
    definition["fields"].append({"name": "colour", "type": ["null", "string"], "default": None})
    assert list(check(append(folder, "Reward", definition))) == []


def test_a_new_field_without_default_cannot_read_the_past(folder: Path) -> None:
    definition = reward_schema()
    definition["fields"].append({"name": "colour", "type": "string"})
    (problem,) = check(append(folder, "Reward", definition))
    assert problem.startswith("Reward: version 2 cannot read version 1: ")
    assert "Give new fields a default" in problem


def test_a_field_taken_away_cannot_be_read_by_the_past(folder: Path) -> None:
    definition = reward_schema()
    definition["fields"].remove(field(definition, "scorer_version"))
    (problem,) = check(append(folder, "Reward", definition))
    assert problem.startswith("Reward: version 1 cannot read version 2: ")


def test_bytes_of_another_layout_fail_both_ways_though_avro_takes_them(folder: Path) -> None:
    definition = json.loads(versions.files().newest(Response).text)
    field(definition, "prompt_token_ids")["type"]["layout"] = "little-endian int64, 8 bytes a token"
    problems = check(append(folder, "Response", definition))
    assert {problem.partition(". ")[0] for problem in problems} == {
        f"Response: version {one} cannot read version {other}: the layout of bytes differs at /prompt_token_ids"
        for one, other in ((1, 2), (2, 1))
    }


def test_a_renamed_field_fails_both_ways(folder: Path) -> None:
    definition = reward_schema()
    for entry in definition["fields"]:
        if entry["name"] == "scorer_version":
            entry["name"] = "version"
    assert len(list(check(append(folder, "Reward", definition)))) == 2


@pytest.mark.parametrize(
    ("new_type", "broken"),
    [
        ("string", {(1, 2), (2, 1)}),
        ("long", {(1, 2)}),  # int widens to long: version 2 reads version 1, and not the other way round
        (["null", "int"], {(1, 2)}),
    ],
)
def test_a_retyped_field_is_seen_in_the_direction_that_breaks(
    folder: Path, new_type: Any, broken: set[tuple[int, int]]
) -> None:
    definition = reward_schema()
    for entry in definition["fields"]:
        if entry["name"] == "slot":
            entry["type"] = new_type
    problems = list(check(append(folder, "Reward", definition)))
    found = {(r, w) for r in (1, 2) for w in (1, 2) if any(f"{r} cannot read version {w}:" in p for p in problems)}
    assert found == broken


def test_a_break_between_versions_that_are_not_neighbours_is_seen(folder: Path) -> None:
    # 2 drops a field with a default, which is fine; 3 brings it back retyped, which only 1 notices
    first, second, third = reward_schema(), reward_schema(), reward_schema()
    second["fields"].remove(field(first, "rationale"))
    third["fields"].remove(field(first, "rationale"))
    third["fields"].append({"name": "rationale", "type": "int", "default": 0})
    append(folder, "Reward", second)
    pairs = {problem.split(":")[1].strip() for problem in check(append(folder, "Reward", third))}
    assert pairs == {"version 1 cannot read version 3", "version 3 cannot read version 1"}


# --- what is generated -----------------------------------------------------------------------------------------------


def test_the_generated_files_agree_with_the_dataclasses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["schemas.generate", "--check"])
    assert (generate.main(), capsys.readouterr().out) == (0, "")


def test_a_drift_is_named_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append(folder, "Reward", {**reward_schema(), "doc": "Something else."})
    before = sorted(path.read_text() for path in folder.rglob("*.*"))
    monkeypatch.setattr(sys, "argv", ["schemas.generate", "--check"])
    monkeypatch.setattr(versions, "FOLDER", folder)
    assert generate.main() == 1
    assert capsys.readouterr().out == f"avro/Reward/3.avsc: new, id {NEXT_ID + 1}\nREADME.md: changed\n"
    assert sorted(path.read_text() for path in folder.rglob("*.*")) == before


def test_a_changed_dataclass_becomes_the_next_version_with_the_next_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder, "Reward", {**reward_schema(), "doc": "Something else."})
    monkeypatch.setattr(sys, "argv", ["schemas.generate"])
    monkeypatch.setattr(versions, "FOLDER", folder)
    assert generate.main() == 0
    newest = SchemaVersions(folder).newest(Reward)
    assert (newest.id, newest.version, newest.text) == (NEXT_ID + 1, 3, versions.files().newest(Reward).text)


def types_in(node: Any) -> set[str]:
    """Every Avro type and logical type named in a schema."""
    if isinstance(node, list):
        return set().union(*map(types_in, node))
    if isinstance(node, dict):
        inner = [node[key] for key in ("type", "items", "values") if key in node]
        inner += [field["type"] for field in node.get("fields", ())]
        return {node.get("logicalType", "record"), *types_in(inner)}
    return {node}


def test_no_schema_uses_a_type_that_bulk_decoders_cannot_be_trusted_with() -> None:
    allowed = {"null", "string", "bytes", "int", "long", "float", "double", "boolean", "record", "array", "map"}
    for schema in versions.files().schemas.values():
        named = {name for name in types_in(schema.definition) if not name.startswith("streamward.")}
        assert named <= allowed | {"timestamp-millis"}, schema.event


def test_every_event_begins_with_its_id_and_ends_with_what_is_per_token_and_its_arrays() -> None:
    for schema in versions.files().schemas.values():
        fields = [entry for entry in schema.definition["fields"] if entry["name"] != "sealed"]
        names = [entry["name"] for entry in fields]
        assert names[0].endswith("_id"), schema.event
        assert "created_at" in names[:4], schema.event
        kinds = [entry["type"]["type"] if isinstance(entry["type"], dict) else "" for entry in fields]
        large = [("bytes", "array").index(kind) if kind in ("bytes", "array") else -1 for kind in kinds]
        assert large == sorted(large), schema.event


def test_an_optional_field_is_nullable_with_default_null() -> None:
    for schema in versions.files().schemas.values():
        for entry in schema.definition["fields"]:
            if isinstance(entry["type"], list):
                assert (entry["type"][0], entry.get("default", "")) == ("null", None), (schema.event, entry["name"])
