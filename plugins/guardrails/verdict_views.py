"""View `guardrail_findings`: one row per verdict, with its list for people; and its metric.

guardrail-verdicts ──► each once ──► rule, verdict, mode, place
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ViewList

_FINDINGS = """
SELECT agent_id, kind, rule, verdict, mode, place, verdict = 'block' AND mode = 'block' AS withheld, policy,
    trajectory_id, turn_id, task_id, tool, field_path, len(spans) AS spans, score, reason, created_at,
    _partition, _offset, _timestamp
FROM guardrail_verdicts QUALIFY row_number() OVER (PARTITION BY verdict_id ORDER BY _partition, _offset) = 1
"""
VIEWS = (
    SqlView(
        "guardrail_findings",
        "guardrail-verdicts",
        "one row per verdict of a guardrail: its rule, place and reason",
        "starts_with(agent_id, {prefix})",
        _FINDINGS,
    ),
)
LISTS = (
    ViewList(
        "guardrails",
        "Guardrails",
        "guardrail_findings",
        columns=("agent_id", "rule", "verdict", "mode", "place", "field_path", "reason", "created_at"),
        order="created_at DESC",
        filters=("rule", "verdict", "place"),
    ),
)
