"""Check many events at once for a possible break of a rule.

    columns of one event type ──► hold ──► True: every row keeps every rule of `schemas.serde.decode`
                                       └─► False: perhaps not; serde judges them one by one, and finds the fault

These are the rules of `schemas.events.problems` and of the views in schemas/tokens.py, the values of a Literal, and
that numbers are finite, column by column. A wrong doubt costs only time; a wrong certainty is a defect: rows accepted
here must be events for serde, which a test checks with events that hypothesis makes without any rule.
"""

from __future__ import annotations

import binascii
import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.avro_schema import Shape, shapes
from schemas.events import (
    COMPONENT_CHARACTERS,
    MAX_COMPONENTS,
    MAX_GROUP_SIZE,
    MAX_REWARD,
    MAX_TURNS,
    NAMESPACE,
    RATIONALE_CHARACTERS,
    AdapterEvent,
    AdvantagedGroup,
    AgentEvent,
    Batch,
    DeadLetter,
    Event,
    ExperimentEvent,
    GroupControl,
    Response,
    Reward,
    SampleEvent,
    Task,
    TrajectoryEvent,
    Turn,
)
from schemas.tokens import MAX_LOGPROB, Logprobs, TokenIds

_GROUPS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
"""The digits of a UUID between its dashes."""
_VARIANT = np.zeros(256, np.uint8)
"""For each hexadecimal digit that SHA-1 may give, the one with RFC 9562's two upper bits."""
_VARIANT[list(b"0123456789abcdef")] = list(b"89ab89ab89ab89ab")


def hold(event: type[Event], events: pa.StructArray) -> bool:
    """Return whether every row certainly keeps every rule."""
    if not _record_holds(event, events):
        return False
    rules = _RULES.get(event)
    return event in _WITHOUT_RULES if rules is None else rules(events)


# --- rules of a field's type ------------------------------------------------------------------------------------------


def _record_holds(event: Any, events: pa.StructArray) -> bool:
    return all(_holds(shape, events.field(name)) for name, shape in shapes(event).items())


def _holds(shape: Shape, column: pa.Array) -> bool:
    if shape.base is float:
        return _all_true(pc.is_finite(column))
    if shape.base is TokenIds:
        return bool(column.values.to_numpy().min(initial=0) >= 0)
    if shape.base is Logprobs:
        logprobs = column.values.to_numpy()  # with a NaN, neither of these is true
        return bool(logprobs.min(initial=0) > -np.inf and logprobs.max(initial=0) <= MAX_LOGPROB)
    if shape.base is Literal:
        values = column.drop_null()
        return (shape.optional or len(values) == len(column)) and _all_true(pc.is_in(values, pa.array(shape.allowed)))
    if shape.base is tuple and shape.item is not None:
        return _holds(shape.item, column.flatten())
    if shape.base is dict and shape.item is not None:
        return _keys_differ(column) and _holds(shape.item, column.items)
    return not dataclasses.is_dataclass(shape.base) or _record_holds(shape.base, column.drop_null())


def _all_true(results: pa.Array) -> bool:
    """Return whether no row is False; a null does not count."""
    return pc.all(results).as_py() is not False


def _keys_differ(maps: pa.MapArray) -> bool:
    """Return whether no map repeats a key, which Avro would allow."""
    sizes = np.diff(maps.offsets)
    if sizes.max(initial=0) < 2:
        return True
    keys = maps.keys.dictionary_encode()
    rows = np.repeat(np.arange(len(sizes)), sizes)
    codes = keys.indices.to_numpy(zero_copy_only=False)
    return len(np.unique(rows * len(keys.dictionary) + codes)) == len(codes)


# --- rules between fields ---------------------------------------------------------------------------------------------


def _tasks_hold(tasks: pa.StructArray) -> bool:
    size, sources = tasks.field("group_size"), tasks.field("reward_sources")
    named = pc.list_value_length(sources)
    sampling = tasks.field("sampling")
    rules = (
        pc.and_(pc.greater_equal(size, 1), pc.less_equal(size, MAX_GROUP_SIZE)),
        pc.greater(pc.list_value_length(tasks.field("messages")), 0),
        pc.or_(pc.greater(named, 0), pc.equal(tasks.field("purpose"), "serve")),
        pc.less_equal(pc.abs(sources.flatten().field("weight")), MAX_REWARD),
        pc.greater_equal(sampling.field("max_tokens"), 1),
        pc.greater_equal(sampling.field("temperature"), 0),
        pc.and_(pc.greater(sampling.field("top_p"), 0), pc.less_equal(sampling.field("top_p"), 1)),
        pc.greater_equal(tasks.field("max_turns"), 1),
        pc.is_null(tasks.field("prompt_version")),  # of one with a prompt serde judges what it was rendered with
    )
    acting = tasks.filter(tasks.field("environment").is_valid())
    turns = pc.fill_null(acting.field("max_turns"), 0)
    in_environments = (
        pc.and_(pc.greater_equal(turns, 1), pc.less_equal(turns, MAX_TURNS)),
        acting.field("agent").is_valid(),
    )
    if not all(map(_all_true, (*rules, *in_environments))):
        return False
    lists = sources.filter(pc.greater(named, 1)).to_pylist()
    return all(len({source["name"] for source in names}) == len(names) for names in lists)


def _responses_hold(responses: pa.StructArray) -> bool:
    slot, error = responses.field("slot"), responses.field("error")
    rules = (
        pc.and_(pc.greater_equal(slot, 0), pc.less(slot, responses.field("group_size"))),
        pc.equal(pc.equal(responses.field("finish_reason"), "error"), error.is_valid()),
    )
    return (
        all(map(_all_true, rules))
        and _alone(responses)
        and _within(responses, "turns")
        and _ids_match(responses.field("response_id"), responses.field("sampling_id"), slot.cast(pa.string()))
    )


def _alone(responses: pa.StructArray) -> bool:
    """Return whether each completion token has its logprob and its place in the mask.

    Branches are a doubt: they refer to each other.
    """
    tokens, *other_lengths = (
        pc.list_value_length(responses.field(name)) for name in ("completion_token_ids", "logprobs", "loss_mask")
    )
    branches = pc.list_value_length(responses.field("branches"))
    return all(_all_true(pc.equal(tokens, lengths)) for lengths in other_lengths) and _all_true(pc.equal(branches, 0))


def _within(responses: pa.StructArray, name: str) -> bool:
    """Return whether each range of tokens is one of its completion; those of other chains are a doubt."""
    ranges = responses.field(name)
    spans = ranges.flatten()
    if not len(spans):
        return True
    tokens = pc.list_value_length(responses.field("completion_token_ids")).take(pc.list_parent_indices(ranges))
    start, end = spans.field("start"), spans.field("end")
    rules = (pc.equal(spans.field("chain"), 0), pc.greater_equal(start, 0), pc.less_equal(start, end))
    return all(map(_all_true, (*rules, pc.less_equal(end, tokens))))


def _groups_hold(groups: pa.StructArray) -> bool:
    members = groups.field("responses").flatten()
    return members.field("elsewhere").null_count == len(members) and _alone(members) and _within(members, "spans")


def _rewards_hold(rewards: pa.StructArray) -> bool:
    value, steps, scored = rewards.field("value"), rewards.field("steps"), rewards.field("error").is_null()
    components = rewards.field("components")
    rules = (
        pc.less_equal(pa.array(np.diff(components.offsets)), MAX_COMPONENTS),
        pc.less_equal(pc.utf8_length(components.keys), COMPONENT_CHARACTERS),
        pc.less_equal(pc.utf8_length(rewards.field("rationale")), RATIONALE_CHARACTERS),
        pc.xor(value.is_valid(), rewards.field("error").is_valid()),
        pc.less_equal(pc.abs(value), MAX_REWARD),
        pc.less_equal(pc.abs(steps.flatten()), MAX_REWARD),
        pc.or_(scored, pc.equal(pc.list_value_length(steps), 0)),
    )
    return all(map(_all_true, rules)) and _ids_match(
        rewards.field("reward_id"), rewards.field("response_id"), rewards.field("source")
    )


def _turns_hold(turns: pa.StructArray) -> bool:
    choice, error = turns.field("choice"), turns.field("error")
    tokens, logprobs = (pc.list_value_length(turns.field(name)) for name in ("completion_token_ids", "logprobs"))
    rules = (
        pc.equal(turns.field("sampling_id").is_valid(), turns.field("slot").is_valid()),
        pc.and_(pc.greater_equal(choice, 0), pc.less(choice, turns.field("choices"))),
        pc.equal(pc.equal(turns.field("finish_reason"), "error"), error.is_valid()),
        pc.equal(tokens, logprobs),
    )
    return all(map(_all_true, rules))


def _trajectories_hold(events: pa.StructArray) -> bool:
    is_end, sampling, slot = pc.equal(events.field("kind"), "ended"), events.field("sampling_id"), events.field("slot")
    rules = (
        pc.equal(events.field("ending").is_valid(), is_end),
        pc.equal(events.field("turns").is_valid(), is_end),
        pc.equal(sampling.is_valid(), slot.is_valid()),
        pc.equal(sampling.is_valid(), events.field("group_size").is_valid()),
    )
    if not all(map(_all_true, rules)):
        return False
    trajectory, of_task = events.field("trajectory_id"), sampling.is_valid()
    return _ids_match(events.field("event_id"), trajectory, events.field("kind")) and _ids_match(
        trajectory.filter(of_task), sampling.filter(of_task), slot.filter(of_task).cast(pa.string())
    )


def _samples_hold(samples: pa.StructArray) -> bool:
    part, fields = samples.field("part"), pc.list_value_length(samples.field("fields"))
    is_put, is_tagged = (pc.equal(samples.field("kind"), kind) for kind in ("put", "tagged"))
    rules = (
        pc.and_(pc.greater_equal(part, 0), pc.less(part, samples.field("parts"))),
        pc.equal(is_put, pc.greater(fields, 0)),
        pc.or_(pc.invert(is_tagged), samples.field("tags").is_valid()),
    )
    return all(map(_all_true, rules))


def _adapters_hold(events: pa.StructArray) -> bool:
    if any(events.field(name).null_count < len(events) for name in ("tuning", "origin", "outside")):
        return False  # they are few, so serde judges them
    version, parent, first, last = (
        events.field(name) for name in ("version", "parent_version", "first_batch", "last_batch")
    )
    rules = (
        pc.greater_equal(version, 1),  # 0 is a doubt: it depends on the kind
        pc.and_(pc.greater_equal(parent, 0), pc.less(parent, version)),
        pc.equal(first.is_valid(), last.is_valid()),
        pc.and_(pc.greater_equal(first, 0), pc.and_(pc.less_equal(first, last), pc.less(last, version))),
    )
    return all(map(_all_true, rules))


def _ids_match(ids: pa.Array, *parts: pa.Array) -> bool:
    """Return whether each id is `schemas.events.derive_id` of its parts: SHA-1 one by one, and the rest at once."""
    if len(ids) == 0:
        return True
    if ids.null_count or not _all_true(pc.equal(pc.binary_length(ids), 36)):
        return False
    names = pc.binary_join_element_wise(*parts, "\x1f").cast(pa.binary()).to_numpy(zero_copy_only=False)
    prefix, digests = hashlib.sha1(NAMESPACE.bytes, usedforsecurity=False), []
    for name in names:
        sha1 = prefix.copy()  # a third cheaper than starting over
        sha1.update(name)
        digests.append(sha1.digest())
    digits = np.frombuffer(binascii.hexlify(b"".join(digests)), np.uint8).reshape(-1, 40).copy()
    digits[:, 12] = ord("5")  # the version, and the variant of RFC 9562
    digits[:, 16] = _VARIANT[digits[:, 16]]
    expected = np.full((len(ids), 36), ord("-"), np.uint8)
    for dashes, (first, end) in enumerate(_GROUPS):
        expected[:, first + dashes : end + dashes] = digits[:, first:end]
    _, offsets, data = ids.buffers()  # of a column of texts: where each begins, and all of them in one
    begin = int(np.frombuffer(offsets, np.int32)[ids.offset])
    actual = np.frombuffer(data, np.uint8, expected.size, begin)
    return np.array_equal(actual, expected.reshape(-1))


_RULES: dict[type[Event], Callable[[pa.StructArray], bool]] = {
    Task: _tasks_hold,
    Response: _responses_hold,
    Reward: _rewards_hold,
    AdvantagedGroup: _groups_hold,
    AdapterEvent: _adapters_hold,
    Turn: _turns_hold,
    TrajectoryEvent: _trajectories_hold,
    SampleEvent: _samples_hold,
}
"""Events of other types are few, so serde judges them all, except those of _WITHOUT_RULES."""
_WITHOUT_RULES = (GroupControl, Batch, DeadLetter, ExperimentEvent, AgentEvent)
"""Their fields may have any value of their type."""
