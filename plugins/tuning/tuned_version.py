"""Make the next version of a policy by tuning: examples in, one adapter version out.

    groups, a file or a data set ──► examples ─┐
    version to start from, of the store ───────┴─► Tuner ──► adapter store ──► adapters: trained ──► is it the one?

The event names all that the version depends on: where it started, the offsets of the groups and the slots chosen there,
the sha256 of the file or the digest of the data set, and the recipe; so `reproduce` makes it again. Nothing is written
before the last step. Killed before its event, it never was: the same command again makes the same bytes, and announces
them.

The version is the next in the one line of its policy, after tuned ones or those of batches, and the next batch is
trained onto it. A trainer on this machine waits meanwhile. One elsewhere, or another tuner, may be faster: the first
`trained` of a number in the log has it, and then the tuning is done again on top. A job's version is found in the log
by the job's id before each attempt, so that nothing is announced for it twice.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from plugins.tuning import from_log
from plugins.tuning.from_log import TokenLimits
from plugins.tuning.tuner import Tuner, TuningStep, TuningSteps
from schemas.events import AdapterEvent, AnsweringAgent, Tuning, TuningMethod, derive_id
from streams.adapters import signing, store
from streams.adapters.decisions import AdapterHistory, find_version, read_history
from streams.adapters.lora_shape import LoraChoice, LoraShape
from streams.adapters.versions import weights_of
from streams.engines.base_model import Base, load_base
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.prompts import Prompts
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.files import Scratch
from streams.kafka import times
from streams.kafka.history import History
from streams.kafka.record import encoded
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.examples import from_file
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import DatasetExamples, TunedExample, TuningSource, digest, loss_tokens
from trainer.step.model import pin
from trainer.versions import checkpoint
from trainer.versions.announce import announce, in_order, reason_of

ACTOR = "tune"
JOB = "job"
"""In the metadata of `trained`: the job that ordered the version."""
REPORT_EVERY = 20
"""Steps between two lines of the log; the first and the last step always have one."""
Report = Callable[[int, int, Sequence[TunedExample], TuningStep], None]
MOST_ATTEMPTS = 5
"""How often a tuning is done again because another process was faster."""

log = logging.getLogger(__name__)


class StartVersion(NamedTuple):
    """The version that tuning starts from."""

    policy: str
    version: int

    @classmethod
    def parse(cls, text: str, policy: str) -> StartVersion:
        """Return the version that VERSION, or POLICY:VERSION, names. Raises SettingsError.

        >>> StartVersion.parse("grpo:7", "coach")
        StartVersion(policy='grpo', version=7)
        """
        match = re.fullmatch(r"(?:(?P<policy>.+):)?(?P<version>\d{1,9})", text)
        if match is None:
            raise SettingsError(f"--start {text!r}: expected a version, as 3, or one of another policy, as {policy}:3")
        return cls(match["policy"] or policy, int(match["version"]))


SourceCheck = Callable[[TuningSource], Mapping[str, str]]
"""Returns what the event records of a source. Raises RefusedError if nothing may be tuned on it."""


def check_nothing(_: TuningSource) -> Mapping[str, str]:
    """Check nothing, and record nothing."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOrder:
    """An order to tune."""

    policy: str
    steps: TuningSteps
    curation: Curation
    groups_policy: str
    file: Path | None = None
    """Instead of groups."""
    dataset: DatasetExamples | None = None
    """Instead of groups."""
    start: StartVersion | None = None
    """None: the newest version of the policy."""
    groups_before: int | None = None
    """Only groups below this offset."""
    job_id: str | None = None
    """The job that it is for."""
    lora: LoraChoice | None = None
    """What it says of the adapter's shape, which else is that of the version to start from; None: the settings'."""
    check: SourceCheck = check_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedVersion:
    """The tuned version."""

    event: AdapterEvent
    looked_at: int | None = None
    """Groups that were looked at; None: the examples are those of a file or a data set."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Groups that gave no example, or rows of a data set that do not fit the model, by reason."""


class _Examples(NamedTuple):
    examples: list[TunedExample]
    tuning: Tuning
    looked_at: int | None
    left_out: Counter[str]
    source: TuningSource
    agents: Set[AnsweringAgent]


def tune(settings: Settings, order: TuningOrder, history: History, report: Report | None = None) -> TunedVersion:
    """Make the next version of `order.policy`; `history` has the groups.

    `report` is called after each step, with its number, how many there are, the examples and what the step came to;
    whatever it raises ends the tuning, and nothing is written.

    Raises NotFoundError if the file, a version or a single example is missing; SettingsError for lines that are no
    examples, or settings without effect; RefusedError if another process tunes the policy on this machine, others were
    faster each time, or `order.check` refuses the examples; EventError if the store does not hold what the log says;
    LogError if the log fails; StreamwardError if a disk is full, or no step had a finite gradient.
    """
    order.steps.check()
    order.curation.check()
    store.uri_of(settings.adapters.store, order.policy, 1)  # raises for a name that no folder can have
    signing.check_signing_key(settings.adapters)
    pin(settings)
    folders = f"{settings.adapters.store}, {settings.trainer.checkpoints} or the folder for temporary files"
    with checkpoint.explaining_disks(folders, "Fix that, and run the command again"):
        return _tune(settings, order, history, report)


def _tune(settings: Settings, order: TuningOrder, history: History, report: Report | None) -> TunedVersion:
    with checkpoint.hold_line(settings.trainer.checkpoints, order.policy):
        for _ in range(MOST_ATTEMPTS):
            if (tuned := _attempt(settings, order, history, report)) is not None:
                return tuned
            log.info("policy %s: another process made the next version first; tuning again, on top", order.policy)
    raise RefusedError(
        f"other processes made versions of {order.policy} while it was tuned, {MOST_ATTEMPTS} times. Nothing is lost: "
        "run the command again while its trainer is paused, or on the machine of the trainer, with its "
        "trainer.checkpoints, where the two take turns"
    )


def version_of_job(state: AdapterHistory, job_id: str) -> AdapterEvent | None:
    """Return the event of the version that was made for a job, if there is one."""
    events = (event for _, event in state.trained.values())
    return next((event for event in events if event.metadata.get(JOB) == job_id), None)


def _attempt(settings: Settings, order: TuningOrder, history: History, report: Report | None) -> TunedVersion | None:
    """Make the next version of the line as it is now; None if it was not the next any more at the end."""
    with Scratch("tune") as scratch:
        state = read_history(settings, order.policy)
        if order.job_id is not None and (made := version_of_job(state, order.job_id)) is not None:
            return TunedVersion(event=made)
        newest = weights_of(state.state.versions, state.state.newest).version
        start = order.start or StartVersion(order.policy, newest)
        start_event = _start_event(settings, state, start)
        settings = _with_shape(settings, order, start, start_event)
        base = load_base(settings.model)
        adapter = None if start_event is None else start_folder(settings, start_event, base, scratch)
        chosen = _examples(settings, order, start, base, history)
        recorded = order.check(chosen.source)
        tuner = Tuner(settings, base, order.steps, adapter)
        event = _event(order, state, base, chosen.tuning, tuner)
        event = replace(event, metadata={**event.metadata, **recorded}, agents=in_order(chosen.agents))
        encoded(event, topics(settings.topics)["adapters"])  # what is too large is refused before the work
        log.info(
            "policy %s: %s on %d examples, from version %d of %s",
            order.policy, order.steps.method, len(chosen.examples), start.version, start.policy,
        )  # fmt: skip

        def step(number: int, count: int, result: TuningStep) -> None:
            _log(number, count, result)
            if report is not None:
                report(number, count, chosen.examples, result)

        metrics = tuner.tune(chosen.examples, step)
        tuner.save(scratch / "tuned")
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        event = replace(event, metrics=finite, reason=reason_of(event.reason, finite))
        announced = announce(settings, event, scratch / "tuned", by_bytes=True)
    if announced is None:
        return None
    return TunedVersion(event=announced, looked_at=chosen.looked_at, left_out=chosen.left_out)


def limits_of(base: Base) -> TokenLimits:
    """Return what tokens must fit, for a model. Raises SettingsError without a chat template."""
    return TokenLimits(
        tokenizer_digest=base.tokenizer_digest,
        token_table=base.token_table,
        context_tokens=Prompts(base).context_tokens,
    )


def read_file(path: Path, method: TuningMethod, base: Base) -> from_file.ExampleFile:
    """Return the examples of a file, for a model. Raises as `from_file.read`."""
    limits = limits_of(base)
    return from_file.read(path, method, ChatTemplate(base.tokenizer), limits.context_tokens, limits.tokenizer_digest)


def start_folder(settings: Settings, event: AdapterEvent, base: Base, scratch: Path) -> Path:
    """Return the folder with the adapter of this event, fetched from the store into `scratch`.

    Raises NotFoundError if it has no files, RefusedError if it is of another base model, EventError if the store does
    not hold what the log says.
    """
    if event.outside is not None:
        raise NotFoundError(
            f"version {event.version} of {event.policy} is {event.outside.model} at {event.outside.url}, and has no "
            "weights here to tune; start from another one (`streamward adapters list`)"
        )
    if event.uri is None:
        raise NotFoundError(
            f"version {event.version} of {event.policy} has no files in a store; start from another one"
        )
    if event.base_digest not in (None, base.base_digest):
        raise RefusedError(
            f"version {event.version} of {event.policy} was trained on base {event.base_digest[:12]}, and "
            f"model.base={settings.model.base} has {base.base_digest[:12]}; set model.base and model.dtype to what it "
            "was trained on"
        )
    signed = signing.expected_signer(settings.adapters, event.policy, event.version)
    return store.fetch(settings.adapters.store, event.uri, event.files, scratch, signed)


# --- what it depends on -----------------------------------------------------------------------------------------------


def _start_event(settings: Settings, state: AdapterHistory, start: StartVersion) -> AdapterEvent | None:
    """Return the event that made the version to start from; None for the base model. Raises NotFoundError."""
    history = state if start.policy == state.state.policy else read_history(settings, start.policy)
    version = find_version(history.state, start.version)
    if start.version and version.status == "retired":
        raise NotFoundError(
            f"version {start.version} of {start.policy} has no files in the store: it is retired; name another one "
            "with --start"
        )
    return history.trained_event(start.version)


def _with_shape(
    settings: Settings, order: TuningOrder, start: StartVersion, start_event: AdapterEvent | None
) -> Settings:
    """Return the settings with the shape of the adapter to make. Raises SettingsError if its start has another one."""
    if order.lora is None:
        return settings
    start_shape = None if start_event is None else LoraShape.of_recipe(start_event.recipe)
    place = f"version {start.version} of {start.policy}"
    if (problem := order.lora.contradiction(start_shape, place)) is not None:
        raise SettingsError(problem)
    return order.lora.over(start_shape or LoraShape.of_settings(settings)).in_settings(settings)


def _examples(settings: Settings, order: TuningOrder, start: StartVersion, base: Base, history: History) -> _Examples:
    """Return the examples, and what the event says of them."""
    tuning = Tuning(
        method=order.steps.method,
        start_policy=None if start.policy == order.policy else start.policy,
        start_version=start.version,
        examples=0,
        loss_tokens=0,
        digest="",
    )
    source = TuningSource(policy=order.policy, file=order.file, dataset=order.dataset)
    agents: Set[AnsweringAgent] = frozenset()
    if order.file is not None:
        read = read_file(order.file, order.steps.method, base)
        examples, looked_at, left_out = read.examples, None, read.left_out
        tuning = replace(tuning, file=read.name, file_sha256=read.sha256)
    elif order.dataset is not None:
        (examples, left_out), looked_at = from_log.choose_rows(order.dataset, limits_of(base)), None
        agents = order.dataset.agents
        tuning = replace(tuning, dataset=order.dataset.dataset, dataset_digest=order.dataset.digest)
    else:
        chosen = from_log.choose(
            settings, order.groups_policy, order.curation, limits_of(base), history, before=order.groups_before
        )
        examples, looked_at, left_out = chosen.examples, chosen.looked_at, chosen.left_out
        agents = chosen.agents
        source = replace(source, groups_policy=chosen.policy, task_ids=tuple(chosen.task_ids))
        tuning = replace(
            tuning,
            groups_policy=chosen.policy,
            groups_partition=chosen.partition,
            selection=order.curation.plain(),
            groups=tuple(chosen.groups),
        )
    tuning = replace(tuning, examples=len(examples), loss_tokens=loss_tokens(examples), digest=digest(examples))
    return _Examples(examples, tuning, looked_at, left_out, source, agents)


def _event(order: TuningOrder, state: AdapterHistory, base: Base, tuning: Tuning, tuner: Tuner) -> AdapterEvent:
    """Return the event of the next version, without its files and metrics."""
    version = state.state.newest + 1
    origin = tuning.file or f"{len(tuning.groups)} groups of {tuning.groups_policy}"
    if tuning.dataset is not None:
        origin = f"data set {tuning.dataset}@{(tuning.dataset_digest or '')[:12]}"
    return AdapterEvent(
        event_id=derive_id(order.policy, version, "trained"),
        policy=order.policy,
        created_at=times.now_ms(),
        metadata={} if order.job_id is None else {JOB: order.job_id},
        version=version,
        kind="trained",
        actor=ACTOR,
        reason=f"{tuning.method} on {tuning.examples} examples: {origin}",
        parent_version=None if tuning.start_policy is not None else tuning.start_version,
        tuning=tuning,
        base_digest=base.base_digest,
        recipe=tuner.recipe,
    )


# --- making it --------------------------------------------------------------------------------------------------------


def _log(number: int, count: int, step: TuningStep) -> None:
    if number in (1, count) or number % REPORT_EVERY == 0:
        log.info("step %d of %d: loss %.4f, gradient %.3g", number, count, step.loss, step.grad_norm)
