"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

CHANGED: dict[str, Any] = {
    "flow_of": "clerk=enforce",
    "bias_terms": "young=old",
    "max_bias": 0.1,
    "mode": "monitor",
    "modes": "red.*@answer=block,calc=off",
    "rules": "pii",
    "blocks": "email",
    "patterns": '{"ticket": "TICKET-[0-9]{6}"}',
    "national_ids": "de_tax_id",
    "hold_back": 200,
    "characters": 10_000,
    "on_failure": "closed",
    "record_passes": True,
    "holds_out": "email",
    "classifier": "folder",
    "classifier_labels": "toxic=0.8",
    "moderation_url": "http://127.0.0.1:1/v1",
    "moderation_model": "m",
    "moderation_key": SecretStr("k"),
    "moderation_scores": "violence=0.5",
    "timeout_s": 2.0,
}
