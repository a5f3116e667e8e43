"""Answers to a task and their rewards, groups of them with advantages, and the batches cut of groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import MAX_REWARD, Continuity, Int, Millis, Personal, Purpose, Sealed, Subject, derive_id
from schemas.task_events import AgentProgram, Sampling
from schemas.tokens import Logprobs, LossMask, TokenIds

MAX_COMPONENTS = 256
"""Most components of a reward, all of which its group repeats."""
COMPONENT_CHARACTERS = 200
"""Longest name of one."""
RATIONALE_CHARACTERS = 10_000
"""Longest rationale."""
FinishReason = Literal["stop", "length", "error"]
ControlKind = Literal["expire", "evict"]


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
    completion_token_ids: Annotated[TokenIds, "behind the shared ones", Personal] = TokenIds()
    logprobs: Annotated[Logprobs, "nats; 0 where the policy did not write the token", Personal] = Logprobs()
    loss_mask: Annotated[LossMask, "1 where the policy wrote the token and no chain before has it"] = LossMask()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTurn:
    """One model call of a response: which tokens it wrote, and what the environment made of them."""

    number: Annotated[Int, "of the turn in its trajectory"]
    chain: Annotated[Int, "where its tokens are: 0 is the response's own completion, n that of the branch n - 1"] = 0
    start: Annotated[Int, "its first token in that completion"]
    end: Annotated[Int, "behind its last token"]
    observation: Annotated[
        str | None, "digest of what the environment had shown before; null: not recorded", Personal
    ] = None
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
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
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
    error: Annotated[str | None, "why this slot failed for good; what is per token is then empty", Personal] = None
    prompt_tokens: Int
    completion_tokens: Int
    latency_ms: Annotated[float, "from the start of the sampling to its end, milliseconds"]
    text: Annotated[str, Personal]
    sampling: Annotated[Sampling, "as used"]
    agent_id: Annotated[str | None, "the agent whose trajectory this is; null: the policy answered directly"] = None
    steps: Annotated[Int | None, "an agent's model calls in this response and its branches"] = None
    success: Annotated[bool | None, "whether its environment says that the goal was reached; null: not recorded"] = None
    prompt_version: Annotated[str | None, "NAME@VERSION of the prompt that was sampled from; null: of none"] = None
    program: Annotated[AgentProgram | None, "of the agent, as in its trajectory; null: not recorded"] = None
    prompt_token_ids: Annotated[TokenIds, Personal] = TokenIds()
    completion_token_ids: Annotated[TokenIds, Personal] = TokenIds()
    logprobs: Annotated[Logprobs, "nats, one per completion token, under the distribution sampled from", Personal] = (
        Logprobs()
    )
    loss_mask: Annotated[LossMask, "1 where the policy wrote the token; one per completion token"] = LossMask()
    branches: Annotated[tuple[Branch, ...], "an agent's other chains of calls, in the order of their last calls"] = ()
    turns: Annotated[tuple[ResponseTurn, ...], "an agent's model calls in order, each in the chain that owns it"] = ()
    sealed: Sealed = None

    @property
    def batches(self) -> int:
        """How many batches its version's line had taken: its lag is counted from here; -1 if no version answered."""
        return self.adapter_version if self.trained_batches is None else self.trained_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One source's verdict on one response. A failed score has an error and no value; it is never 0.

    A source without an opinion abstains: it adds nothing to the reward, and nothing waits for it.
    """

    reward_id: Annotated[str, "uuid5(response_id, source)"]
    response_id: str
    task_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    policy: str
    slot: Int
    source: Annotated[str, "the task's reward source that speaks"]
    value: Annotated[float | None, "null if error is set, or the source abstains"] = None
    error: Annotated[str | None, "why no score could be given, after the last retry", Personal] = None
    abstained: Annotated[bool, "whether the source has no opinion"] = False
    scorer_version: str
    latency_ms: float = 0.0
    rationale: Annotated[str | None, Personal] = None
    components: Annotated[dict[str, float], "what the value is made of"] = field(default_factory=dict)
    steps: Annotated[tuple[float, ...], "what each turn of the response is worth, in order; empty: only the whole"] = ()
    sealed: Sealed = None


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
    agent_id: Annotated[str | None, "as in the response"] = None
    program: Annotated[AgentProgram | None, "as in the response"] = None
    prompt_token_ids: Annotated[TokenIds, "behind what the group's prompts have in common", Personal] = TokenIds()
    completion_token_ids: Annotated[TokenIds, Personal] = TokenIds()
    logprobs: Annotated[Logprobs, "nats", Personal] = Logprobs()
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
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
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
    prompt_token_ids: Annotated[TokenIds, "what the prompts of all responses begin with", Personal] = TokenIds()
    responses: Annotated[tuple[GroupResponse, ...], "in slot order"] = ()
    left_out: tuple[LeftOut, ...] = ()
    sealed: Sealed = None

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


def response_problems(response: Response) -> Iterator[str]:
    """Return one sentence for each rule that a response breaks."""
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


def group_problems(group: AdvantagedGroup) -> Iterator[str]:
    """Return one sentence for each rule that a group breaks."""
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


def reward_problems(reward: Reward) -> Iterator[str]:
    """Return one sentence for each rule that a reward breaks."""
    if (reward.value is not None) + (reward.error is not None) + reward.abstained != 1:
        yield (
            f"value is {reward.value}, error is {reward.error!r} and abstained is {reward.abstained}; exactly one of "
            "them must be set"
        )
    if reward.value is not None and not math.isfinite(reward.value):
        yield f"value is {reward.value}; a reward is a finite number (a failed score has an error and no value)"
    elif reward.value is not None and abs(reward.value) > MAX_REWARD:
        yield f"value is {reward.value}; expected at most {MAX_REWARD:g} in size. Scale the score down"
    if any(not math.isfinite(step) or abs(step) > MAX_REWARD for step in reward.steps):
        yield f"steps has a value that is not finite or above {MAX_REWARD:g} in size; scale the scores down"
    if reward.value is None and reward.steps:
        yield f"value is None and steps has {len(reward.steps)} values; without a score there are none"
    if len(reward.components) > MAX_COMPONENTS:
        yield f"components has {len(reward.components)} entries; expected at most {MAX_COMPONENTS}. Sum some of them up"
    if (longest := max(map(len, reward.components), default=0)) > COMPONENT_CHARACTERS:
        yield f"components has a name of {longest} characters; expected at most {COMPONENT_CHARACTERS}"
    if (said := len(reward.rationale or "")) > RATIONALE_CHARACTERS:
        yield f"rationale has {said} characters; expected at most {RATIONALE_CHARACTERS}. Shorten it"
    if reward.reward_id != derive_id(reward.response_id, reward.source):
        yield "reward_id is not uuid5(response_id, source); use schemas.events.derive_id"
