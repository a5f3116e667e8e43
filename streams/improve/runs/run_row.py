"""A run as one row: what an agent did, what it took, and what was said of it.

    Finished (its task, answer, turns, scores, feedback) + prices ──► RunRow

A run is a chat, an agent's run, or the answer to a task without an agent, which has one turn. View `runs` has a column
for each field, and the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.events import Ending, Purpose, RunVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run. None: the log has no such figure."""

    answer_id: str
    """The response; the trajectory where no task was submitted."""
    task_id: str
    policy: str
    agent_id: str | None
    scenario: str
    tenant: str | None
    purpose: Purpose
    thread: str | None
    """The conversation that its task continues."""
    versions: tuple[int, ...]
    """That answered, in order."""
    began_ms: int
    ended_ms: int | None
    ending: Ending
    reason: str
    """Why it ended."""
    turns: int
    """Model calls."""
    failed_turns: int
    malformed: int
    """Calls of tools that could not be read."""
    tool_calls: int
    failed_tools: int
    """Calls of tools that the environment could not use, or whose result says that they failed."""
    retries: int
    """Calls that repeat one before: the same tool with the same arguments, or a rewritten turn."""
    recoveries: int
    """Failed tools or turns after which a later one succeeded."""
    escalations: int
    """Hand-overs to a person that the agent asked for."""
    latency_ms: float
    prompt_tokens: int
    sampled_tokens: int
    cost_usd: float | None
    """Of its tokens and of the judges that scored it, by the prices in force; None: no price is set."""
    reward: float | None
    scores: Mapping[str, float]
    """By source; without feedback."""
    feedback: float | None
    """Mean of what people said of it and of its turns."""
    success: bool | None
    verdict: RunVerdict | None
    """The one that counts (streams/improve/curation/verdicts.py)."""
