"""Views and the list of prompts: `current_prompts`, a row per prompt, and `prompt_versions`, a row per version.

prompts ──► the first event of each sequence ──► newest version, aliases ──► current_prompts ──► the list
prompt_rewards ──► what each version earned ───────────────────────────────► prompt_versions ──► the page of a prompt
"""

from __future__ import annotations

from plugins.prompts.prompts_view import REWARDS, VIEWS as REWARD_VIEWS
from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ListSection, ViewList

_EFFECTIVE = """effective AS (
    FROM prompts QUALIFY row_number() OVER (PARTITION BY prompt, sequence ORDER BY _partition, _offset) = 1
)"""
_CURRENT = f"""
WITH {_EFFECTIVE}, means AS (
    SELECT prompt, string_agg(concat(alias, ' is ', coalesce(CAST(version AS VARCHAR), 'shared')), ', ' ORDER BY alias)
        AS aliases
    FROM (FROM effective WHERE alias IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY prompt, alias ORDER BY sequence DESC) = 1) GROUP BY prompt
)
SELECT prompt, max(version) FILTER (kind = 'created') AS newest, any_value(aliases) AS aliases,
    arg_max(kind, sequence) AS last_event, arg_max(actor, sequence) AS actor, arg_max(reason, sequence) AS reason,
    max(created_at) AS changed_at, min(_partition) AS _partition, max(_offset) AS _offset, max(_timestamp) AS _timestamp
FROM effective LEFT JOIN means USING (prompt) GROUP BY prompt
"""  # noqa: S608 - statements of ours
_VERSIONS = f"""
WITH {_EFFECTIVE}, earned AS (
    SELECT prompt, version, count(*) AS tasks, avg(reward) AS reward, avg(tokens / answers) AS tokens
    FROM ({REWARDS}) GROUP BY ALL
)
SELECT prompt, version, e.tasks, e.reward, e.tokens,
    list_aggregate(list_transform(messages, lambda m: concat(m.role, ': ', m.content)), 'string_agg', chr(10)) AS text,
    actor, reason, job_id, created_at, _partition, _offset, _timestamp
FROM effective LEFT JOIN earned AS e USING (prompt, version) WHERE kind = 'created'
"""  # noqa: S608 - statements of ours
_TENANT = "starts_with(prompt, {prefix})"
VIEWS = (
    SqlView("current_prompts", "prompts", "one row per prompt: its newest version, and what its aliases mean", _TENANT,
            _CURRENT),
    SqlView("prompt_versions", "prompts", "one row per version of a prompt: its text, and what it earned", _TENANT,
            _VERSIONS, ("groups", "tasks", "responses", "turns", "rewards")),
)  # fmt: skip
ALL_VIEWS = (*REWARD_VIEWS, *VIEWS)
LISTS = (
    ViewList(
        "prompts",
        "Prompts",
        "current_prompts",
        columns=("prompt", "newest", "aliases", "last_event", "actor", "reason", "changed_at"),
        order="changed_at DESC",
        key="prompt",
        sections=(
            ListSection(
                "Versions",
                "prompt_versions",
                ("version", "text", "tasks", "reward", "tokens", "actor", "reason", "job_id", "created_at"),
                "prompt = {key}",
                "version DESC",
            ),
            ListSection(
                "Aliases, searches and decisions",
                "prompts",
                ("created_at", "kind", "version", "alias", "metrics", "job_id", "actor", "reason"),
                "prompt = {key} AND kind <> 'created'",
                "created_at DESC",
            ),
        ),
    ),
)
