"""A policy's versions as plain values, for printing and sending.

AdapterState ──► row_of: one version ──► `streamward adapters`, GET /adapters
"""

from __future__ import annotations

from typing import Any

from streams.adapters.decisions import find_version
from streams.adapters.versions import AdapterState, manifest_digest
from streams.output import moment


def row_of(state: AdapterState, number: int) -> dict[str, Any]:
    """Return a version as printed in JSON. Raises NotFoundError if it does not exist."""
    version = find_version(state, number)
    batches = None if version.first_batch is None else f"{version.first_batch}-{version.last_batch}"
    judged = version.judged
    return {
        "policy": state.policy,
        "version": number,
        "status": version.status,
        "share": state.serving.share if number == state.serving.candidate else None,
        "parent_version": version.parent_version,
        "batches": batches,
        "tuned_by": version.tuned_by,
        "outside": None if version.outside is None else {"url": version.outside.url, "model": version.outside.model},
        "created_at": moment(version.created_at) if version.created_at else None,
        "promoted_at": None if version.promoted_at is None else moment(version.promoted_at),
        "uri": version.uri,
        "sha256": manifest_digest(version.files) if version.files else None,
        "base_digest": version.base_digest,
        "judged": None if judged is None else {"verdict": judged.verdict, "reason": judged.reason},
        "metrics": dict(version.metrics),
        "held_out": {suite: dict(metrics) for suite, metrics in version.evaluated.items()},
    }
