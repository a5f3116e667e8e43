"""The recorder on a real log, without HTTP: what it remembers, and what it does beside its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Message, Sampling, Tool, TrajectoryEvent, Turn, derive_id
from streams.adapters import store
from streams.engines.scripted.scripted_tokens import ScriptedRendering, ScriptedTokenEngine
from streams.errors import CallError
from streams.kafka import admin, times
from streams.kafka.producer import Producer
from streams.observability.metrics import OFF
from streams.settings.model import Settings
from streams.stages.agents.recording import call_prompts
from streams.stages.agents.recording.calls import Done, ModelCall
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.recording.served_versions import LOADED
from streams.stages.agents.recording.service import open_recorder
from streams.stages.agents.recording.task_runs import TrajectoryOrder
from streams.stages.agents.trajectories.fold import of_each
from tests.support import factories
from tests.support.agent_server import settings_of
from tests.support.processes import read, until

pytestmark = pytest.mark.kafka
DIGESTS = itertools.count()


class Rendering(ScriptedRendering):
    """Notes what it renders, and waits before that until it may."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.may = threading.Event()
        self.may.set()

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        self.seen.append(messages[-1].content)
        assert self.may.wait(300)
        return super().first(messages, tools)


def asked(text: str, **changes: Any) -> ModelCall:
    whole: dict[str, Any] = {
        "agent_id": "a",
        "model": "sums",
        "protocol": "chat",
        "messages": (Message(role="user", content=text),),
        "sampling": Sampling(max_tokens=8),
        "request_digest": str(next(DIGESTS)),
    }
    return ModelCall(**whole | changes)


async def answer(recorder: Recorder, call: ModelCall) -> Done:
    [done] = [piece async for piece in recorder.answer(call) if isinstance(piece, Done)]
    return done


@contextlib.contextmanager
def recording(settings: Settings, rendering: ScriptedRendering | None = None) -> Iterator[Recorder]:
    engine = ScriptedTokenEngine(settings.policy.script)
    try:
        with open_recorder(settings, (engine, rendering or ScriptedRendering()), threading.Event(), OFF) as recorder:
            yield recorder
    finally:
        engine.close()


def run(recorder: Recorder, talk: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        await talk
        await recorder.close()

    asyncio.run(whole())


def ends(settings: Settings) -> dict[str, TrajectoryEvent]:
    found = [event for _, event in read(settings, TrajectoryEvent) if event.kind == "ended"]
    assert len({event.trajectory_id for event in found}) == len(found)
    return {event.trajectory_id: event for event in found}


def test_a_trajectory_that_is_too_old_ends_once_and_is_never_begun_again(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {}, longest_s=0.5)
    admin.apply_topics(settings)

    async def call(recorder: Recorder, *names: str) -> None:
        for name in names:
            await answer(recorder, asked("hi", trajectory_id=name))

    async def refused(recorder: Recorder, *names: str) -> None:
        recorder.runs.end_idle()
        for name in names:
            with pytest.raises(CallError, match=f"trajectory {name} is in the log, and is remembered no longer") as why:
                await answer(recorder, asked("hi", trajectory_id=name))
            assert why.value.kind == "conflict"

    def is_old(name: str) -> bool:
        [began] = [e for _, e in read(settings, TrajectoryEvent) if (e.trajectory_id, e.kind) == (name, "started")]
        return times.now_ms() > began.created_at + 500

    with recording(settings) as recorder:

        async def first() -> None:
            await call(recorder, "one")
            await asyncio.to_thread(until, lambda: is_old("one"), "it is old")
            await refused(recorder, "one")
            await call(recorder, "two")

        run(recorder, first())
    assert ends(settings).keys() == {"one"}
    until(lambda: is_old("two"), "it is old")
    with recording(settings) as recorder:
        run(recorder, refused(recorder, "one", "two"))
    assert {name: event.turns for name, event in ends(settings).items()} == {"one": 1, "two": 1}
    assert sorted((turn.trajectory_id, turn.number) for _, turn in read(settings, Turn)) == [("one", 0), ("two", 0)]


def test_when_memory_is_full_the_longest_unused_ends_and_its_history_begins_another(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {}, remembered_mb=0.02)
    admin.apply_topics(settings)
    history = (Message(role="user", content="r0"), Message(role="assistant", content="r0"))

    async def talk(recorder: Recorder) -> None:
        for number in range(8):
            await answer(recorder, asked(f"r{number}"))
        recorder.runs.end_idle()
        await answer(recorder, asked("", messages=(*history, Message(role="user", content="and?"))))

    with recording(settings) as recorder:
        run(recorder, talk(recorder))
    turns = {turn.reply.content: turn for _, turn in read(settings, Turn)}
    ended = ends(settings)
    assert turns["r0"].trajectory_id in ended and turns["r7"].trajectory_id not in ended
    assert "serve.remembered_mb" in ended[turns["r0"].trajectory_id].reason
    assert (turns["and?"].continuity, turns["and?"].parent_id) == ("first", None)
    assert turns["and?"].trajectory_id != turns["r0"].trajectory_id


def test_a_prompt_is_rendered_beside_the_event_loop_and_one_that_never_fits_is_not(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_prompts, "SHORT", 0)
    settings = settings_of(kafka_bootstrap, tmp_path, {"context_tokens": 100})
    admin.apply_topics(settings)
    rendering = Rendering()

    async def talk(recorder: Recorder) -> None:
        rendering.may.clear()
        slow = asyncio.create_task(answer(recorder, asked("slow")))
        while not rendering.seen:
            await asyncio.sleep(0.001)
        rendering.may.set()  # which nobody could do if the loop waited for it
        assert (await slow).message.content == "slow"
        with pytest.raises(
            CallError, match=r"prompt is too long: 101 tokens > 99 maximum \(at least: it was not tokenized\)"
        ) as refused:
            await answer(recorder, asked("x" * 101))
        assert (refused.value.kind, refused.value.parameter) == ("context_length_exceeded", "messages")
        assert await recorder.count_tokens(asked("count")) == len("user: count\nassistant: ")

    with recording(settings, rendering) as recorder:
        run(recorder, talk(recorder))
    assert rendering.seen == ["slow", "count"]


def test_a_version_that_is_used_stays_and_one_that_was_unloaded_meanwhile_is_loaded_again(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_prompts, "SHORT", 0)
    settings = settings_of(kafka_bootstrap, tmp_path, {})
    admin.apply_topics(settings)
    newest = LOADED + 2
    with Producer(settings) as producer:
        for version in range(1, newest + 1):
            local = tmp_path / f"made-{version}"
            local.mkdir()
            (local / "adapter_model.safetensors").write_bytes(b"weights %d" % version)
            uri, files = store.publish(local, settings.adapters.store, "sums", version)
            producer.send(factories.trained(version, policy="sums", uri=uri, files=files))
    rendering = Rendering()

    async def talk(recorder: Recorder) -> None:
        versions = recorder._versions.of("sums")
        for version in (1, 2, *range(3, LOADED + 1), 1, LOADED + 1):
            await answer(recorder, asked("hi", model=f"sums@{version}"))
        assert versions.use(1) and not versions.use(2), "2 was not used for the longest time"
        rendering.may.clear()
        late = asyncio.create_task(answer(recorder, asked("late", model="sums@1")))
        while rendering.seen[-1] != "late":
            await asyncio.sleep(0.001)
        others = [
            asyncio.create_task(answer(recorder, asked("other", model=f"sums@{version}")))
            for version in range(2, newest + 1)
        ]
        while 1 in versions._loaded:
            await asyncio.sleep(0.001)
        rendering.may.set()
        assert (await late).message.content == "late"
        await asyncio.gather(*others)

    with recording(settings, rendering) as recorder:
        run(recorder, talk(recorder))
    [turn] = [turn for _, turn in read(settings, Turn) if turn.reply.content == "late"]
    assert turn.adapter_version == 1


def test_who_begins_a_run_again_while_it_ends_gets_its_end(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"latency_ms": 2000})
    admin.apply_topics(settings)
    order = TrajectoryOrder(
        agent_id="a", trajectory_id=derive_id("s", 0), task_id="t", sampling_id="s", slot=0, group_size=1,
        policy="sums", purpose="train", sampling=Sampling(max_tokens=8), adapter_version=None, max_turns=None,
        metadata={}, traceparent=None,
    )  # fmt: skip

    async def talk(recorder: Recorder) -> None:
        known = await recorder.runs.begin(order)
        call = asyncio.create_task(answer(recorder, asked("open", trajectory_id=order.trajectory_id)))
        while not known.open_calls:
            await asyncio.sleep(0.001)
        end = asyncio.create_task(recorder.runs.end("a", order.trajectory_id, TrajectoryEnd("completed", "")))
        while not known.ending:
            await asyncio.sleep(0.001)
        assert (await recorder.runs.begin(order)).end is not None
        assert (await end).end == known.end and (await call).message.content == "open"

    with recording(settings) as recorder:
        run(recorder, talk(recorder))


def test_a_call_after_the_end_is_answered_and_late_and_a_history_that_parts_is_a_fork(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {}, idle_s=0.001)
    admin.apply_topics(settings)
    first = (Message(role="user", content="r"), Message(role="assistant", content="r"))

    async def talk(recorder: Recorder) -> None:
        await answer(recorder, asked("r", trajectory_id="run"))
        for text in ("a", "b"):
            history = (*first, Message(role="user", content=text))
            await answer(recorder, asked("", messages=history, trajectory_id="run"))
        while not recorder._conversations.of_policy["sums"].by_id["run"].ended:
            await asyncio.sleep(0.001)
            recorder.runs.end_idle()
        await answer(recorder, asked("late", trajectory_id="run"))

    with recording(settings) as recorder:
        run(recorder, talk(recorder))
    turns = [turn for _, turn in read(settings, Turn)]
    assert [turn.continuity for turn in turns[:3]] == ["first", "extends", "forks"]
    assert [turn.number for turn in turns] == [0, 1, 2, 3]
    end = ends(settings)["run"]
    assert end.turns == 3
    [trajectory] = of_each(turns, [end]).values()
    assert str(trajectory) == "3 of 4 calls delivered; 1 late"
