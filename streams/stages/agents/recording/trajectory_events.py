"""The events that the server writes at the start and the end of a trajectory."""

from __future__ import annotations

from schemas.conventions import CONSENT, CONVERSATION, WAITS_FOR
from schemas.events import TrajectoryEvent, Turn, derive_id
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.run_end import TrajectoryEnd


def start_of(conversation: Conversation, first: Turn) -> TrajectoryEvent:
    """Return the beginning of a trajectory whose first turn is `first`."""
    return TrajectoryEvent(
        event_id=derive_id(conversation.trajectory_id, "started"),
        trajectory_id=conversation.trajectory_id,
        task_id=conversation.task_id,
        created_at=first.started_at,
        metadata=_metadata(conversation),
        subject=first.subject,
        kind="started",
        agent_id=conversation.agent_id,
        policy=first.policy,
        purpose=conversation.purpose,
        sampling_id=conversation.sampling_id,
        slot=conversation.slot,
        group_size=conversation.group_size,
        adapter_version=conversation.adapter_version,
        reason="its first call",
    )


def end_of(conversation: Conversation, policy: str, end: TrajectoryEnd, now: int) -> TrajectoryEvent:
    """Return the end of a trajectory; of a task's run, with everything that its response needs."""
    began = conversation.began
    metadata = _metadata(conversation) if began is None else began.metadata
    return TrajectoryEvent(
        event_id=derive_id(conversation.trajectory_id, "ended"),
        trajectory_id=conversation.trajectory_id,
        task_id=conversation.task_id,
        created_at=now,
        traceparent=None if began is None else began.traceparent,
        metadata={**metadata, WAITS_FOR: CONSENT} if end.needs_consent else metadata,
        subject=conversation.subject,
        kind="ended",
        agent_id=conversation.agent_id,
        policy=policy,
        purpose=conversation.purpose,
        sampling_id=conversation.sampling_id,
        slot=conversation.slot,
        group_size=conversation.group_size,
        adapter_version=conversation.adapter_version,
        ending=end.ending,
        turns=conversation.number,
        max_turns=None if began is None else began.max_turns,
        prompt_version=None if began is None else began.prompt_version,
        sampling=None if began is None else began.sampling,
        observed=end.observed,
        program=None if began is None else began.program,
        success=end.success,
        answer_turn=end.answer,
        answer_rule=end.answer_rule,
        output=_text_of_program(conversation, end),
        reason=end.reason,
    )


def _text_of_program(conversation: Conversation, end: TrajectoryEnd) -> str | None:
    """Return what a user reads who waits for a program, unless it is the model's answer, or a rule chooses one."""
    if conversation.purpose != "serve" or end.answer_rule is not None:
        return None
    text, answer = (end.output or "").strip(), conversation.chains.turns.get(end.answer or "")
    return None if answer is not None and answer.turn.reply.content.strip() == text else text or None


def _metadata(conversation: Conversation) -> dict[str, str]:
    return {} if conversation.continues is None else {CONVERSATION: conversation.continues}
