"""The topics of a service: jobs, permissions, and the data sets made from served runs."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import ADMINS_ONLY, OF_TENANT, TopicShape, short, words

# fmt: off
SERVICE = (
    TopicShape(
        label="jobs", event=events.JobEvent, key="job_id", kept=True,
        written_by="the controller of jobs, `tune --jobs`, people", read_by="the controller, the server, people",
        tenant=OF_TENANT, reader=None, is_about="about a job", audit="whole", causes=("triggers", "adapters", "groups"),
        line=lambda kind, reason: f"job {words(kind)}: {reason}",
        columns=(
            Column("job", lambda e: short(e.job_id), 10),
            Column("kind", lambda e: e.kind, 15),
            Column("policy", lambda e: e.policy, 10),
            Column("iteration", lambda e: e.iteration, 9, right=True),
            Column("version", lambda e: e.version, 7, right=True),
            Column("reason", lambda e: e.reason),
        ),
    ),
    TopicShape(
        label="access", event=events.AccessEvent, key="subject_id", kept=True,
        written_by="people, the server", read_by="people, the server",
        tenant=ADMINS_ONLY, reader=None, is_about="about a key, a user, a login or a tenant", audit="place", causes=(),
        line=lambda kind: kind,
        columns=(
            Column("of", lambda e: e.subject_id, 16),
            Column("kind", lambda e: e.kind, 19),
            Column("role", lambda e: e.role or ", ".join(e.roles) or None, 9),
            Column("tenant", lambda e: e.tenant, 12),
            Column("name", lambda e: e.name, 16),
            Column("actor", lambda e: e.actor),
        ),
    ),
    TopicShape(
        label="requests", event=events.RequestEvent, key="subject_id", kept=False,
        written_by="the server", read_by="people",
        tenant=ADMINS_ONLY, reader=None, is_about="a request", audit="nothing", causes=(),
        line=lambda method, resource, status: f"{method} {resource}: {status}",
        columns=(
            Column("key", lambda e: e.subject_id, 16),
            Column("tenant", lambda e: e.tenant, 10),
            Column("action", lambda e: e.action, 13),
            Column("status", lambda e: e.status, 6, right=True),
            Column("ms", lambda e: e.duration_ms, 6, right=True),
            Column("resource", lambda e: f"{e.method} {e.resource}", 40),
            Column("why not", lambda e: "" if e.allowed else e.reason),
        ),
    ),
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
