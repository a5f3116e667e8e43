"""Tokens that a group was too large for, from the responses that have them.

    [AdvantagedGroup] ──► members whose tokens are elsewhere ──► History: their responses ──► the same groups, whole

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
    """Return the responses that these groups leave tokens in, as far as they are in the log; `topic` is of responses.

    Raises RefusedError if retention has deleted one, LogError if the log cannot be read.
    """
    wanted = [_at(topic, one) for group in groups for one in group.responses if one.elsewhere is not None]
    if not wanted:
        return {}
    bounds = history.bounds(["responses"])
    for at in wanted:
        first = bounds.get(at[:2], (0, 0))[0]
        if at.offset < first:
            raise RefusedError(
                f"{at}: retention has deleted this response, and its group was too large to have its tokens, too; the "
                f"first one there has offset {first}. Restore it from an archive (`streamward archive restore`; "
                "`streamward reproduce` reads one with --source archive), and keep responses as long as groups "
                "(topics.retention_days)"
            )
    return history.fetch(at for at in wanted if at.offset < bounds.get(at[:2], (0, 0))[1])


def whole(group: AdvantagedGroup, topic: str, responses: Mapping[Coordinates, Record]) -> AdvantagedGroup:
    """Return the group with all its tokens. Raises ContradictoryEvent if a response is not the one that it names."""
    if all(one.elsewhere is None for one in group.responses):
        return group
    made = replace(group, responses=tuple(_with_tokens(group, one, topic, responses) for one in group.responses))
    for problem in problems(made):
        raise ContradictoryEvent(f"group {group.group_id} of task {group.task_id}: {problem}")
    return made


def _with_tokens(
    group: AdvantagedGroup, one: GroupResponse, topic: str, responses: Mapping[Coordinates, Record]
) -> GroupResponse:
    if one.elsewhere is None:
        return one
    at = _at(topic, one)
    said = f"group {group.group_id} of task {group.task_id}, slot {one.slot}: its tokens are said to be at {at}"
    record = responses.get(at)
    if record is None:
        raise ContradictoryEvent(f"{said}, which is after the end of the topic; check who wrote the group")
    response = record.decode(Response)
    if isinstance(response, Poison) or response.response_id != one.response_id:
        found = response.error if isinstance(response, Poison) else f"response {response.response_id}"
        raise ContradictoryEvent(f"{said}, which is not response {one.response_id}: {found}; check who wrote the group")
    prompt, common = response.prompt_token_ids, group.prompt_token_ids
    if prompt[: len(common)] != common:
        raise ContradictoryEvent(f"{said}, which does not begin with the group's prompt; check who wrote the group")
    made = replace(
        one,
        elsewhere=None,
        prompt_token_ids=prompt[len(common) :],
        completion_token_ids=response.completion_token_ids,
        logprobs=response.logprobs,
        loss_mask=response.loss_mask,
        branches=response.branches,
    )
    if (counts := TokensElsewhere(completion_tokens=made.completion_tokens, loss_tokens=made.loss_tokens)) != (
        one.elsewhere
    ):
        raise ContradictoryEvent(f"{said}, where there are {counts}, expected {one.elsewhere}")
    return made


def _at(topic: str, one: GroupResponse) -> Coordinates:
    return Coordinates(topic, one.partition, one.offset)
