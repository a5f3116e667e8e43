"""The events. Everything Streamward knows is a sequence of them.

    Task ──► Response ──► Reward ──► AdvantagedGroup ──► Batch ──► AdapterEvent
       └─► Turn ─┘               ▲ GroupControl                    DeadLetter (from anywhere)
           TrajectoryEvent, AgentEvent: whose turns they are
    ExperimentEvent: a replay of others, in a log of its own
    JobEvent: training that somebody ordered, and how far it is; what a tenant has spent in a month that is closed
    CurationEvent, DatasetEvent, TriggerEvent: which runs are good enough to learn from, the data sets made of them, and
    what started a retraining
    TrainingCall, TrainingResult: what a training loop of somebody else's calls for, one call at a time, and its answers
    SampleEvent, QueueEvent: samples of another trainer's queue, and who may write to it
    PromptEvent: versions of a prompt, and which of them a name means
    MemoryEvent, ThreadEvent: what agents remember, and conversations with them, run by run
    ToolEvent: tools that tasks and agents name, their endpoints, and which description a person accepted
    AccessEvent, RequestEvent: who may call, and as what; who did, and what came of it

These frozen dataclasses are the only definition of an event. The Avro files in `avro/` are derived from them
(`python -m schemas.generate`), `lock.json` gives each its id for ever, and a test fails when the two drift. Times are
milliseconds since the epoch, UTC. Ids are derived from what a record is about (UUID version 5, RFC 9562 section 5.5),
so the same fact sent twice has the same id.

`problems(event)` has the rules that a type cannot express, and is called both before a write and after a read. Whether
an event agrees with its siblings takes two events, so the stage that has both decides.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple

from schemas import json_text, prompt_text, tool_text
from schemas.prompt_text import VariableType
from schemas.tokens import Logprobs, LossMask, Octets, TokenIds

NAMESPACE = uuid.UUID("b1f8a7c2-5d0e-5c1b-9a53-57e4a3d0c0de")
"""Root of every derived id. With another one, no record of any existing log would be recognised."""
_ROOT = NAMESPACE.bytes
_SHA256 = re.compile("[0-9a-f]{64}")
_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
"""The variant digit of RFC 9562 for each hexadecimal digit that SHA-1 may give."""


def derive_id(*parts: object) -> str:
    """Return the UUIDv5 of `parts`, joined by an unprintable separator, under `NAMESPACE`.

    >>> derive_id("sampling", 0) == derive_id("sampling", 0) != derive_id("sampling", 1)
    True
    """
    # faster than uuid.uuid5: the id of every response and reward is checked when it is read
    name = "\x1f".join(map(str, parts)).encode()
    text = hashlib.sha1(_ROOT + name, usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


class Int32:
    """Marks an `int` as Avro `int`; a plain `int` is `long`."""


class Timestamp:
    """Marks an `int` as `timestamp-millis`."""


Int = Annotated[int, Int32]
Millis = Annotated[int, Timestamp]

MAX_GROUP_SIZE = 1024
"""Most responses to one task: a group is held and written as one record."""
MAX_REWARD = 1e12
"""Largest absolute reward and weight: sums of their squares stay finite, and advantages fit into 32 bits."""
MAX_TURNS = 1024
"""Most model calls that a task may allow in an environment."""
MAX_COMPONENTS = 256
"""Most components of a reward, all of which its group repeats."""
COMPONENT_CHARACTERS = 200
"""Longest name of one."""
RATIONALE_CHARACTERS = 10_000
"""Longest rationale."""
MAX_HASH_COSTS = {"m": 256 * 1024, "t": 10, "p": 4}
"""What checking a password may cost by its hash: KiB of memory, passes and lanes of argon2id."""

Purpose = Literal["train", "serve", "eval"]
FinishReason = Literal["stop", "length", "error"]
ControlKind = Literal["expire", "evict"]
AdapterKind = Literal[
    "trained",
    "evaluated",
    "judged",
    "canary_started",
    "canary_advanced",
    "promoted",
    "rolled_back",
    "rejected",
    "retired",
]
AccessKind = Literal[
    "key_created",
    "key_revoked",
    "user_created",
    "roles_set",
    "password_set",
    "user_disabled",
    "user_enabled",
    "session_begun",
    "session_refreshed",
    "session_ended",
    "signing_key_created",
    "signing_key_revoked",
    "tenant_created",
    "tenant_changed",
    "tenant_removed",
]
AccessRole = Literal["viewer", "submitter", "trainer", "promoter", "admin"]
Verdict = Literal["promote", "reject", "ask"]
RunVerdict = Literal["promote", "reject", "needs_human"]
Labeller = Literal["gates", "judge", "person"]
DatasetKind = Literal["built", "submitted", "succeeded", "failed", "cancelled"]
TriggerKind = Literal["ticked", "crossed"]
TriggerAction = Literal["tune", "train", "selfplay"]
SampleKind = Literal["put", "tagged", "cleared"]
FieldEncoding = Literal["tensor", "json", "msgpack"]
QueueKind = Literal["opened", "restored", "saved"]
TuningMethod = Literal["sft", "dpo"]
CallKind = Literal[
    "create_session",
    "finish_session",
    "create_model",
    "create_sampling_session",
    "join_sampling_session",
    "create_custom_loss",
    "forward",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
    "copy_weights",
    "sample",
    "cancel",
    "unload_model",
    "delete_checkpoint",
    "set_expiry",
    "refused",
]
CallFault = Literal["user", "server", "unknown"]
ExperimentKind = Literal["started", "stopped", "failed", "finished"]
Continuity = Literal["first", "extends", "forks", "rewrites", "auxiliary"]
Protocol = Literal["chat", "completions", "responses", "messages", "threads"]
TurnFinish = Literal["stop", "length", "tool_calls", "cancelled", "error"]
TrajectoryKind = Literal["started", "ended"]
Ending = Literal["completed", "failed", "timeout", "cancelled"]
AgentKind = Literal["registered", "removed"]
PromptKind = Literal["created", "activated", "shared", "reflected", "reported"]
MemoryKind = Literal["put", "deleted"]
ThreadKind = Literal[
    "created",
    "changed",
    "deleted",
    "run_requested",
    "run_cancelled",
    "run_ended",
    "run_deleted",
]
BusyStrategy = Literal["reject", "enqueue", "interrupt"]
RunEnding = Literal["success", "error", "timeout", "interrupted"]
ToolKind = Literal["added", "changed", "accepted", "removed"]
SearchMethod = Literal["pairs", "live", "reflection"]
AgentType = Literal["PROMPT_BASED", "FINE_TUNED", "RL_TRAINED"]
JobKind = Literal[
    "created",
    "started",
    "iteration",
    "evaluated",
    "paused",
    "resumed",
    "budget_warned",
    "budget_exceeded",
    "completed",
    "failed",
    "cancelled",
    "month_closed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the assistant made, as chat templates expect it."""

    id: str
    name: str
    arguments: Annotated[str, "JSON object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the assistant may call, as chat templates expect it."""

    name: str
    description: str = ""
    parameters: Annotated[str, "JSON schema of the arguments"] = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: Annotated[float, "0 means greedy"] = 1.0
    top_p: Annotated[float, "1 keeps the whole distribution"] = 1.0
    max_tokens: Annotated[Int, "most tokens in one completion"] = 256
    seed: Annotated[int | None, "null lets the engine derive one from the sampling id"] = None
    stop: Annotated[tuple[str, ...], "texts that end a completion"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """A scorer that must judge every response to the task."""

    name: Annotated[str, "scorer, unique within the task"]
    weight: Annotated[float, "share of this source in the response's reward"] = 1.0
    settings: Annotated[str, "JSON object handed to the scorer"] = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """The environment that a task takes place in, and what its episode begins with: the same for the same seed."""

    name: Annotated[str, "a listed environment, or where it comes from: package:name, gymnasium:id, mcp:url, ..."]
    settings: Annotated[str, "JSON object handed to the environment"] = "{}"
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an environment showed, and what it made of the action before."""

    environment: Annotated[str, "name@version"]
    seed: Annotated[int, "of the episode"]
    digest: Annotated[str, "sha256 over what it showed"]
    tool: Annotated[str | None, "that the action before it called; null: none, or the episode began here"] = None
    ok: Annotated[bool | None, "whether the environment could use the action; null: the episode began here"] = None
    reward: Annotated[float | None, "that the environment gave for the action; null: none"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVariable:
    """What is put into a prompt's messages, wherever they have {{name}}."""

    name: str
    type: VariableType = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptUse:
    """The version of a prompt that messages begin with, whole: what they were rendered with stays with them."""

    name: str
    version: Int
    alias: Annotated[str | None, "by which it was named; null: by its version"] = None
    values: Annotated[str, "JSON object: the value of each variable"] = "{}"
    variables: tuple[PromptVariable, ...] = ()
    messages: Annotated[tuple[Message, ...], "of the version, with the names of its variables"] = ()

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def render(self) -> tuple[Message, ...]:
        """Return the messages with the values in place of the variables. Raises ValueError, KeyError."""
        values = json_text.parse(self.values)
        return tuple(replace(message, content=prompt_text.render(message.content, values)) for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an agent is asked, how often, and who judges the answers."""

    task_id: Annotated[str, "key of the record; derived from source and content"]
    created_at: Millis
    traceparent: Annotated[str | None, "W3C trace context"] = None
    metadata: dict[str, str] = field(default_factory=dict)
    policy: Annotated[str, "the agent, and the adapter versions, that answer"]
    purpose: Annotated[Purpose, "train, serve or eval; only train tasks reach the trainer"] = "train"
    scenario: Annotated[str, "family of tasks, for reports"] = "default"
    tenant: str | None = None
    group_size: Annotated[Int, "responses per sampling"] = 8
    deadline_at: Annotated[
        Millis | None, "answers and rewards recorded later do not count; null: the stage's default"
    ] = None
    adapter_version: Annotated[Int | None, "pin: only this version may answer"] = None
    sampling: Sampling = field(default_factory=Sampling)
    verifier: Annotated[str, "JSON object the scorers check against, e.g. the right answer"] = "{}"
    agent: Annotated[str | None, "id of the agent that works on it; null: the policy answers it directly"] = None
    max_turns: Annotated[Int | None, "most model calls of one attempt; null: the agent decides"] = None
    thread: Annotated[str | None, "the conversation that it continues"] = None
    environment: Annotated[EpisodeStart | None, "that the agent acts in; null: none is recorded"] = None
    prompt_version: Annotated[PromptUse | None, "that its messages begin with; null: they are of no prompt"] = None
    tools: Annotated[tuple[Tool, ...], "what the agent may call"] = ()
    reward_sources: tuple[RewardSource, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A chain of model calls beside the conversation itself: a fork, a rewritten history, a sub-agent.

    Its tokens are the first `shared_tokens` of the chain that it leaves, prompt included, and then its own.
    """

    continuity: Annotated[Continuity, "of its first call: first, forks or rewrites"]
    reason: str
    leaves: Annotated[Int, "number of the chain it begins with: 0 is the response's own, n the branch n - 1"]
    shared_tokens: Annotated[Int, "how many tokens of that chain it begins with; 0: it has a prompt of its own"]
    finish_reason: FinishReason
    completion_token_ids: Annotated[TokenIds, "behind the shared ones"] = TokenIds()
    logprobs: Annotated[Logprobs, "nats; 0 where the policy did not write the token"] = Logprobs()
    loss_mask: Annotated[LossMask, "1 where the policy wrote the token and no chain before has it"] = LossMask()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTurn:
    """One model call of a response: which tokens it wrote, and what the environment made of them."""

    number: Annotated[Int, "of the turn in its trajectory"]
    chain: Annotated[Int, "where its tokens are: 0 is the response's own completion, n that of the branch n - 1"] = 0
    start: Annotated[Int, "its first token in that completion"]
    end: Annotated[Int, "behind its last token"]
    observation: Annotated[str | None, "digest of what the environment had shown before; null: not recorded"] = None
    tool: Annotated[str | None, "that it called; null: none"] = None
    ok: Annotated[bool | None, "whether the environment could use it; null: not recorded"] = None
    reward: Annotated[float | None, "that the environment gave for it; null: none"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One slot of one sampling: the text, and the very tokens it was made of."""

    response_id: Annotated[str, "uuid5(sampling_id, slot)"]
    sampling_id: Annotated[str, "one attempt at all slots of a task by one adapter version"]
    task_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    policy: str
    slot: Annotated[Int, "0-based"]
    group_size: Int
    adapter_version: Annotated[Int, "what the engine says it served; 0 is the base model"]
    trained_batches: Annotated[
        Int | None, "batches that the policy's line had taken by that version; null: as many as its number says"
    ] = None
    base_digest: Annotated[str, "sha256 over the base model's weights"]
    tokenizer_digest: Annotated[str, "sha256 over vocabulary and chat template"]
    engine: str
    finish_reason: FinishReason
    error: Annotated[str | None, "why this slot failed for good; what is per token is then empty"] = None
    prompt_tokens: Int
    completion_tokens: Int
    latency_ms: Annotated[float, "from the start of the sampling to its end, milliseconds"]
    text: str
    sampling: Annotated[Sampling, "as used"]
    agent_id: Annotated[str | None, "the agent whose trajectory this is; null: the policy answered directly"] = None
    steps: Annotated[Int | None, "an agent's model calls in this response and its branches"] = None
    success: Annotated[bool | None, "whether its environment says that the goal was reached; null: not recorded"] = None
    prompt_version: Annotated[str | None, "NAME@VERSION of the prompt that was sampled from; null: of none"] = None
    prompt_token_ids: TokenIds = TokenIds()
    completion_token_ids: TokenIds = TokenIds()
    logprobs: Annotated[Logprobs, "nats, one per completion token, under the distribution sampled from"] = Logprobs()
    loss_mask: Annotated[LossMask, "1 where the policy wrote the token; one per completion token"] = LossMask()
    branches: Annotated[tuple[Branch, ...], "an agent's other chains of calls, in the order of their last calls"] = ()
    turns: Annotated[tuple[ResponseTurn, ...], "an agent's model calls in order, each in the chain that owns it"] = ()

    @property
    def batches(self) -> int:
        """How many batches its version's line had taken: its lag is counted from here; -1 if no version answered."""
        return self.adapter_version if self.trained_batches is None else self.trained_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One source's verdict on one response. A failed score has an error and no value; it is never 0."""

    reward_id: Annotated[str, "uuid5(response_id, source)"]
    response_id: str
    task_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    policy: str
    slot: Int
    source: Annotated[str, "the task's reward source that speaks"]
    value: Annotated[float | None, "null exactly when error is set"] = None
    error: Annotated[str | None, "why no score could be given, after the last retry"] = None
    scorer_version: str
    latency_ms: float = 0.0
    rationale: str | None = None
    components: Annotated[dict[str, float], "what the value is made of"] = field(default_factory=dict)
    steps: Annotated[tuple[float, ...], "what each turn of the response is worth, in order; empty: only the whole"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupControl:
    """Time, as a record: close this group now, or forget that it was closed."""

    control_id: Annotated[str, "uuid5(task_id, kind)"]
    task_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ControlKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSpan:
    """The tokens of one turn of a response, and how much better they were than what siblings did."""

    chain: Annotated[Int, "0 is the response's own completion, n that of the branch n - 1"] = 0
    start: Annotated[Int, "the first token in that completion"]
    end: Annotated[Int, "behind the last token"]
    reward: Annotated[float | None, "weighted sum of what its sources say of this turn; null: they judge the whole"] = (
        None
    )
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensElsewhere:
    """What a group says of tokens that it does not have: it would be too large with them, and they are in the response
    alone; or an outside model wrote them, and the log has none."""

    completion_tokens: Annotated[Int, "of the response and its branches"]
    loss_tokens: Annotated[Int, "how many of those the policy wrote"]
    prompt_tokens: Annotated[
        Int | None, "of an outside model, whose server counts tokens and shows none; null: they are in the response"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """A response inside its group: where it is in the log, its reward, and what the trainer needs of it."""

    slot: Int
    response_id: str
    partition: Annotated[Int, "of the responses topic"]
    offset: Annotated[int, "of the responses topic"]
    finish_reason: FinishReason
    latency_ms: Annotated[float, "of its sampling, milliseconds"]
    reward: Annotated[float, "weighted sum over the task's sources"]
    advantage: float
    components: Annotated[dict[str, float], "value per source, and per component as source.component"] = field(
        default_factory=dict
    )
    elsewhere: Annotated[TokensElsewhere | None, "set where what is per token, and branches, are not here"] = None
    success: Annotated[bool | None, "whether its environment says that the goal was reached; null: not recorded"] = None
    failed_tools: Annotated[Int, "of its turns, those whose tool call the environment could not use"] = 0
    recoveries: Annotated[Int, "of these, those that a tool call followed which it could use"] = 0
    prompt_token_ids: Annotated[TokenIds, "behind what the group's prompts have in common"] = TokenIds()
    completion_token_ids: TokenIds = TokenIds()
    logprobs: Annotated[Logprobs, "nats"] = Logprobs()
    loss_mask: Annotated[LossMask, "1 where the policy wrote the token"] = LossMask()
    branches: Annotated[tuple[Branch, ...], "as in the response"] = ()
    spans: Annotated[tuple[CreditSpan, ...], "where turns differ; empty: `advantage` is that of every token"] = ()

    @property
    def completion_tokens(self) -> int:
        """How many tokens follow its prompt, in all its chains."""
        if self.elsewhere is not None:
            return self.elsewhere.completion_tokens
        return len(self.completion_token_ids) + sum(len(branch.completion_token_ids) for branch in self.branches)

    @property
    def loss_tokens(self) -> int:
        """How many of them the policy wrote."""
        if self.elsewhere is not None:
            return self.elsewhere.loss_tokens
        return self.loss_mask.trained_tokens + sum(branch.loss_mask.trained_tokens for branch in self.branches)

    @property
    def tokens_written(self) -> int:
        """How many of them the policy wrote, or the outside model that answered."""
        is_outside = self.elsewhere is not None and self.elsewhere.prompt_tokens is not None
        return self.completion_tokens if is_outside else self.loss_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A slot that is not in the baseline, and why."""

    slot: Int
    response_id: str | None = None
    reason: Annotated[str, "response_failed, score_failed, unscored, unanswered, or why the group was dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagedGroup:
    """The fate of a task: its responses with their advantages, or the reason why there are none."""

    group_id: Annotated[str, "uuid5(task_id, formula version)"]
    task_id: str
    created_at: Annotated[Millis, "newest record timestamp among the events it was made of"]
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    policy: Annotated[str, "key of the record"]
    purpose: Purpose
    scenario: str
    tenant: str | None = None
    sampling_id: Annotated[str | None, "null when nothing was sampled"] = None
    group_size: Int
    adapter_version: Annotated[Int, "that sampled every response; -1 when nothing was sampled"]
    trained_batches: Annotated[
        Int | None, "batches that the policy's line had taken by that version; null: as many as its number says"
    ] = None
    prompt_version: Annotated[str | None, "NAME@VERSION of the prompt of every response; null: of none"] = None
    base_digest: str
    tokenizer_digest: str
    complete: Annotated[bool, "every slot answered or failed, every required source scored"]
    dropped_reason: Annotated[str | None, "set when the group is not for the trainer; responses is then empty"] = None
    formula: Annotated[str, "grpo, dr_grpo, rloo or batch_std"]
    formula_version: Int
    formula_eps: float
    formula_ddof: Int
    reward_mean: float
    reward_std: float
    credit: Annotated[str, "how a response's advantage is shared among its turns"] = "trajectory"
    sampling: Sampling = field(default_factory=Sampling)
    prompt_token_ids: Annotated[TokenIds, "what the prompts of all responses begin with"] = TokenIds()
    responses: Annotated[tuple[GroupResponse, ...], "in slot order"] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def batches(self) -> int:
        """How many batches its version's line had taken: its lag is counted from here; -1 if nothing was sampled."""
        return self.adapter_version if self.trained_batches is None else self.trained_batches

    def tokens_read(self, response: GroupResponse) -> int:
        """Return how many tokens were read for a response of the group: its prompt, and what tools answered."""
        if response.elsewhere is not None and response.elsewhere.prompt_tokens is not None:
            return response.elsewhere.prompt_tokens
        own = len(self.prompt_token_ids) + len(response.prompt_token_ids)
        return own + response.completion_tokens - response.loss_tokens

    @property
    def is_outside(self) -> bool:
        """Whether an outside model answered: its tokens are known by number alone, so nothing is trained on them."""
        members = self.responses
        return any(one.elsewhere is not None and one.elsewhere.prompt_tokens is not None for one in members)

    @property
    def flat(self) -> bool:
        """Whether every advantage is 0: there is nothing to learn from it."""
        return not any(one.advantage or any(span.advantage for span in one.spans) for one in self.responses)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagCount:
    """How many groups of a batch were sampled so many batches ago."""

    lag: Annotated[Int, "batches before this one that the version which sampled the groups had not taken"]
    groups: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGroup:
    """A group that was read for a batch and is not in it."""

    group_id: str
    offset: Annotated[int, "of the groups topic"]
    reason: Annotated[str, "duplicate, stale, zero_variance, unknown_version, or why the group was dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One training step's worth of groups, by reference. It turns the newest version of its policy into the next."""

    batch_id: Annotated[str, "uuid5(policy, sequence)"]
    policy: Annotated[str, "key of the record"]
    created_at: Annotated[Millis, "newest created_at among its groups"]
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    sequence: Annotated[Int, "0-based, without gaps; it makes version sequence + 1, plus one for each tuned before"]
    closed_by: Annotated[str, "count, or the reason of the control record"]
    max_policy_lag: Int
    groups: Int
    responses: Int
    loss_tokens: int
    groups_partition: Int
    groups_offsets: tuple[int, ...] = ()
    lags: tuple[LagCount, ...] = ()
    dropped: tuple[DroppedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """One file of an adapter, with its sha256."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task of a suite. Means are over its scored responses; null when none was scored."""

    index: Annotated[Int, "of the task in its suite, 0-based: what pairs two versions' outcomes"]
    scenario: str
    success: Annotated[float | None, "share of responses that source `exact` gave 1.0; without it, of reward 1.0"] = (
        None
    )
    reward: float | None = None
    tokens: Annotated[float | None, "completion tokens"] = None
    prompt_tokens: Annotated[float | None, "that the policy read: its prompt, and what tools and others answered"] = (
        None
    )
    sampled_tokens: Annotated[float | None, "that the policy wrote"] = None
    latency_ms: float | None = None
    failed: Annotated[Int, "slots without a score"] = 0
    failed_tools: Annotated[Int, "tool calls of all its responses that the environment could not use"] = 0
    recoveries: Annotated[Int, "of these, those that a tool call followed which it could use"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedGroup:
    """A group that a version was tuned on."""

    offset: Annotated[int, "of the groups topic"]
    slots: Annotated[tuple[Int, ...], "sft: the answers to imitate; dpo: the better answer, then the worse"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a version was tuned on, supervised or by preferences: a file, or answers of the log."""

    method: TuningMethod
    start_policy: Annotated[str | None, "whose version it started from; null: this policy's"] = None
    start_version: Annotated[Int, "0 is the base model"]
    examples: Annotated[Int, "sft: answers; dpo: pairs of answers"]
    loss_tokens: Annotated[int, "of all examples"]
    digest: Annotated[str, "sha256 over the tokens of the examples, in order"]
    file: Annotated[str | None, "name of the file of examples; null: they are in groups"] = None
    file_sha256: str | None = None
    dataset: Annotated[str | None, "name of the data set; null: a file or groups"] = None
    dataset_digest: Annotated[str | None, "of its event: which build of that name"] = None
    groups_policy: Annotated[str | None, "whose groups; null: a file"] = None
    groups_partition: Int | None = None
    selection: Annotated[dict[str, str], "the rule by which answers were chosen"] = field(default_factory=dict)
    groups: Annotated[tuple[TunedGroup, ...], "by offset"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrigin:
    """The training call that saved a version."""

    call_id: str
    model: Annotated[str, "whose weights these are"]
    seq_id: Annotated[int, "of the call among those of its model"]
    path: Annotated[str, "as its caller names it: tinker://MODEL/weights/NAME"]
    optimizer: Annotated[bool, "whether the state of the optimizer is among the files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideModel:
    """A model that another server answers for: a version by its address, without weights here."""

    url: Annotated[str, "OpenAI-compatible API, up to /v1; no user, password or query"]
    model: Annotated[str, "its name there"]
    dataset: Annotated[str | None, "NAME@DIGEST of the data set that it was tuned on; null: not recorded"] = None
    job: Annotated[str | None, "that made it, by the provider's id; null: not recorded"] = None
    prompt_usd: Annotated[float | None, "USD per million prompt tokens; null: not known"] = None
    completion_usd: Annotated[float | None, "USD per million tokens that it writes; null: not known"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterEvent:
    """A step in the life of an adapter version. The state of a policy is the fold of these, in order."""

    event_id: Annotated[str, "uuid5(policy, version, kind, ...)"]
    policy: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    version: Int
    kind: AdapterKind
    actor: Annotated[str, "trainer, rollouts, or a person"]
    reason: str
    parent_version: Int | None = None
    expected_version: Annotated[Int | None, "compare and swap: the primary version this event replaces"] = None
    uri: Annotated[str | None, "folder in the adapter store"] = None
    base_digest: str | None = None
    first_batch: Annotated[Int | None, "first batch sequence this version was trained on, counting from version 0"] = (
        None
    )
    last_batch: Annotated[Int | None, "last batch sequence, inclusive: the one that made it; null: it was tuned"] = None
    suite: Annotated[str | None, "evaluated and judged: what was asked"] = None
    share: Annotated[float | None, "canary: share of the unpinned tasks that this version answers from here on"] = None
    verdict: Annotated[Verdict | None, "judged: what the guard, or the canary's test, found"] = None
    tuning: Annotated[Tuning | None, "trained: what it was tuned on; null: batches"] = None
    origin: Annotated[CallOrigin | None, "trained: the call that saved it; null: batches, or tuned"] = None
    outside: Annotated[OutsideModel | None, "trained: the model that answers elsewhere; null: it has weights here"] = (
        None
    )
    gate: Annotated[
        dict[str, str], "judged, and decisions that follow from it: the rule in force, setting by setting"
    ] = field(default_factory=dict)
    recipe: Annotated[dict[str, str], "settings, library versions, seed, threads, device kind"] = field(
        default_factory=dict
    )
    metrics: dict[str, float] = field(default_factory=dict)
    files: Annotated[tuple[AdapterFile, ...], "the manifest"] = ()
    outcomes: Annotated[tuple[Outcome, ...], "evaluated: one per task of the suite, by index"] = ()

    @property
    def takes_batch(self) -> bool:
        """Whether the version that it makes took a batch of its policy's line, or the place of one."""
        return self.tuning is None and self.origin is None and self.outside is None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that could not be used, with the reason: whole, or if it is too large, by its digests."""

    dead_letter_id: Annotated[str, "uuid5(stage, source topic, partition, offset)"]
    created_at: Millis
    stage: str
    reason: Annotated[str, "a short word to group by"]
    error: Annotated[str, "where, what, expected and got, and what to do"]
    source_topic: str
    source_partition: Int
    source_offset: int
    source_timestamp: Millis
    key: Annotated[str | None, "base64"] = None
    payload: Annotated[str | None, "base64; null for a tombstone"] = None
    key_sha256: Annotated[str | None, "hex; set if the record is too large for a dead letter and has a key"] = None
    payload_sha256: Annotated[str | None, "hex; set if the record is too large for a dead letter"] = None
    payload_bytes: Annotated[int | None, "set beside payload_sha256: the size of the payload"] = None
    headers: Annotated[dict[str, str], "base64 values"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call of an agent, acknowledged before its answer ends: what is new behind its parent, and the answer.

    The whole prompt is the parent's prompt and completion, verbatim, and then this turn's own tokens and messages.
    """

    turn_id: Annotated[str, "derived from trajectory, request and choice: known before the answer begins"]
    trajectory_id: str
    task_id: Annotated[str, "key of the record; the trajectory_id where no task was submitted"]
    created_at: Annotated[Millis, "when the answer was complete"]
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    agent_id: str
    policy: str
    adapter_version: Annotated[Int, "what the engine says it served; 0 is the base model"]
    trained_batches: Annotated[
        Int | None, "batches that the policy's line had taken by that version; null: as many as its number says"
    ] = None
    number: Annotated[Int, "0-based, without gaps, in the order in which the trajectory's turns were recorded"]
    parent_id: Annotated[str | None, "the turn whose prompt and reply this one begins with; null: none"] = None
    continuity: Annotated[Continuity, "what the call was to those before it when it began"]
    reason: Annotated[str, "why it was that"]
    sampling_id: Annotated[str | None, "of the task's attempt; null where no task was submitted"] = None
    slot: Annotated[Int | None, "of that attempt"] = None
    protocol: Annotated[Protocol, "the API that was called"]
    request_digest: Annotated[str, "sha256 over the canonical request"]
    retry_key: Annotated[str | None, "what a client sends again with the same call"] = None
    choice: Annotated[Int, "which of the answers to one call, 0-based"] = 0
    choices: Annotated[Int, "how many answers the call asked for; each is a turn"] = 1
    started_at: Annotated[Millis, "when the call began"]
    engine: str
    base_digest: Annotated[str, "sha256 over the base model's weights"]
    tokenizer_digest: Annotated[str, "sha256 over vocabulary and chat template"]
    template_digest: Annotated[str, "sha256 over what renders messages into tokens"]
    finish_reason: TurnFinish
    error: Annotated[str | None, "why there is no answer"] = None
    malformed: Annotated[str | None, "why a tool call in the completion cannot be read; the reply has it as text"] = (
        None
    )
    constraint: Annotated[str | None, "JSON: the form that was forced on the answer, which then bears no loss"] = None
    delivered: Annotated[bool, "false: the client had hung up before the answer was complete"] = True
    prompt_tokens: Annotated[Int, "of the whole prompt"]
    observed: Annotated[Observed | None, "what its environment showed before it; null: not recorded"] = None
    prompt_version: Annotated[str | None, "NAME@VERSION of the prompt that its messages begin with"] = None
    prompt_alias: Annotated[str | None, "by which it was named; null: by its version"] = None
    reply: Annotated[Message, "the answer as the client got it"]
    sampling: Annotated[Sampling, "as used"]
    prompt_token_ids: Annotated[TokenIds, "behind the parent's prompt and completion"] = TokenIds()
    completion_token_ids: TokenIds = TokenIds()
    logprobs: Annotated[Logprobs, "nats, one per completion token, under the policy, constrained or not"] = Logprobs()
    messages: Annotated[tuple[Message, ...], "behind the parent's messages and its reply"] = ()
    tools: Annotated[tuple[Tool, ...], "without a parent: what may be called; a parent's hold for its children"] = ()
    ignored: Annotated[tuple[str, ...], "parameters of the request that had no effect"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEvent:
    """An agent's run began or ended. The turns between, in order, are the trajectory."""

    event_id: Annotated[str, "uuid5(trajectory_id, kind)"]
    trajectory_id: Annotated[str, "of a task: uuid5(sampling_id, slot), the id of its response"]
    task_id: Annotated[str, "key of the record; the trajectory_id where no task was submitted"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: TrajectoryKind
    agent_id: str
    policy: str
    purpose: Annotated[Purpose, "of its task; without one, serve"]
    sampling_id: Annotated[str | None, "of the task's attempt; null where no task was submitted"] = None
    slot: Annotated[Int | None, "of that attempt"] = None
    group_size: Annotated[Int | None, "of that attempt"] = None
    adapter_version: Annotated[Int | None, "pin: the version that answers the whole attempt"] = None
    ending: Annotated[Ending | None, "set exactly when it ended"] = None
    turns: Annotated[Int | None, "ended: how many turns were recorded; one with a higher number is late"] = None
    max_turns: Annotated[Int | None, "most calls; null: the agent decides"] = None
    prompt_version: Annotated[str | None, "pin: NAME@VERSION that every call of the attempt begins with"] = None
    sampling: Annotated[Sampling | None, "how every call is answered, whatever it asks; null: as it asks"] = None
    observed: Annotated[Observed | None, "what its environment showed: started, at first; ended, at last"] = None
    success: Annotated[bool | None, "ended: whether the environment says that the goal was reached"] = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An agent became known, changed, or was removed. The newest event about it counts."""

    event_id: Annotated[str, "uuid5(agent_id, number of its events before this one)"]
    agent_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: AgentKind
    name: str
    type: AgentType
    model_id: Annotated[str, "the policy, or policy@version, that answers it"]
    memory_config: Annotated[str, "JSON object"] = "{}"
    prompt: Annotated[str | None, "NAME@ALIAS or NAME@VERSION that its calls begin with; null: none"] = None
    capabilities: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    reward_sources: Annotated[tuple[RewardSource, ...], "of its tasks and jobs that name none; empty: none"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """A part of a partition: where an experiment's records came from."""

    topic: str
    partition: Int
    first: Annotated[int, "offset of the first record"]
    next: Annotated[int, "offset behind the last record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEvent:
    """A step of an experiment: what of this log was replayed into a log of its own, how, and what came of it."""

    event_id: Annotated[str, "uuid5(experiment, source policy, number of its events before this one)"]
    experiment: Annotated[str, "key of the record; its topics have the prefix experiment.NAME."]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ExperimentKind
    policy: Annotated[str, "whose tasks are replayed"]
    actor: str
    reason: str
    code_version: Annotated[str, "of Streamward, and of what it was built from"]
    selection: Annotated[dict[str, str], "which tasks, as it was asked"] = field(default_factory=dict)
    settings: Annotated[dict[str, str], "what decides the outcome: advantages, batches, model, trainer, scorers"] = (
        field(default_factory=dict)
    )
    counts: Annotated[dict[str, int], "what was selected and made so far"] = field(default_factory=dict)
    changed: Annotated[tuple[str, ...], "the settings that are not those of the source"] = ()
    ranges: Annotated[tuple[SourceRange, ...], "of the source, fixed when the experiment began"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """A question of a job: what the policy is asked, and what its answers are checked against."""

    query: str
    verifier: Annotated[str, "JSON object the scorers check against, e.g. the right answer"] = "{}"
    messages: Annotated[tuple[Message, ...], "the whole prompt, which ends with the query; empty: the query alone"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrices:
    """What a job's work costs, in USD, as agreed when it was created."""

    prompt: Annotated[float, "a million tokens of prompts"] = 0.0
    completion: Annotated[float, "a million sampled tokens"] = 0.0
    trainer_hour: Annotated[float, "an hour of training"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTuning:
    """A version by supervised training or preferences, on the examples of a file or on answers of the log."""

    method: TuningMethod
    epochs: Annotated[Int, "how often each example is seen"]
    batch: Annotated[Int, "examples of a step"]
    beta: Annotated[float | None, "dpo: how strongly the start is held on to"] = None
    lora_rank: Annotated[Int | None, "of the adapter; null: as the version it starts from, else the settings"] = None
    lora_alpha: Annotated[Int | None, "as the rank"] = None
    lora_targets: Annotated[str | None, "as the rank"] = None
    start_policy: Annotated[str | None, "null: the version to start from is one of the job's policy"] = None
    start_version: Annotated[Int | None, "null: the newest of the policy when the job begins"] = None
    file_id: Annotated[str | None, "the uploaded file with the examples, named by its sha256; null: groups"] = None
    file: Annotated[str | None, "what it was called"] = None
    file_bytes: Annotated[int | None, "its size"] = None
    dataset: Annotated[str | None, "name of the data set; null: a file or groups"] = None
    dataset_digest: Annotated[str | None, "of its event: which build of that name"] = None
    groups_policy: Annotated[str | None, "whose groups; null: a file"] = None
    selection: Annotated[dict[str, str], "which of its groups' answers, as of a tuned version"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSearch:
    """A search for a better version of a prompt, by what answers earn."""

    prompt: Annotated[str, "its name"]
    method: SearchMethod
    alias: Annotated[str | None, "that the best version gets; live: whose users are shared among the versions"] = None
    max_answers: Annotated[Int, "most answers that are paid for"]
    alpha: Annotated[float, "probability that a worse version is called better"]
    min_gain: Annotated[float, "pairs: a smaller difference of mean rewards is not looked for"] = 0.0
    validation_share: Annotated[float, "reflection: of the questions that are not held out, to pick the best by"] = 0.5
    minibatch: Annotated[Int, "reflection: questions that a proposal is first tried on"] = 3
    adapter_version: Annotated[Int | None, "that answers; null: the primary when the job starts"] = None
    seed: int = 0
    model: Annotated[str | None, "reflection: that proposes texts"] = None
    endpoint: Annotated[str | None, "reflection: URL that it is asked at, or module:function"] = None
    values: Annotated[str, "JSON object: the value of each variable"] = "{}"
    share: Annotated[float | None, "live: of the alias's users, who get the other versions; null: equal parts"] = None
    versions: Annotated[tuple[Int, ...], "that are compared; reflection: the one that it begins with"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What somebody ordered: train a policy on these questions, within a budget; or tune it, or find it a prompt."""

    iterations: Annotated[Int, "adapter versions at most"]
    batch_size: Annotated[Int, "questions in one iteration"]
    group_size: Annotated[Int, "responses to each"]
    held_out_share: Annotated[float, "of the questions, by their hash: never trained on, asked in evaluations"]
    evaluate_every: Annotated[Int, "iterations from one evaluation to the next"]
    keep_best: Annotated[Int, "evaluated versions that are kept when the job completes"]
    patience: Annotated[Int, "evaluations without a better version after which it stops early"]
    target_gain: Annotated[float | None, "gain in success, of 1, at which it is complete; null: none"] = None
    max_budget_usd: Annotated[float | None, "null: no limit"] = None
    agent: Annotated[str | None, "id of the agent that works on the tasks; null: the policy answers directly"] = None
    max_turns: Annotated[Int | None, "most model calls of one attempt of the agent"] = None
    prices: JobPrices | None = None
    tuning: Annotated[JobTuning | None, "instead of questions: one version by tuning"] = None
    prompt_version: Annotated[PromptUse | None, "that its tasks begin with until it ends; null: no prompt"] = None
    search: Annotated[PromptSearch | None, "instead of training: a search for a better prompt"] = None
    sampling: Annotated[Sampling, "of train tasks"] = field(default_factory=Sampling)
    reward_sources: tuple[RewardSource, ...] = ()
    questions: tuple[JobQuestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A step in the life of a job. The state of a job is the fold of these, in order.

    month_closed is about no job: it says what a tenant spent in a month, and is written once.
    """

    event_id: Annotated[str, "uuid5(job_id, kind, sequence, ...); of a command with an Idempotency-Key: of that"]
    job_id: Annotated[str, "key of the record; month_closed: uuid5(month, tenant, which)"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: JobKind
    sequence: Annotated[Int, "compare and swap: how many events of the job took effect before this one"]
    policy: Annotated[str, "month_closed: empty"]
    tenant: str | None = None
    actor: Annotated[str, "jobs (the controller), or a person"]
    reason: str
    iteration: Annotated[Int | None, "how many iterations have ended, this one included"] = None
    version: Annotated[Int | None, "started: the newest before the job; iteration, evaluated: whose it is"] = None
    trained_batches: Annotated[
        Int | None, "started: batches that the policy's line had taken; null: as many as the version's number says"
    ] = None
    groups_next: Annotated[
        int | None, "offset in the policy's partition of groups: those below it are in the job's figures"
    ] = None
    code: Annotated[str | None, "failed: a word for programs"] = None
    suggested_action: Annotated[str | None, "failed: what to do about it"] = None
    request_digest: Annotated[str | None, "created: sha256 of what was asked for"] = None
    month: Annotated[str | None, "month_closed: which, in UTC, e.g. 2026-11"] = None
    spec: Annotated[JobSpec | None, "set exactly when it was created"] = None
    metrics: Annotated[
        dict[str, float],
        "of the job until now: tokens, seconds, USD; evaluated: against the version before the job; month_closed: of "
        "all jobs of the tenant in it",
    ] = field(default_factory=dict)
    best: Annotated[tuple[Int, ...], "evaluated: the best versions until now, the best first"] = ()
    counted: Annotated[
        tuple[int, ...], "month_closed: by partition of jobs, the offset below which records are in its figures"
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEvent:
    """A key, a person, a login, a signing key or a tenant's log was made, changed or withdrawn; never with a secret."""

    event_id: Annotated[str, "uuid5(subject_id, kind), and the sequence behind them if there is one"]
    subject_id: Annotated[str, "key of the record: the id of the key, user, session or signing key, or the tenant"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: AccessKind
    actor: Annotated[str, "the person who did it"]
    reason: str
    name: Annotated[str | None, "key_created, user_created: what people call it"] = None
    secret_sha256: Annotated[str | None, "key_created, session_*: SHA-256 of the secret, 64 hexadecimal digits"] = None
    role: Annotated[AccessRole | None, "key_created: what it may do"] = None
    tenant: Annotated[str | None, "key_created, user_created: whose jobs and files it sees; null: all of them"] = None
    agent_id: Annotated[str | None, "key_created: the only agent that it may be; null: any"] = None
    expires_at: Annotated[Millis | None, "key_created, session_begun: from when on it is refused; null: never"] = None
    sequence: Annotated[
        Int | None, "user_*, session_*, tenant_*: 0 when made, one more with each change; the first counts"
    ] = None
    user_id: Annotated[str | None, "session_begun: who logged in"] = None
    epoch: Annotated[Int | None, "session_begun: how often what the user had before was made void"] = None
    password_hash: Annotated[str | None, "user_created, password_set: argon2id, as a PHC string"] = None
    issuer: Annotated[str | None, "user_created: URL of who vouches for a person without a password here"] = None
    public_jwk: Annotated[str | None, "signing_key_created: the public key, JSON as in RFC 7517"] = None
    roles: Annotated[tuple[AccessRole, ...], "user_created, roles_set: what the person may do"] = ()
    principals: Annotated[
        tuple[str, ...], "tenant_created, tenant_changed: who has rights on its topics at the broker, as User:NAME"
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """Somebody asked the server for something, and got it or did not. It has no body, of request or answer."""

    event_id: Annotated[str, "uuid5(start of the server, number of the request, of the call in a batch)"]
    subject_id: Annotated[str, "key of the record: the id of the key; anonymous: none that is valid"]
    created_at: Annotated[Millis, "when its answer ended"]
    traceparent: Annotated[str | None, "as the client sent it"] = None
    metadata: Annotated[
        dict[str, str],
        "lost, skipped: how many requests before this one have no event, for want of room or by their rate",
    ] = field(default_factory=dict)
    role: AccessRole | None = None
    tenant: Annotated[str | None, "of the key; null: none"] = None
    agent_id: Annotated[str | None, "whom path or header name"] = None
    action: Annotated[str, "what the role has to allow"]
    method: Annotated[str, "of HTTP, or of JSON-RPC"]
    resource: Annotated[str, "the path, without its query; no part of it is a key"]
    allowed: Annotated[bool, "whether the key may; false, too, without a valid key and beyond a limit"]
    reason: Annotated[str, "why it is allowed or not"]
    status: Annotated[Int, "of the answer over HTTP"]
    duration_ms: Annotated[Int, "until its answer ended"]
    prompt_tokens: Annotated[Int | None, "of a model call; null: none"] = None
    completion_tokens: Annotated[Int | None, "sampled for it; null: none"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What one gate of curation measured of a run."""

    gate: Annotated[str, "the setting that it is, e.g. min_score"]
    value: Annotated[float | None, "of the run; null: it has no such figure, and the gate is not passed"] = None
    bound: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationJudge:
    """The model that judged a run, and what that took."""

    model: Annotated[str, "as the server named it in its answer"]
    endpoint: Annotated[str, "URL that was asked, without user, password and query"]
    policy: Annotated[str | None, "the judge is a version of this policy of the log; null: of none"] = None
    version: Int | None = None
    prompt_version: str
    prompt_digest: Annotated[str, "sha256 over the instructions, without the transcript"]
    verdict: Annotated[RunVerdict | None, "of the model, whatever rules made of it; null: its answer is unreadable"] = (
        None
    )
    answer: Annotated[str, "as it was given, cut to RATIONALE_CHARACTERS"]
    prompt_tokens: Annotated[Int, "of all tries"]
    completion_tokens: Annotated[Int, "of all tries"]
    cost_usd: Annotated[float | None, "null: no price is set"] = None
    tries: Int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAgreement:
    """How well a judge agreed with people when it promoted a run alone, and what that had to be."""

    runs: Annotated[Int, "that people and the judge have decided, the newest `window` at most"]
    kappa: Annotated[float, "Cohen's"]
    low: Annotated[float, "lower end of its 95 % interval"]
    min_runs: Int
    min_kappa: float
    window: Int
    counted: Annotated[tuple[int, ...], "by partition of curation: verdicts before this offset were counted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationEvent:
    """A verdict on a run: whether it is good enough to learn from. The newest of a person counts, else the newest."""

    event_id: Annotated[str, "uuid5(answer_id, labeller, actor, rubric_digest, transcript_digest, supersedes)"]
    task_id: Annotated[str, "key of the record; the trajectory_id where no task was submitted"]
    answer_id: Annotated[str, "the run: a response, or a trajectory where no task was submitted"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    policy: Annotated[str, "that answered"]
    agent_id: str | None = None
    scenario: str
    tenant: str | None = None
    source_topic: Annotated[str, "of the record that the run ended with: its group, or the end of its trajectory"]
    source_partition: Int
    source_offset: int
    verdict: RunVerdict
    labeller: Labeller
    actor: Annotated[str, "curate, or a person"]
    rationale: str
    rubric: Annotated[str, "what good means: name@version"]
    rubric_digest: Annotated[str, "sha256 over gates, bounds and the judge's instructions"]
    transcript_digest: Annotated[str, "sha256 over the transcript as it was judged, after cutting"]
    judge: Annotated[CurationJudge | None, "set exactly when the labeller is the judge"] = None
    agreement: Annotated[JudgeAgreement | None, "set exactly when the judge promotes"] = None
    supersedes: Annotated[str | None, "event_id of the verdict on the run that counted before"] = None
    cut: Annotated[tuple[str, ...], "what of the transcript was not shown, in words; a cut run is never promoted"] = ()
    gates: tuple[GateResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTuning:
    """A fine-tuning of another provider that a data set was sent to."""

    endpoint: Annotated[str, "URL of the API, without user, password and query"]
    job: Annotated[str, "its id there"]
    model: Annotated[str, "that was tuned"]
    result: Annotated[str | None, "id of the model that came of it"] = None
    trained_tokens: int | None = None
    cost_usd: Annotated[float | None, "null: no price is set"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEvent:
    """A data set was built of promoted runs, or sent to a provider of fine-tuning. It can be built again from this."""

    event_id: Annotated[str, "uuid5(dataset, kind, digest, and the outside job's id if there is one)"]
    dataset: Annotated[str, "key of the record: its name"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: DatasetKind
    policy: Annotated[str, "whose runs"]
    tenant: str | None = None
    actor: str
    reason: str
    digest: Annotated[str, "sha256 over its rows in order: the same rows are the same build"]
    folder: Annotated[str | None, "built: where the files were written, as it was named"] = None
    code_version: Annotated[str, "of Streamward, and of what it was built from"]
    selection: Annotated[dict[str, str], "the rule by which runs were chosen and split"] = field(default_factory=dict)
    counts: Annotated[dict[str, int], "rows by split, and runs left out by reason"] = field(default_factory=dict)
    scenarios: Annotated[dict[str, int], "rows by scenario"] = field(default_factory=dict)
    labellers: Annotated[dict[str, int], "rows by who promoted them: gates, judge, person"] = field(
        default_factory=dict
    )
    manifest_sha256: Annotated[str | None, "built: of manifest.json, which has each row's coordinates"] = None
    inputs: Annotated[dict[str, int], "built: rows by column and bin of their questions, e.g. script:latin"] = field(
        default_factory=dict
    )
    drift_from: Annotated[str | None, "built: digest of the build before it, if there are rows that are newer"] = None
    drift: Annotated[dict[str, float], "built: COLUMN, the distance of the newer rows from it; COLUMN.bound"] = field(
        default_factory=dict
    )
    outside: Annotated[OutsideTuning | None, "all kinds but built"] = None
    ranges: Annotated[tuple[SourceRange, ...], "of the log that was looked at"] = ()
    versions: Annotated[tuple[Int, ...], "that answered, in order"] = ()
    files: tuple[AdapterFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerEvent:
    """Time as a record, or a reason to retrain. The state of a rule is the fold of these."""

    event_id: Annotated[str, "uuid5(rule, kind, sequence)"]
    rule: Annotated[str, "key of the record: its name"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: TriggerKind
    sequence: Annotated[Int, "compare and swap: how many events of the rule took effect before this one"]
    policy: str
    tenant: str | None = None
    actor: str
    reason: str
    rule_digest: Annotated[str, "sha256 over the rule in force"]
    due_at: Annotated[Millis | None, "ticked, and crossed by a schedule: which time it was"] = None
    signal: Annotated[str | None, "crossed: promotable, reward, feedback, failure, schedule or asked"] = None
    action: Annotated[TriggerAction | None, "crossed: what it starts"] = None
    job_id: Annotated[str | None, "crossed: the job that it starts; null: tasks"] = None
    evidence: Annotated[dict[str, float], "crossed: counts, means, bound and e-value"] = field(default_factory=dict)
    ranges: Annotated[tuple[SourceRange, ...], "crossed: of the log that the evidence is of"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleField:
    """A field of a sample, or a piece of one that is too large for a record."""

    name: str
    encoding: Annotated[FieldEncoding, "tensor: items one after the other, little-endian"]
    dtype: Annotated[str | None, "tensor: type of an item, e.g. int64"] = None
    shape: Annotated[tuple[int, ...], "tensor: of the whole field"] = ()
    data: Annotated[Octets, "the whole field, or this part's piece of it"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEvent:
    """Fields of a sample were put into a queue, or it was tagged or cleared. A queue is the fold of these."""

    event_id: Annotated[str, "uuid5(sample_id, writer, sequence, part)"]
    sample_id: Annotated[str, "key of the record: queue/epoch.index, by which it was first put"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: SampleKind
    queue: str
    epoch: Annotated[Int, "which opening of the queue the writer belongs to; a superseded one's records do not count"]
    writer: Annotated[str, "the process that wrote it"]
    sequence: Annotated[int, "how many operations of the writer came before this one"]
    part: Annotated[Int, "of a put with more bytes than a record takes: it counts when all parts are in the log"] = 0
    parts: Int = 1
    partition: Annotated[str, "of the queue, e.g. train"] = ""
    key: Annotated[str | None, "by which the queue's users name it"] = None
    tags: Annotated[str | None, "JSON; null: as they were"] = None
    fields: Annotated[tuple[SampleField, ...], "put: those that are new or replaced"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """A queue of samples was opened for writing, restored or saved. The newest opening alone may write."""

    event_id: Annotated[str, "uuid5(queue, kind, epoch, writer, and where samples ended)"]
    queue: Annotated[str, "key of the record: its name"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: QueueKind
    epoch: Annotated[Int, "compare and swap: one more than that of the opening before it"]
    writer: str
    reason: str
    samples: Annotated[int, "restored, saved: how many the queue had"] = 0
    digest: Annotated[str | None, "restored, saved: sha256 over them and the places of their fields"] = None
    counts: Annotated[dict[str, int], "restored: what else the log had, e.g. cleared"] = field(default_factory=dict)
    checkpoint: Annotated[str | None, "restored: event_id of the saved state it went back to; null: the newest"] = None
    starts: Annotated[tuple[int, ...], "restored, saved: by partition of samples, the first record still needed"] = ()
    ends: Annotated[tuple[int, ...], "restored, saved: by partition of samples, where it ended"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptArm:
    """A version that a share of an alias's users gets."""

    version: Int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReflection:
    """A model's answer about what is wrong with a prompt, and what that took."""

    request_digest: Annotated[str, "sha256 over what it was asked; the same question is asked once"]
    model: str
    text: str
    prompt_tokens: Int = 0
    completion_tokens: Int = 0
    cost_usd: Annotated[float | None, "null: no price is set"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEvent:
    """A version of a prompt, or what one of its names means. The state of a prompt is the fold of these.

    A version never changes: its number, its text and its variables are those of its `created` for ever.
    """

    event_id: Annotated[str, "uuid5(prompt, kind, sequence)"]
    prompt: Annotated[str, "key of the record: its name, which begins with its tenant's"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: PromptKind
    sequence: Annotated[Int, "compare and swap: how many events of the prompt took effect before this one"]
    actor: str
    reason: str
    version: Annotated[Int | None, "created, reported: which; activated: what the alias means from now on"] = None
    alias: Annotated[str | None, "activated, shared: of the prompt"] = None
    job_id: Annotated[str | None, "that decided it; null: a person"] = None
    digest: Annotated[str | None, "created: sha256 over messages and variables; the same text is the same version"] = (
        None
    )
    metrics: Annotated[dict[str, float], "activated by a job, reported: what answers earned"] = field(
        default_factory=dict
    )
    reflection: Annotated[PromptReflection | None, "set exactly when it was reflected"] = None
    variables: Annotated[tuple[PromptVariable, ...], "created"] = ()
    messages: Annotated[tuple[Message, ...], "created: with {{name}} where a variable is put in"] = ()
    arms: Annotated[tuple[PromptArm, ...], "shared: among whom the alias is until it is activated again"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """An item of the agents' store was put or deleted. The newest event of a key counts."""

    event_id: Annotated[str, "uuid5(namespace, key, writer, number of its write)"]
    namespace: Annotated[str, "key of the record: its labels, joined by dots; a tenant's begins with the tenant"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: MemoryKind
    key: Annotated[str, "of the item, in its namespace"]
    actor: Annotated[str, "the key, the person or the program that did it"]
    value: Annotated[str | None, "put: JSON object"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadEvent:
    """A thread was made, changed or deleted, or a run on it was requested or ended. A thread is the fold of these.

    What a run did are the turns of the trajectory that has its id.
    """

    event_id: Annotated[str, "created, changed, run_requested: random; the others: uuid5(thread, run, kind)"]
    thread_id: Annotated[str, "key of the record, a tenant's with the tenant and a dot before it; without one, run_id"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ThreadKind
    actor: Annotated[str, "the key, the person or the program that did it"]
    run_id: Annotated[str | None, "run_*: the run, which is the trajectory of this id"] = None
    agent_id: Annotated[str | None, "created: the only agent that it is for; run_requested: the one that answers"] = (
        None
    )
    labels: Annotated[str | None, "JSON object, what clients call metadata: created, changed, run_requested"] = None
    values: Annotated[str | None, "JSON object, the thread's context: created, changed"] = None
    checkpoint: Annotated[str | None, "changed: the event after whose state it goes on; null: the newest"] = None
    stateless: Annotated[bool, "run_requested: of no thread"] = False
    if_busy: Annotated[BusyStrategy | None, "run_requested: what becomes of it while another run goes on"] = None
    model: Annotated[str | None, "run_requested: POLICY, or POLICY@VERSION"] = None
    memory_config: Annotated[str | None, "run_requested: JSON object, of the agent: what the model gets to read"] = None
    sampling: Annotated[Sampling | None, "run_requested: how tokens are drawn"] = None
    request: Annotated[str | None, "run_requested: JSON object, the rest of what the client sent"] = None
    rolled_back: Annotated[bool, "run_cancelled: the thread forgets its messages, too"] = False
    ending: Annotated[RunEnding | None, "run_ended: how"] = None
    turn_id: Annotated[str | None, "run_ended: the turn with the answer"] = None
    error: Annotated[str | None, "run_ended: why there is no answer"] = None
    messages: Annotated[tuple[Message, ...], "created, changed, run_requested: new ones; run_ended: the answer"] = ()
    tools: Annotated[tuple[Tool, ...], "run_requested: what the agent may call"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """The tools of an endpoint: as they were added, as they are described since, or as a person accepted them.

    The state of an entry is the fold of these. An environment is an entry, too, and so is what our own server offers.
    """

    event_id: Annotated[str, "uuid5(tool_id, kind, sequence)"]
    tool_id: Annotated[str, "key of the record: its name, which begins with its tenant's; mcp:SET: our own server's"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ToolKind
    sequence: Annotated[Int, "compare and swap: how many events of the entry took effect before this one"]
    actor: str
    reason: str
    endpoint: Annotated[
        str | None, "added: what carries calls out: module:function, URL, mcp:SERVER, environment:NAME, or our own path"
    ] = None
    auth_required: Annotated[bool, "added: calls carry a credential that only the settings know"] = False
    digest: Annotated[str | None, "sha256 over tools and messages; accepted: of what is trusted; removed: null"] = None
    version: Annotated[str | None, "added, changed: of the server or environment; null: it names none"] = None
    environment: Annotated[EpisodeStart | None, "added: set exactly when it is one"] = None
    max_turns: Annotated[Int | None, "added: most actions of an episode that names it; null: the default"] = None
    tools: Annotated[tuple[Tool, ...], "added, changed: what is offered"] = ()
    messages: Annotated[tuple[Message, ...], "added, changed: what an environment shows first"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLora:
    """The adapter of a model that others train, as it was ordered."""

    rank: Int
    seed: Annotated[int | None, "null: one derived from the model's number in its session"] = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAdam:
    """One step of AdamW, as it was ordered."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: Annotated[float, "0: no clipping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCall:
    """A call of somebody's own training loop, acknowledged before it is answered. A model is the fold of its calls."""

    call_id: Annotated[str, "derived from what it is about and its number there; clients wait for its result by it"]
    model: Annotated[str, "key of the record: the model; the session, if it is about no model's weights"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: CallKind
    session_id: str
    seq_id: Annotated[
        int | None, "number among the calls of its model or sampling session; create_*: of what it makes in its session"
    ] = None
    subject_id: Annotated[str | None, "the key or the person; null: this server asks for none"] = None
    tenant: str | None = None
    request_digest: Annotated[str, "sha256 over the canonical request: the same call sent again has the same"]
    base_model: str | None = None
    lora: Annotated[CallLora | None, "create_model; load, copy: of the saved weights"] = None
    loss: Annotated[str | None, "forward, forward_backward: name of the loss"] = None
    loss_config: Annotated[str, "JSON object: its settings"] = "{}"
    optimizer: Annotated[CallAdam | None, "optim_step"] = None
    sampling_session: Annotated[str | None, "sample: which it is of; saves without a name: which they make"] = None
    path: Annotated[str | None, "saves: the name of the checkpoint; others: the checkpoint, as tinker://…"] = None
    source: Annotated[str | None, "load, copy, create_sampling_session: folder of that checkpoint in the store"] = None
    ttl_s: Annotated[int | None, "seconds until what it saves expires; null: never"] = None
    prices: Annotated[JobPrices | None, "create_session: what its calls cost; null: no prices"] = None
    max_budget_usd: Annotated[float | None, "create_session: what its calls may cost; null: no limit"] = None
    refusal: Annotated[
        str | None, "refused: why, as its client read it; the call keeps its number, and request.kind says what it was"
    ] = None
    request: Annotated[str, "JSON object: what of the request no other field has"] = "{}"
    examples: Annotated[Int, "forward, forward_backward: how many there are"] = 0
    tokens: Annotated[int, "of all examples, or of the prompt"] = 0
    data_uri: Annotated[str | None, "where the data are if they are too large for a record"] = None
    data_sha256: Annotated[str | None, "of the data there"] = None
    data: Annotated[Octets, "N.tokens and N.INPUT of example N; sample: prompt"] = Octets()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What became of a training call. The first result of a call counts; a second one is equal, or is not the first."""

    call_id: str
    model: Annotated[str, "key of the record, as of the call"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: CallKind
    session_id: str
    seq_id: int | None = None
    subject_id: str | None = None
    tenant: str | None = None
    source_partition: Annotated[Int, "of training-calls, where its call is"]
    source_offset: int
    category: Annotated[CallFault | None, "whose fault it is that it failed; null: it did not"] = None
    error: str | None = None
    version: Annotated[Int | None, "that the call saved, of the policy that is called as the model"] = None
    path: Annotated[str | None, "of the checkpoint that the call saved, as tinker://…"] = None
    uri: Annotated[str | None, "its folder in the store"] = None
    state_sha256: Annotated[str | None, "over the model's weights after the call, if it changed them"] = None
    prompt_tokens: Annotated[int, "that were run; those of training included"] = 0
    completion_tokens: Annotated[int, "that were sampled"] = 0
    seconds: Annotated[float, "that the call took"] = 0.0
    trainer_s: Annotated[float, "of these, of training: what has a price by the hour"] = 0.0
    cost_usd: Annotated[float | None, "null: no prices"] = None
    response: Annotated[str, "JSON object: what of the answer no other field has"] = "{}"
    metrics: dict[str, float] = field(default_factory=dict)
    outputs_uri: Annotated[str | None, "where the outputs are if they are too large for a record"] = None
    outputs_sha256: Annotated[str | None, "of the outputs there"] = None
    outputs: Annotated[Octets, "N.OUTPUT of example N; sample: N.tokens, N.logprobs of sample N, and of the prompt"] = (
        Octets()
    )


ANONYMOUS = "anonymous"
"""Who asks without a key that is valid."""

Event = (
    Task
    | Response
    | Reward
    | GroupControl
    | AdvantagedGroup
    | Batch
    | AdapterEvent
    | DeadLetter
    | ExperimentEvent
    | Turn
    | TrajectoryEvent
    | AgentEvent
    | JobEvent
    | AccessEvent
    | RequestEvent
    | CurationEvent
    | DatasetEvent
    | TriggerEvent
    | SampleEvent
    | QueueEvent
    | PromptEvent
    | MemoryEvent
    | ThreadEvent
    | ToolEvent
    | TrainingCall
    | TrainingResult
)
EVENTS: tuple[type[Event], ...] = (
    Task,
    Response,
    Reward,
    GroupControl,
    AdvantagedGroup,
    Batch,
    AdapterEvent,
    DeadLetter,
    ExperimentEvent,
    Turn,
    TrajectoryEvent,
    AgentEvent,
    JobEvent,
    AccessEvent,
    RequestEvent,
    CurationEvent,
    DatasetEvent,
    TriggerEvent,
    SampleEvent,
    QueueEvent,
    PromptEvent,
    MemoryEvent,
    ThreadEvent,
    ToolEvent,
    TrainingCall,
    TrainingResult,
)


class Coordinates(NamedTuple):
    """The address of a record, which every message about an event has."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


# --- rules that a type cannot express ---------------------------------------------------------------------------------


def problems(event: Event) -> Iterator[str]:
    """Return one sentence for each rule `event` breaks: what, expected and got, and what to do. None means good."""
    match event:
        case Response():
            return _response_problems(event)
        case Reward():
            return _reward_problems(event)
        case Task():
            return _task_problems(event)
        case AdvantagedGroup():
            return _group_problems(event)
        case AdapterEvent():
            return _adapter_problems(event)
        case Turn():
            return _turn_problems(event)
        case TrajectoryEvent():
            return _trajectory_problems(event)
        case JobEvent():
            return _job_problems(event)
        case AccessEvent():
            return _access_problems(event)
        case RequestEvent():
            return _request_problems(event)
        case CurationEvent():
            return _curation_problems(event)
        case DatasetEvent():
            return _dataset_problems(event)
        case TriggerEvent():
            return _trigger_problems(event)
        case SampleEvent():
            return _sample_problems(event)
        case QueueEvent():
            return _queue_problems(event)
        case PromptEvent():
            return _prompt_problems(event)
        case MemoryEvent():
            return _memory_problems(event)
        case ThreadEvent():
            return _thread_problems(event)
        case ToolEvent():
            return _tool_problems(event)
        case TrainingCall():
            return _call_problems(event)
        case TrainingResult():
            return _result_problems(event)
        case _:
            return iter(())


def _task_problems(task: Task) -> Iterator[str]:
    if task.group_size < 1:
        yield f"group_size is {task.group_size}; a group needs at least 1 response (GRPO learns from 2 and more)"
    if task.group_size > MAX_GROUP_SIZE:
        yield f"group_size is {task.group_size}; expected at most {MAX_GROUP_SIZE}. Split the task into several"
    if not task.messages:
        yield "messages is empty; a task needs at least one message to answer"
    if not task.reward_sources and task.purpose != "serve":
        needs = f"a task of purpose {task.purpose} needs at least one scorer, e.g. [{{name: exact}}]"
        yield f"reward_sources is empty; {needs}"
    names = [source.name for source in task.reward_sources]
    if len(set(names)) != len(names):
        yield f"reward_sources has a name twice ({', '.join(names)}); each source speaks once per response"
    for source in task.reward_sources:
        if abs(source.weight) > MAX_REWARD:
            yield f"reward source {source.name!r} has weight {source.weight}; expected at most {MAX_REWARD:g} in size"
    if task.sampling.max_tokens < 1:
        yield f"sampling.max_tokens is {task.sampling.max_tokens}; at least 1 token must be allowed"
    if task.sampling.temperature < 0:
        yield f"sampling.temperature is {task.sampling.temperature}; expected 0 (greedy) or more"
    if not 0 < task.sampling.top_p <= 1:
        yield f"sampling.top_p is {task.sampling.top_p}; expected a share above 0 and at most 1"
    if task.max_turns is not None and task.max_turns < 1:
        yield f"max_turns is {task.max_turns}; at least 1 model call must be allowed"
    if task.environment is not None and not 1 <= (task.max_turns or 0) <= MAX_TURNS:
        yield f"max_turns is {task.max_turns}; in an environment, expected 1 to {MAX_TURNS}: it need not end by itself"
    if task.environment is not None and task.agent is None:
        yield "environment is set and agent is not; name the agent that acts in it"
    if (use := task.prompt_version) is not None:
        wrong = list(prompt_use_problems(use))
        yield from wrong
        if not wrong and use.render() != task.messages[: len(use.messages)]:
            yield f"prompt {use}: messages do not begin with its text; render it with these values, or leave it out"


def _response_problems(response: Response) -> Iterator[str]:
    if not 0 <= response.slot < response.group_size:
        yield f"slot is {response.slot}; expected 0 to {response.group_size - 1} for group_size {response.group_size}"
    if response.response_id != derive_id(response.sampling_id, response.slot):
        yield "response_id is not uuid5(sampling_id, slot); use schemas.events.derive_id"
    if (response.finish_reason == "error") != (response.error is not None):
        yield f"finish_reason is {response.finish_reason} but error is {response.error!r}; set both or neither"
    yield from _chain_problems(response, len(response.prompt_token_ids))
    for turn in response.turns:
        if (outside := _outside(turn, response)) is not None:
            yield f"turn {turn.number} has {outside}"


def _chain_problems(response: Response | GroupResponse, prompt: int) -> Iterator[str]:
    """Yield what is wrong with the tokens of a response, whose prompt has so many, and with those of its branches."""
    if (uneven := _uneven(response)) is not None:
        yield uneven
    lengths = [prompt + len(response.completion_token_ids)]
    for number, branch in enumerate(response.branches):
        if (uneven := _uneven(branch)) is not None:
            yield f"branch {number}: {uneven}"
        if not 0 <= branch.leaves <= number:
            yield f"branch {number} leaves chain {branch.leaves}; expected 0 to {number}: one before it"
        elif not 0 <= branch.shared_tokens <= lengths[branch.leaves]:
            shared = f"branch {number} shares {branch.shared_tokens} tokens of chain {branch.leaves}"
            yield f"{shared}; expected 0 to {lengths[branch.leaves]}"
        lengths.append(branch.shared_tokens + len(branch.completion_token_ids))


def _outside(place: ResponseTurn | CreditSpan, response: Response | GroupResponse) -> str | None:
    """Return what is wrong if these tokens are not within a completion."""
    lengths = [len(response.completion_token_ids), *(len(branch.completion_token_ids) for branch in response.branches)]
    if 0 <= place.chain < len(lengths) and 0 <= place.start <= place.end <= lengths[place.chain]:
        return None
    tokens = f"tokens {place.start} to {place.end} of chain {place.chain}"
    return f"{tokens}; expected a range within a completion; they have {lengths} tokens"


def _uneven(response: Response | GroupResponse | Branch) -> str | None:
    """Return what differs if a completion token lacks its logprob or its place in the mask."""
    tokens, logprobs, mask = len(response.completion_token_ids), len(response.logprobs), len(response.loss_mask)
    if tokens == logprobs == mask:
        return None
    lengths = f"completion_token_ids has {tokens} entries, logprobs {logprobs}, loss_mask {mask}"
    return f"{lengths}; each token needs one of each"


def _group_problems(group: AdvantagedGroup) -> Iterator[str]:
    for response in group.responses:
        prompt = len(group.prompt_token_ids) + len(response.prompt_token_ids)
        for problem in _chain_problems(response, prompt):
            yield f"slot {response.slot}: {problem}"
        if response.elsewhere is not None:
            if response.prompt_token_ids or response.completion_token_ids or response.branches:
                yield f"slot {response.slot}: its tokens are said to be elsewhere, and some are here; expected none"
            continue
        for span in response.spans:
            if (outside := _outside(span, response)) is not None:
                yield f"slot {response.slot}: a span has {outside}"


def _reward_problems(reward: Reward) -> Iterator[str]:
    if (reward.value is None) == (reward.error is None):
        yield f"value is {reward.value} and error is {reward.error!r}; exactly one of them must be set"
    if reward.value is not None and not math.isfinite(reward.value):
        yield f"value is {reward.value}; a reward is a finite number (a failed score has an error and no value)"
    elif reward.value is not None and abs(reward.value) > MAX_REWARD:
        yield f"value is {reward.value}; expected at most {MAX_REWARD:g} in size. Scale the score down"
    if any(not math.isfinite(step) or abs(step) > MAX_REWARD for step in reward.steps):
        yield f"steps has a value that is not finite or above {MAX_REWARD:g} in size; scale the scores down"
    if reward.error is not None and reward.steps:
        yield f"error is {reward.error!r} and steps has {len(reward.steps)} values; a failed score has none"
    if len(reward.components) > MAX_COMPONENTS:
        yield f"components has {len(reward.components)} entries; expected at most {MAX_COMPONENTS}. Sum some of them up"
    if (longest := max(map(len, reward.components), default=0)) > COMPONENT_CHARACTERS:
        yield f"components has a name of {longest} characters; expected at most {COMPONENT_CHARACTERS}"
    if (said := len(reward.rationale or "")) > RATIONALE_CHARACTERS:
        yield f"rationale has {said} characters; expected at most {RATIONALE_CHARACTERS}. Shorten it"
    if reward.reward_id != derive_id(reward.response_id, reward.source):
        yield "reward_id is not uuid5(response_id, source); use schemas.events.derive_id"


def _adapter_problems(event: AdapterEvent) -> Iterator[str]:
    version, parent, first, last = event.version, event.parent_version, event.first_batch, event.last_batch
    least = 1 if event.kind == "trained" else 0
    if version < least:
        yield f"version is {version}; expected {least} or more for {event.kind}: 0 is the base model"
    if parent is not None and not 0 <= parent < version:
        yield f"parent_version is {parent}; expected 0 to {version - 1} for version {version}"
    if (first is None) != (last is None):
        yield f"first_batch is {first} and last_batch {last}; set both or neither"
    elif first is not None and last is not None and not 0 <= first <= last < version:
        yield f"batches are {first} to {last}; expected a range within 0 to {version - 1}: each batch makes one version"
    if event.tuning is not None:
        yield from _tuning_problems(event, event.tuning)
    if event.origin is not None and (event.kind != "trained" or event.tuning is not None or first is not None):
        yield f"kind is {event.kind}, with tuning or batches, and origin set; what a call saved is trained by it alone"
    if event.outside is not None:
        yield from _outside_problems(event, event.outside)


def _outside_problems(event: AdapterEvent, outside: OutsideModel) -> Iterator[str]:
    if event.kind != "trained":
        yield f"kind is {event.kind} and outside is set; expected trained, which makes a version"
    weights = ("uri", "files", "base_digest", "tuning", "origin", "parent_version", "first_batch")
    if named := [name for name in weights if getattr(event, name) not in (None, ())]:
        yield f"outside is set, and so are {', '.join(named)}; a model elsewhere has no weights here, nor a parent"
    if not _OUTSIDE_URL.fullmatch(outside.url):
        yield f"outside.url is {outside.url!r}; expected http:// or https://, a host and a path, up to /v1, no key"
    if not outside.model.strip():
        yield "outside.model is empty; expected the name by which the server knows it"
    prices = (outside.prompt_usd, outside.completion_usd)
    if (None in prices) != (prices == (None, None)) or any(price is not None and not price >= 0 for price in prices):
        yield f"outside has the prices {prices}; expected two numbers from 0, or none"


_OUTSIDE_URL = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")


def _tuning_problems(event: AdapterEvent, tuning: Tuning) -> Iterator[str]:
    if event.kind != "trained" or event.first_batch is not None:
        yield f"kind is {event.kind}, first_batch {event.first_batch} and tuning set; expected trained and no batches"
    elsewhere = tuning.start_policy is not None
    if tuning.start_version < 0:
        yield f"start_version is {tuning.start_version}; expected 0, the base model, or more"
    if event.parent_version != (None if elsewhere else tuning.start_version):
        yield (
            f"parent_version is {event.parent_version}, but it was tuned from version {tuning.start_version} of "
            f"{tuning.start_policy or event.policy}; expected that, or null for a version of another policy"
        )
    if (wrong := _source_problem(tuning)) is not None:
        yield wrong
    least, most = (2, 2) if tuning.method == "dpo" else (1, MAX_GROUP_SIZE)
    if (bad := next((one for one in tuning.groups if not least <= len(one.slots) <= most), None)) is not None:
        yield f"the group at {bad.offset} has slots {bad.slots}; expected {least} or more, and at most {most}"


def _source_problem(tuning: Tuning) -> str | None:
    """Return what is wrong with the source of the examples: a file, groups, or a data set, whole and alone."""
    sources = (
        (tuning.file, tuning.file_sha256),
        (tuning.groups_policy, tuning.groups_partition, tuning.groups or None),
        (tuning.dataset, tuning.dataset_digest),
    )
    named = [source for source in sources if any(part is not None for part in source)]
    if len(named) == 1 and None not in named[0]:
        return None
    return (
        "tuning has no source of its examples, or parts of several; expected file and file_sha256, what begins with "
        "groups, or dataset and dataset_digest"
    )


def _turn_problems(turn: Turn) -> Iterator[str]:
    if (turn.sampling_id is None) != (turn.slot is None):
        yield f"sampling_id is {turn.sampling_id!r} and slot {turn.slot}; set both or neither"
    if not 0 <= turn.choice < turn.choices:
        yield f"choice is {turn.choice}; expected 0 to {turn.choices - 1} for choices {turn.choices}"
    if (turn.finish_reason == "error") != (turn.error is not None):
        yield f"finish_reason is {turn.finish_reason} but error is {turn.error!r}; set both or neither"
    if len(turn.completion_token_ids) != len(turn.logprobs):
        lengths = f"completion_token_ids has {len(turn.completion_token_ids)} entries, logprobs {len(turn.logprobs)}"
        yield f"{lengths}; each token needs one"


def _trajectory_problems(event: TrajectoryEvent) -> Iterator[str]:
    if event.event_id != derive_id(event.trajectory_id, event.kind):
        yield "event_id is not uuid5(trajectory_id, kind); use schemas.events.derive_id"
    attempt = (event.sampling_id, event.slot, event.group_size)
    if None in attempt and attempt != (None, None, None):
        yield f"sampling_id, slot and group_size are {attempt}; set all or none"
    if event.sampling_id is not None and event.trajectory_id != derive_id(event.sampling_id, event.slot):
        yield "trajectory_id is not uuid5(sampling_id, slot); use schemas.events.derive_id"
    if {event.ending is not None, event.turns is not None} != {event.kind == "ended"}:
        yield f"kind is {event.kind}, ending {event.ending} and turns {event.turns}; ended has both, started neither"


_ACCESS_FIELDS: dict[AccessKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "key_created": (("role", "secret_sha256"), ("name", "tenant", "agent_id", "expires_at")),
    "key_revoked": ((), ()),
    "user_created": (("sequence", "roles"), ("name", "tenant", "password_hash", "issuer")),
    "roles_set": (("sequence", "roles"), ()),
    "password_set": (("sequence", "password_hash"), ()),
    "user_disabled": (("sequence",), ()),
    "user_enabled": (("sequence",), ()),
    "session_begun": (("sequence", "user_id", "epoch", "secret_sha256", "expires_at"), ()),
    "session_refreshed": (("sequence", "secret_sha256"), ()),
    "session_ended": ((), ()),
    "signing_key_created": (("public_jwk",), ()),
    "signing_key_revoked": ((), ()),
    "tenant_created": (("sequence", "principals"), ()),
    "tenant_changed": (("sequence", "principals"), ()),
    "tenant_removed": (("sequence",), ()),
}
"""What each kind needs, and what it may have; the rest is of other kinds."""
_ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,10}),t=([0-9]{1,10}),p=([0-9]{1,10})\$[A-Za-z0-9+/]{1,86}\$[A-Za-z0-9+/]{1,86}"
)
"""RFC 9106 as a PHC string: memory, passes and lanes, then salt and hash of 64 bytes at most."""
_ACCESS_FIRST = ("user_created", "session_begun", "tenant_created")
"""The kinds that begin what has a sequence."""
_ACCESS_OWN = sorted({name for needed, may in _ACCESS_FIELDS.values() for name in needed + may})


def password_hash_problem(phc: str) -> str | None:
    """Return why a password hash cannot be used; None if it can. Checking a password costs what its hash says."""
    parts = _ARGON2ID.fullmatch(phc)
    if parts is None:
        return "password_hash is no PHC string of argon2id"
    costs = dict(zip(MAX_HASH_COSTS, map(int, parts.groups()), strict=True))
    if all(cost <= MAX_HASH_COSTS[name] for name, cost in costs.items()):
        return None
    expected = ", ".join(f"{name}={limit}" for name, limit in MAX_HASH_COSTS.items())
    return f"password_hash costs {', '.join(f'{name}={cost}' for name, cost in costs.items())}; at most {expected}"


def _access_problems(event: AccessEvent) -> Iterator[str]:
    parts = () if event.sequence is None else (event.sequence,)
    if event.event_id != derive_id(event.subject_id, event.kind, *parts):
        yield "event_id is not uuid5(subject_id, kind, sequence if any); use schemas.events.derive_id"
    needed, may = _ACCESS_FIELDS[event.kind]
    given = {name for name in _ACCESS_OWN if getattr(event, name) not in (None, ())}
    if missing := [name for name in needed if name not in given]:
        yield f"kind is {event.kind} without {', '.join(missing)}; it needs {', '.join(needed)}"
    if others := sorted(given.difference(needed, may)):
        yield f"kind is {event.kind} with {', '.join(others)}, which it cannot have; leave them out"
    if event.secret_sha256 is not None and not _SHA256.fullmatch(event.secret_sha256):
        yield "secret_sha256 is no SHA-256; expected 64 hexadecimal digits in lower case"
    if event.sequence is not None and (event.sequence == 0) != (event.kind in _ACCESS_FIRST):
        yield f"kind is {event.kind} and sequence {event.sequence}; what is made has 0, what changes it more"
    if event.sequence is not None and event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if event.password_hash is not None and (problem := password_hash_problem(event.password_hash)) is not None:
        yield f"{problem}; hash passwords with streams.access.passwords"
    if event.kind == "user_created" and (event.password_hash is None) == (event.issuer is None):
        yield "kind is user_created; it needs password_hash or issuer, and not both"
    for field_name, several in (("roles", event.roles), ("principals", event.principals)):
        if len(set(several)) != len(several):
            yield f"{field_name} has one twice ({', '.join(several)}); name each once"


def _request_problems(event: RequestEvent) -> Iterator[str]:
    if not 100 <= event.status <= 599:
        yield f"status is {event.status}; expected one of HTTP, 100 to 599"
    if event.allowed and event.subject_id != ANONYMOUS and event.role is None:
        yield "it is allowed to a key without a role; every key has one"
    for name in ("duration_ms", "prompt_tokens", "completion_tokens"):
        if (getattr(event, name) or 0) < 0:
            yield f"{name} is {getattr(event, name)}; expected 0 or more"


def _job_problems(event: JobEvent) -> Iterator[str]:
    if (event.spec is not None) != (event.kind == "created"):
        yield f"kind is {event.kind} and spec is {'missing' if event.spec is None else 'set'}; only created has one"
    if event.sequence < 0 or (event.sequence == 0) != (event.kind in ("created", "month_closed")):
        yield f"kind is {event.kind} and sequence {event.sequence}; created has 0, what follows it more"
    if (event.kind == "month_closed") != (event.month is not None):
        yield f"kind is {event.kind} and month {event.month}; month_closed alone has one"
    if event.month is not None:
        yield from _month_problems(event, event.month)
    if event.kind in ("iteration", "evaluated") and None in (event.iteration, event.version):
        yield f"kind is {event.kind}; it needs iteration and version"
    if event.kind == "started" and None in (event.version, event.groups_next):
        yield "kind is started; it needs version and groups_next"
    measured = {"success", "mean_reward", "success_gain", "gain"}
    if event.kind == "evaluated" and not measured <= event.metrics.keys():
        yield f"kind is evaluated and metrics has {sorted(event.metrics)}; it needs {', '.join(sorted(measured))}"
    if event.spec is not None:
        yield from _job_spec_problems(event.spec)


def _month_problems(event: JobEvent, month: str) -> Iterator[str]:
    if re.fullmatch(r"[1-9]\d{3}-(0[1-9]|1[0-2])", month) is None:
        yield f"month is {month!r}; expected a year and a month, e.g. 2026-11"
    if not event.counted or min(event.counted) < 0:
        yield f"kind is month_closed and counted is {event.counted}; expected an offset for each partition of jobs"
    figures = {"prompt_tokens", "completion_tokens", "trainer_s", "cost_usd"}
    if not figures <= event.metrics.keys():
        yield f"kind is month_closed and metrics has {sorted(event.metrics)}; it needs {', '.join(sorted(figures))}"


def _job_tuning_problems(tuning: JobTuning) -> Iterator[str]:
    if tuning.epochs < 1 or tuning.batch < 1:
        yield f"spec.tuning has {tuning.epochs} epochs and {tuning.batch} examples a step; expected 1 or more of each"
    if 0 in (tuning.lora_rank, tuning.lora_alpha) or tuning.lora_targets == "":
        yield (
            f"spec.tuning has lora_rank {tuning.lora_rank}, lora_alpha {tuning.lora_alpha} and lora_targets "
            f"{tuning.lora_targets!r}; expected 1 or more, names of modules, or null"
        )
    if (tuning.method == "dpo") != (tuning.beta is not None and tuning.beta > 0):
        yield f"spec.tuning.method is {tuning.method} and beta {tuning.beta}; dpo has one above 0, sft none"
    sources = {"file": tuning.file_id, "groups of": tuning.groups_policy, "data set": tuning.dataset}
    if sum(source is not None for source in sources.values()) != 1:
        named = ", ".join(f"{name} {source}" for name, source in sources.items())
        yield f"spec.tuning has {named}; expected one of them"
    if (tuning.dataset is None) != (tuning.dataset_digest is None):
        yield f"spec.tuning has dataset {tuning.dataset} and digest {tuning.dataset_digest}; set both or neither"
    if tuning.start_version is None and tuning.start_policy is not None:
        yield f"spec.tuning starts from {tuning.start_policy}, and no version is named; name one"


def _job_spec_problems(spec: JobSpec) -> Iterator[str]:
    for name in ("iterations", "batch_size", "group_size", "evaluate_every", "keep_best", "patience"):
        if getattr(spec, name) < 1:
            yield f"spec.{name} is {getattr(spec, name)}; expected 1 or more"
    if not 0 <= spec.held_out_share < 1:
        yield f"spec.held_out_share is {spec.held_out_share}; expected 0 or more, and less than 1"
    is_live = spec.search is not None and spec.search.method == "live"
    for name in ("questions", "reward_sources"):
        if not getattr(spec, name) and spec.tuning is None and not (is_live and name == "questions"):
            yield f"spec.{name} is empty; a job needs at least one"
    if spec.tuning is not None:
        yield from _job_tuning_problems(spec.tuning)
    if spec.prompt_version is not None:
        yield from prompt_use_problems(spec.prompt_version)
    if spec.search is not None:
        yield from _prompt_search_problems(spec.search, spec)
    if spec.max_budget_usd is not None and not spec.max_budget_usd > 0:
        yield f"spec.max_budget_usd is {spec.max_budget_usd}; expected more than 0, or null"
    prices = spec.prices
    if prices is not None and not min(prices.prompt, prices.completion, prices.trainer_hour) >= 0:
        yield f"spec.prices are {prices.prompt}, {prices.completion} and {prices.trainer_hour}; expected 0 or more"


def _curation_problems(event: CurationEvent) -> Iterator[str]:
    if (event.labeller == "judge") != (event.judge is not None):
        yield f"labeller is {event.labeller} but judge is {'set' if event.judge else 'null'}; set both or neither"
    promotes = event.verdict == "promote" and event.labeller == "judge"
    if promotes != (event.agreement is not None):
        yield (
            f"labeller is {event.labeller}, verdict {event.verdict} and agreement "
            f"{'null' if event.agreement is None else 'set'}; a judge's promotion alone has one"
        )
    elif event.agreement is not None and (wrong := _agreement_problem(event.agreement)) is not None:
        yield wrong
    if event.verdict != "promote" or event.labeller == "person":
        return
    if event.cut:
        yield f"verdict is promote, and the transcript was cut ({event.cut[0]}); only a person may promote such a run"
    failed = [gate.gate for gate in event.gates if not gate.passed]
    if failed:
        yield f"verdict is promote, and gate {failed[0]} was not passed; only a person may promote such a run"


def _agreement_problem(agreement: JudgeAgreement) -> str | None:
    """Return why a judge that agrees so with people may promote no run alone; None if it may."""
    if agreement.runs >= agreement.min_runs and agreement.low >= agreement.min_kappa:
        return None
    return (
        f"a judge promotes, and agrees with people in {agreement.runs} runs with kappa {agreement.low:.3f} or more; "
        f"expected {agreement.min_runs} runs and {agreement.min_kappa:g}: a person has to promote"
    )


def _dataset_problems(event: DatasetEvent) -> Iterator[str]:
    if (event.kind == "built") != (event.manifest_sha256 is not None):
        yield f"kind is {event.kind} but manifest_sha256 is {event.manifest_sha256!r}; it is that of what was built"
    if (event.kind == "built") != (event.outside is None):
        yield f"kind is {event.kind} but outside is {'null' if event.outside is None else 'set'}; built alone has none"


def _trigger_problems(event: TriggerEvent) -> Iterator[str]:
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if (event.kind == "crossed") != (event.signal is not None and event.action is not None):
        yield f"kind is {event.kind}, signal {event.signal!r}, action {event.action!r}; a crossing alone has both"
    if event.kind == "ticked" and event.due_at is None:
        yield "kind is ticked but due_at is null; a tick is of a time"


def _sample_problems(event: SampleEvent) -> Iterator[str]:
    if not 0 <= event.part < event.parts:
        yield f"part is {event.part} of {event.parts}; expected 0 or more, and less than parts"
    if (event.kind == "put") != bool(event.fields):
        yield f"kind is {event.kind} and it has {len(event.fields)} fields; a put alone has some"
    if event.kind == "tagged" and event.tags is None:
        yield "kind is tagged but tags is null; expected a JSON object"


def _queue_problems(event: QueueEvent) -> Iterator[str]:
    if event.epoch < 1:
        yield f"epoch is {event.epoch}; expected 1 or more"
    if (event.kind == "opened") != (event.digest is None):
        yield f"kind is {event.kind} but digest is {event.digest!r}; what is restored or saved alone has one"
    if event.checkpoint is not None and event.kind != "restored":
        yield f"kind is {event.kind} but checkpoint is {event.checkpoint}; what is restored alone has one"


PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What a prompt may be called."""
ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""What an alias may be called; it is no number, since those are versions."""
PROMPT_ROLES = ("system", "user", "assistant")
MOST_VARIABLES = 100


def prompt_digest(messages: tuple[Message, ...], variables: tuple[PromptVariable, ...]) -> str:
    """Return the sha256 of a prompt's text: messages and variables."""
    said = [[message.role, message.name, message.content] for message in messages]
    return hashlib.sha256(
        json_text.one_line([said, [[variable.name, variable.type] for variable in variables]]).encode()
    ).hexdigest()


def _prompt_problems(event: PromptEvent) -> Iterator[str]:
    if PROMPT_NAME.fullmatch(event.prompt) is None:
        yield f"prompt is {event.prompt[:140]!r}; expected a letter or digit, and then at most 127 of A-Z a-z 0-9 _ . -"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if event.kind in ("created", "activated", "reported") and (event.version or 0) < 1:
        yield f"kind is {event.kind} and version {event.version}; versions are 1, 2, 3 and so on"
    if (event.alias is not None) != (event.kind in ("activated", "shared")):
        yield f"kind is {event.kind} and alias {event.alias!r}; activated and shared alone have one"
    elif event.alias is not None and ALIAS.fullmatch(event.alias) is None:
        yield f"alias is {event.alias[:80]!r}; expected a letter, and then at most 63 of A-Z a-z 0-9 _ . -"
    if event.kind == "created":
        yield from prompt_text_problems(event.messages, event.variables)
        if event.digest != prompt_digest(event.messages, event.variables):
            yield f"digest is {event.digest}, which is not that of its text; it is that of a created version"
    elif event.messages or event.variables:
        yield f"kind is {event.kind} and messages or variables are set; those of a version never change"
    if (event.kind == "reflected") != (event.reflection is not None):
        yield f"kind is {event.kind} and reflection {'null' if event.reflection is None else 'set'}; reflected has one"
    if event.kind in ("shared", "reflected", "reported") and event.job_id is None:
        yield f"kind is {event.kind} and job_id is null; a job decides it"
    yield from _arm_problems(event)


def _arm_problems(event: PromptEvent) -> Iterator[str]:
    if event.kind != "shared":
        if event.arms:
            yield f"kind is {event.kind} and arms has {len(event.arms)}; only shared has any"
        return
    versions = [arm.version for arm in event.arms]
    if len(versions) < 2 or len(set(versions)) < len(versions) or min(versions) < 1:
        yield f"arms has versions {versions}; expected 2 or more, each once"
    if not all(arm.share > 0 for arm in event.arms) or abs(math.fsum(arm.share for arm in event.arms) - 1) > 1e-9:
        yield f"arms has shares {[arm.share for arm in event.arms]}; expected more than 0 each, and 1 together"


def prompt_text_problems(messages: tuple[Message, ...], variables: tuple[PromptVariable, ...]) -> Iterator[str]:
    """Yield what is wrong with the text of a prompt."""
    if not messages:
        yield "messages is empty; a prompt has at least one"
    for number, message in enumerate(messages):
        if message.role not in PROMPT_ROLES:
            yield f"messages[{number}].role is {message.role[:40]!r}; expected {', '.join(PROMPT_ROLES)}"
        if message.tool_calls or message.tool_call_id is not None:
            yield f"messages[{number}] calls a tool, or is what one gave; a prompt has texts alone"
        if message.role == "system" and number:
            yield f"messages[{number}] is a system message; expected one at most, the first"
    if not any(message.content.strip() for message in messages):
        yield "every message is empty; a prompt has a text"
    if len(variables) > MOST_VARIABLES:
        yield f"there are {len(variables)} variables; expected at most {MOST_VARIABLES}"
    yield from prompt_text.template_problems([message.content for message in messages], variables)


def prompt_use_problems(use: PromptUse) -> Iterator[str]:
    """Yield why a prompt cannot be rendered with its values."""
    if use.version < 1:
        yield f"prompt_version.version is {use.version}; versions are 1, 2, 3 and so on"
    texts = list(prompt_text_problems(use.messages, use.variables))
    try:
        values = json_text.parse(use.values)
    except ValueError as exc:
        values, texts = None, [*texts, f"values is no JSON: {exc}"]
    if isinstance(values, dict):
        texts += prompt_text.value_problems(use.variables, values)
    elif values is not None:
        texts.append(f"values is {use.values[:80]}; expected a JSON object")
    yield from (f"prompt {use}: {text}" for text in texts)


def _prompt_search_problems(search: PromptSearch, spec: JobSpec) -> Iterator[str]:
    if spec.tuning is not None:
        yield "spec has tuning and search; a job does one of them"
    if search.max_answers < 1:
        yield f"spec.search.max_answers is {search.max_answers}; expected 1 or more"
    if not 0 < search.alpha < 1:
        yield f"spec.search.alpha is {search.alpha}; expected a probability above 0 and below 1"
    least = 1 if search.method == "reflection" else 2
    if len(set(search.versions)) < least or min(search.versions, default=0) < 1:
        yield f"spec.search.versions is {list(search.versions)}; expected {least} or more, each 1 or more"
    if search.method == "live" and search.alias is None:
        yield "spec.search.method is live and alias is null; a share of an alias's users is asked with each version"
    if search.share is not None and not (search.method == "live" and 0 < search.share < 1):
        yield f"spec.search.share is {search.share}; expected more than 0 and less than 1, of a live search"
    if search.method == "reflection" and search.endpoint is None:
        yield "spec.search.method is reflection and endpoint is null; name who proposes texts"


MEMORY_LABEL = re.compile(r"[^.\x00-\x1f\x7f]{1,128}")
"""What a label of a namespace may be: names with a dot would be two labels."""
MOST_LABELS = 16
"""Most labels of a namespace, its tenant's among them."""
MOST_KEY_CHARACTERS = 512
"""Longest key of an item."""


def namespace_problem(namespace: str) -> str | None:
    """Return what is wrong with a namespace; None if it is one."""
    labels = namespace.split(".")
    if len(labels) > MOST_LABELS:
        return f"namespace has {len(labels)} labels; expected 1 to {MOST_LABELS}"
    for number, label in enumerate(labels):
        if MEMORY_LABEL.fullmatch(label) is None:
            expected = "1 to 128 characters, no control character and no dot among them"
            return f"namespace[{number}] is {label[:140]!r}; expected {expected}"
    return None


def _memory_problems(event: MemoryEvent) -> Iterator[str]:
    if (problem := namespace_problem(event.namespace)) is not None:
        yield problem
    if not 1 <= len(event.key) <= MOST_KEY_CHARACTERS:
        yield f"key has {len(event.key)} characters; expected 1 to {MOST_KEY_CHARACTERS}"
    if (event.kind == "put") != (event.value is not None):
        yield f"kind is {event.kind} and value is {'null' if event.value is None else 'set'}; put alone has one"
    yield from _object_problems("value", event.value)


_RUN_FIELDS = ("agent_id", "if_busy", "model", "memory_config", "sampling")
"""What a request for a run has; of these an event of another kind has an agent at most."""


def _thread_problems(event: ThreadEvent) -> Iterator[str]:
    if event.kind.startswith("run_") != (event.run_id is not None):
        yield f"kind is {event.kind} and run_id is {event.run_id!r}; events of a run alone have one"
    for name in _RUN_FIELDS:
        if event.kind == "run_requested" and getattr(event, name) is None:
            yield f"kind is run_requested and {name} is null; a run needs it"
        elif event.kind != "run_requested" and name != "agent_id" and getattr(event, name) is not None:
            yield f"kind is {event.kind} and {name} is set; run_requested alone has one"
    if (event.kind == "run_ended") != (event.ending is not None):
        yield f"kind is {event.kind} and ending is {event.ending}; run_ended alone has one"
    if (event.ending == "success") != (event.turn_id is not None):
        yield f"ending is {event.ending} and turn_id {event.turn_id!r}; a run that succeeds alone has a turn"
    if (event.ending in ("error", "timeout")) != (event.error is not None):
        yield f"ending is {event.ending} and error is {event.error!r}; a run that fails alone has one"
    if event.stateless and event.thread_id != event.run_id:
        yield f"thread_id is {event.thread_id} of stateless run {event.run_id}; expected the run's"
    for name in ("labels", "values", "memory_config", "request"):
        yield from _object_problems(name, getattr(event, name))


def _object_problems(name: str, text: str | None) -> Iterator[str]:
    """Yield why a text that is set is no JSON object."""
    if text is None:
        return
    try:
        value = json_text.parse(text)
    except ValueError as exc:
        yield f"{name} is no JSON: {exc}"
        return
    if not isinstance(value, dict):
        yield f"{name} is {text[:80]}; expected a JSON object"


def _tool_problems(event: ToolEvent) -> Iterator[str]:
    if not (tool_text.TOOL_ID.fullmatch(event.tool_id) or tool_text.OWN_ID.fullmatch(event.tool_id)):
        expected = "a letter or digit, and then at most 63 of A-Z a-z 0-9 _ -, after a tenant's name and a dot if any"
        yield f"tool_id is {event.tool_id[:140]!r}; expected {expected}"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if (event.endpoint is not None) != (event.kind == "added"):
        yield f"kind is {event.kind} and endpoint {event.endpoint!r}; added alone has one"
    if (event.digest is None) != (event.kind == "removed"):
        yield f"kind is {event.kind} and digest {event.digest}; all but removed have one"
    if event.digest is not None and not _SHA256.fullmatch(event.digest):
        yield "digest is no SHA-256; expected 64 hexadecimal digits in lower case"
    if event.kind in ("added", "changed"):
        yield from _offer_problems(event)
    elif event.tools or event.messages or event.environment is not None:
        yield f"kind is {event.kind} and it offers something; added and changed alone do"


def _offer_problems(event: ToolEvent) -> Iterator[str]:
    faults = list(tool_text.offer_problems(event.tools))
    yield from faults
    if not faults and event.digest != tool_text.offer_digest(event.tools, event.messages):
        yield f"digest is {event.digest}, which is not that of what it offers"
    if event.kind != "added":
        return
    try:
        kind = tool_text.endpoint_kind(event.endpoint or "")
    except ValueError as exc:
        yield str(exc)
        return
    if (kind == "own") != (tool_text.OWN_ID.fullmatch(event.tool_id) is not None):
        yield f"tool_id is {event.tool_id[:80]!r} and endpoint {event.endpoint}; mcp:SET is what /mcp/SET offers"
    if kind in ("function", "http") and len(event.tools) != 1:
        yield f"endpoint is {event.endpoint} and offers {len(event.tools)} tools; a function or a URL is one"
    named = None if event.environment is None else f"environment:{event.environment.name}"
    if (kind == "environment") != (named is not None) or named not in (None, event.endpoint):
        yield f"endpoint is {event.endpoint} and environment {named}; expected the same of an environment, or null"
    if event.max_turns is not None and not (named and 1 <= event.max_turns <= MAX_TURNS):
        yield f"max_turns is {event.max_turns}; expected 1 to {MAX_TURNS}, of an environment"


_CALL_FIELDS = {
    "create_model": "lora",
    "optim_step": "optimizer",
    "forward": "loss",
    "forward_backward": "loss",
    "refused": "refusal",
}
"""The field that calls of a kind have, and others have not."""
_CALL_MAY = (("load_weights", "lora"), ("copy_weights", "lora"))
"""The kinds that may have another kind's field."""


def _call_problems(call: TrainingCall) -> Iterator[str]:
    for name in set(_CALL_FIELDS.values()):
        is_needed, may = _CALL_FIELDS.get(call.kind) == name, (call.kind, name) in _CALL_MAY
        if not may and is_needed != (getattr(call, name) is not None):
            kinds = " and ".join(kind for kind, needed in _CALL_FIELDS.items() if needed == name)
            yield f"kind is {call.kind} and {name} is {'missing' if is_needed else 'set'}; {kinds} alone need it"
    if call.lora is not None and call.lora.rank < 1:
        yield f"lora.rank is {call.lora.rank}; expected 1 or more"
    if call.examples < 0 or call.tokens < 0:
        yield f"examples is {call.examples} and tokens {call.tokens}; expected 0 or more"
    yield from _reference_problems("data", call.data_uri, call.data_sha256, call.data)


def _result_problems(result: TrainingResult) -> Iterator[str]:
    if (result.category is None) != (result.error is None):
        yield f"category is {result.category} and error {result.error!r}; set both or neither"
    for name in ("prompt_tokens", "completion_tokens", "seconds", "trainer_s", "cost_usd"):
        if (getattr(result, name) or 0) < 0:
            yield f"{name} is {getattr(result, name)}; expected 0 or more"
    yield from _reference_problems("outputs", result.outputs_uri, result.outputs_sha256, result.outputs)


def _reference_problems(name: str, uri: str | None, sha256: str | None, content: Octets) -> Iterator[str]:
    """Yield what is wrong with tensors that are in the record, or in a file with a digest."""
    if (uri is None) != (sha256 is None) or (uri is not None and len(content)):
        yield f"{name} has {len(content)} bytes, uri {uri} and sha256 {sha256}; expected bytes, or the other two"
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        yield f"{name}_sha256 is no SHA-256; expected 64 hexadecimal digits in lower case"
