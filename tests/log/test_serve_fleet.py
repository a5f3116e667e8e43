"""One server for every policy of a fleet, on a real log: each is answered as by a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from schemas.events import AdapterEvent, Message, Sampling, Turn
from streams.adapters import store
from streams.engines.scripted.scripted_tokens import ScriptedRendering, ScriptedTokenEngine
from streams.errors import CallError
from streams.kafka import admin
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Fleet, Policy, Settings
from streams.stages.agents.recording.calls import Begun, ModelCall
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.service import open_recorder
from tests.support import factories
from tests.support.agent_server import serving, settings_of
from tests.support.log.keys import open_keys
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka
DIGESTS = itertools.count()


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    """Of a fleet with room for one policy in memory; its topics exist."""
    made = settings_of(kafka_bootstrap, tmp_path, {}).model_copy(
        update={
            "policy": Policy(engine="scripted", script="{}"),
            "fleet": Fleet(states=1, policies="math, chat, new-*"),
        }
    )
    admin.apply_topics(made)
    return made


def published(settings: Settings, folder: Path, policy: str, version: int, **changes: Any) -> AdapterEvent:
    """Put a version into the store, and return the event that says so."""
    local = folder / f"{policy}-{version}"
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(f"{policy} {version}".encode())
    uri, files = store.publish(local, settings.adapters.store, policy, version)
    return factories.trained(version, policy=policy, created_at=version, uri=uri, files=files, **changes)


def asked(model: str, text: str = "hi", **changes: Any) -> ModelCall:
    whole: dict[str, Any] = {
        "agent_id": "guide",
        "model": model,
        "protocol": "chat",
        "messages": (Message(role="user", content=text),),
        "sampling": Sampling(max_tokens=8),
        "request_digest": f"d{next(DIGESTS)}",
    }
    return ModelCall(**whole | changes)


async def begun(recorder: Recorder, call: ModelCall) -> Begun:
    pieces = [piece async for piece in recorder.answer(call)]
    assert isinstance(pieces[0], Begun)
    return pieces[0]


@contextlib.contextmanager
def fleet(settings: Settings, meter: Meter = OFF) -> Iterator[Recorder]:
    engine = ScriptedTokenEngine(settings.policy.script)
    try:
        with open_recorder(settings, (engine, ScriptedRendering()), threading.Event(), meter, fleet=True) as recorder:
            yield recorder
    finally:
        engine.close()


def test_each_policy_is_answered_by_its_own_versions_though_one_alone_is_in_memory(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, published(settings, tmp_path, "math", 1), factories.promoted(1, policy="math", created_at=2))
    write(settings, published(settings, tmp_path, "chat", 1), published(settings, tmp_path, "other", 1))
    meter = Meter("serve")

    async def talk(recorder: Recorder) -> None:
        names = ("math", "chat", "math@0", "chat@1")
        models = [(await begun(recorder, asked(name))).model for name in names]
        assert models == ["math@1", "chat@0", "math@0", "chat@1"]
        for name in ("maths", "other", "math@2"):
            with pytest.raises(CallError, match=r"there is no model|has no version") as raised:
                await begun(recorder, asked(name))
            assert (raised.value.kind, raised.value.parameter) == ("not_found", "model")
        assert [model.name for model in recorder.models()] == ["chat", "chat@0", "chat@1", "math", "math@0", "math@1"]

    with fleet(settings, meter) as recorder:
        asyncio.run(talk(recorder))
    assert (meter.value(catalog.FLEET_HELD), meter.value(catalog.FLEET_EVICTIONS)) == (1, 4)
    assert [turn.policy for _, turn in read(settings, Turn)].count("math") == 2


def test_a_history_of_one_policy_is_continued_by_no_other_also_after_a_restart(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, published(settings, tmp_path, "math", 1), published(settings, tmp_path, "chat", 1))
    history = (Message(role="user", content="hi"), Message(role="assistant", content="hi"))
    longer = (*history, Message(role="user", content="more"))

    async def first(recorder: Recorder) -> Begun:
        return await begun(recorder, asked("math", trajectory_id="mine"))

    async def later(recorder: Recorder, before: Begun) -> None:
        again = await begun(recorder, asked("math", messages=longer))
        other = await begun(recorder, asked("chat", messages=longer))
        assert again.trajectory_id == before.trajectory_id == "mine" != other.trajectory_id
        assert again.cached_tokens and not other.cached_tokens
        with pytest.raises(CallError, match="is of policy math, not of chat"):
            await begun(recorder, asked("chat", trajectory_id="mine"))

    with fleet(settings) as recorder:
        before = asyncio.run(first(recorder))
    with fleet(settings) as recorder:
        asyncio.run(later(recorder, before))


def test_a_decision_about_a_policy_is_followed_while_others_are_answered(settings: Settings, tmp_path: Path) -> None:
    write(settings, published(settings, tmp_path, "math", 1), published(settings, tmp_path, "chat", 1))

    async def serves(recorder: Recorder, name: str) -> str:
        return (await begun(recorder, asked(name))).model

    with fleet(settings) as recorder:
        assert asyncio.run(serves(recorder, "math")) == "math@0"
        write(settings, factories.promoted(1, policy="math", created_at=2))
        until(lambda: asyncio.run(serves(recorder, "math")) == "math@1", "the version in force")
        assert asyncio.run(serves(recorder, "chat")) == "chat@0"


def test_openais_client_names_the_policy_and_one_that_nobody_trained_is_an_error(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, published(settings, tmp_path, "math", 1))
    with serving(settings, fleet=True) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model="math@1", messages=[{"role": "user", "content": "hi"}])
        assert (answer.choices[0].message.content, answer.model) == ("hi", "math@1")
        assert [model.id for model in client.models.list()] == ["math", "math@0", "math@1"]
        with pytest.raises(NotFoundError, match="there is no model 'new-one', and no agent of that name"):
            client.chat.completions.create(model="new-one", messages=[{"role": "user", "content": "hi"}])


def test_a_tenant_knows_its_own_policies_and_those_of_nobody_else(settings: Settings, tmp_path: Path) -> None:
    changes = {"serve": settings.serve.model_copy(update={"auth": "keys"}), "fleet": Fleet()}
    settings = settings.model_copy(update=changes)
    write(settings, *(published(settings, tmp_path, policy, 1) for policy in ("math", "blue.coach")))
    with open_keys(settings) as person:
        keys = [person.create(role="submitter", actor="ann", tenant=tenant).text for tenant in ("red", "blue")]
    hi = [ChatCompletionUserMessageParam(role="user", content="hi")]
    with serving(settings, fleet=True) as url:
        red, blue = (OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in keys)
        for model in ("blue.coach", "blue.coach@1", "blue.nothing"):
            with pytest.raises(NotFoundError, match=f"there is no model {model};"):
                red.chat.completions.create(model=model, messages=hi)
        assert {model.id.partition("@")[0] for model in red.models.list()} == {"math"}
        assert {model.id.partition("@")[0] for model in blue.models.list()} == {"math", "blue.coach"}
        assert blue.chat.completions.create(model="blue.coach@1", messages=hi).model == "blue.coach@1"
        assert red.chat.completions.create(model="math@1", messages=hi).model == "math@1"
