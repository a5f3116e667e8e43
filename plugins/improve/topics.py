"""The topics of improvement: verdicts on runs and on rows, data sets of good runs, the reasons of retrainings."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import OF_TENANT, TopicShape, short, words

# fmt: off
TOPICS = (
    TopicShape(
        label="curation", event=events.CurationEvent, key="task_id", kept=True,
        written_by="`improve curate`, people", read_by="`improve datasets`, `improve retrain`, people",
        tenant=OF_TENANT, reader=None, is_about="a verdict", audit="whole", causes=("trajectories", "groups"),
        line=lambda verdict, actor, rationale: f"run {words(verdict)} by {actor}: {rationale}",
        columns=(
            Column("run", lambda e: short(e.answer_id), 10),
            Column("policy", lambda e: e.policy, 10),
            Column("verdict", lambda e: e.verdict, 11),
            Column("by", lambda e: e.labeller, 6),
            Column("actor", lambda e: e.actor, 10),
            Column("rationale", lambda e: e.rationale),
        ),
    ),
    TopicShape(
        label="annotations", event=events.AnnotationEvent, key="row_id", kept=True,
        written_by="`improve data annotate`, people", read_by="`improve data annotate`, people",
        tenant=OF_TENANT, reader=None, is_about="a label of a row", audit="whole", causes=(),
        line=lambda place, verdict, actor, rationale: f"row {place} {words(verdict)} by {actor}: {rationale}",
        columns=(
            Column("row", lambda e: short(e.row_id), 10),
            Column("place", lambda e: e.place, 20),
            Column("verdict", lambda e: e.verdict, 11),
            Column("by", lambda e: e.labeller, 6),
            Column("actor", lambda e: e.actor, 10),
            Column("rationale", lambda e: e.rationale),
        ),
    ),
    TopicShape(
        label="datasets", event=events.DatasetEvent, key="dataset", kept=True,
        written_by="`improve datasets`", read_by="`tune`, people",
        tenant=OF_TENANT, reader=None, is_about="about a data set", audit="whole", causes=("curation",),
        line=lambda dataset, kind, reason: f"data set {dataset} {kind}: {reason}",
        columns=(
            Column("dataset", lambda e: e.dataset, 16),
            Column("kind", lambda e: e.kind, 9),
            Column("policy", lambda e: e.policy, 10),
            Column("rows", lambda e: e.counts),
            Column("reason", lambda e: e.reason),
        ),
    ),
    TopicShape(
        label="triggers", event=events.TriggerEvent, key="rule", kept=True,
        written_by="`improve retrain`, `improve selfplay`", read_by="`improve retrain`, `improve selfplay`, people",
        tenant=OF_TENANT, reader=None, is_about="about a rule", audit="whole", causes=("adapters", "groups"),
        effects=("jobs",),
        line=lambda rule, kind, reason: f"rule {rule} {kind}: {reason}",
        columns=(
            Column("rule", lambda e: e.rule, 16),
            Column("kind", lambda e: e.kind, 7),
            Column("signal", lambda e: e.signal, 10),
            Column("job", lambda e: short(e.job_id), 10),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
