"""Build a data set of promoted runs, reproducibly.

    curation, groups, trajectories, … ──► judged runs ──► shares, split ──► files, manifest ──► DatasetEvent `built`
                                └─ ranges of offsets and the rule: all that the rows depend on

The same ranges and the same rule give the same bytes on every machine, at any time. The event's id is derived from the
digest of the rows, so an interrupted build that is repeated writes one event, and so do two builds with the same rows.
Later verdicts change only the next set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plugins.data.cleaning.input_drift import drift, drift_figures, profile
from plugins.improve.datasets import dataset_files, dataset_log, dataset_rows as rows
from plugins.improve.datasets.dataset_files import CARD, MANIFEST
from plugins.improve.datasets.dataset_rule import DatasetRule, check_name
from plugins.improve.datasets.dataset_shares import SPLITS, PlacedRun, keep_shares, place
from plugins.improve.datasets.judged_runs import JudgedRun, JudgedRuns, read_runs
from plugins.improve.datasets.pairs import partners
from plugins.improve.datasets.source_ranges import RangedHistory, ranges_now
from plugins.improve.settings import Improve
from schemas.events import AdapterEvent, AgentEvent, DatasetEvent, SourceRange, derive_id
from schemas.key_source import NO_TRAINING, may_train
from schemas.serde import Poison
from streams import files as code
from streams.adapters.versions import manifest_digest
from streams.errors import NotFoundError
from streams.kafka.history import History
from streams.kafka.topics import topics
from streams.rows.row_texts import RowTexts
from streams.rows.training_gate import TrainingCheck
from streams.settings.model import Settings

MANIFEST_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOrder:
    """A data set to build."""

    name: str
    rule: DatasetRule
    actor: str
    reason: str
    root: Path | None = None
    """Where the folder of the build is made. None: improve.datasets."""
    allow_contaminated: bool = False
    """Whether it may have questions that a suite holds out; the actor is then recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedDataset:
    """A data set, not yet written."""

    event: DatasetEvent
    """Without its folder."""
    placed: Sequence[PlacedRun]
    contents: Mapping[str, bytes]
    """By the names of its files."""


def build(settings: Settings, order: DatasetOrder, history: History) -> tuple[DatasetEvent, bool]:
    """Build a data set from the current log. Return its event, and whether it was written now.

    Raises SettingsError for an unusable name or rule, NotFoundError if there is no run that fits, ContaminatedError if
    a row has a question that a suite holds out, RefusedError if its folder is taken, LogError.
    """
    check_name(order.name)
    order.rule.check()
    composed = compose(settings, order, ranges_now(history), history, code.code_version())
    recorded_sets = dataset_log.read(settings)
    existing = recorded_sets.event(composed.event.event_id)
    if existing is not None and existing.folder is not None and (Path(existing.folder) / MANIFEST).is_file():
        return existing, False
    recorded = _check(settings, order, composed)
    timestamp = folder_name(composed.event.created_at)
    root = order.root or settings.of_plugin(Improve).datasets
    folder, is_there = dataset_files.folder_for(root, timestamp, composed.event.digest, composed.contents)
    if not is_there:
        dataset_files.write(composed.contents, folder)
    event = replace(composed.event, folder=str(folder), metadata=composed.event.metadata | recorded)
    return dataset_log.announce(settings, with_drift(event, composed.placed, recorded_sets.newest(order.name)))


def with_drift(event: DatasetEvent, placed: Sequence[PlacedRun], before: DatasetEvent | None) -> DatasetEvent:
    """Return the event with how far the questions of its newer rows have moved from those of the build before it.

    Newer are rows with a verdict that the build before it did not read, so that no row is compared with itself.
    """
    if before is None or not before.inputs:
        return event
    read = {(part.topic, part.partition): part.next for part in before.ranges}
    newer = [row for row in placed if _position(row) >= read.get(_partition(row), 0)]
    if not newer:
        return event
    return replace(event, drift=drift_figures(drift(before.inputs, _inputs(newer))), drift_from=before.digest)


def _inputs(placed: Iterable[PlacedRun]) -> dict[str, int]:
    return profile((line, row.run.verdict.scenario) for row in placed for line in rows.conversations(row.run)[:1])


def _partition(row: PlacedRun) -> tuple[str, int]:
    return row.run.placed.at.topic, row.run.placed.at.partition


def _position(row: PlacedRun) -> int:
    return row.run.placed.at.offset


def _check(settings: Settings, order: DatasetOrder, composed: ComposedDataset) -> dict[str, str]:
    """Return what the event records of held-out questions in the train rows. Raises ContaminatedError."""
    check = TrainingCheck(settings, allowed_by=order.actor if order.allow_contaminated else None)
    train = (row.run for row in composed.placed if row.split == "train")
    texts = (RowTexts(f"run {run.finished.answer_id}", rows.texts(run)) for run in train)
    return dict(check.check_texts(order.rule.policy, texts, f"data set {order.name}"))


def compose(
    settings: Settings,
    order: DatasetOrder,
    ranges: tuple[SourceRange, ...],
    history: History,
    code_version: str,
    allows: Callable[[str | None], bool] = may_train,
) -> ComposedDataset:
    """Return the data set of these ranges, of persons whom `allows` says allow training.

    Raises NotFoundError if no run fits, and says why; LogError.
    """
    ranged, rule = RangedHistory(settings, history, ranges), order.rule
    runs = read_runs(settings, ranged, rule, allows)
    whole = [run for run in runs.promoted if rows.conversations(run)]
    runs.left_out["without an answer"] += len(runs.promoted) - len(whole)
    kept, over = keep_shares(whole, rule)
    left_out = +(runs.left_out + over)
    if not kept:
        raise NotFoundError(_no_rows(order, runs, left_out))
    placed = place(kept, partners(kept, runs.rejected), rule)
    contents, keys = dataset_files.row_files(placed)
    files = dataset_files.files_of(contents)
    digest = manifest_digest(files)
    event = DatasetEvent(
        event_id=derive_id(order.name, "built", digest),
        dataset=order.name,
        created_at=runs.newest_ms,
        kind="built",
        policy=rule.policy,
        tenant=rule.tenant,
        actor=order.actor,
        reason=order.reason,
        digest=digest,
        code_version=code_version,
        selection=rule.plain(),
        counts=_counts(placed, contents, left_out),
        scenarios=dict(sorted(Counter(run.verdict.scenario for run in kept).items())),
        labellers=dict(sorted(Counter(run.verdict.labeller for run in kept).items())),
        manifest_sha256="",
        ranges=ranges,
        versions=tuple(sorted({version for run in kept for version in run.versions})),
        files=files,
        inputs=_inputs(placed),
        metadata={NO_TRAINING: " ".join(sorted(runs.restricted))} if runs.restricted else {},
    )
    manifest = _manifest(event, placed, _sources(settings, ranged, event, kept))
    contents |= {CARD: dataset_files.card(keys, order.name), MANIFEST: dataset_files.manifest_text(manifest)}
    sealed = {file.path: file.sha256 for file in dataset_files.files_of(contents)}
    return ComposedDataset(event=replace(event, manifest_sha256=sealed[MANIFEST]), placed=placed, contents=contents)


def folder_name(newest_ms: int) -> str:
    """Return the name of a folder: the time of the newest verdict, in UTC.

    >>> folder_name(1_795_690_000_123)
    '20261126T104640.123Z'
    """
    return datetime.fromtimestamp(newest_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.") + f"{newest_ms % 1000:03}Z"


def _counts(placed: Sequence[PlacedRun], contents: Mapping[str, bytes], left_out: Counter[str]) -> dict[str, int]:
    by_split = Counter(row.split for row in placed)
    lines = {name.removesuffix(".jsonl"): content.count(b"\n") for name, content in contents.items()}
    return {
        **{split: by_split[split] for split in SPLITS},
        "pairs": sum(lines.get(f"{split}.pairs", 0) for split in SPLITS),
        "clusters": len({row.cluster for row in placed}),
        **{f"left out: {reason}": number for reason, number in sorted(left_out.items())},
    }


def _no_rows(order: DatasetOrder, runs: JudgedRuns, left_out: Counter[str]) -> str:
    if not runs.promoted and not left_out:
        return (
            f"data set {order.name}: no run of policy {order.rule.policy} has a verdict; judge some with "
            "`streamward improve curate run`"
        )
    reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.most_common())
    return f"data set {order.name}: {left_out.total()} judged runs of {order.rule.policy} and none fits ({reasons})"


# --- the manifest -----------------------------------------------------------------------------------------------------


def _manifest(event: DatasetEvent, placed: Sequence[PlacedRun], sources: dict[str, Any]) -> dict[str, Any]:
    rows_of_set = len(placed)
    verdicts = [row.run.verdict for row in placed]
    judges = Counter(
        (verdict.judge.model, verdict.judge.endpoint, verdict.judge.prompt_version, verdict.judge.prompt_digest)
        for verdict in verdicts
        if verdict.judge is not None
    )
    rubrics = Counter((verdict.rubric, verdict.rubric_digest) for verdict in verdicts)
    return {
        "manifest_version": MANIFEST_VERSION,
        "dataset": event.dataset,
        "digest": event.digest,
        "policy": event.policy,
        "tenant": event.tenant,
        "code_version": event.code_version,
        "rule": event.selection,
        "ranges": [f"{part.topic}[{part.partition}]@{part.first}-{part.next}" for part in event.ranges],
        "counts": event.counts,
        "scenario_shares": _shares(event.scenarios, rows_of_set),
        "labeller_shares": _shares(event.labellers, rows_of_set),
        **sources,
        "rubrics": [{"rubric": name, "digest": digest, "rows": count} for (name, digest), count in rubrics.items()],
        "judges": [
            dict(zip(("model", "endpoint", "prompt_version", "prompt_digest"), judge, strict=True)) | {"rows": count}
            for judge, count in judges.items()
        ],
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in event.files],
        "rows": [_row(row) for row in placed],
    }


def _row(row: PlacedRun) -> dict[str, Any]:
    run = row.run
    return {
        "answer_id": run.finished.answer_id,
        "split": row.split,
        "cluster": row.cluster,
        "run_at": str(run.finished.position),
        "verdict": run.verdict.event_id,
        "verdict_at": str(run.placed.at),
        "labeller": run.verdict.labeller,
        **({} if row.rejected is None else {"rejected": row.rejected.finished.answer_id}),
    }


def _shares(counts: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: round(count / total, 4) for name, count in counts.items()}


def _sources(
    settings: Settings, history: RangedHistory, event: DatasetEvent, kept: Sequence[JudgedRun]
) -> dict[str, Any]:
    """Return what the runs came from: base models, the versions that answered, and the agents, with their programs.

    The log has the digest of a base model with each answer, and its name with the versions that were trained on it.
    """
    named = topics(settings.topics)
    versions: dict[int, dict[str, Any]] = {}
    base_names: dict[str, str] = {}
    for record in history.records("adapters"):
        trained = record.decode_placed(AdapterEvent, named["adapters"].partitions)
        if isinstance(trained, Poison) or (trained.policy, trained.kind) != (event.policy, "trained"):
            continue
        if trained.base_digest is not None and (base := trained.recipe.get("model.base")) is not None:
            base_names.setdefault(trained.base_digest, base)
        if trained.version in event.versions:
            about = {"version": trained.version, "digest": manifest_digest(trained.files), "at": str(record.at)}
            versions.setdefault(trained.version, about)
    agents: dict[str, dict[str, Any]] = {}
    answered = Counter(run.agent for run in kept if run.agent is not None)
    agent_ids = {agent.agent_id for agent in answered}
    for record in history.records("agents"):
        agent = record.decode_placed(AgentEvent, named["agents"].partitions)
        if not isinstance(agent, Poison) and agent.agent_id in agent_ids:
            agents[agent.agent_id] = {"registration": agent.event_id, "at": str(record.at)}
    bases = Counter(digest for run in kept for digest in run.base_digests)
    return {
        "base_models": [
            {"digest": digest, "name": base_names.get(digest), "rows": count} for digest, count in sorted(bases.items())
        ],
        "versions": [versions.get(version, {"version": version, "digest": None}) for version in event.versions],
        "agents": [
            {**asdict(agent), **agents.get(agent.agent_id, {}), "rows": count} for agent, count in answered.items()
        ],
    }
