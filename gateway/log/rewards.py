"""Scores from outside: what a person or a program says of one answer to a task, as a reward in the log.

    {task_id, score, scoring_agent_id} ──► the task ──► its responses ──► exactly one? ──► a reward
                                                              └── several ──► refused, with all of them

A source that the task names, and serve.outside_scorers lists, enters the group: it is the scorer that the group waits
for. Any other is an opinion, feedback/NAME, which no group counts. So nobody speaks here for a scorer that is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from gateway.http.body import Body, Whole
from schemas.conventions import FEEDBACK, FEEDBACK_VERSION
from schemas.events import MAX_REWARD, RATIONALE_CHARACTERS, Response, Reward, Task, derive_id
from streams.errors import CallError
from streams.scorers import SCORERS
from streams.settings.model import Settings

OUTSIDE_VERSION = "outside/1"
"""The `scorer_version` of a reward that enters a group."""
SHOWN = 64
"""Answers that an error lists."""
Text = Annotated[str, Field(min_length=1, max_length=200)]


class RewardBody(Body):
    """What somebody says of an answer."""

    task_id: Text
    score: float = Field(ge=-MAX_REWARD, le=MAX_REWARD, description="how good it is, e.g. 0 to 1")
    scoring_agent_id: Text = Field(description="who says so; each has one opinion of an answer")
    response_id: Text | None = Field(None, description="which answer; not needed where a task has only one")
    slot: Whole | None = Field(None, ge=0, description="which answer, by its number")
    rationale: str | None = Field(None, max_length=RATIONALE_CHARACTERS, description="why, in words")
    components: Annotated[dict[Text, float], Field(max_length=256)] | None = Field(
        None, description="what the score is made of"
    )
    metadata: Annotated[dict[Text, str], Field(max_length=64)] | None = Field(
        None, description="recorded; `criteria`: by what it was judged"
    )


def enters_group(task: Task, name: str, settings: Settings) -> bool:
    """Return whether a score by this name is one that the task's group waits for."""
    module = name.partition(":")[0]
    listed = any(module == one or module.startswith(f"{one}.") for one in settings.scoring.importable)
    asked = any(source.name == name for source in task.reward_sources)
    return asked and name not in SCORERS and not listed and name in settings.serve.scorers_outside


def chosen(responses: Iterable[Response], body: RewardBody) -> Response:
    """Return the answer that a score is about. Raises CallError that lists the answers if it is not exactly one."""
    first: dict[str, Response] = {}
    for response in responses:
        first.setdefault(response.response_id, response)
    every = sorted(first.values(), key=lambda one: (one.slot, one.created_at, one.response_id))
    fitting = [one for one in every if body.response_id in (None, one.response_id) and body.slot in (None, one.slot)]
    given = body.response_id is not None or body.slot is not None
    if not fitting:
        what = "no answer yet" if not every else f"no answer {_named(body)}"
        raise CallError(
            "not_found", f"task {body.task_id} has {what}{_listed(every)}", _parameter(body), found=_found(every)
        )
    if len(fitting) > 1 or (not given and fitting[0].group_size > 1):
        which = _named(body) if given else "without response_id or slot"
        raise CallError(
            "invalid",
            f"task {body.task_id} has {len(every)} answers, and {which} the score is about none in particular; give "
            f"response_id{_listed(every)}",
            "response_id",
            found=_found(every),
        )
    [response] = fitting
    if response.error is not None:
        what = f"slot {response.slot} of task {body.task_id} has no answer to score: {response.error}"
        raise CallError("conflict", what, _parameter(body), found=_found(every))
    return response


def reward_of(body: RewardBody, task: Task, response: Response, settings: Settings, *, now_ms: int) -> Reward:
    """Return the reward that a score is."""
    counts = enters_group(task, body.scoring_agent_id, settings)
    source = body.scoring_agent_id if counts else FEEDBACK + body.scoring_agent_id
    return Reward(
        reward_id=derive_id(response.response_id, source),
        response_id=response.response_id,
        task_id=response.task_id,
        created_at=now_ms,
        metadata=body.metadata or {},
        policy=response.policy,
        slot=response.slot,
        source=source,
        value=body.score,
        scorer_version=OUTSIDE_VERSION if counts else FEEDBACK_VERSION,
        rationale=body.rationale,
        components=body.components or {},
    )


def shown(reward: Reward, at: Any) -> dict[str, Any]:
    """Return a reward that was taken, as its sender is told."""
    return {
        "object": "reward",
        "reward_id": reward.reward_id,
        "task_id": reward.task_id,
        "response_id": reward.response_id,
        "slot": reward.slot,
        "source": reward.source,
        "score": reward.value,
        "enters_group": not reward.source.startswith(FEEDBACK),
        "recorded_at": str(at),
    }


def _named(body: RewardBody) -> str:
    by = {"response_id": body.response_id, "slot": body.slot}
    return "with " + " and ".join(f"{name} {value}" for name, value in by.items() if value is not None)


def _parameter(body: RewardBody) -> str:
    return "response_id" if body.response_id is not None else "slot" if body.slot is not None else "task_id"


def _listed(every: Sequence[Response]) -> str:
    if not every:
        return ""
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ": " + ", ".join(f"slot {one.slot} is {one.response_id}" for one in every[:SHOWN]) + more


def _found(every: Sequence[Response]) -> dict[str, Any]:
    return {"responses": [{"slot": one.slot, "response_id": one.response_id} for one in every[:SHOWN]]}
