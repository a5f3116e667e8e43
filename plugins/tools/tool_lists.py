"""Views and the list of registered tools: `current_tools`, a row per entry, and `offered_tools`, what each describes.

tools ──► the first event of each sequence ──► pinned and newest description ──► current_tools ──► the list
                                           └─► each tool of both ─────────────► offered_tools ──► the page of an entry
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ListSection, RowDecision, ViewList

_EFFECTIVE = """effective AS (
    FROM tools QUALIFY row_number() OVER (PARTITION BY tool_id, sequence ORDER BY _partition, _offset) = 1
), latest AS (
    SELECT tool_id, arg_max(kind, sequence) AS kind, max(sequence) FILTER (kind = 'added') AS since
    FROM effective GROUP BY tool_id
), present AS (
    SELECT e.* FROM effective AS e JOIN latest AS l USING (tool_id) WHERE l.kind <> 'removed' AND e.sequence >= l.since
), digests AS (
    SELECT tool_id, arg_max(digest, sequence) FILTER (kind IN ('added', 'accepted')) AS pinned,
        arg_max(digest, sequence) FILTER (kind IN ('added', 'changed')) AS offered FROM present GROUP BY tool_id
)"""
_CURRENT = f"""
WITH {_EFFECTIVE}
SELECT tool_id, arg_max(endpoint, sequence) FILTER (kind = 'added') AS endpoint,
    list_transform(arg_max(tools, sequence) FILTER (kind IN ('added', 'changed')), lambda t: t.name) AS names,
    CASE WHEN pinned = offered THEN 'trusted' ELSE 'changed: refused until accepted' END AS state,
    CASE WHEN pinned <> offered THEN
        concat('look at both descriptions, then streamward agents tools accept ', tool_id) END AS what_to_do,
    arg_max(needs_consent, sequence) FILTER (kind = 'added') AS needs_consent,
    arg_max(acts, sequence) FILTER (kind = 'added') AS acts,
    arg_max(untrusted, sequence) FILTER (kind = 'added') AS untrusted,
    arg_max(actor, sequence) AS actor, arg_max(reason, sequence) AS reason, max(created_at) AS changed_at,
    pinned, offered, min(_partition) AS _partition, max(_offset) AS _offset, max(_timestamp) AS _timestamp
FROM present JOIN digests USING (tool_id) GROUP BY tool_id, pinned, offered
"""  # noqa: S608 - statements of ours
_OFFERED = f"""
WITH {_EFFECTIVE}, descriptions AS (
    SELECT p.*, CASE WHEN d.pinned = d.offered THEN 'trusted' WHEN p.digest = d.pinned THEN 'pinned' ELSE 'offered' END
        AS description_of
    FROM present AS p JOIN digests AS d USING (tool_id)
    WHERE kind IN ('added', 'changed') AND digest IN (pinned, offered)
    QUALIFY row_number() OVER (PARTITION BY tool_id, digest ORDER BY sequence) = 1
)
SELECT tool_id, description_of, tool.name AS name, tool.description AS description, tool.parameters AS parameters,
    created_at, _partition, _offset, _timestamp
FROM (SELECT *, unnest(tools) AS tool FROM descriptions)
"""  # noqa: S608 - statements of ours
_TENANT = "starts_with(tool_id, {prefix})"
VIEWS = (
    SqlView("current_tools", "tools", "one row per registered tool or server: its endpoint, and whether it is trusted",
            _TENANT, _CURRENT),
    SqlView("offered_tools", "tools", "one row per tool of an entry: its pinned description, and a changed one",
            _TENANT, _OFFERED),
)  # fmt: skip
LISTS = (
    ViewList(
        "tools",
        "Tools",
        "current_tools",
        columns=("tool_id", "endpoint", "names", "state", "actor", "changed_at"),
        order="state, tool_id",
        filters=("state",),
        key="tool_id",
        facts=("what_to_do", "needs_consent", "acts", "untrusted", "reason", "pinned", "offered"),
        sections=(
            ListSection(
                "Descriptions",
                "offered_tools",
                ("name", "description_of", "description", "parameters", "created_at"),
                "tool_id = {key}",
                "name, description_of DESC",
            ),
            ListSection(
                "Decisions",
                "tools",
                ("created_at", "kind", "digest", "version", "actor", "reason"),
                "tool_id = {key}",
                "created_at DESC",
            ),
        ),
        decision=RowDecision(
            "Accept the changed description",
            waits="what_to_do",
            expects="offered",
            action="code.run",
            decide="plugins.tools.accept_form:accept_shown_tool",
        ),
    ),
)
