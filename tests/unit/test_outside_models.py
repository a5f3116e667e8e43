"""Models that another server answers for: what is asked of them, what is an answer, and what is not sent there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.conventions import COST
from schemas.events import OutsideModel, Sampling, Task
from streams.adapters.retention import plan
from streams.adapters.router import VersionRouter, route
from streams.adapters.versions import empty, fold_all, weights_of
from streams.engines.outside.outside_model import OutsideModels
from streams.engines.protocol import Completion, SamplingRequest
from streams.errors import EventError, SettingsError
from streams.observability.trace_context import Context
from streams.settings.load import load
from streams.settings.model import Outside
from streams.stages.policy.response_writer import ServedVersion, response
from tests.support.doubles.judge import JudgeServer, judging, raw, says
from tests.support.factories import adapter_event, outside, promoted, task, trained


def completion(text: str = "11", *, ending: str = "stop", usage: Any = (7, 2)) -> Any:
    """Return what the server does: answer with this text, and these counts of tokens."""
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": ending}
    return raw(json.dumps({"choices": [choice], "usage": counts}).encode())


@contextmanager
def answered(*answers: Any, asked: Task | None = None, **rule: Any) -> Iterator[tuple[list[Completion], JudgeServer]]:
    """Yield the answers to a task of two slots, of a server that answers so."""
    with judging(*answers) as server:
        models = OutsideModels(Outside(url=server.url, **{"retries": 0, "parallel": 1, **rule}))
        request = SamplingRequest(sampling_id="s1", task=asked or task(group_size=2))
        (completions,) = models.sample(OutsideModel(url=server.url, model="theirs"), [request])
        models.close()
        yield completions, server


def test_each_slot_is_one_request_with_the_tasks_sampling_and_a_seed_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THEIR_KEY", "k3y")
    asked = task(group_size=2, sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=5, stop=("END",)))
    with answered(completion(), asked=asked, key_env="THEIR_KEY") as (completions, server):
        bodies = [body for _, _, body in server.requests]
        assert [headers["Authorization"] for _, headers, _ in server.requests] == ["Bearer k3y"] * 2
    assert [one.text for one in completions] == ["11", "11"]
    assert bodies[0]["messages"] == [{"role": "user", "content": asked.messages[0].content}]
    assert {name: bodies[0][name] for name in ("model", "temperature", "top_p", "max_tokens", "stop")} == {
        "model": "theirs", "temperature": 0.5, "top_p": 0.9, "max_tokens": 5, "stop": ["END"],
    }  # fmt: skip
    assert bodies[0]["seed"] != bodies[1]["seed"]
    with answered(completion(), asked=asked) as (_, again):
        assert [body["seed"] for _, _, body in again.requests] == [body["seed"] for body in bodies], (
            "a retry repeats it"
        )


def test_a_server_is_told_only_what_it_takes() -> None:
    with answered(completion(), parameters="max_completion_tokens") as (_, server):
        assert set(server.requests[0][2]) == {"model", "messages", "max_completion_tokens"}


def test_an_answer_has_a_text_and_counts_and_no_tokens_to_train_on() -> None:
    with answered(completion(usage=(7, 2))) as (completions, _):
        served = ServedVersion(
            adapter_version=3, engine="outside", base_digest="b", tokenizer_digest="b", created_at=1, latency_ms=1.0,
            outside=OutsideModel(url="http://h/v1", model="m", prompt_usd=1.0, completion_usd=4.0),
        )  # fmt: skip
        made = response(SamplingRequest(sampling_id="s1", task=task(group_size=2)), completions[1], served)
    assert (made.prompt_tokens, made.completion_tokens, len(made.completion_token_ids)) == (7, 2, 0)
    assert float(made.metadata[COST]) == pytest.approx((7 * 1.0 + 2 * 4.0) / 1e6)


@pytest.mark.parametrize(
    ("answer", "says_why"),
    [
        (completion(usage=None), "expected prompt_tokens and completion_tokens"),
        (completion(usage=(1.5, 2)), "expected prompt_tokens and completion_tokens"),
        (completion(ending="content_filter"), "finish_reason is 'content_filter'"),
        (completion(ending="tool_calls"), "finish_reason is 'tool_calls'"),
        (raw(b"<html>"), "no chat completion that can be used"),
        (raw(b'{"choices": []}'), "no chat completion that can be used"),
        (raw(b'{"error": "no such model"}', 404), "HTTP 404"),
        (raw(b"{}", 401), "the variable OPENAI_API_KEY with its key"),
    ],
)
def test_what_is_no_answer_is_a_failed_slot_that_says_why(answer: Any, says_why: str) -> None:
    with answered(answer) as (completions, _):
        assert all(says_why in (one.error or "") for one in completions)


def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not() -> None:
    one = task(group_size=1)
    with answered(raw(b"busy", 503), completion(), asked=one, retries=1) as (completions, server):
        assert (completions[0].error, len(server.requests)) == (None, 2)
    with answered(raw(b"no", 400), completion(), asked=one, retries=1) as (completions, server):
        assert (completions[0].error is None, len(server.requests)) == (False, 1)


def test_a_task_is_sent_in_its_trace() -> None:
    trace = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    with judging(completion()) as server:
        models = OutsideModels(Outside(url=server.url, parallel=1))
        request = SamplingRequest(sampling_id="s1", task=task(group_size=2), trace=trace)
        models.sample(OutsideModel(url=server.url, model="theirs"), [request, replace(request, trace=None)])
        models.close()
    assert [headers.get("traceparent") for _, headers, _ in server.requests] == [trace.traceparent] * 2 + [None] * 2


def test_only_the_url_of_the_settings_is_ever_asked() -> None:
    with judging(says("yes")) as server:
        for rule in (Outside(), Outside(url="http://127.0.0.1:1/v1")):
            models = OutsideModels(rule)
            with pytest.raises(EventError, match=r"prompts are sent to outside\.url alone"):
                models.sample(OutsideModel(url=server.url, model="theirs"), [])
            models.close()
        assert server.requests == []


def test_a_tenants_task_is_sent_only_if_the_settings_name_the_tenant() -> None:
    of_acme = task(group_size=2, tenant="acme")
    with answered(completion(), asked=of_acme) as (completions, server):
        assert all("not sent to an outside model" in (one.error or "") for one in completions)
        assert server.requests == []
    with answered(completion(), asked=of_acme, tenants="globex, acme") as (completions, _):
        assert [one.error for one in completions] == [None, None]
    assert Outside(url="http://h/v1", tenants="*").takes("acme") and Outside().takes(None)


@pytest.mark.parametrize(
    ("setting", "says_why"),
    [
        ("outside.prompt_usd=1", "prompt_usd and completion_usd go together"),
        ("outside.tenants=acme", "no effect without url"),
        ("outside.parameters=top_k", "'top_k' is none of"),
        ("outside.url=127.0.0.1:8000/v1", "expected http"),
    ],
)
def test_settings_that_have_no_effect_or_no_meaning_are_refused(setting: str, says_why: str) -> None:
    with pytest.raises(SettingsError, match=says_why):
        load(env={}, overrides=[setting])


# --- in the line of versions ------------------------------------------------------------------------------------------


def router(*events: Any) -> VersionRouter:
    made = VersionRouter("default")
    for event in events:
        made.take(event)
    return made


CANARY = (trained(1), promoted(1), outside(2), adapter_event("canary_started", 2, expected_version=1, share=0.5))


@given(st.text(min_size=1, max_size=8))
def test_a_task_that_must_stay_here_is_never_an_outside_models(task_id: str) -> None:
    asked = task(task_id=task_id)
    assert route(router(*CANARY).serving_here, asked) == 1
    assert route(router(*CANARY, promoted(2, expected_version=1)).serving_here, asked) == 1


def test_a_share_of_the_other_tasks_is() -> None:
    serving = router(*CANARY).serving
    versions = {route(serving, task(task_id=str(number))) for number in range(50)}
    assert versions == {1, 2}


def test_an_outside_model_takes_no_batch_and_the_next_is_trained_onto_the_weights_before_it() -> None:
    after = trained(3, last_batch=1)
    state = fold_all(empty("default"), [trained(1), outside(2), after])
    assert [state.versions[number].trained_batches for number in range(4)] == [0, 1, 1, 2]
    assert state.versions[2].recorded_batches == 1
    assert weights_of(state.versions, 2).version == 1
    assert (state.refused, state.newest) == ((), 3)


def test_the_weights_that_training_continues_from_are_kept() -> None:
    state = fold_all(empty("default"), [trained(1), outside(2), promoted(2, expected_version=0)])
    (weights, _) = plan(state, best=0, primaries=0, by=None)
    assert (weights.version.version, weights.goes) == (1, False)
