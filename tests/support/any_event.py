"""Any event there can be, for hypothesis: every field drawn by its type, then made to obey the rules between fields."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Literal

from hypothesis import strategies as st

from schemas.avro_schema import Shape, shapes
from schemas.events import (
    EVENTS,
    MAX_GROUP_SIZE,
    MAX_REWARD,
    AccessEvent,
    AdapterEvent,
    AnnotationEvent,
    Branch,
    CallAdam,
    CallLora,
    CurationEvent,
    DatasetEvent,
    DocumentEvent,
    GroupResponse,
    GuardrailVerdict,
    JobEvent,
    JobPrices,
    JobQuestion,
    JobSpec,
    JobTuning,
    MemoryEvent,
    Message,
    OutsideModel,
    PrivacyEvent,
    PromptEvent,
    PromptSearch,
    PromptUse,
    PromptVariable,
    QueueEvent,
    RequestEvent,
    Response,
    Reward,
    RewardSource,
    SampleEvent,
    Sampling,
    Task,
    ThreadEvent,
    Tool,
    ToolEvent,
    TrainingCall,
    TrainingResult,
    TrajectoryEvent,
    TriggerEvent,
    Tuning,
    Turn,
    derive_id,
    prompt_digest,
    text_digest,
)
from schemas.tokens import Logprobs, LossMask, Octets, TokenIds
from schemas.tool_text import offer_digest

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
MEASURED = ("success", "mean_reward", "success_gain", "gain")
SPENT = ("prompt_tokens", "completion_tokens", "trainer_s", "cost_usd")
"""Figures that some events of jobs have to have."""
ITEMS: dict[Any, st.SearchStrategy[Any]] = {
    TokenIds: st.integers(0, (1 << 31) - 1),
    Logprobs: st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32),
    LossMask: st.booleans(),
    Octets: st.integers(0, 255),
}


IN_CLEAR = {"subject": None, "sealed": None}
"""Fields of an event that is nobody's; tests/unit/test_sealing.py gives it a subject."""


def values(shape: Shape) -> st.SearchStrategy[Any]:
    plain = _plain(shape)
    return st.none() | plain if shape.optional else plain


def _plain(shape: Shape) -> st.SearchStrategy[Any]:
    bits = 31 if shape.narrow else 63
    if shape.base is Literal:
        return st.sampled_from(shape.allowed)
    if shape.base is str:
        return TEXT
    if shape.base is bool:
        return st.booleans()
    if shape.base is int:
        return st.integers(-(1 << bits), (1 << bits) - 1)
    if shape.base is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if shape.base in ITEMS:
        return st.lists(ITEMS[shape.base], max_size=3).map(shape.base.of)
    if shape.base is tuple:
        assert shape.item is not None
        return st.lists(values(shape.item), max_size=3).map(tuple)
    if shape.base is dict:
        assert shape.item is not None
        return st.dictionaries(TEXT, values(shape.item), max_size=3)
    return records(shape.base)


@cache
def records(kind: Any) -> st.SearchStrategy[Any]:
    drawn = {name: values(shape) for name, shape in shapes(kind).items()}
    in_clear = {name: st.just(value) for name, value in IN_CLEAR.items() if name in drawn}
    return st.builds(kind, **drawn | in_clear).map(_obeying)


def _obeying(event: Any) -> Any:
    """Bend a random event to the rules that its type cannot say."""
    match event:
        case Sampling():
            bent = abs(event.temperature), min(1.0, abs(event.top_p) or 1.0), abs(event.max_tokens) % 2**31 or 1
            return dataclasses.replace(event, temperature=bent[0], top_p=bent[1], max_tokens=bent[2])
        case RewardSource():
            return dataclasses.replace(event, weight=event.weight % MAX_REWARD)
        case PromptUse():
            return PromptUse(name=event.name, version=1 + event.version % 9, alias=event.alias, **_GREETING)
        case PromptEvent():
            return _whole_prompt(event)
        case ToolEvent():
            return _whole_tool(event)
        case GuardrailVerdict():
            changes = {"rule": "email/1", "spans": (), "turn_id": event.reason if event.place == "answer" else None}
            return dataclasses.replace(event, **changes)
        case DocumentEvent():
            text = f"{event.reason}."
            changes = {"document_id": "sea/tides", "sequence": abs(event.sequence) % 2**31, "kind": "added"}
            changes |= {"text": text, "digest": text_digest(text), "media_type": "text/plain"}
            return dataclasses.replace(event, **changes)
        case Task():
            sources = {source.name: source for source in (*event.reward_sources, RewardSource(name="exact"))}
            return dataclasses.replace(
                event,
                group_size=1 + event.group_size % MAX_GROUP_SIZE,
                max_turns=None if event.max_turns is None else 1 + event.max_turns % 1000,
                environment=None if event.max_turns is None or event.agent is None else event.environment,
                messages=(*_rendered(event), *event.messages, Message(role="user", content="")),
                reward_sources=tuple(sources.values()),
            )
        case Response():
            size = 1 + abs(event.group_size) % 64
            slot = event.slot % size
            event = _leaving(_even(event))
            return dataclasses.replace(
                event,
                turns=_within(event.turns, event),
                response_id=derive_id(event.sampling_id, slot),
                slot=slot,
                group_size=size,
                error="failed" if event.finish_reason == "error" else None,
            )
        case GroupResponse(elsewhere=None):
            event = _leaving(_even(event))
            return dataclasses.replace(event, spans=_within(event.spans, event))
        case GroupResponse():
            nothing = dict(completion_token_ids=TokenIds(), logprobs=Logprobs(), loss_mask=LossMask(), branches=())
            return dataclasses.replace(event, prompt_token_ids=TokenIds(), **nothing)
        case Branch():
            return _even(event)
        case Turn():
            count = min(len(event.completion_token_ids), len(event.logprobs))
            has_attempt = event.sampling_id is not None and event.slot is not None
            return dataclasses.replace(
                event,
                sampling_id=event.sampling_id if has_attempt else None,
                slot=event.slot if has_attempt else None,
                choice=abs(event.choice) % 4,
                choices=4,
                error="failed" if event.finish_reason == "error" else None,
                completion_token_ids=event.completion_token_ids[:count],
                logprobs=event.logprobs[:count],
            )
        case TrajectoryEvent():
            return _whole_trajectory(event)
        case JobEvent():
            return _whole_job(event)
        case AccessEvent():
            return _whole_access(event)
        case RequestEvent():
            counts = {name: abs(getattr(event, name) or 0) for name in ("prompt_tokens", "completion_tokens")}
            return dataclasses.replace(
                event,
                status=100 + abs(event.status) % 500,
                role=event.role or "viewer",
                duration_ms=abs(event.duration_ms) % 2**31,
                **{name: count % 2**31 for name, count in counts.items()},
            )
        case CurationEvent():
            judge = None if event.labeller != "judge" else event.judge
            labeller = "gates" if event.labeller == "judge" and judge is None else event.labeller
            return dataclasses.replace(event, verdict="reject", labeller=labeller, judge=judge, agreement=None)
        case AnnotationEvent():
            return dataclasses.replace(event, verdict="needs_human", labeller="order", judge=None, score=None)
        case DatasetEvent():
            built = {"kind": "built", "manifest_sha256": event.manifest_sha256 or "f" * 64}
            return dataclasses.replace(event, **(built if event.outside is None else _SENT))
        case TriggerEvent():
            ticked = {"kind": "ticked", "due_at": event.due_at or 0, "signal": None, "action": None}
            is_crossing = event.signal is not None and event.action is not None
            kind = {"kind": "crossed"} if is_crossing else ticked
            return dataclasses.replace(event, sequence=abs(event.sequence) % 2**31, **kind)
        case SampleEvent():
            fields = event.fields if event.kind == "put" else ()
            kind = "put" if fields else "cleared"
            return dataclasses.replace(event, kind=kind, fields=fields, parts=1 + abs(event.parts) % 9, part=0)
        case QueueEvent():
            closed = {"kind": "opened", "checkpoint": None} if event.digest is None else {"kind": "restored"}
            return dataclasses.replace(event, epoch=1 + abs(event.epoch) % 9, **closed)
        case MemoryEvent():
            value = "{}" if event.kind == "put" else None
            error = "too long" if event.kind == "failed" else None
            rule = None if event.run_id is None else "prompt notes@1"
            return dataclasses.replace(event, namespace="people", key="ann", value=value, error=error, rule=rule)
        case PrivacyEvent():
            due = (event.due_at or 0) if event.kind == "asked" else None
            return dataclasses.replace(event, person=f"p-{32 * 'a'}", sequence=abs(event.sequence) % 2**31, due_at=due)
        case ThreadEvent():
            return _whole_thread_event(event)
        case CallLora():
            return dataclasses.replace(event, rank=1 + abs(event.rank) % 1024)
        case TrainingCall():
            return _whole_call(event)
        case TrainingResult():
            counts = {name: abs(getattr(event, name)) for name in ("prompt_tokens", "completion_tokens")}
            spent = {name: abs(getattr(event, name) or 0.0) for name in ("seconds", "trainer_s", "cost_usd")}
            return dataclasses.replace(
                event,
                category="server" if event.error is not None else None,
                outputs_uri=None,
                outputs_sha256=None,
                **{name: count % 2**62 for name, count in counts.items()},
                **spent,
            )
        case JobPrices():
            return JobPrices(**{name: abs(value) for name, value in dataclasses.asdict(event).items()})
        case JobSpec():
            return _whole_spec(event)
        case JobTuning():
            return _whole_job_tuning(event)
        case Reward():
            value = None if event.value is None else event.value % MAX_REWARD
            return dataclasses.replace(
                event,
                reward_id=derive_id(event.response_id, event.source),
                value=value,
                error="failed" if value is None and not event.abstained else None,
                abstained=value is None and event.abstained,
                steps=() if value is None else tuple(step % MAX_REWARD for step in event.steps),
            )
        case AdapterEvent():
            version, first, last = 1 + event.version % (2**31 - 1), event.first_batch, event.last_batch
            if first is None or last is None:
                first = last = None
            else:
                last %= version
                first %= last + 1
            parent = None if event.parent_version is None else event.parent_version % version
            origin = event.origin if event.kind == "trained" and first is None and event.tuning is None else None
            whole = dataclasses.replace(
                event, version=version, parent_version=parent, first_batch=first, last_batch=last, origin=origin
            )
            if event.outside is not None:
                return _whole_outside(whole, event.outside)
            return whole if event.tuning is None else _whole_tuning(whole, event.tuning)
        case _:
            return event


_SENT = {"kind": "submitted", "manifest_sha256": None}
"""What a data set has that was sent elsewhere."""


def _whole_thread_event(event: ThreadEvent) -> ThreadEvent:
    """Make it that a run failed, or that a thread was changed."""
    absent: dict[str, Any] = {"if_busy": None, "model": None, "memory_config": None, "sampling": None, "turn_id": None}
    absent |= {"stateless": False, "labels": "{}", "values": None, "request": None}
    absent |= {"call": None, "parent": None, "waits": (), "decisions": ()}
    if event.error is None:
        return dataclasses.replace(event, **absent, kind="changed", run_id=None, ending=None)
    return dataclasses.replace(event, **absent, kind="run_ended", run_id=event.run_id or "r", ending="error")


def _whole_call(call: TrainingCall) -> TrainingCall:
    """Give a call what its kind needs, and nothing that is another kind's."""
    adam = CallAdam(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0)
    return dataclasses.replace(
        call,
        model=call.call_id if call.kind == "create_model" else call.model,
        lora=(call.lora or CallLora(rank=8)) if call.kind == "create_model" else None,
        optimizer=(call.optimizer or adam) if call.kind == "optim_step" else None,
        loss=(call.loss or "ppo") if call.kind in ("forward", "forward_backward") else None,
        refusal=(call.refusal or "") if call.kind == "refused" else None,
        examples=abs(call.examples) % 2**31,
        tokens=abs(call.tokens) % 2**62,
        data_uri=None,
        data_sha256=None,
    )


def _whole_tuning(event: AdapterEvent, tuning: Tuning) -> AdapterEvent:
    """Make it a version that was tuned: on groups if there are any, else on a file."""
    slots = 2 if tuning.method == "dpo" else 1
    groups = tuple(dataclasses.replace(one, slots=tuple(range(slots))) for one in tuning.groups)
    nothing = dict.fromkeys(
        ("groups_policy", "groups_partition", "file", "file_sha256", "dataset", "dataset_digest"), None
    )
    of_groups = {**nothing, "groups_policy": "p", "groups_partition": 0}
    of_file = {**nothing, "file": "f.jsonl", "file_sha256": "f" * 64}
    of_dataset = {**nothing, "dataset": tuning.dataset, "dataset_digest": "d" * 64}
    of_one = of_file if tuning.dataset is None else of_dataset
    start = tuning.start_version % event.version
    made = dataclasses.replace(tuning, start_version=start, groups=groups, **(of_groups if groups else of_one))
    parent = start if tuning.start_policy is None else None
    return dataclasses.replace(
        event, kind="trained", parent_version=parent, first_batch=None, last_batch=None, tuning=made
    )


def _whole_outside(event: AdapterEvent, outside: OutsideModel) -> AdapterEvent:
    """Make it a version that another server answers for, without weights here."""
    weights = {"uri": None, "files": (), "base_digest": None, "tuning": None, "origin": None, "parent_version": None}
    batches = {"first_batch": None, "last_batch": None}
    model = dataclasses.replace(
        outside, url="http://127.0.0.1:8000/v1", model="m", prompt_usd=None, completion_usd=None
    )
    return dataclasses.replace(event, kind="trained", outside=model, **weights, **batches)


def _whole_job(event: JobEvent) -> JobEvent:
    """Give the first event of a job its order, those behind it what their kind has, and a month that is closed both."""
    is_first, is_month = event.kind == "created", event.kind == "month_closed"
    spec = event.spec or _whole_spec(
        JobSpec(iterations=1, batch_size=1, group_size=2, held_out_share=0.5, evaluate_every=1, keep_best=1, patience=1)
    )
    return dataclasses.replace(
        event,
        sequence=0 if is_first or is_month else 1 + abs(event.sequence) % 2**30,
        month="2026-11" if is_month else None,
        counted=(0, *(abs(offset) for offset in event.counted)) if is_month else event.counted,
        spec=spec if is_first else None,
        iteration=event.iteration or 1,
        version=event.version or 1,
        groups_next=event.groups_next or 7,
        metrics=event.metrics | dict.fromkeys((*MEASURED, *SPENT), 0.5),
    )


_GREETING: dict[str, Any] = {
    "values": '{"name": "{{name}}"}',
    "variables": (PromptVariable(name="name"),),
    "messages": (Message(role="system", content="Greet {{name}}."),),
}


def _rendered(task: Task) -> tuple[Message, ...]:
    return () if task.prompt_version is None else task.prompt_version.render()


def _whole_prompt(event: PromptEvent) -> PromptEvent:
    """Make it a version that was created."""
    text = {name: _GREETING[name] for name in ("variables", "messages")}
    changes: dict[str, Any] = {"prompt": "greet", "sequence": abs(event.sequence) % 2**31, "kind": "created"}
    changes |= {"version": 1, "alias": None, "reflection": None, "arms": (), "digest": prompt_digest(**text)}
    return dataclasses.replace(event, **changes, **text)


def _whole_tool(event: ToolEvent) -> ToolEvent:
    """Make it a function that was added."""
    tools = (Tool(name="add", description=event.reason, parameters='{"type": "object"}'),)
    changes: dict[str, Any] = {"tool_id": "sums", "sequence": abs(event.sequence) % 2**31, "kind": "added"}
    changes |= {"endpoint": "sums:add", "environment": None, "max_turns": None, "messages": (), "tools": tools}
    return dataclasses.replace(event, **changes, digest=offer_digest(tools))


def _whole_search(search: PromptSearch) -> PromptSearch:
    return dataclasses.replace(
        search, method="pairs", max_answers=1 + abs(search.max_answers) % 2**30, alpha=0.05, versions=(1, 2), share=None
    )


def _whole_spec(spec: JobSpec) -> JobSpec:
    """Give an order counts, a share, a budget, a question and somebody who judges."""
    counts = ("iterations", "batch_size", "group_size", "evaluate_every", "keep_best", "patience")
    return dataclasses.replace(
        spec,
        **{name: 1 + abs(getattr(spec, name)) % 2**30 for name in counts},
        held_out_share=abs(spec.held_out_share) % 1.0,
        max_budget_usd=None if spec.max_budget_usd is None else 1 + abs(spec.max_budget_usd) % 1e9,
        search=None if spec.search is None or spec.tuning is not None else _whole_search(spec.search),
        reward_sources=spec.reward_sources[:1] or (RewardSource(name="exact"),),
        **_whole_questions(spec),
    )


def _whole_questions(spec: JobSpec) -> dict[str, Any]:
    """Return an environment, or at least one question."""
    others = (spec.tuning, spec.search, spec.prompt_version)
    if spec.environment is None or any(other is not None for other in others):
        return {"environment": None, "questions": spec.questions or (JobQuestion(query="4 + 7 ="),)}
    seeds = sorted({*spec.environment.seeds, *spec.environment.held_out_seeds, 7})
    whole = {"seeds": tuple(seeds[:1]), "held_out_seeds": tuple(seeds[1:]), "settings": "{}"}
    temperature = abs(spec.environment.held_out_temperature)
    environment = dataclasses.replace(spec.environment, **whole, held_out_temperature=temperature)
    return {"environment": environment, "questions": (), "agent": "environment", "max_turns": 4}


def _whole_job_tuning(tuning: JobTuning) -> JobTuning:
    """Give an order of tuning counts, examples, and the beta that its method has."""
    return dataclasses.replace(
        tuning,
        epochs=1 + abs(tuning.epochs) % 2**30,
        batch=1 + abs(tuning.batch) % 2**30,
        beta=0.1 if tuning.method == "dpo" else None,
        start_version=tuning.start_version or 0,
        groups_policy=(tuning.groups_policy or "p") if tuning.file_id is None else None,
        dataset=None,
        dataset_digest=None,
    )


def _whole_trajectory(event: TrajectoryEvent) -> TrajectoryEvent:
    """Give an end what an end has, and a task's trajectory what its attempt is."""
    is_end, attempt = event.kind == "ended", (event.sampling_id, event.slot, event.group_size)
    of_task = None not in attempt
    sampling_id, slot, group_size = attempt if of_task else (None, None, None)
    trajectory_id = derive_id(sampling_id, slot) if of_task else event.trajectory_id
    return dataclasses.replace(
        event,
        answer_turn=event.answer_turn if is_end else None,
        answer_rule=event.answer_rule if is_end else None,
        trajectory_id=trajectory_id,
        event_id=derive_id(trajectory_id, event.kind),
        sampling_id=sampling_id,
        slot=slot,
        group_size=group_size,
        ending="failed" if is_end else None,
        turns=3 if is_end else None,
    )


def _within(ranges: tuple[Any, ...], event: Any) -> tuple[Any, ...]:
    """Bend ranges of tokens to the completions of a response and its branches."""
    chains = [abs(each.chain) % (1 + len(event.branches)) for each in ranges]
    of = [(event, *event.branches)[chain].completion_token_ids for chain in chains]
    ends = [abs(each.end) % (len(tokens) + 1) for each, tokens in zip(ranges, of, strict=True)]
    return tuple(
        dataclasses.replace(each, chain=chain, start=abs(each.start) % (end + 1), end=end)
        for each, chain, end in zip(ranges, chains, ends, strict=True)
    )


def _leaving(event: Any) -> Any:
    """Bend each branch of a response to leave a chain before it within its tokens."""
    lengths = [len(event.prompt_token_ids) + len(event.completion_token_ids)]
    branches = []
    for number, branch in enumerate(event.branches):
        leaves = abs(branch.leaves) % (number + 1)
        shared = abs(branch.shared_tokens) % (lengths[leaves] + 1)
        branches.append(dataclasses.replace(branch, leaves=leaves, shared_tokens=shared))
        lengths.append(shared + len(branch.completion_token_ids))
    return dataclasses.replace(event, branches=tuple(branches))


def _even(event: Any) -> Any:
    """Give each completion token a logprob and a place in the mask."""
    count = min(map(len, (event.completion_token_ids, event.logprobs, event.loss_mask)))
    return dataclasses.replace(
        event,
        completion_token_ids=event.completion_token_ids[:count],
        logprobs=event.logprobs[:count],
        loss_mask=event.loss_mask[:count],
    )


any_event = st.sampled_from(EVENTS).flatmap(lambda kind: records(kind))  # type: ignore[arg-type]


ACCESS_FIELDS: dict[str, dict[str, Any]] = {
    "key_created": {"role": "viewer", "secret_sha256": "0123456789abcdef" * 4},
    "user_created": {"sequence": 0, "roles": ("viewer", "trainer"), "issuer": "https://issuer.example"},
    "roles_set": {"sequence": 1, "roles": ("admin",)},
    "password_set": {"sequence": 2, "password_hash": "$argon2id$v=19$m=8,t=1,p=1$AAAA$AAAA"},
    "user_disabled": {"sequence": 3},
    "user_enabled": {"sequence": 4},
    "session_begun": {
        "sequence": 0,
        "user_id": "ann",
        "epoch": 1,
        "secret_sha256": "0123456789abcdef" * 4,
        "expires_at": 1,
    },
    "session_refreshed": {"sequence": 5, "secret_sha256": "0123456789abcdef" * 4},
    "signing_key_created": {"public_jwk": "{}"},
    "tenant_created": {"sequence": 0, "principals": ("User:acme",)},
    "tenant_changed": {"sequence": 6, "principals": ("User:acme", "User:acme-reader")},
    "tenant_removed": {"sequence": 7},
}
"""What an event of each kind has."""
ACCESS_OPTIONAL = {"key_created": ("name", "tenant", "agent_id", "expires_at"), "user_created": ("name", "tenant")}


def _whole_access(event: AccessEvent) -> AccessEvent:
    own = ACCESS_FIELDS.get(event.kind, {})
    known = {
        name for fields in (*ACCESS_FIELDS.values(), dict.fromkeys(ACCESS_OPTIONAL["key_created"])) for name in fields
    }
    kept = {name: getattr(event, name) for name in ACCESS_OPTIONAL.get(event.kind, ())}
    fields = {**dict.fromkeys(known), "roles": (), "principals": (), **kept, **own}
    parts = () if fields["sequence"] is None else (fields["sequence"],)
    return dataclasses.replace(event, event_id=derive_id(event.subject_id, event.kind, *parts), **fields)
