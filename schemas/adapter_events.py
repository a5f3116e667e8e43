"""Versions of a policy: their files, how each was made, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import MAX_GROUP_SIZE, Int, Millis, TuningMethod
from schemas.task_events import AgentProgram

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
Verdict = Literal["promote", "reject", "ask"]


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
class AnsweringAgent:
    """An agent and its program."""

    agent_id: str
    program: Annotated[AgentProgram | None, "null: not recorded"] = None


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
    agents: Annotated[tuple[AnsweringAgent, ...], "trained: those with responses among what it was trained on"] = ()

    @property
    def takes_batch(self) -> bool:
        """Whether the version that it makes took a batch of its policy's line, or the place of one."""
        return self.tuning is None and self.origin is None and self.outside is None


def adapter_problems(event: AdapterEvent) -> Iterator[str]:
    """Return one sentence for each rule that an adapter breaks."""
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
