"""adapter_registry.json: the versions of a policy, for programs that do not read the log.

AdapterState ──► {policy, active, candidate, base_model, adapters: {"POLICY@N": …}} ──► a file, replaced whole

It is a snapshot that nothing reads back: the log decides which version serves.
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
    changed = max((max(version.created_at, version.promoted_at or 0) for version in versions), default=0)
    return {
        "registry_version": REGISTRY_VERSION,
        "policy": state.policy,
        "updated_at": moment(changed) if changed else None,
        "base_model": base_model,
        "base_digest": next((version.base_digest for version in reversed(versions) if version.base_digest), None),
        "active": _name(state, state.primary),
        "candidate": None if candidate is None else _name(state, candidate),
        "adapters": {_name(state, version.version): _entry(state, version) for version in versions if version.version},
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file atomically: readers see the old content or the new, also if this process is killed.

    Raises SettingsError if it cannot be written.
    """
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.half")
    try:
        with half.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as exc:
        raise SettingsError(f"--registry {path}: {exc}. Name a file in a folder that can be written") from exc
    finally:
        half.unlink(missing_ok=True)


def _name(state: AdapterState, version: int) -> str | None:
    """Return the model name that a client requests; None for the base model, which is no adapter."""
    return f"{state.policy}@{version}" if version else None


def _entry(state: AdapterState, version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "status": version.status,
        "share": state.serving.share if version.version == state.serving.candidate else None,
        "path": version.uri,
        "sha256": manifest_digest(version.files) if version.files else None,
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in version.files],
        "base_digest": version.base_digest,
        "parent": None if version.parent_version is None else _name(state, version.parent_version),
        "created_at": moment(version.created_at),
        "metrics": dict(version.metrics),
        "evaluations": {suite: dict(metrics) for suite, metrics in version.evaluated.items()},
    }
