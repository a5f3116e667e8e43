"""Scores from outside: the opinion of a person or a program about one answer to a task, as a reward in the log.

    {task_id, score, scoring_agent_id} ──► the task ──► its responses ──► exactly one? ──► a reward
                                                              └── several ──► refused, with all of them

A source that the task names, and serve.outside_scorers lists, enters the group: it is the scorer that the group waits
for. Any other is an opinion, feedback/NAME, which no group counts. So no score from outside passes for that of a scorer
that is run here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal
from weakref import WeakValueDictionary

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, Whole
from gateway.http.errors import apart
from gateway.http.principal import TASKS_LISTED
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from schemas import serde
from schemas.conventions import FEEDBACK, FEEDBACK_VERSION
from schemas.events import MAX_REWARD, RATIONALE_CHARACTERS, Coordinates, Response, Reward, Task, derive_id
from streams.errors import CallError, EventError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read as read_log
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.scorers import SCORERS
from streams.settings.model import Settings
from streams.stages.tasks.task_index import SubmittedTask
from streams.tools.asking import CLOCKS_MS, write_reward

OUTSIDE_VERSION = "outside/1"
"""The `scorer_version` of a reward that enters a group."""
MOST_LISTED = 64
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
    is_run = name in SCORERS or any(
        module == importable or module.startswith(f"{importable}.") for importable in settings.scoring.importable
    )
    is_source = any(source.name == name for source in task.reward_sources)
    return is_source and not is_run and name in settings.serve.scorers_outside


def choose_response(responses: Iterable[Response], body: RewardBody) -> Response:
    """Return the answer that a score is about. Raises CallError that lists the answers if it is not exactly one."""
    by_id: dict[str, Response] = {}
    for response in responses:
        by_id.setdefault(response.response_id, response)
    known = sorted(by_id.values(), key=lambda response: (response.slot, response.created_at, response.response_id))
    fitting = [
        response
        for response in known
        if body.response_id in (None, response.response_id) and body.slot in (None, response.slot)
    ]
    is_named = body.response_id is not None or body.slot is not None
    if not fitting:
        problem = f"no answer {_wording(body)}" if known else "no answer yet"
        message = f"task {body.task_id} has {problem}{_list_text(known)}"
        raise CallError("not_found", message, _parameter(body), found=_response_list(known))
    if len(fitting) > 1 or (not is_named and fitting[0].group_size > 1):
        name = _wording(body) if is_named else "without response_id or slot"
        raise CallError(
            "invalid",
            f"task {body.task_id} has {len(known)} answers, and {name} the score is about none in particular; give "
            f"response_id{_list_text(known)}",
            "response_id",
            found=_response_list(known),
        )
    [response] = fitting
    if response.error is not None:
        problem = f"slot {response.slot} of task {body.task_id} has no answer to score: {response.error}"
        raise CallError("conflict", problem, _parameter(body), found=_response_list(known))
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
        subject=response.subject,
        policy=response.policy,
        slot=response.slot,
        source=source,
        value=body.score,
        scorer_version=OUTSIDE_VERSION if counts else FEEDBACK_VERSION,
        rationale=body.rationale,
        components=body.components or {},
    )


class RewardAnswer(Answer):
    """A score that is in the log; `enters_group`: the task's group waits for it."""

    object: Literal["reward"]
    reward_id: str
    task_id: str
    response_id: str
    slot: int
    source: str
    score: float
    enters_group: bool
    recorded_at: str


class OutsideRewards:
    """The route that scores from outside are sent to."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log = settings, log
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._of_task: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @REST.post(
        "/rewards",
        may="rewards.give",
        ids=TASKS_LISTED,
        status=201,
        sends={"task_id": "sum-1", "slot": 0, "score": 1, "scoring_agent_id": "people:ann"},
        example=RewardAnswer(
            object="reward",
            reward_id="7f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
            task_id="sum-1",
            response_id="9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
            slot=0,
            source="feedback/people:ann",
            score=1.0,
            enters_group=False,
            recorded_at="streamward.rewards[3]@1042",
        ),
        tools={"record_reward": ""},
        toolsets=("log", "scoring"),
    )
    async def give_reward(self, request: Request, body: RewardBody) -> RewardAnswer:
        """Write a score of exactly one answer."""
        lock = self._of_task.setdefault(body.task_id, asyncio.Lock())
        async with lock, self._at_once:  # scores of a task in turn, so that the same one twice at once is written once
            return await apart(self._write, request, body)

    def _write(self, request: Request, body: RewardBody) -> RewardAnswer:
        """Write a score of one answer. Raises CallError, NotFoundError, and as `write_reward`."""
        task = self._log.find_task(request, body.task_id)
        response = choose_response(self._responses(task), body)
        reward = reward_of(body, task.task, response, self._settings, now_ms=times.now_ms())
        try:
            position = write_reward(self._settings, reward, since_ms=task.timestamp_ms)
        except (serde.EncodeError, EventError) as exc:
            raise CallError("invalid", str(exc)) from exc
        return _answer(reward, position)

    def _responses(self, task: SubmittedTask) -> Iterator[Response]:
        """Yield the responses to a task."""
        topic, task_id = topics(self._settings.topics)["responses"], task.task.task_id
        partition = (topic.name, partition_of(task_id, topic.partitions))
        low, high = offsets(self._settings, ["responses"])[partition]
        since = offsets_at(self._settings, ["responses"], max(0, task.timestamp_ms - CLOCKS_MS))[partition]
        start = max(low, since) if since >= 0 else high
        for record in read_log(self._settings, {partition: start}, {partition: high}):
            response = record.decode(Response) if record.key == task_id.encode() else None
            if isinstance(response, Response):
                yield response


def _answer(reward: Reward, position: Coordinates) -> RewardAnswer:
    assert reward.value is not None  # noqa: S101 - the body has a score
    return RewardAnswer(
        object="reward",
        reward_id=reward.reward_id,
        task_id=reward.task_id,
        response_id=reward.response_id,
        slot=reward.slot,
        source=reward.source,
        score=reward.value,
        enters_group=not reward.source.startswith(FEEDBACK),
        recorded_at=str(position),
    )


def _wording(body: RewardBody) -> str:
    by = {"response_id": body.response_id, "slot": body.slot}
    return "with " + " and ".join(f"{name} {value}" for name, value in by.items() if value is not None)


def _parameter(body: RewardBody) -> str:
    return "response_id" if body.response_id is not None else "slot" if body.slot is not None else "task_id"


def _list_text(responses: Sequence[Response]) -> str:
    if not responses:
        return ""
    rest = f" and {len(responses) - MOST_LISTED} more" if len(responses) > MOST_LISTED else ""
    return ": " + ", ".join(f"slot {answer.slot} is {answer.response_id}" for answer in responses[:MOST_LISTED]) + rest


def _response_list(responses: Sequence[Response]) -> dict[str, Any]:
    return {
        "responses": [{"slot": answer.slot, "response_id": answer.response_id} for answer in responses[:MOST_LISTED]]
    }
