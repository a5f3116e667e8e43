"""How soon agents follow a release: from `promoted` or `rolled_back` to the first answer that names it, on every agent.

One and four scripted agents, as processes, under a steady load of `serve` tasks, 40 a second for each; versions are
promoted that no agent has loaded yet, and rolled back to one that all have. Time begins when the event is handed to the
producer, and ends when a consumer has the first response of the new version from a partition of that agent. It is held
against the 2 s within which agents have to follow. Then what loading costs: tokens a second of the `transformers`
engine with another version before each round, against rounds of one version.

Not covered: stores on other machines, and vLLM, which loads for itself.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin

from schemas.events import AdapterEvent, AdapterKind, Message, Response, RewardSource, Task, derive_id
from schemas.serde import decode
from streams.adapters import store as adapter_store
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Policy, Settings
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import by_turns, line, median_s, say

AGENTS = (1, 4)
RATE = 40.0
"""Tasks a second for each agent: it hears of a version at once, but has to be asked to show it."""
RELEASES = 25
PROMISED_S = 2.0
"""Within this agents follow."""
TASKS, SLOTS = 8, 8
RANK = 16
SWAPS = 20
"""In a row: the first two of those that are kept are read again, as versions were read in between."""


def run() -> Iterator[dict[str, Any]]:
    """Yield p50 and p99 in seconds of each kind of event and number of agents, then three lines about loading."""
    for agents in AGENTS:
        say(f"convergence: {agents} agents, {RELEASES} promotions and as many rollbacks")
        with node() as settings, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
            store = settings.adapters.model_copy(update={"store": folder})
            policy = Policy(name="bench", engine="scripted", script='{"answers": "echo", "latency_ms": 5}')
            measured = _measure(settings.model_copy(update={"adapters": store, "policy": policy}), agents)
        for kind, took in measured.items():
            for percent in (50, 99):
                ours = statistics.quantiles(took, n=100, method="inclusive")[percent - 1]
                yield line(
                    "convergence", f"p{percent}, {kind}, {agents} agent{'s'[: agents - 1]}", ours=ours,
                    peer=PROMISED_S, unit="s", ratio=PROMISED_S / ours, target=1.0, peer_is="the limit",
                    samples=len(took),
                )  # fmt: skip
    yield from _loading()


# --- agents -----------------------------------------------------------------------------------------------------------


def _measure(settings: Settings, agents: int) -> dict[str, list[float]]:
    """Return, by kind of event, the seconds until each agent answered by it."""
    watch = _Watch(settings)
    load = threading.Thread(target=_load, args=(settings, RATE * agents, watch.stop))
    reader = threading.Thread(target=watch.read)
    took: dict[str, list[float]] = {"promoted": [], "rolled_back": []}
    with ExitStack() as stack, Producer(settings, linger_ms=0) as producer:
        producer.send(_trained(settings, 1))
        producer.send(_event("promoted", 1, 0))
        for _ in range(agents):
            stack.enter_context(process("streams.cli", "policy", settings=settings))
        reader.start()
        load.start()
        try:
            owners = _owners(settings, agents)
            watch.wait_for(1, owners)
            for version in range(2, RELEASES + 2):
                producer.send(_trained(settings, version))
                producer.flush()
                for kind, new, old in (("promoted", version, 1), ("rolled_back", 1, version)):
                    time.sleep(0.3)  # what was on its way has come
                    watch.begin()
                    begun = time.monotonic()
                    producer.send(_event(kind, new, old))
                    producer.flush()
                    took[kind] += [seen - begun for seen in watch.wait_for(new, owners)]
        finally:
            watch.stop.set()
            reader.join()
            load.join()
    return took


def _load(settings: Settings, rate: float, stop: threading.Event) -> None:
    """Ask until told to stop."""
    due, run_id = time.monotonic(), time.time_ns()
    with Producer(settings, linger_ms=0) as producer:
        for number in itertools.count():
            due += 1 / rate
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            producer.send(
                Task(
                    task_id=f"{run_id}-{number}", created_at=0, policy="bench", group_size=1, purpose="serve",
                    reward_sources=(RewardSource(name="exact"),), messages=(Message(role="user", content="hello"),),
                )
            )  # fmt: skip


def _owners(settings: Settings, agents: int) -> list[set[int]]:
    """Return the partitions of each agent, once every one has some and all are given out."""
    client = admin.AdminClient(client_config(settings.kafka))
    group = f"{settings.topics.prefix}policy-bench"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            told = client.describe_consumer_groups([group])[group].result()
        except ck.KafkaException:
            continue  # the coordinator is not there yet
        owners = [{at.partition for at in member.assignment.topic_partitions} for member in told.members]
        if len(owners) == agents and all(owners) and len(set().union(*owners)) == settings.topics.partitions:
            return owners
        time.sleep(0.5)
    raise TimeoutError(f"{agents} agents did not share the partitions within 120 s")


def _trained(settings: Settings, version: int) -> AdapterEvent:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "adapter_model.safetensors").write_bytes(b"%d" % version * 1000)
        uri, files = adapter_store.publish(Path(folder), settings.adapters.store, "bench", version)
    return AdapterEvent(
        event_id=derive_id("bench", version, "trained"), policy="bench", created_at=0, version=version,
        kind="trained", actor="trainer", reason="bench", uri=uri, files=files,
    )  # fmt: skip


def _event(kind: AdapterKind, version: int, expected: int) -> AdapterEvent:
    return AdapterEvent(
        event_id=derive_id("bench", kind, version, expected), policy="bench", created_at=0, version=version,
        kind=kind, actor="bench", reason="bench", expected_version=expected,
    )  # fmt: skip


class _Watch:
    """Notes when each partition first held an answer of each version, since `begin`."""

    def __init__(self, settings: Settings) -> None:
        self.stop = threading.Event()
        self._seen: dict[tuple[int, int], float] = {}
        topic = topics(settings.topics)["responses"]
        self._consumer = ck.Consumer({**client_config(settings.kafka), "group.id": "bench", "fetch.wait.max.ms": 20})
        self._consumer.assign([ck.TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])

    def read(self) -> None:
        """Read until told to stop."""
        while not self.stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            answer = decode(message.value(), Response)
            assert isinstance(answer, Response), answer
            self._seen.setdefault((message.partition(), answer.adapter_version), time.monotonic())
        self._consumer.close()

    def begin(self) -> None:
        """Forget what was seen."""
        self._seen = {}

    def wait_for(self, version: int, owners: list[set[int]]) -> list[float]:
        """Return when each agent first answered by `version`. Raises TimeoutError after a minute."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            seen = dict(self._seen)
            times = [[seen[number, version] for number in own if (number, version) in seen] for own in owners]
            if all(times):
                return [min(of_agent) for of_agent in times]
            time.sleep(0.01)
        raise TimeoutError(f"not every agent answered by version {version} within 60 s")


# --- loading ----------------------------------------------------------------------------------------------------------


def _loading() -> Iterator[dict[str, Any]]:
    """Yield seconds of a swap, and tokens a second with a new version before each round, and with two by turns."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the policy agent's process sets it
    from streams.engines.base_model import load_base
    from streams.engines.local.transformers_engine import TransformersEngine
    from streams.engines.protocol import SamplingRequest
    from streams.settings.model import Model
    from streams.stages.tasks.generators import TaskSpec, generate

    base = load_base(Model())
    engine, versions = TransformersEngine(base, 1), itertools.count(10)
    spec = TaskSpec(family="sums", count=TASKS, purpose="train", policy="bench", group_size=SLOTS)
    tasks = list(generate(spec, now_ms=0))
    requests = [SamplingRequest(sampling_id=f"{index}", task=task) for index, task in enumerate(tasks)]

    def sample(version: int, folder: Path) -> int:
        if engine.served_version != version:
            engine.serve(version, folder)
        return sum(len(one.completion_token_ids) for slots in engine.sample(requests) for one in slots)

    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as root:
        folder = unchanging_adapter(base.model, Path(root))
        say(f"convergence: loading, {TASKS} tasks x {SLOTS} slots, adapters of rank {RANK}")
        arms = itertools.cycle((1, 2))
        runs = {
            "one": lambda: sample(1, folder),
            "new": lambda: sample(next(versions), folder),
            "arms": lambda: sample(next(arms), folder) + sample(next(arms), folder),
        }
        measured = by_turns(runs, rounds=5, budget_s=40)

        def swap(which: Iterator[int]) -> None:
            for _ in range(SWAPS):
                engine.serve(next(which), folder)

        swaps = {"kept": lambda: swap(arms), "read": lambda: swap(versions)}
        swapped = {name: median_s(turns) / SWAPS for name, turns in by_turns(swaps).items()}
    rates = {
        name: sum(tokens for _, tokens in turns) / len(turns) / median_s(turns) for name, turns in measured.items()
    }
    yield line(
        "convergence", "swap to a version served a moment ago", ours=swapped["kept"], peer=swapped["read"], unit="s",
        ratio=swapped["read"] / swapped["kept"], peer_is="to one that is read from disk",
    )  # fmt: skip
    for name, case in (("new", "a version never seen before each round"), ("arms", "two versions in turn")):
        yield line(
            "convergence", f"tokens, {case}", ours=rates[name], peer=rates["one"], unit="tokens/s",
            ratio=rates[name] / rates["one"], peer_is="rounds of one version", rounds=len(measured[name]),
        )  # fmt: skip


def unchanging_adapter(model: Any, folder: Path) -> Path:
    """Write an adapter on every linear module that changes nothing: what is said takes as long whoever says it."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head"):
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.zeros(RANK, module.in_features)
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.zeros(module.out_features, RANK)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
    return folder
