"""The topics of the loop: tasks are answered, scored, grouped and trained on."""

from __future__ import annotations

from typing import Any

from schemas import events
from schemas.conventions import PINNED, POLICY_LAG, SOURCE_SHA256, has_scores
from streams.output import Column, cell
from streams.topics.reasons import dropped_text, reason_text
from streams.topics.shape import (
    EVERY_TOPIC,
    NO_TENANT,
    OWN_POLICY,
    OWN_RUN,
    OWN_TASK,
    LetterStage,
    TopicShape,
    short,
    words,
)

JOIN = LetterStage("streams", "advantages")
IS_OWN = "(tenant = {tenant} OR (tenant IS NULL AND (starts_with(policy, {prefix}) OR starts_with(agent, {prefix}))))"
"""SQL condition: the task belongs to a tenant."""
OF_OWN_RUN = f"({OWN_TASK} OR task_id IN (FROM own_runs))"


def _score(slot: int, source: str, value: float | None, error: str | None) -> str:
    return f"{source} of slot {slot}: {error or 'no opinion' if value is None else f'{value:.4g}'}"


def _group(purpose: str, dropped_reason: str | None, reward_mean: float, group_size: int, left_out: list[Any]) -> str:
    answers = group_size - len(left_out)
    if dropped_reason is not None:
        return f"group dropped: {dropped_text(dropped_reason)}"
    if purpose == "serve" or not answers:  # which may have no score, and then its mean says nothing
        return f"{purpose} group of {answers} answers"
    return f"{purpose} group of {answers} answers, mean reward {reward_mean:.3g}"


# fmt: off
LOOP = (
    TopicShape(
        label="tasks", event=events.Task, key="task_id", kept=False,
        written_by="users, generators", read_by="policy, scoring, advantages",
        tenant=f"{OWN_TASK} AND {IS_OWN}", reader=JOIN, is_about="a task", audit="whole", causes=(),
        line=lambda purpose, messages: f"{purpose} task: {messages[-1].content if messages else ''}",
        columns=(
            Column("task", lambda e: short(e.task_id), 8),
            Column("purpose", lambda e: e.purpose, 7),
            Column("policy", lambda e: e.policy, 10),
            Column("slots", lambda e: e.group_size, 5, right=True),
            Column("sources", lambda e: [source.name for source in e.reward_sources], 10),
            Column("asks", lambda e: e.messages[-1].content),
        ),
    ),
    TopicShape(
        label="responses", event=events.Response, key="task_id", kept=False,
        written_by="policy", read_by="scoring, advantages; policy at its start",
        tenant=OWN_RUN, reader=JOIN, is_about="a response", audit="groups", causes=("tasks", "turns", "trajectories"),
        line=lambda slot, adapter_version, error, text: (
            f"answer of slot {slot} by version {adapter_version}: {error or text}"
        ),
        columns=(
            Column("task", lambda e: short(e.task_id), 8),
            Column("slot", lambda e: e.slot, 4, right=True),
            Column("version", lambda e: e.adapter_version, 7, right=True),
            Column("tokens", lambda e: e.completion_tokens, 6, right=True),
            Column("finish", lambda e: e.finish_reason, 6),
            Column("text", lambda e: e.text if e.error is None else e.error),
        ),
    ),
    TopicShape(
        label="rewards", event=events.Reward, key="task_id", kept=False,
        written_by="scoring, people", read_by="advantages",
        tenant=OF_OWN_RUN, reader=JOIN, is_about="a reward", audit="groups", causes=("responses",),
        line=_score,
        columns=(
            Column("task", lambda e: short(e.task_id), 8),
            Column("slot", lambda e: e.slot, 4, right=True),
            Column("source", lambda e: e.source, 16),
            Column("value", lambda e: e.value, 8, right=True),
            Column("why", lambda e: e.error or e.rationale or e.components),
        ),
    ),
    TopicShape(
        label="group-control", event=events.GroupControl, key="task_id", kept=False,
        written_by="advantages' timer", read_by="advantages",
        tenant=NO_TENANT, reader=JOIN, is_about="about a group", audit="groups", causes=("tasks",),
        line=lambda kind: kind,
        columns=(
            Column("task", lambda e: short(e.task_id), 8),
            Column("kind", lambda e: e.kind, 6),
            Column("reason", lambda e: e.reason),
        ),
    ),
    TopicShape(
        label="groups", event=events.AdvantagedGroup, key="policy", kept=False,
        written_by="advantages", read_by="batches, rollouts, policy, trainer",
        tenant=f"coalesce(tenant, {{tenant}}) = {{tenant}} AND {OF_OWN_RUN}",
        reader=LetterStage("streams", "batches"), is_about="a group", audit="groups",
        causes=("tasks", "responses", "rewards", "group-control"),
        line=_group,
        metadata={
            PINNED: "the version that its task named",
            POLICY_LAG: "how many versions its sampler, of another run, was behind the newest one",
            SOURCE_SHA256[0]: "checksum of the source of a formula of the user's own",
            SOURCE_SHA256[1]: "checksum of the source of a credit rule of the user's own",
        },
        columns=(
            Column("task", lambda e: short(e.task_id), 8),
            Column("purpose", lambda e: e.purpose, 7),
            Column("version", lambda e: e.adapter_version, 7, right=True),
            Column("scored", lambda e: f"{len(e.responses)}/{e.group_size}", 7, right=True),
            Column("mean", lambda e: e.reward_mean if has_scores(e) else None, 7, right=True),
            Column("std", lambda e: e.reward_std if has_scores(e) else None, 7, right=True),
            Column("fate", lambda e: e.dropped_reason or ("complete" if e.complete else "partial")),
        ),
    ),
    TopicShape(
        label="batches", event=events.Batch, key="policy", kept=False,
        written_by="batches", read_by="trainer, policy",
        tenant=OWN_POLICY, reader=LetterStage("trainer-", "trainer"), is_about="a batch", audit="groups",
        causes=("groups",),
        line=lambda sequence, groups: f"batch {sequence} of {groups} groups",
        columns=(
            Column("policy", lambda e: e.policy, 10),
            Column("sequence", lambda e: e.sequence, 8, right=True),
            Column("groups", lambda e: e.groups, 6, right=True),
            Column("responses", lambda e: e.responses, 9, right=True),
            Column("tokens", lambda e: e.loss_tokens, 7, right=True),
            Column("dropped", lambda e: len(e.dropped), 7, right=True),
            Column("closed by", lambda e: e.closed_by),
        ),
    ),
    TopicShape(
        label="adapters", event=events.AdapterEvent, key="policy", kept=True,
        written_by="trainer, rollouts, people", read_by="policy, rollouts, trainer",
        tenant=OWN_POLICY, reader=LetterStage("streams", "rollouts"), is_about="about a version", audit="whole",
        causes=("groups", "batches"),
        line=lambda version, kind, reason: f"version {version} {words(kind)}: {reason}",
        columns=(
            Column("policy", lambda e: e.policy, 10),
            Column("version", lambda e: e.version, 7, right=True),
            Column("kind", lambda e: e.kind, 15),
            Column("actor", lambda e: e.actor, 10),
            Column("reason", lambda e: cell(e.metrics) if e.kind == "evaluated" and e.metrics else e.reason),
        ),
    ),
    TopicShape(
        label="dead-letters", event=events.DeadLetter, key="", kept=False,
        written_by="every stage, `admin dlq`", read_by="people, `admin dlq`",
        tenant="CASE WHEN {keyed_by_policy} THEN starts_with({source_key}, {prefix}) "
            "ELSE {source_key} IN (FROM own_tasks) END",
        reader=None, is_about="a dead letter", audit="groups", causes=(EVERY_TOPIC,),
        line=lambda stage, reason, source_topic: (
            f"{stage} could not use a record of {source_topic}: {reason_text(reason)}"
        ),
        columns=(
            Column("stage", lambda e: e.stage, 10),
            Column("reason", lambda e: e.reason, 16),
            Column("error", lambda e: e.error),
        ),
    ),
    TopicShape(
        label="experiments", event=events.ExperimentEvent, key="experiment", kept=True,
        written_by="`replay`", read_by="people, `replay`",
        tenant=NO_TENANT, reader=None, is_about="about an experiment", audit="place", causes=(),
        line=lambda kind: kind,
        columns=(
            Column("experiment", lambda e: e.experiment, 16),
            Column("kind", lambda e: e.kind, 8),
            Column("policy", lambda e: e.policy, 10),
            Column("counts", lambda e: e.counts),
        ),
    ),
)
# fmt: on
"""In the order of data."""
