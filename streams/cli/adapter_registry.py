"""adapter_registry.json: the versions of a policy for programs that read a file and no log.

AdapterState ──► {policy, active, candidate, base_model, adapters: {"POLICY@N": …}} ──► a file, replaced whole

It says what the log said when it was written, and nothing reads it back: the log decides who serves.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from streams.adapters.versions import AdapterState, Version, manifest_digest
from streams.errors import SettingsError
from streams.output import moment

REGISTRY_VERSION = 1


def registry(state: AdapterState, base_model: str) -> dict[str, Any]:
    """Return the content of the file. The same events give the same."""
    versions = [state.versions[number] for number in sorted(state.versions)]
    candidate = state.serving.candidate
    changed = max((max(one.created_at, one.promoted_at or 0) for one in versions), default=0)
    return {
        "registry_version": REGISTRY_VERSION,
        "policy": state.policy,
        "updated_at": moment(changed) if changed else None,
        "base_model": base_model,
        "base_digest": next((one.base_digest for one in reversed(versions) if one.base_digest), None),
        "active": _name(state, state.primary),
        "candidate": None if candidate is None else _name(state, candidate),
        "adapters": {_name(state, one.version): _entry(state, one) for one in versions if one.version},
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file: who reads it meanwhile gets the old one or the new one, whole, also if this process is killed.

    Raises SettingsError if it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.half")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as exc:
        raise SettingsError(f"--registry {path}: {exc}. Name a file in a folder that can be written") from exc
    finally:
        beside.unlink(missing_ok=True)


def _name(state: AdapterState, version: int) -> str | None:
    """Return what a client asks for; the base model is not an adapter."""
    return f"{state.policy}@{version}" if version else None


def _entry(state: AdapterState, one: Version) -> dict[str, Any]:
    return {
        "version": one.version,
        "status": one.status,
        "share": state.serving.share if one.version == state.serving.candidate else None,
        "path": one.uri,
        "sha256": manifest_digest(one.files) if one.files else None,
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in one.files],
        "base_digest": one.base_digest,
        "parent": None if one.parent_version is None else _name(state, one.parent_version),
        "created_at": moment(one.created_at),
        "metrics": dict(one.metrics),
        "evaluations": {suite: dict(metrics) for suite, metrics in one.evaluated.items()},
    }
