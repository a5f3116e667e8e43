"""View `prompt_rewards`: one row per task, or rated call, that was answered with a version of a prompt.

    groups, tasks ──► reward of the task ─┐
    turns, rewards ──► people's feedback ─┴─► prompt, version, alias, question, reward

`question` is the same for tasks with the same messages after the prompt's own, so that two versions can be compared on
the questions that both have answered. A prompt's text is in `prompts`, the version and values that a task was rendered
with are in `tasks`.
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView

REWARDS = """
WITH first AS (SELECT _partition, min(_offset) AS _offset FROM whole.groups GROUP BY _partition, group_id),
asked AS (
    SELECT task_id, prompt_version.alias AS alias, thread, md5(concat(
        CAST(to_json(messages[len(prompt_version.messages) + 1:]) AS VARCHAR), verifier)) AS question
    FROM whole.tasks WHERE prompt_version IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
), rated AS (
    SELECT response_id AS turn_id, avg(value) AS reward FROM (
        FROM whole.rewards WHERE starts_with(source, 'feedback/') AND value IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY reward_id ORDER BY _partition, _offset) = 1
    ) GROUP BY response_id
), calls AS (
    FROM whole.turns WHERE prompt_version IS NOT NULL AND sampling_id IS NULL
    QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _partition, _offset) = 1
), scored AS (
    SELECT prompt_version, task_id, policy, adapter_version, purpose, scenario, tenant, members, reward_mean AS reward,
        _partition, _offset, _timestamp
    FROM groups SEMI JOIN first USING (_partition, _offset) WHERE prompt_version IS NOT NULL
), sampled AS (
    SELECT s._partition, s._offset, sum(r.completion_tokens) AS tokens
    FROM (SELECT _partition, _offset, unnest(members) AS m FROM scored) AS s
    JOIN whole.responses AS r ON r._partition = s.m."partition" AND r._offset = s.m."offset" GROUP BY ALL
)
SELECT string_split(s.prompt_version, '@')[1] AS prompt, CAST(string_split(s.prompt_version, '@')[2] AS INTEGER)
    AS version, a.alias, s.task_id, a.thread, a.question, s.policy, s.adapter_version, s.purpose, s.scenario, s.tenant,
    len(s.members) AS answers, s.reward, CAST(t.tokens AS BIGINT) AS tokens, s._partition, s._offset, s._timestamp
FROM scored AS s LEFT JOIN asked AS a USING (task_id) LEFT JOIN sampled AS t USING (_partition, _offset)
UNION ALL
SELECT string_split(c.prompt_version, '@')[1], CAST(string_split(c.prompt_version, '@')[2] AS INTEGER), c.prompt_alias,
    c.task_id, c.trajectory_id, md5(CAST(to_json(list_filter(c.messages, lambda m: m.role = 'user')) AS VARCHAR)),
    c.policy, c.adapter_version, 'serve', 'chat', NULL, 1, r.reward, len(c.completion_token_ids),
    c._partition, c._offset, c._timestamp
FROM calls AS c JOIN rated AS r USING (turn_id)
"""
VIEWS = (
    SqlView(
        "prompt_rewards",
        "groups",
        "one row per task or rated call with a prompt: its version, and what it earned",
        "starts_with(prompt, {prefix})",
        REWARDS,
        ("tasks", "responses", "turns", "rewards"),
    ),
)
