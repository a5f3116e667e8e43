"""Events for tests: each is whole and ordinary, and a test changes the one detail it is about.

    task(group_size=2)   response(slot=1, error="out of memory")   reward(response(slot=1), value=0.5)   group(...)

Ids follow from what they are about, as in the log: `response(sampling_id="s2")` has the id of that sampling's slot.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeVar

import fastavro

from schemas import versions
from schemas.events import (
    AccessEvent,
    AdapterEvent,
    AdapterKind,
    AdvantagedGroup,
    AgentEvent,
    AgentProgram,
    AnnotationEvent,
    Batch,
    CallLora,
    Coordinates,
    CurationEvent,
    DatasetEvent,
    DeadLetter,
    DocumentEvent,
    DocumentKind,
    Event,
    ExperimentEvent,
    GroupControl,
    GroupResponse,
    GuardrailVerdict,
    JobEnvironment,
    JobEvent,
    JobKind,
    JobPrices,
    JobQuestion,
    JobSpec,
    MemoryEvent,
    Message,
    Outcome,
    OutsideModel,
    PrivacyEvent,
    PrivacyKind,
    PromptEvent,
    PromptKind,
    PromptVariable,
    QueueEvent,
    RequestEvent,
    Response,
    Reward,
    RewardSource,
    SampleEvent,
    SampleField,
    Sampling,
    SourceRange,
    Task,
    TextSpan,
    ThreadEvent,
    ThreadKind,
    TokensElsewhere,
    Tool,
    ToolEvent,
    ToolKind,
    TrainingCall,
    TrainingResult,
    TrajectoryEvent,
    TrajectoryKind,
    TriggerEvent,
    TriggerKind,
    Turn,
    derive_id,
    prompt_digest,
    text_digest,
)
from schemas.serde import encode
from schemas.tokens import Logprobs, LossMask, Octets, PerToken, TokenIds
from schemas.tool_text import offer_digest
from streams.adapters.versions import AdapterState, empty, fold
from streams.kafka.record import Record, dead_letter
from streams.stages.scoring.breaker import GROUP_WAITS

E = TypeVar("E")
T0 = 1_800_000_000_000
"""When everything happens, ms since the epoch."""
PER_TOKEN: dict[str, type[PerToken[Any]]] = {
    "prompt_token_ids": TokenIds,
    "completion_token_ids": TokenIds,
    "logprobs": Logprobs,
    "loss_mask": LossMask,
}
"""What is per token may be given as a tuple, too."""


def in_bytes(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with each tuple that is per token as bytes."""
    found = {name: fields[name] for name in PER_TOKEN if type(fields.get(name)) is tuple}
    return {**fields, **{name: PER_TOKEN[name].of(values) for name, values in found.items()}}


def changed(event: E, **changes: Any) -> E:
    """Return the event with other values."""
    return dataclasses.replace(event, **in_bytes(changes))


def plain(event: Any, **changes: Any) -> dict[str, Any]:
    """Return the values of an event as an Avro encoder takes them, with others in their place, unchecked."""
    every = {name: _plain(value) for name, value in dataclasses.asdict(event).items()} | changes
    packed = {name: struct.pack(f"<{len(every[name])}{view.CODE}", *every[name]) for name, view in PER_TOKEN.items()
              if type(every.get(name)) is list}  # fmt: skip
    return every | packed


def _plain(value: Any) -> Any:
    if isinstance(value, PerToken):
        return value.data
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def task(**changes: Any) -> Task:
    """Return a task of four slots and one reward source, `exact`."""
    whole: dict[str, Any] = {
        "task_id": "t1",
        "created_at": T0,
        "policy": "default",
        "group_size": 4,
        "reward_sources": (RewardSource(name="exact"),),
        "messages": (Message(role="user", content="4 + 7 ="),),
    }
    return Task(**{**whole, **changes})


def response(**changes: Any) -> Response:
    """Return the answer to slot 0 of `task()` in sampling s1 by version 0; with `error`, a slot that failed."""
    whole: dict[str, Any] = {
        "sampling_id": "s1",
        "task_id": "t1",
        "created_at": T0 + 10,
        "policy": "default",
        "slot": 0,
        "group_size": 4,
        "adapter_version": 0,
        "base_digest": "b" * 64,
        "tokenizer_digest": "c" * 64,
        "engine": "scripted",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "latency_ms": 12.5,
        "text": "11",
        "sampling": Sampling(max_tokens=12),
        "prompt_token_ids": (1, 2, 3),
        "completion_token_ids": (4, 5),
        "logprobs": (-0.5, -0.25),
        "loss_mask": (True, True),
    }
    if changes.get("error") is not None:
        whole |= {"finish_reason": "error", "text": "", "completion_tokens": 0, **dict.fromkeys(PER_TOKEN, ())}
    whole = in_bytes(whole | changes)
    whole.setdefault("response_id", derive_id(whole["sampling_id"], whole["slot"]))
    return Response(**whole)


def reward(of: Response | None = None, **changes: Any) -> Reward:
    """Return the verdict 1.0 of `exact` on a response; with `error`, a score that failed; `abstained`: no opinion."""
    of = of or response()
    whole: dict[str, Any] = {
        "response_id": of.response_id,
        "task_id": of.task_id,
        "created_at": T0 + 20,
        "policy": of.policy,
        "slot": of.slot,
        "source": "exact",
        "value": None if changes.get("error") is not None or changes.get("abstained") else 1.0,
        "scorer_version": "1",
        "components": {} if changes.get("abstained") else {"match": 1.0},
    }
    whole |= changes
    whole.setdefault("reward_id", derive_id(whole["response_id"], whole["source"]))
    return Reward(**whole)


def scoreless(of: Response, offset: int = 0, **changes: Any) -> DeadLetter:
    """Return the dead letter of a response that its scorer gave up on."""
    at = Coordinates("streamward.responses", 0, offset)
    record = Record(at, of.created_at, of.task_id.encode(), encode(of))
    error = f"own:own: exception: own:own raised KeyError: 'answer'. {GROUP_WAITS}"
    return dead_letter(record, **{"stage": "scoring", "reason": "score_failed", "error": error, **changes})


def control(**changes: Any) -> GroupControl:
    """Return the record that closes the group of t1."""
    whole: dict[str, Any] = {"task_id": "t1", "created_at": T0 + 700_000, "kind": "expire", "reason": "deadline passed"}
    whole |= changes
    whole.setdefault("control_id", derive_id(whole["task_id"], whole["kind"]))
    return GroupControl(**whole)


def group(**changes: Any) -> AdvantagedGroup:
    """Return a whole group of two responses that differ, sampled by version 0, four tokens to learn from."""
    whole: dict[str, Any] = {
        "task_id": "t1",
        "created_at": T0 + 30,
        "policy": "default",
        "purpose": "train",
        "scenario": "default",
        "sampling_id": "s1",
        "group_size": 2,
        "adapter_version": 0,
        "base_digest": "b" * 64,
        "tokenizer_digest": "c" * 64,
        "complete": True,
        "formula": "grpo",
        "formula_version": 1,
        "formula_eps": 1e-4,
        "formula_ddof": 1,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "prompt_token_ids": (1, 2, 3),
        "responses": tuple(
            member(slot, reward=float(slot), advantage=advantage) for slot, advantage in enumerate((-0.7, 0.7))
        ),
    }
    whole = in_bytes(whole | changes)
    whole.setdefault("group_id", derive_id(whole["task_id"], "group", whole["formula_version"]))
    return AdvantagedGroup(**whole)


def member(slot: int = 0, **changes: Any) -> GroupResponse:
    """Return a response of a group: two tokens, no reward and no advantage."""
    whole: dict[str, Any] = {
        "slot": slot,
        "response_id": derive_id("s1", slot),
        "partition": 0,
        "offset": slot,
        "finish_reason": "stop",
        "latency_ms": 12.5,
        "reward": 0.0,
        "advantage": 0.0,
        "completion_token_ids": (4, 5),
        "logprobs": (-0.5, -0.25),
        "loss_mask": (True, True),
    }
    return GroupResponse(**in_bytes(whole | changes))


def batch(sequence: int = 0, **changes: Any) -> Batch:
    """Return a batch of one group of two responses, closed because it was full."""
    whole: dict[str, Any] = {
        "policy": "default",
        "created_at": T0,
        "sequence": sequence,
        "closed_by": "count",
        "max_policy_lag": 1,
        "groups_partition": 0,
        "groups_offsets": (0,),
    }
    whole |= changes
    groups = whole.setdefault("groups", len(whole["groups_offsets"]))
    whole.setdefault("responses", 2 * groups)
    whole.setdefault("loss_tokens", 4 * groups)
    whole.setdefault("batch_id", derive_id(whole["policy"], "batch", sequence))
    return Batch(**whole)


def adapter_event(kind: AdapterKind, version: int, **changes: Any) -> AdapterEvent:
    """Return a step in the life of `version` that ann took; its id says which primary, suite or share it is about."""
    whole: dict[str, Any] = {
        "policy": "default",
        "created_at": T0 + version,
        "version": version,
        "kind": kind,
        "actor": "ann",
        "reason": "because",
    }
    whole |= changes
    about = (whole.get(name) for name in ("expected_version", "suite", "share", "verdict"))
    whole.setdefault("event_id", derive_id(whole["policy"], version, kind, *(one for one in about if one is not None)))
    return AdapterEvent(**whole)


def trained(version: int, **changes: Any) -> AdapterEvent:
    """Return that the trainer made `version` of all batches so far, without files."""
    whole: dict[str, Any] = {
        "actor": "trainer",
        "reason": f"batch {version - 1}",
        "parent_version": version - 1,
        "uri": f"/store/{changes.get('policy', 'default')}/{version}",
        "first_batch": 0,
        "last_batch": version - 1,
    }
    return adapter_event("trained", version, **whole | changes)


def outside(version: int, **changes: Any) -> AdapterEvent:
    """Return that `version` is a model that another server answers for, at prices of its own."""
    model = OutsideModel(url="http://127.0.0.1:9/v1", model="theirs", prompt_usd=1.0, completion_usd=4.0)
    return adapter_event("trained", version, **{"reason": "an outside model", "outside": model} | changes)


def counted_outside(slot: int = 0, *, prompt: int = 3, completion: int = 2, **changes: Any) -> GroupResponse:
    """Return a response of an outside model in its group, of which numbers of tokens are known alone."""
    counts = TokensElsewhere(completion_tokens=completion, loss_tokens=0, prompt_tokens=prompt)
    return member(slot, **{"elsewhere": counts, **dict.fromkeys(PER_TOKEN, ())} | changes)


def promoted(version: int, **changes: Any) -> AdapterEvent:
    """Return that ann made `version` the primary after the one before it."""
    return adapter_event("promoted", version, **{"expected_version": version - 1} | changes)


def evaluated(version: int, right: float = 0.5, *, tasks: int = 40, **changes: Any) -> AdapterEvent:
    """Return that `version` was right on this share of the suite's tasks, always the same ones."""
    outcomes = tuple(
        Outcome(index=index, scenario="sums", success=value, reward=value, tokens=3.0)
        for index in range(tasks)
        for value in [float(index < right * tasks)]
    )
    metrics = {"n": float(tasks), "failed": 0.0, "exact": right, "mean_reward": right}
    return adapter_event(
        "evaluated", version, **{"suite": "sums@1", "metrics": metrics, "outcomes": outcomes} | changes
    )


def job_event(kind: JobKind, sequence: int = 0, **changes: Any) -> JobEvent:
    """Return an event of job job-1, decided when `sequence` of its events had taken effect."""
    whole: dict[str, Any] = {
        "event_id": derive_id("job-1", kind, sequence),
        "job_id": "job-1",
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "policy": "default",
        "actor": "ann",
        "reason": "because",
    }
    measured = ("success", "mean_reward", "success_gain", "gain")
    of_kind: dict[str, dict[str, Any]] = {
        "created": {"spec": job_spec()},
        "started": {"version": 0, "groups_next": 0},
        "iteration": {"iteration": 1, "version": 1, "groups_next": 0},
        "evaluated": {"iteration": 0, "version": 0, "metrics": dict.fromkeys(measured, 0.5)},
    }
    return JobEvent(**{**whole, **of_kind.get(kind, {}), **changes})


def job_spec(**changes: Any) -> JobSpec:
    """Return an order of three iterations over two questions."""
    whole: dict[str, Any] = {
        "iterations": 3,
        "batch_size": 4,
        "group_size": 2,
        "held_out_share": 0.25,
        "evaluate_every": 2,
        "keep_best": 1,
        "patience": 3,
        "prices": JobPrices(prompt=1.0, completion=2.0, trainer_hour=3.0),
        "reward_sources": (RewardSource(name="exact"),),
        "questions": tuple(JobQuestion(query=f"{n} + 1 =", verifier=f'{{"answer": "{n + 1}"}}') for n in range(2)),
    }
    return JobSpec(**whole | changes)


def episodes_spec(**changes: Any) -> JobSpec:
    """Return an order of three iterations over the episodes of two seeds of `guess`, with two held-out ones."""
    environment = JobEnvironment(name="guess", seeds=(3, 5), held_out_seeds=(7, 9), held_out_temperature=1.0)
    rewarded = (RewardSource(name="environment"),)
    whole = {"questions": (), "agent": "environment", "max_turns": 4, "held_out_share": 0.0}
    return job_spec(**{**whole, "environment": environment, "reward_sources": rewarded} | changes)


PROGRAM = AgentProgram(program="python a.py", file="a.py", sha256="a" * 64, commit="1" * 40, dirty=True)
"""What is run as agent calc."""


def turn(number: int = 0, **changes: Any) -> Turn:
    """Return a call of agent calc for slot 0 of `task()`: its first, answered with two tokens."""
    whole: dict[str, Any] = {
        "trajectory_id": derive_id("s1", 0),
        "task_id": "t1",
        "created_at": T0 + 10 + number,
        "agent_id": "calc",
        "policy": "default",
        "adapter_version": 0,
        "number": number,
        "continuity": "first",
        "reason": "the first call of its trajectory",
        "sampling_id": "s1",
        "slot": 0,
        "protocol": "chat",
        "request_digest": "d" * 64,
        "started_at": T0 + number,
        "engine": "scripted",
        "base_digest": "b" * 64,
        "tokenizer_digest": "c" * 64,
        "template_digest": "e" * 64,
        "finish_reason": "stop" if changes.get("error") is None else "error",
        "prompt_tokens": 3,
        "reply": Message(role="assistant", content="11"),
        "sampling": Sampling(max_tokens=12),
        "prompt_token_ids": (1, 2, 3),
        "completion_token_ids": (4, 5),
        "logprobs": (-0.5, -0.25),
        "messages": (Message(role="user", content="4 + 7 ="),),
    }
    whole = in_bytes(whole | changes)
    whole.setdefault("turn_id", derive_id(whole["trajectory_id"], number))
    return Turn(**whole)


def trajectory(kind: TrajectoryKind = "ended", **changes: Any) -> TrajectoryEvent:
    """Return that the run of `turn()` began, or ended well after one turn."""
    whole: dict[str, Any] = {
        "trajectory_id": derive_id("s1", 0),
        "task_id": "t1",
        "created_at": T0 + 50 * (kind == "ended"),
        "kind": kind,
        "agent_id": "calc",
        "policy": "default",
        "purpose": "train",
        "sampling_id": "s1",
        "slot": 0,
        "group_size": 4,
        "ending": "completed" if kind == "ended" else None,
        "turns": 1 if kind == "ended" else None,
        "reason": "the program ended with 0" if kind == "ended" else "a task",
    }
    whole |= changes
    whole.setdefault("event_id", derive_id(whole["trajectory_id"], kind))
    return TrajectoryEvent(**whole)


def state_after(events: Iterable[AdapterEvent], policy: str = "p") -> AdapterState:
    """Return what these events of `policy` come to."""
    return reduce(fold, events, empty(policy))


def one_of_each() -> list[Event]:
    """Return one event of every kind."""
    return [
        task(),
        response(),
        reward(),
        control(),
        group(),
        batch(groups_partition=3, groups_offsets=(7,)),
        adapter_event("trained", 1, created_at=T0, actor="trainer", reason="batch 0", metrics={"loss": 0.25}),
        DeadLetter(
            dead_letter_id=derive_id("advantages", "rewards", 3, 1041),
            created_at=T0,
            stage="advantages",
            reason="not_avro",
            error="rewards[3]@1041: not Avro",
            source_topic="rewards",
            source_partition=3,
            source_offset=1041,
            source_timestamp=T0,
            payload="AAAA",
        ),
        ExperimentEvent(
            event_id=derive_id("dry", "default", 0),
            experiment="dry",
            created_at=T0,
            kind="started",
            policy="default",
            actor="replay",
            reason="asked for",
            code_version="1",
            selection={"purpose": "train"},
            settings={"advantages.formula": "dr_grpo"},
            counts={"tasks": 2},
            changed=("advantages.formula",),
            ranges=(SourceRange(topic="tasks", partition=3, first=7, next=9),),
        ),
        turn(),
        trajectory("started"),
        AgentEvent(
            event_id=derive_id("calc", 0),
            agent_id="calc",
            created_at=T0,
            kind="registered",
            name="calc",
            type="RL_TRAINED",
            model_id="default",
            tools=(Tool(name="add", description="Add two numbers."),),
            reward_sources=(RewardSource(name="exact"),),
        ),
        job_event("created"),
        AccessEvent(
            event_id=derive_id("00112233445566ff", "key_created"),
            subject_id="00112233445566ff",
            created_at=T0,
            kind="key_created",
            actor="ann",
            reason="asked for",
            name="notebook",
            secret_sha256="0123456789abcdef" * 4,
            role="trainer",
            tenant="red",
        ),
        request_event(),
        curation_event(),
        AnnotationEvent(
            event_id=derive_id("", "a" * 64, "person", "ann", "b" * 64, ""),
            row_id="a" * 64,
            created_at=T0,
            place="rows.jsonl:1",
            row='{"answer":"11","question":"4 + 7 ="}',
            verdict="promote",
            labeller="person",
            actor="ann",
            rationale="it is right",
            rubric="useful@1",
            rubric_digest="b" * 64,
        ),
        DatasetEvent(
            event_id=derive_id("coach", "built", "d" * 64),
            dataset="coach",
            created_at=T0 + 30,
            kind="built",
            policy="p",
            actor="ann",
            reason="2 promoted runs",
            digest="d" * 64,
            folder="data/autoretrain/2026",
            code_version="0.1.0",
            counts={"train": 2},
            manifest_sha256="e" * 64,
        ),
        TriggerEvent(
            event_id=derive_id("nightly", "ticked", 0),
            rule="nightly",
            created_at=T0 + 40,
            kind="ticked",
            sequence=0,
            policy="p",
            actor="retrain",
            reason="it is due",
            rule_digest="f" * 64,
            due_at=T0 + 40,
        ),
        prompt_event(),
        memory_event(),
        thread_event("created"),
        tool_event(),
        training_call(),
        training_result(),
        sample_event(),
        queue_event(),
        document_event(),
        guardrail_verdict(),
        privacy_event(),
    ]


def memory_event(**changes: Any) -> MemoryEvent:
    """Return the put of the item `ann` of the namespace `people`."""
    whole: dict[str, Any] = {
        "event_id": derive_id("people", "ann", "api", 0),
        "namespace": "people",
        "created_at": T0 + 50,
        "kind": "put",
        "key": "ann",
        "actor": "api",
        "value": '{"likes": "sums"}',
    }
    return MemoryEvent(**whole | changes)


def thread_event(kind: ThreadKind, thread_id: str = "t", run_id: str = "r", **changes: Any) -> ThreadEvent:
    """Return an event of thread `t`, or of its run `r`: of agent `calc`, with one question or one answer."""
    whole: dict[str, Any] = {"event_id": derive_id(thread_id, run_id, kind), "created_at": T0 + 60, "actor": "api"}
    if kind.startswith(("run_", "call_", "compacted")):
        whole["run_id"] = run_id
    if kind == "run_requested":
        whole |= {"agent_id": "calc", "if_busy": "reject", "model": "p", "memory_config": "{}", "sampling": Sampling()}
        whole["messages"] = (Message(role="user", content="1 + 1 ="),)
    if kind == "run_ended":
        whole |= {"ending": "success", "turn_id": derive_id(run_id, 0)}
        whole["messages"] = (Message(role="assistant", content="2"),)
    return ThreadEvent(kind=kind, thread_id=thread_id, **whole | changes)


def training_call(**changes: Any) -> TrainingCall:
    """Return the call that makes model 0 of session s1."""
    whole: dict[str, Any] = {
        "call_id": "s1:train:0",
        "model": "s1:train:0",
        "created_at": T0,
        "kind": "create_model",
        "session_id": "s1",
        "seq_id": 0,
        "request_digest": "a" * 64,
        "base_model": "tiny",
        "lora": CallLora(rank=8),
    }
    return TrainingCall(**whole | changes)


def training_result(**changes: Any) -> TrainingResult:
    """Return what became of `training_call()`."""
    whole: dict[str, Any] = {
        "call_id": "s1:train:0",
        "model": "s1:train:0",
        "created_at": T0 + 10,
        "kind": "create_model",
        "session_id": "s1",
        "seq_id": 0,
        "source_partition": 0,
        "source_offset": 7,
        "state_sha256": "b" * 64,
    }
    return TrainingResult(**whole | changes)


def sample_event(**changes: Any) -> SampleEvent:
    """Return the put of two fields of the sample `a` of the queue `q`."""
    whole: dict[str, Any] = {
        "event_id": "",
        "sample_id": "q/1.0",
        "created_at": T0 + 50,
        "kind": "put",
        "queue": "q",
        "epoch": 1,
        "writer": "w",
        "sequence": 0,
        "part": 0,
        "partition": "train",
        "key": "a",
        "tags": '{"status":"success"}',
        "fields": (
            SampleField(name="text", encoding="json", data=Octets(b'"five"')),
            SampleField(name="tokens", encoding="tensor", dtype="int64", shape=(1,), data=Octets(bytes(8))),
        ),
    }
    whole |= changes
    names = ("sample_id", "writer", "sequence", "part")
    return SampleEvent(**whole | {"event_id": derive_id(*(whole[name] for name in names))})


def queue_event(**changes: Any) -> QueueEvent:
    """Return the first opening of the queue `q`."""
    whole: dict[str, Any] = {
        "queue": "q",
        "created_at": T0 + 49,
        "kind": "opened",
        "epoch": 1,
        "writer": "w",
        "reason": "a program began",
    }
    whole |= changes
    parts = (whole["queue"], whole["kind"], whole["epoch"], whole["writer"], *whole.get("ends", ()))
    return QueueEvent(**whole | {"event_id": derive_id(*parts)})


def curation_event(**changes: Any) -> CurationEvent:
    """Return the verdict of a person on the run t1."""
    whole: dict[str, Any] = {
        "event_id": derive_id("t1", "person", "ann"),
        "task_id": "t1",
        "answer_id": "t1",
        "created_at": T0 + 30,
        "policy": "p",
        "scenario": "sums",
        "source_topic": "streamward.trajectories",
        "source_partition": 0,
        "source_offset": 7,
        "verdict": "promote",
        "labeller": "person",
        "actor": "ann",
        "rationale": "it is right",
        "rubric": "sums@1",
        "rubric_digest": "a" * 64,
        "transcript_digest": "b" * 64,
    }
    return CurationEvent(**whole | changes)


def trigger_event(kind: TriggerKind, sequence: int = 0, **changes: Any) -> TriggerEvent:
    """Return an event of the rule nightly; a crossing of it starts a job."""
    event_id = derive_id("nightly", kind, sequence)
    whole: dict[str, Any] = {
        "event_id": event_id,
        "rule": "nightly",
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "policy": "default",
        "actor": "retrain",
        "reason": "because",
        "rule_digest": "a" * 64,
    }
    crossing = {"signal": "promotable", "action": "train", "job_id": derive_id("job", "", event_id)}
    return TriggerEvent(**whole | ({"due_at": T0} if kind == "ticked" else crossing) | changes)


def prompt_event(kind: PromptKind = "created", sequence: int = 0, **changes: Any) -> PromptEvent:
    """Return an event of the prompt greet; created is its first version."""
    whole: dict[str, Any] = {
        "event_id": derive_id("greet", kind, sequence),
        "prompt": "greet",
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "actor": "ann",
        "reason": "first try",
    }
    if kind == "created":
        text = {
            "messages": (Message(role="system", content="Greet {{name}}."),),
            "variables": (PromptVariable(name="name"),),
        } | {name: changes[name] for name in ("messages", "variables") if name in changes}
        whole |= {"version": 1, "digest": prompt_digest(**text), **text}
    return PromptEvent(**whole | changes)


def tool_event(kind: ToolKind = "added", sequence: int = 0, **changes: Any) -> ToolEvent:
    """Return an event of the entry sums: a function that adds, or another description of it."""
    offered = changes.get("tools", (Tool(name="add", description="Add two numbers.", parameters=ADDENDS),))
    whole: dict[str, Any] = {
        "event_id": derive_id("sums", kind, sequence),
        "tool_id": "sums",
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "actor": "ann",
        "reason": "asked for",
    }
    if kind != "removed":
        whole["digest"] = offer_digest(offered, changes.get("messages", ()))
    if kind in ("added", "changed"):
        whole["tools"] = offered
    if kind == "added":
        whole["endpoint"] = "sums:add"
    changes = {name: value for name, value in changes.items() if name in whole or kind in ("added", "changed")}
    return ToolEvent(**whole | changes)


def guardrail_verdict(**changes: Any) -> GuardrailVerdict:
    """Return the verdict that a message of a call has an e-mail address."""
    whole: dict[str, Any] = {
        "verdict_id": derive_id("call", "r0", "messages[0].content", "email/1"),
        "agent_id": "calc",
        "created_at": T0,
        "kind": "pii",
        "rule": "email/1",
        "verdict": "flag",
        "mode": "monitor",
        "place": "call",
        "field_path": "messages[0].content",
        "spans": (TextSpan(start=3, end=12),),
        "reason": "an e-mail address",
    }
    return GuardrailVerdict(**whole | changes)


def privacy_event(kind: PrivacyKind = "asked", sequence: int = 0, **changes: Any) -> PrivacyEvent:
    """Return an event about one person."""
    whole: dict[str, Any] = {
        "event_id": derive_id(PERSON, kind, sequence),
        "person": PERSON,
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "actor": "ann",
        "reason": "asked for",
        "due_at": T0 if kind == "asked" else None,
    }
    return PrivacyEvent(**whole | changes)


PERSON = f"p-{'0123456789abcdef' * 2}"
"""A pseudonym."""


def document_event(kind: DocumentKind = "added", sequence: int = 0, **changes: Any) -> DocumentEvent:
    """Return an event of the document about tides."""
    whole: dict[str, Any] = {
        "event_id": derive_id("sea/tides", kind, sequence),
        "document_id": "sea/tides",
        "created_at": T0 + sequence,
        "kind": kind,
        "sequence": sequence,
        "actor": "ann",
        "reason": "asked for",
    }
    if kind != "removed":
        whole |= {"text": "The moon makes the tides.", "media_type": "text/plain", "source": "tides.txt"}
        whole["digest"] = text_digest(changes.get("text", whole["text"]))
    return DocumentEvent(**whole | changes)


ADDENDS = '{"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}'
"""What the tool of `tool_event` takes."""


def request_event(**changes: Any) -> RequestEvent:
    """Return a call that key 00112233445566ff was allowed."""
    whole: dict[str, Any] = {
        "event_id": derive_id("request", 0),
        "subject_id": "00112233445566ff",
        "created_at": T0 + 20,
        "role": "submitter",
        "tenant": "red",
        "agent_id": "calc",
        "action": "chat.call",
        "method": "POST",
        "resource": "/agents/calc/v1/chat/completions",
        "allowed": True,
        "reason": "key 00112233445566ff has role submitter, which may chat.call",
        "status": 200,
        "duration_ms": 20,
        "prompt_tokens": 9,
        "completion_tokens": 3,
    }
    return RequestEvent(**whole | changes)


def in_version_1(event: Event, schemas: versions.SchemaVersions | None = None) -> bytes:
    """The bytes of `event` as a writer of its first schema wrote them; later fields are left out."""
    schema = (schemas or versions.files()).versions(type(event).__name__)[0]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema.fastavro_schema, plain(event))
    return struct.pack(">bI", 0, schema.id) + out.getvalue()
