"""Fetch tokens that did not fit into a group from its responses.

    [AdvantagedGroup] ──► members without their tokens ──► History: their responses ──► the same groups, whole

A group is trained on whole or not at all: without a response the step would be another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from schemas.events import AdvantagedGroup, Coordinates, GroupResponse, Response, TokensElsewhere, problems
from schemas.serde import Poison
from streams.errors import ContradictoryEvent, RefusedError
from streams.kafka.history import History
from streams.kafka.record import Record


def fetch(groups: Iterable[AdvantagedGroup], topic: str, history: History) -> Mapping[Coordinates, Record]:
    """Return the responses that hold these groups' tokens, where they are in the log; `topic`: that of responses.

    Raises RefusedError if retention has deleted one, LogError if the log cannot be read.
    """
    coordinates = [
        _at(topic, response) for group in groups for response in group.responses if _has_tokens_elsewhere(response)
    ]
    if not coordinates:
        return {}
    bounds = history.bounds(["responses"])
    for place in coordinates:
        first = bounds.get(place[:2], (0, 0))[0]
        if place.offset < first:
            raise RefusedError(
                f"{place}: retention has deleted this response, and its group was too large to have its tokens, too; "
                f"the first one there has offset {first}. Restore it from an archive (`streamward admin archive "
                "restore`; `streamward reproduce` reads one with --source archive), and keep responses as long as "
                "groups (topics.retention_days)"
            )
    return history.fetch(place for place in coordinates if place.offset < bounds.get(place[:2], (0, 0))[1])


def whole(group: AdvantagedGroup, topic: str, responses: Mapping[Coordinates, Record]) -> AdvantagedGroup:
    """Return the group with all its tokens. Raises ContradictoryEvent if a response is not the one it refers to."""
    if not any(map(_has_tokens_elsewhere, group.responses)):
        return group
    completed = replace(
        group, responses=tuple(_with_tokens(group, response, topic, responses) for response in group.responses)
    )
    for problem in problems(completed):
        raise ContradictoryEvent(f"group {group.group_id} of task {group.task_id}: {problem}")
    return completed


def _with_tokens(
    group: AdvantagedGroup, member: GroupResponse, topic: str, responses: Mapping[Coordinates, Record]
) -> GroupResponse:
    if not _has_tokens_elsewhere(member):
        return member
    coordinates = _at(topic, member)
    place = f"group {group.group_id} of task {group.task_id}, slot {member.slot}"
    complaint = f"{place}: its tokens are said to be at {coordinates}"
    record = responses.get(coordinates)
    if record is None:
        raise ContradictoryEvent(f"{complaint}, which is after the end of the topic; check who wrote the group")
    response = record.decode(Response)
    if isinstance(response, Poison) or response.response_id != member.response_id:
        description = response.error if isinstance(response, Poison) else f"response {response.response_id}"
        raise ContradictoryEvent(
            f"{complaint}, which is not response {member.response_id}: {description}; check who wrote the group"
        )
    prompt, common = response.prompt_token_ids, group.prompt_token_ids
    if prompt[: len(common)] != common:
        raise ContradictoryEvent(
            f"{complaint}, which does not begin with the group's prompt; check who wrote the group"
        )
    completed = replace(
        member,
        elsewhere=None,
        prompt_token_ids=prompt[len(common) :],
        completion_token_ids=response.completion_token_ids,
        logprobs=response.logprobs,
        loss_mask=response.loss_mask,
        branches=response.branches,
    )
    if (
        counts := TokensElsewhere(completion_tokens=completed.completion_tokens, loss_tokens=completed.loss_tokens)
    ) != (member.elsewhere):
        raise ContradictoryEvent(f"{complaint}, where there are {counts}, expected {member.elsewhere}")
    return completed


def _has_tokens_elsewhere(member: GroupResponse) -> bool:
    """Return whether its tokens are only in its response; an outside model's tokens are nowhere."""
    return member.elsewhere is not None and member.elsewhere.prompt_tokens is None


def _at(topic: str, member: GroupResponse) -> Coordinates:
    return Coordinates(topic, member.partition, member.offset)
