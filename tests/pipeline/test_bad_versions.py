"""Bad versions really are caught: published, asked, judged, tried and stopped by the whole loop, each for its reason.

    adapter published ──► guard's suite ──► rejected, or a canary on live tasks ──► rejected, or promoted
                            (policy, scoring and stream worker are processes, as a user starts them)

One log for all of them: each version is made once the one before was decided, and is judged against the primary, which
is version 0 until the last one, a good version, is promoted. Without that last one, gates that stop everything would
pass here.

Not covered: weights. The engine answers by rules, so each version is bad in exactly one way. That trained weights
answer as they were trained to is tests/pipeline/test_logprobs_agree.py.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from schemas.events import AdapterEvent, Message, RewardSource, Sampling, Task
from streams.adapters import store
from streams.adapters.versions import read_state
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Canary, Guard, Policy, Rollouts, Settings
from tests.support.factories import trained
from tests.support.log.shared_node import own_prefix
from tests.support.processes import read, running, until

pytestmark = pytest.mark.kafka

SUITE = """\
name: sums
scenarios:
  short: {generator: sums, count: 35, sampling: {seed: 1}}
  long: {generator: sums, count: 20, options: {terms: 3}, sampling: {seed: 1}}
"""
GOOD = {"accuracy": 1.0}
RULES: dict[int, tuple[dict[str, Any], ...]] = {
    0: ({"accuracy": 0.2}, {"scenario": "long", "accuracy": 0.9}),
    1: ({"accuracy": 0.0},),
    2: ({"answers": "nothing"},),
    3: (GOOD, {"padding": 12}),
    4: (GOOD, {"scenario": "long", "answers": "wrong"}),
    5: (GOOD, {"scenario": "live", "answers": "wrong"}),
    6: (GOOD, {"scenario": "live", "padding": 12}),
    7: (GOOD,),
}
"""What each version says; where nothing is told it is what version 0 says."""
ANSWER = "1234567890"
"""To every live task: long enough for 12 spaces to make it twice as long, and no more."""
AHEAD = 100
"""Live tasks that may be under way: enough to go on with, and never more than a slow machine gets done."""


class Fate(NamedTuple):
    """What became of a version."""

    last: AdapterEvent
    """The event that decided."""
    kinds: tuple[str, ...]
    """What the stage wrote about it."""
    judged: AdapterEvent
    """The guard's verdict."""


def script() -> str:
    rules = [{"version": version, **rule} for version, several in RULES.items() for rule in several]
    # version 0's answers to live tasks: half of them right, so that better and worse can both be seen
    return json.dumps({"rules": [*rules, {"version": 0, "scenario": "live", "accuracy": 0.5}]})


def published(settings: Settings, version: int, folder: Path) -> AdapterEvent:
    """Put an adapter into the store, and return the event that says so."""
    local = folder / f"made-{version}"
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(b"weights %d" % version)
    uri, files = store.publish(local, settings.adapters.store, "default", version)
    return trained(version, created_at=int(time.time() * 1000), uri=uri, files=files)


def live(number: int) -> Task:
    return Task(
        task_id=f"live {number}", created_at=int(time.time() * 1000), policy="default", purpose="serve",
        scenario="live", group_size=2, verifier=json.dumps({"answer": ANSWER}), sampling=Sampling(max_tokens=64),
        reward_sources=(RewardSource(name="exact"),), messages=(Message(role="user", content="The number?"),),
    )  # fmt: skip


def about(settings: Settings, version: int) -> list[AdapterEvent]:
    """Return what the stage has written about a version, results of suites aside."""
    return [
        event
        for _, event in read(settings, AdapterEvent)
        if event.version == version and event.actor == "rollouts" and event.kind != "evaluated"
    ]


@pytest.fixture(scope="module")
def fates(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Fate]:
    """What became of each version, after the loop has seen all of them."""
    folder = tmp_path_factory.mktemp("bad-versions")
    (folder / "suite.yaml").write_text(SUITE)
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": {"prefix": own_prefix(), "partitions": 2, "policy_partitions": 1},
            "policy": Policy(engine="scripted", script=script()),
            "adapters": {"store": str(folder / "adapters")},
            "rollouts": Rollouts(mode="canary"),
            # how long answers take says nothing on a busy machine; what it would stop is a matter of unit tests
            "guard": Guard(suite=folder / "suite.yaml", max_latency_ratio=1e6),
            "canary": Canary(steps="0.5", step_groups=10, max_latency_ratio=1e6),
        }
    )
    admin.apply_topics(settings)
    with running(settings, folder, "streams", "scoring", "policy"), Producer(settings, linger_ms=0) as producer:
        numbers = itertools.count()
        found = {}
        for version in RULES:
            if version:
                producer.send(published(settings, version, folder))
                producer.flush()
                found[version] = _decided(settings, version, producer, numbers, folder)
    assert read_state(settings, "default").primary == max(RULES)
    return found


def _decided(settings: Settings, version: int, producer: Producer, numbers: Iterator[int], folder: Path) -> Fate:
    """Return what became of a version; live tasks come as long as its canary runs."""
    done: int | None = None  # groups, once the live tasks so far have one each

    def is_decided() -> bool:
        nonlocal done
        kinds = {event.kind for event in about(settings, version)}
        if kinds & {"rejected", "promoted"}:
            return True
        if "canary_started" in kinds:
            now = _groups(settings)
            done = now if done is None else done
            while done < now + AHEAD:
                producer.send(live(next(numbers)))
                done += 1
            producer.flush()
        return False

    until(is_decided, f"a decision about version {version}", folder=folder)
    events = about(settings, version)
    return Fate(events[-1], tuple(event.kind for event in events), events[0])


def _groups(settings: Settings) -> int:
    return sum(end for _, end in admin.offsets(settings, ["groups"]).values())


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param(1, "mean reward 0 against 0.", id="trained to be worse"),
        pytest.param(2, "mean reward 0 against 0.", id="empty answers"),
        pytest.param(3, "tokens against", id="far too long"),
        pytest.param(4, "scenario long: mean reward 0 against 0.", id="better on average, fails one scenario"),
    ],
)
def test_the_guard_rejects_a_version_that_shows_it_on_the_suite(
    fates: dict[int, Fate], version: int, reason: str
) -> None:
    fate = fates[version]
    assert fate.kinds == ("judged", "rejected")  # no live task was ever its own
    assert (fate.judged.verdict, fate.last.expected_version) == ("reject", 0)
    assert any(reason in said for said in fate.judged.reason.split("; "))


def test_the_version_that_fails_one_scenario_is_better_on_average(fates: dict[int, Fate]) -> None:
    metrics = fates[4].judged.metrics
    assert metrics["gain"] > 0
    assert metrics["scenario.short.gain_low"] > 0 > metrics["scenario.long.gain_high"]
    assert fates[4].judged.reason.startswith("scenario long")


def test_the_version_that_is_too_long_is_better_otherwise(fates: dict[int, Fate]) -> None:
    assert fates[3].judged.metrics["gain_low"] > 0
    assert fates[3].judged.reason.partition("; ")[0].endswith("the rule allows 1.5 times as many")


# --- the canary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param(5, "canary: reward -0.", id="worse where the suite does not look"),
        pytest.param(6, "canary: tokens is 23, 11 for the primary", id="twice as long where the suite does not look"),
    ],
)
def test_the_canary_rejects_a_version_that_only_live_tasks_show(
    fates: dict[int, Fate], version: int, reason: str
) -> None:
    fate = fates[version]
    assert fate.judged.verdict == "promote"
    assert (fate.kinds[:2], fate.kinds[-1]) == (("judged", "canary_started"), "rejected")  # it may ask meanwhile
    assert fate.last.reason.startswith(reason)
    assert fate.last.gate["canary.step_groups"] == "10"


# --- and it is not all refused ----------------------------------------------------------------------------------------


def test_a_version_that_is_better_passes_both(fates: dict[int, Fate]) -> None:
    fate = fates[7]
    assert (fate.kinds[:2], fate.kinds[-1]) == (("judged", "canary_started"), "promoted")  # it may ask meanwhile
    assert (fate.judged.verdict, fate.last.expected_version) == ("promote", 0)
    assert fate.last.metrics["low"] > 0
