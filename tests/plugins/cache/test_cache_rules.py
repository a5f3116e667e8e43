"""What the cache may give again, by itself: versions, canaries, runs, tasks, callers that leave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from plugins.cache.answer_cache import AnswerCache
from plugins.cache.cache_settings import Cache
from schemas.events import Message, Purpose, Sampling, Task, derive_id
from streams.engines.protocol import Completion, SamplingRequest, failed_slots
from streams.engines.sampling_step import RoundVersion, sample_through
from streams.engines.scripted.scripted_tokens import END_OF_TURN, ScriptedRendering
from streams.engines.token_stream import AnswerOrigin, TokenStream
from streams.stages.agents.recording.task_runs import TrajectoryOrder
from streams.stages.policy.response_writer import ServedVersion, response
from tests.plugins.cache.cache_calls import answer
from tests.support import factories
from tests.support.served_calls import Answering, call, said
from tests.support.server_in_memory import serving

SERVED = RoundVersion(3, None)


def new_cache(**rule: Any) -> AnswerCache:
    return AnswerCache(Cache(**{"exact_s": 3600.0} | rule))


@pytest.mark.parametrize(
    "changed",
    [{"version": 1}, {"policy": "chat"}, {"prompt_version": "calc@2"}, {"form": "json"}, {"agent_id": "red.calc"}],
)
def test_another_version_policy_prompt_form_or_tenant_is_sampled(changed: dict[str, Any]) -> None:
    async def talk() -> None:
        step, engine = new_cache(), Answering("4", "5")
        assert said(await answer(step, call(), engine)) == "4"
        assert said(await answer(step, call(**changed), engine)) == "5"
        assert said(await answer(step, call(), engine)) == "4"

    asyncio.run(talk())


def test_nothing_is_given_again_during_a_canary() -> None:
    async def talk() -> None:
        step, engine = new_cache(), Answering("4")
        for _ in range(2):
            await answer(step, call(in_canary=True), engine)
        await answer(step, call(), engine)
        assert len(engine.calls) == 3

    asyncio.run(talk())


def test_the_answer_of_another_version_than_the_one_asked_is_not_kept() -> None:
    class Elsewhere(Answering):
        async def begin(self, call: Any) -> list[TokenStream]:
            [stream] = await super().begin(call)
            stream.origin = AnswerOrigin(version=0, engine="scripted")
            return [stream]

    async def talk() -> None:
        step, engine = new_cache(), Elsewhere("4")
        for _ in range(2):
            await answer(step, call(version=3), engine)
        assert len(engine.calls) == 2

    asyncio.run(talk())


class Waiting(Answering):
    """Has streams that a test fills."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[TokenStream] = []

    async def begin(self, call: Any) -> list[TokenStream]:
        self.streams.append(TokenStream(call.generations[0]))
        return [self.streams[-1]]


def test_a_sampling_continues_while_anyone_waits_for_it() -> None:
    async def talk() -> None:
        step, engine = new_cache(), Waiting()
        [first] = await step.begin(call(), engine.begin)
        [second] = await step.begin(call(), engine.begin)
        [source] = engine.streams
        first.cancel()
        assert (first.ending, source.cancelled) == ("cancelled", False)
        source.push(52, -0.5)
        await asyncio.sleep(0.01)
        [third] = await step.begin(call(), engine.begin)  # it has missed nothing
        source.finish("stop")
        for stream in (second, third):
            assert [drawn async for drawn in stream] == [(52, -0.5)]
        second.cancel()
        assert not source.cancelled

    asyncio.run(talk())


def test_a_sampling_that_no_one_waits_for_is_cancelled_and_shared_with_no_later_call() -> None:
    async def talk() -> None:
        step, engine = new_cache(), Waiting()
        for _ in range(2):
            [stream] = await step.begin(call(), engine.begin)
            stream.cancel()
        assert [source.cancelled for source in engine.streams] == [True, True]

    asyncio.run(talk())


def test_all_who_wait_get_the_error_of_a_sampling_that_cannot_begin() -> None:
    class Refusing(Answering):
        async def begin(self, call: Any) -> list[TokenStream]:
            self.calls.append(call)
            await asyncio.sleep(0.01)
            raise OSError("no engine")

    async def talk() -> None:
        step, engine = new_cache(), Refusing()
        results = await asyncio.gather(*(step.begin(call(), engine.begin) for _ in range(3)), return_exceptions=True)
        assert [str(result) for result in results] == ["no engine"] * 3
        assert len(engine.calls) == 1
        await asyncio.gather(step.begin(call(), engine.begin), return_exceptions=True)
        assert len(engine.calls) == 2

    asyncio.run(talk())


@pytest.mark.parametrize("purpose", ["train", "eval", "serve"])
def test_the_run_of_a_task_is_always_sampled(purpose: Purpose) -> None:
    step = new_cache()
    with serving(ScriptedRendering(), frozenset((END_OF_TURN,)), None, (step,)) as server:
        for slot in range(2):
            order = TrajectoryOrder(
                agent_id="calc",
                trajectory_id=derive_id("s1", slot),
                task_id="t1",
                sampling_id="s1",
                slot=slot,
                group_size=2,
                policy="sums",
                purpose=purpose,
                sampling=Sampling(temperature=0.0, max_tokens=8),
                adapter_version=None,
                max_turns=None,
                metadata={},
                traceparent=None,
            )
            server.run(server.recorder.runs.begin(order))
            server.engine.says((*b"4", END_OF_TURN))
            body = {"model": "sums", "messages": [{"role": "user", "content": "2 + 2 ="}], "temperature": 0}
            url = f"/agents/calc/trajectories/{order.trajectory_id}/v1/chat/completions"
            assert server.post(f"../trajectories/{order.trajectory_id}/v1/chat/completions", body).is_success, url
        assert len(server.engine.streams) == 2


# --- tasks ------------------------------------------------------------------------------------------------------------


class Engine:
    """Answers the slots of tasks, and counts the tasks."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[str] = []
        self.fails = fails

    def sample(self, requests: list[SamplingRequest]) -> list[list[Completion]]:
        self.asked += [request.task.task_id for request in requests]
        if self.fails:
            return [failed_slots(request, "broken") for request in requests]
        return [[slot_of(number) for number in range(request.task.group_size)] for request in requests]


def slot_of(number: int) -> Completion:
    return Completion(
        slot=number,
        text="11",
        finish_reason="stop",
        prompt_token_ids=(1,),
        completion_token_ids=(2, 3),
        logprobs=(-0.5, -0.5),
    )


def requests(*tasks: Task) -> list[SamplingRequest]:
    return [SamplingRequest(sampling_id=f"s-{task.task_id}", task=task) for task in tasks]


def task(name: str, **changed: Any) -> Task:
    values = {"purpose": "serve", "group_size": 1, "sampling": Sampling(temperature=0.0), "reward_sources": ()}
    return factories.task(**{"task_id": name} | values | changed)


def test_equal_serve_tasks_are_sampled_once_and_their_responses_say_so() -> None:
    step, engine = new_cache(), Engine()
    asked = requests(*(task(f"t{number}") for number in range(100)))
    answers = sample_through((step,), asked, SERVED, engine.sample)
    later = sample_through((step,), requests(task("t100")), SERVED, engine.sample)
    assert engine.asked == ["t0"]
    served = ServedVersion(
        adapter_version=3, engine="scripted", base_digest="b", tokenizer_digest="c", created_at=1, latency_ms=1.0
    )
    written = [response(request, slots[0], served) for request, slots in zip(asked, answers, strict=True)]
    assert [made.text for made in written] == ["11"] * 100
    original = written[0].response_id
    assert "origin.cached_from" not in written[0].metadata
    assert {made.metadata.get("origin.cached_from") for made in written[1:]} == {original}
    assert response(requests(task("t100"))[0], later[0][0], served).metadata["origin.cached_from"] == original


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_tasks_that_something_is_learned_from_are_always_sampled(purpose: Purpose) -> None:
    step, engine = new_cache(), Engine()
    scored = {"purpose": purpose, "reward_sources": factories.task().reward_sources}
    tasks = [task("t0"), task("t1", **scored), task("t2"), task("t3", **scored)]
    answers = sample_through((step,), requests(*tasks), SERVED, engine.sample)
    assert sorted(engine.asked) == ["t0", "t1", "t3"]
    assert [slots[0].origin is not None for slots in answers] == [False, False, True, False]


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "red"},
        {"policy": "chat"},
        {"group_size": 2},
        {"messages": (Message(role="user", content="4 + 8 ="),)},
        {"sampling": Sampling(temperature=0.7)},
        {"sampling": Sampling(temperature=0.0, max_tokens=9)},
        {"metadata": {"cache_control": "no-store"}},
    ],
)
def test_another_task_is_sampled(changed: dict[str, Any]) -> None:
    step, engine = new_cache(), Engine()
    sample_through((step,), requests(task("t0"), task("t1", **changed)), SERVED, engine.sample)
    assert engine.asked == ["t0", "t1"]


def test_a_task_at_temperature_above_0_has_the_cache_by_wish() -> None:
    step, engine = new_cache(), Engine()
    wish = {"sampling": Sampling(temperature=1.0), "metadata": {"cache_control": "max-age=60"}}
    sample_through((step,), requests(task("t0", **wish), task("t1", **wish)), SERVED, engine.sample)
    sample_through((step,), requests(task("t2", **wish)), SERVED._replace(version=4), engine.sample)
    assert engine.asked == ["t0", "t2"]


def test_failed_slots_are_not_kept() -> None:
    step = new_cache()
    answers = sample_through((step,), requests(task("t0"), task("t1")), SERVED, Engine(fails=True).sample)
    assert [slots[0].error for slots in answers] == ["broken", "broken"]
    engine = Engine()
    sample_through((step,), requests(task("t2")), SERVED, engine.sample)
    assert engine.asked == ["t2"]


def test_a_round_keeps_its_order_and_its_own_slots() -> None:
    step, engine = new_cache(), Engine()
    first = requests(task("t0", group_size=3))
    [kept] = sample_through((step,), first, SERVED, engine.sample)
    [again] = sample_through((step,), requests(task("t1", group_size=3)), SERVED, engine.sample)
    assert [replace(slot, origin=None) for slot in again] == kept
    copies = [slot.origin.notes["origin.cached_from"] for slot in again if slot.origin is not None]
    assert copies == [derive_id("s-t0", slot) for slot in range(3)]
