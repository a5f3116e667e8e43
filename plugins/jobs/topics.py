"""The topic of jobs: what was ordered, and how far each is."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import OF_TENANT, TopicShape, short, words

# fmt: off
TOPICS = (
    TopicShape(
        label="jobs", event=events.JobEvent, key="job_id", kept=True,
        written_by="the controller of jobs, `tune --jobs`, people", read_by="the controller, the server, people",
        tenant=OF_TENANT, reader=None, is_about="about a job", audit="whole", causes=("adapters", "groups"),
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
)
# fmt: on
