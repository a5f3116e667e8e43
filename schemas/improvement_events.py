"""Runs and rows that are judged, data sets that are made of them, and why a retraining started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.adapter_events import AdapterFile
from schemas.event_types import KIB, MIB, Int, Millis, Personal, Sealed, Subject
from schemas.experiment_events import SourceRange

RunVerdict = Literal["promote", "reject", "needs_human"]
Labeller = Literal["gates", "judge", "person"]
RowLabeller = Literal["scorer", "judge", "person", "order"]
DatasetKind = Literal["built", "submitted", "succeeded", "failed", "cancelled"]
TriggerKind = Literal["ticked", "crossed"]
TriggerAction = Literal["tune", "train", "selfplay"]


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
    answer: Annotated[str, "as it was given, cut to RATIONALE_CHARACTERS", Personal]
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

    MOST_BYTES: ClassVar[int] = MIB
    event_id: Annotated[str, "uuid5(answer_id, labeller, actor, rubric_digest, transcript_digest, supersedes)"]
    task_id: Annotated[str, "key of the record; the conversation where no task was submitted"]
    answer_id: Annotated[str, "the run: a response, or where no task was submitted a conversation, or one run of it"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
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
    rationale: Annotated[str, Personal]
    rubric: Annotated[str, "what good means: name@version"]
    rubric_digest: Annotated[str, "sha256 over gates, bounds and the judge's instructions"]
    transcript_digest: Annotated[str, "sha256 over the transcript as it was judged, after cutting", Personal]
    judge: Annotated[CurationJudge | None, "set exactly when the labeller is the judge"] = None
    agreement: Annotated[JudgeAgreement | None, "set exactly when the judge promotes"] = None
    supersedes: Annotated[str | None, "event_id of the verdict on the run that counted before"] = None
    cut: Annotated[tuple[str, ...], "what of the transcript was not shown, in words; a cut run is never promoted"] = ()
    runs: Annotated[tuple[str, ...], "of a conversation: the trajectories that were judged, in order"] = ()
    gates: tuple[GateResult, ...] = ()
    sealed: Sealed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationEvent:
    """A label of a row of a file: whether it is good enough to learn from. A person's newest counts before others."""

    MOST_BYTES: ClassVar[int] = MIB
    event_id: Annotated[str, "uuid5(tenant, row_id, labeller, actor, rubric_digest, supersedes)"]
    row_id: Annotated[str, "key of the record: sha256 over the row's columns, in the order of their names"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    tenant: str | None = None
    place: Annotated[str, "where it was read: FILE:LINE"]
    row: Annotated[str, "its columns, as JSON"]
    verdict: RunVerdict
    labeller: Annotated[RowLabeller, "order: it only waits for a person"]
    actor: Annotated[str, "annotate, the scorer's name, or a person"]
    rationale: str
    rubric: Annotated[str, "what good means: name@version, or a scorer with its settings"]
    rubric_digest: Annotated[str, "sha256 over the judge's instructions, or over scorer, settings and bound"]
    judge: Annotated[CurationJudge | None, "set exactly when the labeller is the judge"] = None
    score: Annotated[GateResult | None, "set exactly when the labeller is the scorer: its value and the bound"] = None
    supersedes: Annotated[str | None, "event_id of the row's newest label before this one"] = None


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

    MOST_BYTES: ClassVar[int] = 2 * MIB
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

    MOST_BYTES: ClassVar[int] = 256 * KIB
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


def curation_problems(event: CurationEvent) -> Iterator[str]:
    """Return one sentence for each rule that a curation breaks."""
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


def annotation_problems(event: AnnotationEvent) -> Iterator[str]:
    """Return one sentence for each rule that a label of a row breaks."""
    for labeller, field_name, evidence in (("judge", "judge", event.judge), ("scorer", "score", event.score)):
        if (event.labeller == labeller) != (evidence is not None):
            is_set = "set" if evidence else "null"
            yield f"labeller is {event.labeller} but {field_name} is {is_set}; set both or neither"
    expected = "needs_human" if event.labeller == "order" else event.judge and (event.judge.verdict or "needs_human")
    if expected is not None and event.verdict != expected:
        yield f"verdict is {event.verdict} of {event.labeller}, expected {expected}"


def dataset_problems(event: DatasetEvent) -> Iterator[str]:
    """Return one sentence for each rule that a dataset breaks."""
    if (event.kind == "built") != (event.manifest_sha256 is not None):
        yield f"kind is {event.kind} but manifest_sha256 is {event.manifest_sha256!r}; it is that of what was built"
    if (event.kind == "built") != (event.outside is None):
        yield f"kind is {event.kind} but outside is {'null' if event.outside is None else 'set'}; built alone has none"


def trigger_problems(event: TriggerEvent) -> Iterator[str]:
    """Return one sentence for each rule that a trigger breaks."""
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if (event.kind == "crossed") != (event.signal is not None and event.action is not None):
        yield f"kind is {event.kind}, signal {event.signal!r}, action {event.action!r}; a crossing alone has both"
    if event.kind == "ticked" and event.due_at is None:
        yield "kind is ticked but due_at is null; a tick is of a time"
