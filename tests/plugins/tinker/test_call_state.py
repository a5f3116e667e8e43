"""What calls of training loops come to, in whatever order their records are read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from plugins.tinker.calls.call_names import CheckpointPath, parse_path
from plugins.tinker.calls.call_rules import LEAST_TTL_S, refusal
from plugins.tinker.calls.call_state import CallState, place_of
from schemas.events import CallLora, TrainingCall, TrainingResult
from schemas.tokens import Octets
from tests.plugins.tinker.session_calls import (
    MODEL,
    begin_session,
    call,
    create_model,
    create_sampler,
    numbered,
    result,
    sample,
)
from tests.support.factories import T0

PATH = f"tinker://{MODEL}/weights/a"
FOLDER = "file:///store/s1-train-0/1"


def state_of(*events: TrainingCall | TrainingResult) -> CallState:
    state = CallState()
    for event in events:
        state.take(event)
    return state


BEGIN = (begin_session(), create_model())
SAVE = numbered("save_weights", 1, path="a", ttl_s=LEAST_TTL_S)
SAVED = result(SAVE, uri=FOLDER, version=1, path=PATH, state_sha256="b" * 64)


def test_saved_weights_are_known_by_their_path_until_they_expire_or_are_deleted() -> None:
    state = state_of(*BEGIN, SAVE)
    assert state.checkpoints == {} and state.is_pending(SAVE.call_id)
    state.take(SAVED)
    (checkpoint,) = state.checkpoints.values()
    assert (checkpoint.path, checkpoint.uri, checkpoint.version, checkpoint.kind) == (PATH, FOLDER, 1, "weights")
    assert not checkpoint.is_gone(T0 + 1000 * LEAST_TTL_S - 1) and checkpoint.is_gone(T0 + 1000 * LEAST_TTL_S)
    state.take(call("set_expiry", "e1", model=MODEL, path=PATH))
    assert state.checkpoints[PATH].expires_at is None
    state.take(call("delete_checkpoint", "d1", model=MODEL, path=PATH))
    assert state.checkpoints == {}


def test_the_state_is_the_same_in_whatever_order_calls_and_results_are_read() -> None:
    delete = call("delete_checkpoint", "d1", model=MODEL, path=PATH)
    again = numbered("save_weights", 2, path="a", request='{"overwrite": true}')
    calls = [SAVE, call("set_expiry", "e1", model=MODEL, path=PATH), delete, again]
    results = [SAVED, result(again, uri=f"{FOLDER}-2", version=2, path=PATH)]
    seen = set()
    for places in itertools.combinations(range(6), 2):  # where the results stand among the calls
        left = iter(calls)
        others = iter(results)
        state = state_of(*BEGIN, *(next(others if place in places else left) for place in range(6)))
        seen.add(repr((state.checkpoints, state.results, state.models)))
    assert len(seen) == 1
    assert [checkpoint.version for checkpoint in state.checkpoints.values()] == [2]


def test_the_first_call_of_an_id_counts_and_so_does_the_first_result_of_a_call() -> None:
    state = state_of(
        *BEGIN, SAVE, numbered("save_weights", 1, path="b"), SAVED, result(SAVE, error="x", category="server")
    )
    assert state.calls[SAVE.call_id].path == "a" and state.results[SAVE.call_id].error is None
    assert list(state.checkpoints) == [PATH]


def test_tensors_are_not_kept() -> None:
    passed = numbered("forward", 1, data=Octets(b"many"))
    state = state_of(*BEGIN, passed, result(passed, outputs=Octets(b"more")))
    assert not len(state.calls[passed.call_id].data) and not len(state.results[passed.call_id].outputs)


def test_weights_saved_without_a_name_are_a_sampling_session_of_the_model() -> None:
    save = numbered("save_weights_for_sampler", 1, sampling_session="s1:sample:0")
    state = state_of(*BEGIN, save, call("join_sampling_session", "j1", model=MODEL, sampling_session="s1:sample:0"))
    sampler = state.samplers["s1:sample:0"]
    assert (sampler.model, sampler.save, sampler.base_model, len(sampler.joined)) == (MODEL, save.call_id, "tiny", 1)
    drawn = sample(0, model=MODEL)
    state.take(drawn)
    state.take(result(drawn))
    assert sampler.ended == [drawn.call_id]


def test_a_model_made_of_saved_weights_has_their_shape_and_a_copy_has_their_files() -> None:
    loaded = call(
        "load_weights", "s1:train:1", model="s1:train:1", seq_id=0, path=PATH, source=FOLDER, base_model="tiny",
        lora=CallLora(rank=4),
    )  # fmt: skip
    copied = call(
        "copy_weights", "s1:train:2", model="s1:train:2", seq_id=0, path=PATH, source=FOLDER, base_model="tiny",
        lora=CallLora(rank=4),
    )  # fmt: skip
    state = state_of(*BEGIN, loaded, copied)
    assert (state.models["s1:train:1"].lora.rank, place_of(loaded)) == (4, 0)
    assert state.checkpoints["tinker://s1:train:2/weights/a"].uri == FOLDER
    assert not state.models["s1:train:2"].trains


@pytest.mark.parametrize("path", ["tinker://m/weights/", "tinker://m/other/a", "m/weights/a", "tinker://m/weights/a/b"])
def test_what_is_no_path_of_saved_weights_has_no_parts(path: str) -> None:
    assert parse_path(path) is None
    assert parse_path(PATH) == CheckpointPath(MODEL, "weights", "a")


FINISHED = call("finish_session", "f1", request='{"reason": "done"}')
COPIED = replace(create_model(1), kind="copy_weights", path=PATH, source=FOLDER)
UNLOADED = call("unload_model", "u1", model=MODEL)
DEAR = begin_session(max_budget_usd=0.5)


@pytest.mark.parametrize(
    ("before", "refused", "says"),
    [
        ((), create_model(), "there is no session s1; create_session begins one"),
        (BEGIN, begin_session(), "there is a session s1 already"),
        (BEGIN, create_model(), f"there is a model {MODEL} already"),
        (BEGIN[:1], numbered("optim_step", 1), f"there is no model {MODEL}"),
        ((*BEGIN, FINISHED), numbered("optim_step", 1), "session s1 has finished (done)"),
        ((*BEGIN, UNLOADED), numbered("optim_step", 1), "was unloaded"),
        ((*BEGIN, COPIED), numbered("optim_step", 1, "s1:train:1"), "holds copied weights"),
        (BEGIN, numbered("optim_step", 0), "seq_id is 0; the calls of a model are numbered from 1"),
        (BEGIN, numbered("load_weights", 2, path=PATH), "load_weights must be the model's first request"),
        (BEGIN, numbered("save_weights", 1, path="a/b"), "path is 'a/b'; expected a name of letters"),
        (BEGIN, numbered("save_weights", 1, path="a", ttl_s=60), "ttl_seconds is 60; expected 3600 (an hour)"),
        ((*BEGIN, SAVE), numbered("save_weights", 2, path="a"), f"there are saved weights {PATH} already"),
        (BEGIN[:1], sample(0), "there is no sampling session s1:sample:0"),
        ((DEAR, *BEGIN[1:], SAVE, result(SAVE, cost_usd=0.5)), numbered("optim_step", 2), "its budget is 0.5000"),
    ],
)
def test_a_call_against_a_rule_is_refused_with_the_way_out(
    before: tuple[Any, ...], refused: TrainingCall, says: str
) -> None:
    assert says in (refusal(state_of(*before), refused, T0) or "")


@pytest.mark.parametrize(
    ("before", "good"),
    [
        ((), begin_session()),
        (BEGIN[:1], create_model()),
        (BEGIN, numbered("load_weights", 1, path=PATH)),
        ((*BEGIN, SAVE, SAVED), numbered("save_weights", 2, path="a", request='{"overwrite": true}')),
        ((*BEGIN, SAVE), numbered("save_weights_for_sampler", 2, path="a")),
        ((*BEGIN, create_sampler()), sample(0)),
        ((DEAR, *BEGIN[1:], SAVE, result(SAVE, cost_usd=0.5)), numbered("save_weights", 2, path="b")),
        ((*BEGIN, FINISHED), call("delete_checkpoint", "d1", model=MODEL, path=PATH)),
    ],
)
def test_what_no_rule_forbids_may_be_called(before: tuple[Any, ...], good: TrainingCall) -> None:
    assert refusal(state_of(*before), good, T0) is None
