"""The questions of a search as tasks, and the rewards of their answers.

    version, question ──► Task, always the same ──► tasks        groups ──► ScoredAnswer: reward, tokens, by task

The id of a task is derived from what shapes its answer: policy and adapter version, the prompt's text and values, the
question, sampling and scorers, and not from the job. So answers that another search paid for are reused, and a search
that was killed finds its answers in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

from plugins.jobs.fold.state import JobState
from plugins.prompts.search.halving import Ask
from plugins.prompts.versions.prompt_state import PromptVersion
from plugins.prompts.versions.prompt_use import PromptReference, use
from schemas import json_text
from schemas.conventions import has_scores
from schemas.events import AdvantagedGroup, Coordinates, Message, PromptUse, Response, Sampling, Task, derive_id
from schemas.serde import Poison
from streams.errors import EventError
from streams.kafka.admin import offsets
from streams.kafka.reader import PartitionReader, fetch
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.tasks.prompted import after_prompt

SEARCH = "prompt_search"
"""Metadata of a task, and of its group: the job that asked first."""


class ScoredAnswer(NamedTuple):
    """What became of one task."""

    reward: float | None
    """The mean of its answers; None: none was scored."""
    prompt_tokens: int
    sampled_tokens: int
    job_id: str
    """That asked first, and pays."""
    places: tuple[tuple[int, int], ...] = ()
    """Partition and offset of each response."""


def prompt_of(version: PromptVersion, job: JobState) -> PromptUse:
    """Return a version with the values of a search. Raises EventError if they cannot be read."""
    search = job.spec.search
    try:
        values = json_text.parse(search.values) if search is not None else {}
    except ValueError as exc:
        raise EventError(f"job {job.job_id}: the values of its search cannot be read: {exc}") from exc
    return use(version, PromptReference(version.name, version=version.number), values)


def task_of(version: PromptVersion, question: int, job: JobState, adapter_version: int) -> Task:
    """Return the task that asks a question with a version. Raises EventError."""
    spec, asked = job.spec, job.spec.questions[question]
    prompt = prompt_of(version, job)
    own = asked.messages or (Message(role="user", content=asked.query),)
    messages = after_prompt(prompt, own)
    sampling = Sampling(temperature=0.0, max_tokens=spec.sampling.max_tokens, stop=spec.sampling.stop)
    sources = [asdict(source) for source in spec.reward_sources]
    shaped = json.dumps([asdict(message) for message in messages], sort_keys=True)
    return Task(
        task_id=derive_id(
            "prompt answer", job.policy, adapter_version, version.digest, shaped, asked.verifier, sampling, sources
        ),
        created_at=job.created_at,
        metadata={SEARCH: job.job_id},
        policy=job.policy,
        purpose="eval",
        scenario="prompts",
        tenant=job.tenant,
        group_size=1,
        adapter_version=adapter_version,
        sampling=sampling,
        verifier=asked.verifier,
        agent=spec.agent,
        max_turns=spec.max_turns,
        prompt_version=prompt,
        reward_sources=spec.reward_sources,
        messages=messages,
    )


class AnswerReader:
    """Follows the groups of one policy. Close it after use."""

    def __init__(self, settings: Settings, policy: str) -> None:
        name = topics(settings.topics)["groups"].name
        number = partition_of(policy, settings.topics.policy_partitions)
        bounds = offsets(settings, ["groups"])
        self._end = bounds[name, number][1]
        self._place, self._policy = (name, number), policy
        self._reader = PartitionReader(settings, {(name, number): bounds[name, number][0]})
        self.answers: dict[str, ScoredAnswer] = {}
        """By task id."""

    def poll(self, timeout_s: float) -> bool:
        """Take in new groups; return whether everything that was in the log at the start is in."""
        for record in self._reader.poll(timeout_s=timeout_s):
            group = record.decode(AdvantagedGroup)
            if isinstance(group, Poison) or group.policy != self._policy:
                continue
            if group.prompt_version is not None or not group.responses:  # which failed, or expired without an answer
                self.answers.setdefault(group.task_id, score_of(group))
        return self._reader.position[self._place] >= self._end

    def close(self) -> None:
        """Stop reading."""
        self._reader.__exit__()


def texts_of(settings: Settings, answers: Iterable[ScoredAnswer]) -> list[str]:
    """Return the text of each answer; of several responses the first. Raises LogError."""
    name = topics(settings.topics)["responses"].name
    places = [Coordinates(name, *answer.places[0]) if answer.places else None for answer in answers]
    records = fetch(settings, [place for place in places if place is not None])
    texts = []
    for place in places:
        response = None if place is None else records[place].decode(Response)
        texts.append(response.text if isinstance(response, Response) else "")
    return texts


def score_of(group: AdvantagedGroup) -> ScoredAnswer:
    """Return what a group says of its task."""
    wrote = sum(response.loss_tokens for response in group.responses)
    read = sum(
        len(group.prompt_token_ids) + len(response.prompt_token_ids) + response.completion_tokens - response.loss_tokens
        for response in group.responses
    )
    return ScoredAnswer(
        reward=group.reward_mean if has_scores(group) and group.responses else None,
        prompt_tokens=read,
        sampled_tokens=wrote,
        job_id=group.metadata.get(SEARCH, ""),
        places=tuple((response.partition, response.offset) for response in group.responses),
    )


class SearchTasks:
    """The tasks of one search, by version and question, each made once."""

    def __init__(self, job: JobState, adapter_version: int) -> None:
        self._job, self._adapter_version = job, adapter_version
        self._made: dict[Ask, Task] = {}

    def task(self, version: PromptVersion, question: int) -> Task:
        """Return a task. Raises EventError if a variable has no value."""
        ask = Ask(version.number, question)
        if ask not in self._made:
            self._made[ask] = task_of(version, question, self._job, self._adapter_version)
        return replace(self._made[ask])

    def answer(self, ask: Ask, answers: Mapping[str, ScoredAnswer]) -> ScoredAnswer:
        """Return an answer that is in the log."""
        return answers[self._made[ask].task_id]

    def rewards(self, answers: Mapping[str, ScoredAnswer]) -> dict[Ask, float | None]:
        """Return the rewards of what was made and is answered."""
        return {ask: answers[task.task_id].reward for ask, task in self._made.items() if task.task_id in answers}


def tokens_paid(answers: Iterable[ScoredAnswer], job_id: str) -> tuple[int, int]:
    """Return the tokens that a job paid for: read, and sampled."""
    own = [answer for answer in answers if answer.job_id == job_id]
    return sum(answer.prompt_tokens for answer in own), sum(answer.sampled_tokens for answer in own)
