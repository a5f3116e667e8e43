"""Turn the samples of a queue into tasks and responses, from which the stages make groups and batches.

    samples of one uid ──► a task of agent `verl`, and a response for each session ──► tasks, responses ──► scoring:
    the source `environment` adds up what each turn has of rm_scores ──► rewards ──► groups ──► batches

Advantages are those of this log's formula. Nothing is written before everything has been read, ids are made of the
names of queue and sample, and what is in the log is not written again: a command that was killed can be repeated.

Not covered: pictures; and sampling settings other than temperature and top_p, which verl's samples do not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_fields import FAILURE, STATUS, SampleKey, value_of
from plugins.verl.sample_fold import Sample
from plugins.verl.sample_outputs import Output, chains_of, read_output
from plugins.verl.sample_queue import FieldValue, SampleQueue
from schemas.events import Event, Message, Response, RewardSource, Sampling, Task, derive_id
from schemas.serde import Poison
from streams.adapters.decisions import find_version, read_history
from streams.adapters.versions import AdapterState, Version
from streams.engines.base_model import Base, load_base
from streams.errors import EventError, NotFoundError, RefusedError, UndecodableEvent
from streams.kafka import admin, times
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.topics import topics
from streams.settings.model import Settings

AGENT = ENGINE = SCENARIO = "verl"
"""The agent of the tasks, which no policy of this log answers; and where samples do not say another, their scenario."""
SOURCE = RewardSource(name="environment")
Members = dict[int, dict[int, Sample]]
"""The samples of a uid by session, and output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOrder:
    """Which samples to take, and what verl's do not say."""

    queue: str
    partition: str
    policy: str
    adapter_version: int | None = None
    """None: that of the sample; without one, the newest of the policy."""
    temperature: float = 1.0
    group_size: int | None = None
    """Sessions of a group, verl's rollout.n; None: as many as the largest has."""


@dataclass(slots=True)
class SampledTasks:
    """The tasks and responses of a queue."""

    tasks: list[Task] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """By uid, or key: why."""
    written: int = 0
    """Records that were not in the log yet."""


def bring(settings: Settings, order: QueueOrder) -> SampledTasks:
    """Write the finished groups of a queue's partition as tasks and responses.

    Raises NotFoundError without such a queue or version; RefusedError if no group of it can be used; SettingsError if
    the base cannot be loaded; LogError if the log fails.
    """
    admin.check_topics(settings, ["tasks", "responses", "samples", "queues"])
    versions = read_history(settings, order.policy).state
    if order.adapter_version is not None:
        find_version(versions, order.adapter_version)
    with QueueLog(settings) as log:
        if (epoch := log.current(order.queue).epoch) == 0:
            raise NotFoundError(f"there is no queue {order.queue}; `streamward queues list` names those that are there")
        samples = QueueOpener(settings, log, order.queue).samples().samples.values()
    sampled = SampledTasks()
    complete = _complete(samples, order, sampled.left_out)
    base = load_base(settings.model)
    with SampleQueue(settings, order.queue, epoch) as queue:
        for uid, members in complete.items():
            try:
                outputs = [
                    [read_output(queue, sample) for _, sample in sorted(of_session.items())]
                    for _, of_session in sorted(members.items())
                ]
                task, responses = _group(order, base, versions, uid, outputs)
            except (EventError, RefusedError, NotFoundError) as exc:
                sampled.left_out[uid] = str(exc)
                continue
            sampled.tasks.append(task)
            sampled.responses += responses
    if not sampled.tasks:
        reasons = "; ".join(f"{uid}: {reason}" for uid, reason in list(sampled.left_out.items())[:3])
        raise RefusedError(
            f"queue {order.queue}, partition {order.partition}: no group of it can be trained on here: "
            f"{reasons or 'it has no samples'}"
        )
    sampled.written = _write(settings, sampled)
    return sampled


def _complete(samples: Iterable[Sample], order: QueueOrder, left_out: dict[str, str]) -> dict[str, Members]:
    """Return the samples of each group that has all of its sessions.

    That verl has tagged its prompt finished is not in the log: a tag without a field goes past any storage.
    """
    keyed = {sample.key: sample for sample in samples if sample.partition == order.partition and sample.key}
    complete: dict[str, Members] = {}
    places = {key: SampleKey.parse(key) for key, sample in keyed.items() if sample.fields}
    uids = {place.uid for place in places.values() if place is not None}
    for key, place in places.items():
        if place is None and key in uids:
            continue  # the prompt
        if place is None:
            left_out[key] = "its key is not that of an output: uid_session_output"
            continue
        prompt = keyed.get(place.uid)
        if prompt is not None and _tags(prompt).get(STATUS) == FAILURE:
            left_out[place.uid] = f"its prompt is tagged {FAILURE}"
            continue
        complete.setdefault(place.uid, {}).setdefault(place.session, {})[place.output] = keyed[key]
    expected = order.group_size or max(map(len, complete.values()), default=0)
    for uid in [uid for uid, members in complete.items() if len(members) < max(2, expected)]:
        left_out[uid] = f"it has {len(complete.pop(uid))} sessions; expected {max(2, expected)}"
    return complete


def _tags(sample: Sample) -> dict[str, Any]:
    tags = None if sample.tags is None else value_of(FieldValue("json", sample.tags.encode()))
    return tags if isinstance(tags, dict) else {}


# --- tasks and responses ----------------------------------------------------------------------------------------------


class SamplingModel(NamedTuple):
    """The model that every response of a group is of."""

    base: Base
    version: Version


def _group(
    order: QueueOrder, base: Base, versions: AdapterState, uid: str, sessions: list[list[Output]]
) -> tuple[Task, list[Response]]:
    """Return a task and its responses. Raises RefusedError for samples of another base, NotFoundError, EventError."""
    first = sessions[0][0]
    _check_base(base, first)
    version = _version(order, versions, first)
    temperature, top_p = (first.about.get(name) for name in ("temperature", "top_p"))
    sampling = Sampling(
        temperature=order.temperature if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        max_tokens=max(len(output.tokens) for outputs in sessions for output in outputs),
    )
    task = Task(
        task_id=derive_id(order.queue, order.partition, uid),
        created_at=times.now_ms(),
        metadata={"queue": order.queue, "queue_partition": order.partition, "uid": uid},
        policy=order.policy,
        scenario=first.scenario or SCENARIO,
        group_size=len(sessions),
        sampling=sampling,
        agent=AGENT,
        reward_sources=(SOURCE,),
        messages=first.messages or (Message(role="user", content=_text(base, first.prompt.tolist())),),
    )
    model = SamplingModel(base, version)
    try:
        return task, [_response(task, model, slot, outputs) for slot, outputs in enumerate(sessions)]
    except ValueError as exc:
        raise UndecodableEvent(f"its tokens cannot be recorded: {exc}") from exc


def _check_base(base: Base, output: Output) -> None:
    for name, own in (("base_digest", base.base_digest), ("tokenizer_digest", base.tokenizer_digest)):
        if output.about.get(name, own) != own:
            raise RefusedError(
                f"it was sampled with {name} {str(output.about[name])[:12]}, and model.base has {own[:12]}; set "
                "model.base and model.dtype to the model that sampled it"
            )


def _version(order: QueueOrder, versions: AdapterState, output: Output) -> Version:
    """Return the version that the samples are of."""
    recorded = output.about.get("adapter_version")
    if order.adapter_version is not None:
        return find_version(versions, order.adapter_version)
    return find_version(versions, recorded if isinstance(recorded, int) else versions.newest)


def _response(task: Task, model: SamplingModel, slot: int, outputs: list[Output]) -> Response:
    """Return the response that a session is. Raises ValueError for tokens or logprobs that are none."""
    chains, first = chains_of(outputs), outputs[0]
    finish = first.about.get("finish_reason")
    return Response(
        response_id=derive_id(task.task_id, slot),
        sampling_id=task.task_id,
        task_id=task.task_id,
        created_at=task.created_at,
        metadata={"purpose": task.purpose},
        policy=task.policy,
        slot=slot,
        group_size=task.group_size,
        adapter_version=model.version.version,
        trained_batches=model.version.recorded_batches,
        base_digest=model.base.base_digest,
        tokenizer_digest=model.base.tokenizer_digest,
        engine=ENGINE,
        finish_reason="length" if finish == "length" else "stop",
        prompt_tokens=len(first.prompt),
        completion_tokens=sum(int(output.mask.sum()) for output in outputs),
        latency_ms=0.0,
        text=_text(model.base, first.tokens.tolist()),
        sampling=task.sampling,
        agent_id=AGENT,
        steps=len(chains.turns),
        **chains._asdict(),
    )


def _text(base: Base, tokens: list[int]) -> str:
    return str(base.tokenizer.decode(tokens, skip_special_tokens=True))


# --- the log ----------------------------------------------------------------------------------------------------------


def _write(settings: Settings, sampled: SampledTasks) -> int:
    """Write the tasks, then the responses, without those that are there; return how many were written."""
    task_ids = {task.task_id.encode() for task in sampled.tasks}
    tasks = {event.task_id for event in _present(settings, "tasks", task_ids) if isinstance(event, Task)}
    responses = {
        event.response_id for event in _present(settings, "responses", task_ids) if isinstance(event, Response)
    }
    missing: list[list[Task] | list[Response]] = [
        [task for task in sampled.tasks if task.task_id not in tasks],
        [response for response in sampled.responses if response.response_id not in responses],
    ]
    with Producer(settings) as producer:
        for events in missing:
            for event in events:
                producer.send(event)
            producer.flush()
    return sum(map(len, missing))


def _present(settings: Settings, label: str, keys: set[bytes]) -> Iterable[Event]:
    """Yield the events of a topic that have one of these keys."""
    topic, bounds = topics(settings.topics)[label], admin.offsets(settings, [label])
    starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
    for record in read(settings, starts, ends):
        if record.key in keys and not isinstance(event := record.decode(topic.event), Poison):
            yield event
