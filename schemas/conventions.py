"""Conventions of events beyond their fields: names, feedback, deadlines, missing scores, recipes of imported versions,
and versions that change nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.events import AdvantagedGroup, ResponseTurn, Reward, Task, derive_id

POLICY_LAG = "policy_lag"
"""Metadata of a group sampled by adapters of another run: by how many versions its sampler was behind the newest when
the group was complete. Version numbers of that run mean nothing in this one."""

PINNED = "pinned_version"
"""Metadata of a group with a pinned task: the version that had to answer."""

IMPORTED = "imported."
"""Prefix of the entries in a recipe that give the origin of an imported version."""
FRAMEWORK, FRAMEWORK_VERSION, TRAINED_BY = (
    IMPORTED + name for name in ("framework", "framework_version", "trained_by")
)
OPTIMIZER = "optimizer_state"
"""The recipe entry of a step that began with a fresh optimizer, after an imported or tuned version."""

FEEDBACK = "feedback/"
"""Prefix of the source of a reward that is feedback on an answer. No task requests it, so no group waits for or counts
it; it is stored for queries and exports. Its `response_id` is the id of the answer: a response, a trajectory (the
same id, if the trajectory is that of a task), or one turn."""
FEEDBACK_VERSION = "feedback/1"
"""The `scorer_version` of such a reward."""

THREAD = "thread"
"""Metadata of a turn, and of the task that a program gets for a run of a thread: the thread that its run continues."""
CONVERSATION = "conversation"
"""Metadata of a trajectory, in its beginning and its end: the conversation that it is a run of. Others of the same
conversation are runs of its thread, or, without a task, calls that continue an earlier run which had ended."""
CONVERSATION_TASKS = "task_ids"
"""Metadata of a verdict on a conversation: the tasks of its runs, a line each."""
THREAD_TASK, TASK_PARTS = "task_id", "task_parts"
"""Metadata of a `changed` event of a thread: the task of its messages, and the parts of it, `question` and `answer`,
that the thread then has."""
WAITS_FOR, CONSENT = "waits_for", "consent"
"""Metadata of the end of a trajectory, and its value: a call of its last answer needed a person's consent, and got no
answer."""
FAILED_TOOLS = "failed_tools"
"""Metadata of a turn: the ids of the calls with results that its client sent as failed, a JSON array."""

WITHHELD = "withheld"
"""Metadata of a turn: the rule by which the rest of its answer was withheld. Its reply and its tokens end there; of a
response: the rule by which all of it was."""
REDACTED, GIVEN_FINISH = "redacted", "finish_reason"
"""Metadata of a turn: the first rule by which words of its reply were replaced, and how the answer ended. Its tokens
end before those words."""

CONTAMINATION_ALLOWED_BY = "contamination_allowed_by"
"""Metadata of a job and its tasks, a version or a data set: the user who allowed training on a suite's held-out
questions."""

TOOL_IDS = "tool_ids"
"""Metadata of a task or an agent: the tools of the registry that it names, each as ID@DIGEST."""


def tool_ids(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the registered tools in metadata.

    >>> tool_ids({TOOL_IDS: "sums@2c26 docs.search@b46b"})
    ('sums', 'docs.search')
    """
    return tuple(part.partition("@")[0] for part in metadata.get(TOOL_IDS, "").split())


SOURCE_SHA256 = "formula_sha256", "credit_sha256"
"""Metadata of a group with a user's own formula or credit rule: the checksum of its source file."""

UNCHANGED = "unchanged"
"""The metric of a `trained` event that is 1 if the version answers like its parent: none of its weights changed."""

OUTSIDE = "outside_model"
"""Why a batch leaves out a group that an outside model answered: it has no tokens to train on."""

OUTSIDE_ENGINE = "outside"
"""The `engine` of an outside model's response, which has a text, and token counts from its server."""

COST = "cost_usd"
"""The cost: a component of a score, such as a judge's, and metadata of an outside model's response."""

SELFPLAY_RUN = "selfplay_run"
"""Metadata of a self-play task: the crossing that runs it."""
SELFPLAY_TASKS = "tasks"
"""Evidence of such a crossing: the number of tasks in its run."""

UNRANKED = "unranked"
"""Why a slot has no score if a source compares all responses to a task: a sibling never came."""

ABSTAINED = "abstained"
"""Why a slot has no score: none of its sources has an opinion."""

UNSCORED = ("response_failed", "score_failed", "unanswered", UNRANKED, "unscored", ABSTAINED)
"""Reasons to leave out a slot that has no score; any other reason applies to a whole dropped group."""


SCORELESS = ("score_failed", "no_judge", "module_not_listed")
"""Reasons of dead letters of the scoring stage: the response has no score, but can still get one."""


class ThreadName(NamedTuple):
    """A thread that a task names."""

    thread_id: str
    """As the log has it."""
    label: str
    """As the task calls it."""

    @classmethod
    def of(cls, task: Task) -> ThreadName | None:
        """Return the thread of a task; None if it names none."""
        prefix = _tenant_prefix(task)
        label = (task.thread or "").removeprefix(prefix)
        if not label:
            return None
        try:
            thread_id = str(uuid.UUID(label))
        except ValueError:
            thread_id = derive_id("thread", label)
        return cls(prefix + thread_id, label)


def _tenant_prefix(task: Task) -> str:
    return "" if task.tenant is None else f"{task.tenant}."


def thread_of_task(task: Task) -> str | None:
    """Return the thread of the run of an agent on a task; None: of none, or its answer is compared with others.

    The name of a tenant's agent says whose it is; with an agent of all, the thread's does.
    """
    if task.agent is None or task.purpose != "serve" or task.group_size != 1:
        return None
    if (name := ThreadName.of(task)) is None:
        return task.metadata.get(THREAD)
    prefix = _tenant_prefix(task)
    return name.thread_id.removeprefix(prefix) if task.agent.startswith(prefix) else name.thread_id


def conversation_of_task(task: Task) -> dict[str, str]:
    """Return the metadata of the run of a task that says of which conversation it is; none if it is of none."""
    thread = thread_of_task(task)
    return {} if thread is None else {CONVERSATION: derive_id(CONVERSATION, thread, task.agent or "", task.policy)}


def trained_elsewhere(recipe: Mapping[str, str]) -> str | None:
    """Return the framework and the trainer of an imported version; None if it was trained here.

    >>> trained_elsewhere({FRAMEWORK: "verl", FRAMEWORK_VERSION: "0.9", TRAINED_BY: "ann"})
    'verl 0.9, by ann'
    """
    if FRAMEWORK not in recipe:
        return None
    return f"{recipe[FRAMEWORK]} {recipe.get(FRAMEWORK_VERSION, '')}, by {recipe.get(TRAINED_BY, '')}"


class RatedAnswer(NamedTuple):
    """The answer that feedback is about: a response, a trajectory, or a turn."""

    answer_id: str
    task_id: str
    policy: str
    slot: int
    """0 if no task was submitted."""
    created_at: int
    """Milliseconds since the epoch: feedback cannot be older."""
    subject: str | None = None
    """The person that it is of."""


def feedback(answer: RatedAnswer, value: float, *, source: str, reason: str | None, now_ms: int) -> Reward:
    """Return feedback as a reward. Each source gives an answer one reward."""
    name = FEEDBACK + source
    return Reward(
        reward_id=derive_id(answer.answer_id, name),
        response_id=answer.answer_id,
        task_id=answer.task_id,
        created_at=now_ms,
        subject=answer.subject,
        policy=answer.policy,
        slot=answer.slot,
        source=name,
        value=value,
        scorer_version=FEEDBACK_VERSION,
        rationale=reason,
    )


def tool_failures(turns: Sequence[ResponseTurn]) -> tuple[int, int]:
    """Return the number of tool calls that the environment could not use, and of those that a usable one followed.

    >>> call = lambda number, ok: ResponseTurn(number=number, start=0, end=0, tool="add", ok=ok)
    >>> tool_failures([call(0, False), call(1, True), call(2, False)])
    (2, 1)
    """
    calls = [turn.ok for turn in turns if turn.tool is not None]
    last_good = max((place for place, ok in enumerate(calls) if ok), default=-1)
    failed = [place for place, ok in enumerate(calls) if ok is False]
    return len(failed), sum(place < last_good for place in failed)


def has_scores(group: AdvantagedGroup) -> bool:
    """Return whether any slot of a group was scored. If not, its reward_mean and reward_std are 0 and mean nothing.

    A group that was dropped keeps the mean of its scores, but not its responses. Only a `serve` task may have no reward
    source, and then its responses have no components.
    """
    unscored = sum(left.reason in UNSCORED for left in group.left_out)
    is_judged = group.purpose != "serve" or any(response.components for response in group.responses)
    return group.group_size > unscored and is_judged


EARLIEST_MS, LATEST_MS = 1_293_840_000_000, 4_102_444_800_000
"""The years 2011, before Kafka, and 2100: a record time outside is in seconds or microseconds, or missing."""


def task_time_ms(task: Task, timestamp_ms: int) -> int:
    """Return when a task was recorded: the time of its record, or if that is impossible, of the task itself."""
    return timestamp_ms if EARLIEST_MS <= timestamp_ms < LATEST_MS else task.created_at


def deadline_ms(task: Task, timestamp_ms: int, default_s: float) -> int | None:
    """Return the time (ms since the epoch) after which nothing recorded counts for `task`; None if none is known.

    A task without its own deadline gets `default_s` seconds (0: no limit) from the timestamp of a record, so that
    every reader computes the same: its own record, or for a `train` task, which may be held back for the trainer, its
    first response that counts. Until then a `train` task waits, however long.
    """
    if task.deadline_at is not None or not default_s or task.purpose == "train":
        return task.deadline_at
    return task_time_ms(task, timestamp_ms) + int(default_s * 1000)
