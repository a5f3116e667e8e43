"""The answers to a job's questions, with their rewards.

groups of the job ──► those that are wanted ──► responses, by their coordinates ──► one object an answer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from plugins.jobs.fold.questions import ITERATION, JOB, is_count, suite_name
from plugins.jobs.fold.state import JobState
from schemas.conventions import PINNED
from schemas.events import AdvantagedGroup, Coordinates, GroupResponse, Response
from schemas.serde import Poison
from streams.evaluation.results import is_right
from streams.kafka.admin import offsets, read_topic
from streams.kafka.reader import PartitionReader, fetch, read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings

AT_ONCE = 500
"""Responses that are fetched together."""
NEWEST_BATCHES = 8
"""Among the groups of so many batches are those of the newest iteration, with evaluations and dropped ones."""
CLOCKS_APART_MS = 600_000
"""Maximum lag of a stage's clock behind the clock of the server that accepted the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswers:
    """Which answers are wanted."""

    success_only: bool = False
    min_reward: float | None = None
    limit: int | None = None
    offset: int = 0


class _Match(NamedTuple):
    group: AdvantagedGroup
    member: GroupResponse
    at: Coordinates


def answers(settings: Settings, job: JobState, filter_: JobAnswers) -> Iterator[dict[str, Any]]:
    """Yield the answers of a job's groups in the order of the log, each once.

    Raises LogError if the broker does not answer, or retention has cut the responses of a group that is still there.
    """
    end = None if filter_.limit is None else filter_.offset + filter_.limit
    chosen = islice(_matches(settings, job, filter_), filter_.offset, end)
    while batch := list(islice(chosen, AT_ONCE)):
        records = fetch(settings, [answer.at for answer in batch])
        for answer in batch:
            response = records[answer.at].decode(Response)
            if not isinstance(response, Poison):
                yield _answer(answer, response)


def tool_accuracy(settings: Settings, job: JobState) -> float | None:
    """Return the share of the calls of tools in the newest iteration's answers that their environment could use.

    None without such calls. Reads only the end of what the job's figures count. Raises LogError if the broker does not
    answer.
    """
    if job.spec.agent is None or not job.iteration:
        return None
    bounds, place = offsets(settings, ["groups", "responses"]), _groups_of(settings, job)
    start = max(bounds[place][0], job.groups_next - NEWEST_BATCHES * job.spec.batch_size)
    groups = (group for group in _groups(settings, place, start, job.groups_next) if _is_newest(group, job))
    return _usable_share_of(settings, bounds, groups)


def tool_accuracy_by_version(settings: Settings, job: JobState, only: int | None = None) -> dict[int, float]:
    """Return the share of usable calls in the answers to a job's held-out questions, by version, or of one version.

    A version without such calls has none. Reads the groups since the job was ordered. Raises LogError if the broker
    does not answer.
    """
    if job.spec.agent is None or not job.held_out:
        return {}
    bounds, place = offsets(settings, ["groups", "responses"]), _groups_of(settings, job)
    with PartitionReader(settings, {}) as reader:
        start = reader.first_at(place, job.created_at - CLOCKS_APART_MS)
    of_version: dict[int, dict[str, AdvantagedGroup]] = {}
    for group in _groups(settings, place, start, bounds[place][1]):
        pinned = group.metadata.get(PINNED, "")
        if group.metadata.get("suite") == suite_name(job) and is_count(pinned) and only in (None, int(pinned)):
            of_version.setdefault(int(pinned), {}).setdefault(group.task_id, group)
    shares = {version: _usable_share_of(settings, bounds, groups.values()) for version, groups in of_version.items()}
    return {version: share for version, share in shares.items() if share is not None}


def _groups_of(settings: Settings, job: JobState) -> TopicPartition:
    """Return where the groups of a job's policy are."""
    return topics(settings.topics)["groups"].name, partition_of(job.policy, settings.topics.policy_partitions)


def _groups(settings: Settings, place: TopicPartition, start: int, end: int) -> Iterator[AdvantagedGroup]:
    """Yield the groups between two offsets of a partition."""
    for record in read(settings, {place: start}, {place: end}) if start < end else ():
        group = record.decode(AdvantagedGroup)
        if isinstance(group, AdvantagedGroup):
            yield group


def _usable_share_of(
    settings: Settings, bounds: Mapping[TopicPartition, tuple[int, int]], groups: Iterable[AdvantagedGroup]
) -> float | None:
    """Return the `usable_share` of the answers in groups, without those that retention has deleted."""
    name = topics(settings.topics)["responses"].name
    places = (Coordinates(name, member.partition, member.offset) for group in groups for member in group.responses)
    stored = [place for place in places if place.offset >= bounds[place.topic, place.partition][0]]
    responses = (record.decode(Response) for record in fetch(settings, stored).values())
    return usable_share(response for response in responses if isinstance(response, Response))


def _is_newest(group: AdvantagedGroup, job: JobState) -> bool:
    """Return whether a group is of the job's newest iteration."""
    return (group.metadata.get(JOB), group.metadata.get(ITERATION)) == (job.job_id, str(job.iteration))


def usable_share(responses: Iterable[Response]) -> float | None:
    """Return the share of the calls of tools that environments could use; None without one."""
    calls = [turn for response in responses for turn in response.turns if turn.tool is not None]
    usable = [turn.ok for turn in calls if turn.ok is not None]
    return sum(usable) / len(usable) if usable else None


def _matches(settings: Settings, job: JobState, filter_: JobAnswers) -> Iterator[_Match]:
    name = topics(settings.topics)["responses"].name
    partition = partition_of(job.policy, settings.topics.policy_partitions)
    seen: set[str] = set()
    for record in read_topic(settings, "groups", partition=partition):
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison) or group.metadata.get(JOB) != job.job_id or group.group_id in seen:
            continue
        seen.add(group.group_id)
        for member in group.responses:
            if filter_.success_only and not is_right(member):
                continue
            if filter_.min_reward is None or member.reward >= filter_.min_reward:
                yield _Match(group, member, Coordinates(name, member.partition, member.offset))


def _answer(answer: _Match, response: Response) -> dict[str, Any]:
    group, member = answer.group, answer.member
    iteration = group.metadata.get(ITERATION, "")
    return {
        "response_id": member.response_id,
        "task_id": group.task_id,
        "purpose": group.purpose,
        "iteration": int(iteration) if is_count(iteration) else None,
        "adapter_version": group.adapter_version,
        "slot": member.slot,
        "text": response.text,
        "reward": member.reward,
        "success": is_right(member),
        "advantage": member.advantage,
        "components": dict(member.components),
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "recorded_at": str(answer.at),
    }
