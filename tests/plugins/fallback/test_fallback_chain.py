"""Fallbacks: which target answers, when it is asked, and what its answer says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from plugins.fallback.fallback_chain import FallbackChain, build_fallback
from plugins.fallback.fallback_settings import Fallback
from plugins.fallback.other_engine import OtherEngine
from plugins.fallback.recount_fallback import FallbackRecount
from schemas.events import Coordinates, Message, Purpose, Response, Sampling
from streams.engines.protocol import Completion, SamplingRequest, failed_slots
from streams.engines.sampling_step import RoundVersion, sample_through
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.engines.scripted.scripted_tokens import END_OF_TURN, ScriptedRendering, ScriptedTokenEngine
from streams.engines.token_stream import TokenStream
from streams.errors import CallError, SettingsError, StreamwardError
from streams.kafka import admin
from streams.kafka.record import Record
from streams.settings.model import Policy, Settings
from streams.stages.policy import policy_agent
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.log.policy_agents import sum_task
from tests.support.processes import read, until, write
from tests.support.served_calls import Answering, call, said
from tests.support.server_in_memory import ServerInMemory, serving

SETTINGS = Settings(policy=Policy(name="sums", engine="scripted"))
INSTEAD = json.dumps({"replies": [{"when": "2 + 2", "reply": "four"}]})
QUESTION = {"model": "sums", "messages": [{"role": "user", "content": "2 + 2 ="}], "temperature": 0}
ENGINE: Any = ScriptedTokenEngine  # its name and digests
CHAIN = "*=earlier+base"


def chain(chains: str = CHAIN, **rule: Any) -> FallbackChain:
    made = Fallback(**{"chains": chains, "first_token_s": 0.3, "pause_s": 0.5, "patience_s": 1.0} | rule)
    return FallbackChain(made, ENGINE, OtherEngine(SETTINGS, made, ENGINE) if made.engine else None)


class FailingEngine(Answering):
    """Gives no token for some versions, in one of the ways of engines, and answers for others with their number."""

    def __init__(self, way: str, *broken: int) -> None:
        super().__init__("")
        self.way, self.broken = way, broken

    async def begin(self, call: Any) -> list[TokenStream]:
        self.texts = [f"version {call.version}"]
        if call.version not in self.broken:
            return await super().begin(call)
        self.calls.append(call)
        stream = TokenStream(call.generations[0])
        match self.way:
            case "refuses":
                raise CallError("busy", "the engine is closed; try again")
            case "fails":
                stream.finish("error", error="out of memory")
            case "ends":
                stream.finish("stop")
        return [stream]  # "hangs": nothing comes


def begin(step: FallbackChain, engine: Answering, **changed: Any) -> TokenStream:
    [stream] = asyncio.run(step.begin(call(**{"version": 3, "earlier": lambda: 2} | changed), engine.begin))
    return stream


@pytest.mark.parametrize(("way", "reason"), [("refuses", "failed"), ("fails", "failed"), ("hangs", "no_token")])
def test_the_next_target_answers_and_says_what_was_asked(way: str, reason: str) -> None:
    stream = begin(chain(), FailingEngine(way, 3))
    assert said(stream) == "version 2"
    assert stream.origin is not None
    assert (stream.origin.version, stream.origin.engine) == (2, "scripted")
    assert stream.origin.notes == {"origin.asked_version": "sums@3", "origin.fallback_reason": reason}


def test_an_engine_that_answers_is_no_fallback() -> None:
    engine = FailingEngine("fails")
    assert begin(chain(), engine).origin is None
    assert [asked.version for asked in engine.calls] == [3]


def test_an_empty_answer_is_an_answer() -> None:
    stream = begin(chain(), FailingEngine("ends", 3))
    assert (stream.drawn, stream.origin) == ([], None)


def test_the_chain_is_that_of_the_policy_that_was_asked_and_in_its_order() -> None:
    chains = "chat=base,su*=earlier+base"
    engine = FailingEngine("fails", 3, 2)
    assert said(begin(chain(chains), engine)) == "version 0"
    assert [asked.version for asked in engine.calls] == [3, 2, 0]
    engine = FailingEngine("fails", 3)
    assert said(begin(chain(chains), engine, policy="chat")) == "version 0"
    with pytest.raises(AssertionError):  # a policy without a chain gets what its engine gives
        assert said(begin(chain(chains), FailingEngine("fails", 3), policy="other")) == "version 0"


def test_a_call_that_names_a_version_gets_no_other_one() -> None:
    stream = begin(chain(), FailingEngine("fails", 3), names_version=True)
    assert (stream.ending, stream.origin) == ("error", None)


def test_a_call_that_cannot_be_answered_is_the_clients_to_mend() -> None:
    class Refusing(Answering):
        async def begin(self, call: Any) -> list[TokenStream]:
            self.calls.append(call)
            raise CallError("context_length_exceeded", "prompt is too long")

    engine, step = Refusing(""), chain(max_failures=1)
    for _ in range(3):
        with pytest.raises(CallError, match="prompt is too long"):
            begin(step, engine)
    assert [asked.version for asked in engine.calls] == [3, 3, 3]  # no other target, and no pause


def test_nothing_is_tried_again_after_the_first_token() -> None:
    class Breaking(Answering):
        async def begin(self, call: Any) -> list[TokenStream]:
            self.calls.append(call)
            stream = TokenStream(call.generations[0])
            stream.push(52, -0.5)
            stream.finish("error", error="the server is gone")
            return [stream]

    engine = Breaking("")
    stream = begin(chain(), engine)
    assert (len(engine.calls), stream.ending, said(stream), stream.origin) == (1, "error", "4", None)


def test_a_call_is_tried_again_until_an_engine_is_back() -> None:
    class Returning(FailingEngine):
        async def begin(self, call: Any) -> list[TokenStream]:
            if len(self.calls) == 6:
                self.broken = ()
            return await super().begin(call)

    engine = Returning("refuses", 3, 2, 0)
    assert said(begin(chain(max_failures=0, patience_s=60.0), engine)) == "version 3"


def test_a_call_is_tried_no_longer_than_its_client_waits() -> None:
    engine = FailingEngine("refuses", 3, 2, 0)
    with pytest.raises(CallError, match="the engine is closed"):
        begin(chain(patience_s=3600.0, max_failures=0), engine, limit_s=0.3)
    assert 3 <= len(engine.calls) <= 6


# --- the breaker ------------------------------------------------------------------------------------------------------


@contextmanager
def with_server(**rule: Any) -> Iterator[FallbackChain]:
    step = chain("*=server", engine="scripted", script=INSTEAD, **rule)
    try:
        yield step
    finally:
        step.close()


def test_an_engine_that_fails_five_times_is_paused_and_tried_by_one_call() -> None:
    with with_server(max_failures=5, pause_s=3600.0) as step:
        engine = FailingEngine("fails", 3)
        for _ in range(8):
            assert said(begin(step, engine, version=0, earlier=lambda: 0)) == "version 0"
        engine = FailingEngine("fails", 0)
        streams = [begin(step, engine, version=0) for _ in range(8)]
        assert len(engine.calls) == 5
        reasons = [stream.origin.notes["origin.fallback_reason"] for stream in streams if stream.origin is not None]
        assert reasons == ["failed"] * 5 + ["paused"] * 3


def test_one_call_tries_a_paused_engine_and_closes_the_breaker() -> None:
    async def talk() -> None:
        with with_server(max_failures=1, pause_s=0.01, first_token_s=600.0) as step:
            broken = FailingEngine("fails", 0)
            await step.begin(call(), broken.begin)
            await asyncio.sleep(0.05)
            entered, go = asyncio.Event(), asyncio.Event()

            class Probe(Answering):
                async def begin(self, call: Any) -> list[TokenStream]:
                    entered.set()
                    await go.wait()
                    return await super().begin(call)

            engine = Probe("engine")
            trial = asyncio.create_task(step.begin(call(), engine.begin))
            await entered.wait()
            others = [(await step.begin(call(), engine.begin))[0] for _ in range(3)]
            assert all(stream.origin is not None for stream in others)
            go.set()
            assert [said(stream) for stream in await trial] == ["engine"]
            assert (await step.begin(call(), engine.begin))[0].origin is None

    asyncio.run(talk())


def test_a_client_that_leaves_during_the_trial_does_not_keep_the_engine_paused() -> None:
    async def talk() -> None:
        with with_server(max_failures=1, pause_s=0.01, first_token_s=600.0) as step:
            await step.begin(call(), FailingEngine("fails", 0).begin)
            await asyncio.sleep(0.05)
            trial = asyncio.create_task(step.begin(call(), FailingEngine("hangs", 0).begin))
            await asyncio.sleep(0.05)
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
            assert (await step.begin(call(), Answering("engine").begin))[0].origin is None

    asyncio.run(talk())


def test_no_tenants_failures_pause_the_engine_for_another() -> None:
    with with_server(max_failures=1, pause_s=3600.0) as step:
        engine = FailingEngine("fails", 0)
        for _ in range(3):
            begin(step, engine, version=0, agent_id="red.calc")
        assert len(engine.calls) == 1
        begin(step, engine, version=0, agent_id="blue.calc")
        begin(step, engine, version=0, agent_id="red.other")
        assert len(engine.calls) == 2


# --- the second engine, in a server -----------------------------------------------------------------------------------


@contextmanager
def served(**rule: Any) -> Iterator[ServerInMemory]:
    with (
        with_server(**rule) as step,
        serving(ScriptedRendering(), frozenset((END_OF_TURN,)), None, (step,)) as server,
    ):
        yield server


def test_header_body_and_turn_say_who_answered() -> None:
    with served() as server:
        server.engine.says((), "error")
        answer = server.post("chat/completions", QUESTION)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "four"
        assert answer.json()["model"] == answer.headers["x-streamward-model"] == "sums@0"
        assert answer.headers["x-streamward-asked-version"] == "sums@0"
        assert answer.headers["x-streamward-fallback-reason"] == "failed"
        [turn] = server.turns
        assert (turn.engine, turn.base_digest) == ("scripted", ScriptedTokenEngine.base_digest)
        assert turn.metadata["origin.asked_version"] == "sums@0"
        assert len(turn.completion_token_ids) == len(turn.logprobs) == len(b"four") + 1


def test_a_stream_begins_with_the_version_that_answers() -> None:
    with served() as server:
        server.engine.says((), "error")
        answer = server.post("chat/completions", QUESTION | {"stream": True})
        assert answer.headers["x-streamward-fallback-reason"] == "failed"
        assert answer.text.endswith("data: [DONE]\n\n")
        assert (
            "".join(
                json.loads(frame.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
                for frame in answer.text.split("\n\n")[:-2]
            )
            == "four"
        )


def test_a_stream_that_breaks_off_has_no_text_of_another_model_and_its_turn_keeps_what_was_sampled() -> None:
    # elsewhere a second model continues the text of the first, in one answer under one name
    with served() as server:
        server.engine.says(tuple(b"fo"), "error")
        answer = server.post("chat/completions", QUESTION | {"stream": True})
        frames = [json.loads(frame.removeprefix("data: ")) for frame in answer.text.split("\n\n") if "{" in frame]
        texts = [choice["delta"].get("content") or "" for frame in frames for choice in frame.get("choices", ())]
        assert "".join(texts) == "fo" and frames[-1]["error"]["message"]
        assert "x-streamward-fallback-reason" not in answer.headers and "[DONE]" not in answer.text
        [turn] = server.turns
        assert bytes(turn.completion_token_ids) == b"fo" and len(turn.logprobs) == 2
        assert turn.finish_reason == "error" and turn.error
        server.engine.says((), "error")
        again = server.post("chat/completions", QUESTION)  # a retry is a call of its own
        assert again.json()["choices"][0]["message"]["content"] == "four" and len(server.turns) == 2


def test_every_call_is_answered_while_the_engine_is_unreachable() -> None:
    with served(max_failures=5, first_token_s=60.0, pause_s=0.01) as server:
        engine, away = server.engine, threading.Event()
        away.set()
        submit = engine.submit

        def submit_or_fail(generation: Any) -> TokenStream:
            stream = submit(generation)
            if away.is_set():
                stream.finish("error", error="connection refused")
            else:
                stream.push(END_OF_TURN, -0.5)
                stream.finish("stop")
            return stream

        engine.submit = submit_or_fail  # type: ignore[method-assign]

        async def storm() -> list[httpx.Response]:
            transport = httpx.ASGITransport(server.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://memory") as client:
                path = "/agents/calc/v1/chat/completions"
                answers = []
                for number in range(10):
                    if number == 6:
                        away.clear()
                    answers += await asyncio.gather(*(client.post(path, json=QUESTION) for _ in range(10)))
                    await asyncio.sleep(0.02)
                return answers

        answers = server.run(storm())
        assert [answer.status_code for answer in answers] == [200] * 100
        marked = ["x-streamward-fallback-reason" in answer.headers for answer in answers]
        assert all(marked[:60])
        assert not any(marked[-10:])
        turns = [turn for turn in server.turns if "origin.asked_version" in turn.metadata]
        assert len(turns) == sum(marked)


def test_a_retry_gets_the_recorded_answer_and_its_origin() -> None:
    with served() as server:
        server.engine.says((), "error")
        first, second = (server.post("chat/completions", QUESTION, idempotency_key="k") for _ in range(2))
        assert first.json() == {**second.json(), "created": first.json()["created"]}
        for name in ("x-streamward-asked-version", "x-streamward-fallback-reason"):
            assert first.headers[name] == second.headers[name]


# --- tasks ------------------------------------------------------------------------------------------------------------


class BrokenRounds:
    """Fails on every round, in one of the two ways of engines."""

    def __init__(self, *, raises: bool) -> None:
        self.raises, self.rounds = raises, 0

    def sample(self, requests: list[SamplingRequest]) -> list[list[Completion]]:
        self.rounds += 1
        if self.raises:
            raise StreamwardError("no server in policy.servers could be asked")
        return [failed_slots(request, "out of memory") for request in requests]


def request(name: str, purpose: Purpose, **changed: Any) -> SamplingRequest:
    values = {"purpose": purpose, "group_size": 2, "sampling": Sampling(max_tokens=16)}
    messages = (Message(role="user", content="2 + 2 ="),)
    return SamplingRequest(
        sampling_id=f"s-{name}", task=factories.task(task_id=name, messages=messages, **values | changed)
    )


@pytest.mark.parametrize("raises", [True, False])
def test_serve_tasks_get_the_second_engine_whole_and_marked(raises: bool) -> None:
    engine = BrokenRounds(raises=raises)
    with with_server() as step:
        [slots] = sample_through((step,), [request("t1", "serve")], RoundVersion(0, None), engine.sample)
    assert [(slot.slot, slot.text, slot.error) for slot in slots] == [(0, "four", None), (1, "four", None)]
    assert {slot.origin.notes["origin.asked_version"] for slot in slots if slot.origin is not None} == {"default@0"}
    assert all(len(slot.completion_token_ids) == len(slot.logprobs) == 5 for slot in slots)


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_tasks_that_something_is_learned_from_get_no_fallback(purpose: Purpose) -> None:
    with with_server() as step:
        engine = BrokenRounds(raises=False)
        [slots] = sample_through((step,), [request("t1", purpose)], RoundVersion(0, None), engine.sample)
        assert [slot.error for slot in slots] == ["out of memory"] * 2
        with pytest.raises(StreamwardError, match="no server"):
            sample_through((step,), [request("t1", purpose)], RoundVersion(0, None), BrokenRounds(raises=True).sample)


def test_a_round_is_not_tried_while_the_engine_is_paused() -> None:
    engine = BrokenRounds(raises=True)
    with with_server(pause_s=3600.0) as step:
        for number in range(3):
            sample_through((step,), [request(f"t{number}", "serve")], RoundVersion(0, None), engine.sample)
    assert engine.rounds == 1


def test_a_version_that_the_second_engine_cannot_have_stays_with_the_first() -> None:
    with with_server() as step:
        with pytest.raises(StreamwardError, match="no server"):
            sample_through((step,), [request("t1", "serve")], RoundVersion(3, None), BrokenRounds(raises=True).sample)
        [slots] = sample_through(
            (step,), [request("t2", "serve")], RoundVersion(3, None), BrokenRounds(raises=False).sample
        )
        assert [slot.error for slot in slots] == ["out of memory"] * 2


@pytest.mark.kafka
def test_an_agent_answers_users_before_the_tasks_that_it_cannot_answer_end_it(settings: Settings) -> None:
    changed = {"policy": Policy(name="p", engine="scripted", round_tasks=8), "fallback": Fallback(
        chains="*=server", engine="scripted", script=INSTEAD
    )}  # fmt: skip
    here = settings.model_copy(update=changed)
    admin.apply_topics(here)
    write(here, sum_task("learned", purpose="train"), sum_task("asked", purpose="serve"))
    broken = ScriptedEngine()
    broken.sample = BrokenRounds(raises=True).sample  # type: ignore[method-assign]
    ends = running_beside(lambda stop: policy_agent.run(here, stop=stop, engine=broken))
    with pytest.raises(StreamwardError, match="no server"), ends as (agent,):
        until(lambda: not agent.is_alive(), "the end of the agent")
    responses = [record.decode(Response) for record in admin.read_topic(here, "responses")]
    assert {response.task_id for response in responses if isinstance(response, Response)} == {"asked"}


@pytest.mark.kafka
def test_tasks_to_learn_from_are_answered_while_users_go_on_asking(settings: Settings) -> None:
    policy = Policy(name="p", engine="scripted", round_tasks=8, script='{"latency_ms": 200}')
    chosen = {"policy": policy, "fallback": Fallback(chains="*=server", engine="scripted")}
    here = settings.model_copy(update=chosen)
    admin.apply_topics(here)
    write(here, sum_task("learned", purpose="train"))
    ended = threading.Event()

    def ask() -> None:
        for number in range(400):
            write(here, sum_task(f"asked {number}", purpose="serve"))
            if ended.wait(0.02):
                return

    users = threading.Thread(target=ask)
    with running_beside(lambda stop: policy_agent.run(here, stop=stop)):
        users.start()
        until(lambda: any(answer.task_id == "learned" for _, answer in read(here, Response)), "an answer to learn from")
        still_asking = users.is_alive()
        ended.set()
        users.join()
    assert still_asking


# --- settings and audit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"chains": "chat=other"}, "chains has 'other'; expected POLICY=TARGET"),
        ({"chains": "chat"}, "chains has ''; expected POLICY=TARGET"),
        ({"chains": "chat=server"}, "the target server in chains and engine belong together"),
        ({"chains": "chat=base", "engine": "scripted"}, "the target server in chains and engine belong together"),
        ({"chains": "chat=server", "engine": "vllm"}, "servers and engine=vllm belong together"),
    ],
)
def test_a_chain_that_cannot_work_is_refused(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Fallback(**rule)


def test_without_a_chain_there_is_no_step_and_another_model_is_refused() -> None:
    assert build_fallback(SETTINGS, ENGINE) is None
    rule = Fallback(chains="*=server", engine="scripted")

    class Other:
        base_digest, tokenizer_digest = "x", ENGINE.tokenizer_digest

    other: Any = Other()
    with pytest.raises(SettingsError, match=r"fallback\.engine=scripted has another base than policy\.engine=scripted"):
        build_fallback(SETTINGS.model_copy(update={"fallback": rule}), other)


def test_the_audit_counts_fallbacks_and_names_those_of_runs() -> None:
    recount = FallbackRecount()
    notes = {"origin.asked_version": "default@7", "origin.fallback_reason": "failed"}
    of_no_run = {"sampling_id": None, "slot": None}
    records = [
        factories.turn(turn_id="t1", metadata=notes, **of_no_run),
        factories.turn(turn_id="t2", metadata=notes),
        factories.turn(turn_id="t3", metadata=notes, policy="chat", **of_no_run),
        factories.turn(turn_id="t4", **of_no_run),
        factories.response(metadata=notes | {"purpose": "serve"}, response_id="r1"),
        factories.response(metadata=notes | {"purpose": "train"}, response_id="r2"),
    ]
    for event in records:
        recount.take(Record(Coordinates("turns", 0, 0), 0, b"", b""), event)
    view: Any = None
    outcome = recount.report(view, None)
    assert outcome.counts["fallback answers"] == 5
    learned = "a fallback answered, and its task has to be sampled as asked"
    assert [found.what for found in outcome.findings] == [
        learned,
        "default@7 was asked, which is another policy",
        learned,
    ]
