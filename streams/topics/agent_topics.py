"""The topics of the recorder: the calls of agents, and their runs."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import OWN_RUN, TopicShape, short

SERVER = "the server that agents call"

# fmt: off
RUNS = (
    TopicShape(
        label="turns", event=events.Turn, key="task_id", kept=False,
        written_by=SERVER, read_by="people, the server at its start",
        tenant=OWN_RUN, reader=None, is_about="a turn", audit="since", causes=("tasks",),
        line=lambda number, agent_id, error, reply: f"turn {number} of {agent_id}: {error or reply.content}",
        columns=(
            Column("trajectory", lambda e: short(e.trajectory_id), 10),
            Column("agent", lambda e: e.agent_id, 10),
            Column("turn", lambda e: e.number, 4, right=True),
            Column("what", lambda e: e.continuity, 9),
            Column("version", lambda e: e.adapter_version, 7, right=True),
            Column("tokens", lambda e: len(e.completion_token_ids), 6, right=True),
            Column("finish", lambda e: e.finish_reason, 10),
            Column("answer", lambda e: e.error or e.reply.content or [call.name for call in e.reply.tool_calls]),
        ),
    ),
    TopicShape(
        label="trajectories", event=events.TrajectoryEvent, key="task_id", kept=False,
        written_by=SERVER, read_by="people, the server at its start",
        tenant=OWN_RUN, reader=None, is_about="about a trajectory", audit="since", causes=("tasks", "turns"),
        line=lambda agent_id, ending, kind, reason: f"run of {agent_id} {ending or kind}: {reason}",
        columns=(
            Column("trajectory", lambda e: short(e.trajectory_id), 10),
            Column("agent", lambda e: e.agent_id, 10),
            Column("kind", lambda e: e.kind, 7),
            Column("ending", lambda e: e.ending, 9),
            Column("turns", lambda e: e.turns, 5, right=True),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
