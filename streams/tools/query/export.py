"""Write responses and their rewards as a data set for other trainers.

    groups ────┐
    responses ─┼─► one row per response of a group, in log order ──► examples ──► train, test ──► manifest.json
    tasks ─────┘                                                     by format    by question

The same records and options give the same bytes, and the manifest has the records, the number of examples and the
sha256 of each file. The question decides the split of an example; held-out ones are in neither (splits.py). A group
that was written twice counts once.

JSON lines are written here, so that fields that are not set are omitted, as chat templates and OpenAI's API need;
DuckDB's COPY would write null. COPY writes Parquet, which has nulls anyway. If lines differ, README.md has the types of
their fields (dataset_card.py).

Not covered: token ids. To train on those, train from the log (`streamward replay`).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from schemas import json_text
from streams.errors import NotFoundError, RefusedError
from streams.files import program_version, sha256_of
from streams.kafka.topics import topics
from streams.rows.training_gate import ReasonFinder
from streams.settings.model import Settings
from streams.tools.query.dataset_card import DatasetCard
from streams.tools.query.examples import COLUMNS, FORMATS, Example, ExampleSplit, ExportOptions, Row, check
from streams.tools.query.splits import ExampleOrigin, Splits, origin_of_group
from streams.tools.query.views import identifier, literal

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
ROW_GROUP_ROWS = 2048
"""DuckDB's own smallest row group."""

ROWS = """
WITH counted AS (
    SELECT _partition AS groups_partition, _offset AS groups_offset, group_id, task_id, subject, purpose,
           scenario, adapter_version, UNNEST(responses) AS member
    FROM groups
    WHERE policy = {policy} AND purpose = {purpose} AND dropped_reason IS NULL
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _partition, _offset) = 1
), asked AS (
    SELECT task_id, messages, verifier, metadata, thread, environment FROM whole.tasks
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
)
SELECT counted.group_id, counted.task_id, counted.subject, counted.purpose, counted.scenario,
       counted.adapter_version, asked.messages, asked.verifier, asked.metadata, asked.thread, asked.environment,
       member.slot AS slot, member.reward AS reward, member.advantage AS advantage, responses.text AS text,
       responses.finish_reason AS finish_reason, responses._partition AS responses_partition,
       responses._offset AS responses_offset, counted.groups_partition, counted.groups_offset
FROM counted
JOIN whole.responses AS responses ON responses._partition = member.partition AND responses._offset = member."offset"
JOIN asked ON asked.task_id = counted.task_id
ORDER BY counted.groups_partition, counted.groups_offset, slot
"""
"""One row per response that counted, those of one group together. The groups are those in scope; their tasks and
responses may be before it."""
LABELS = ("tasks", "responses", "groups")
"""The topics it reads."""


class File(NamedTuple):
    """One file of a data set."""

    path: str
    split: str
    examples: int
    bytes: int
    sha256: str


@dataclass(slots=True)
class Counts:
    """What was read, and what came of it."""

    groups: int = 0
    responses: int = 0
    examples: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Groups that gave no example, by reason; of conversations, responses and runs."""
    held_out: Counter[str] = field(default_factory=Counter)
    """Examples that are held out, by suite; they are in no split that is trained on."""


def statement(options: ExportOptions) -> str:
    """Return the SQL, over the views of streams/tools/query/session.py, whose rows `write` takes."""
    return ROWS.format(policy=literal(options.policy), purpose=literal(options.purpose or "train"))


def sources(settings: Settings) -> set[str]:
    """Return the names of the topics whose ranges a manifest states."""
    return {topics(settings.topics)[label].name for label in LABELS}


def check_folder(folder: Path) -> None:
    """Raise RefusedError if the folder holds anything."""
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder}: not empty; name a new folder, or remove what is in it")


def write(
    rows: Iterable[Row],
    options: ExportOptions,
    folder: Path,
    *,
    ranges: Iterable[Mapping[str, Any]],
    held_out: ReasonFinder | None = None,
) -> Counts:
    """Write the data set that `options` ask for to `folder`, which must be empty or missing; return the counts.

    `rows` are those of `statement`; `ranges` says which records they were taken from, for the manifest; `held_out`
    says why an example must not be trained on. Files appear under their names when all is written, the manifest last;
    if that fails, the folder is as it was before: empty, or not there.

    Raises RefusedError if the folder is not empty, NotFoundError if there is not one example.
    """
    counts = Counts()
    examples = _examples(rows, options, counts)
    write_examples(examples, options, folder, counts, ranges=lambda: ranges, held_out=held_out)
    return counts


def line_of(example: Example) -> str:
    """Return the line of an example."""
    return json_text.one_line(example)


def write_examples(
    examples: Iterable[tuple[Example, ExampleOrigin]],
    options: ExportOptions,
    folder: Path,
    counts: Counts,
    *,
    ranges: Callable[[], Iterable[Mapping[str, Any]]],
    held_out: ReasonFinder | None = None,
) -> None:
    """Write examples, each with its origin, as `write` does. `counts` is counted while they are made, and what `ranges`
    returns is known then."""
    lines = ((line_of(example), origin) for example, origin in examples)
    write_lines(lines, options, folder, counts, ranges=ranges, held_out=held_out)


def write_lines(
    lines: Iterable[tuple[str, ExampleOrigin]],
    options: ExportOptions,
    folder: Path,
    counts: Counts,
    *,
    ranges: Callable[[], Iterable[Mapping[str, Any]]],
    held_out: ReasonFinder | None = None,
) -> None:
    """Write the lines of examples, each with its origin, as `write_examples` does."""
    check(options)
    check_folder(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    names: tuple[ExampleSplit, ...] = ("train", "test", *(("held_out",) if options.with_held_out else ()))
    halves = {split: folder / f".{split}.half" for split in names}
    card, splits = DatasetCard(options), Splits(options, held_out)
    try:
        examples = _split_lines(_write_all(lines, splits, folder / ".all.half"), splits, halves, card, counts)
        if not counts.examples:
            raise NotFoundError(_no_examples(options, counts))
        files = []
        for split, half in halves.items():
            if not examples[split]:  # readers of data sets do not take an empty file
                continue
            if options.files == "parquet":
                half = _as_parquet(half)
            target = folder / f"{split}.{options.files}"
            files.append(File(target.name, split, examples[split], half.stat().st_size, sha256_of(half)))
            half.rename(target)
    finally:
        for left in folder.glob(".*.half"):
            left.unlink()
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    card.write(folder, {file.split: file.path for file in files})
    (folder / MANIFEST).write_text(_manifest(options, counts, files, ranges()))


def _write_all(lines: Iterable[tuple[str, ExampleOrigin]], splits: Splits, path: Path) -> Path:
    """Write every line to one file, and tell `splits` of it: where it belongs is known when all are there."""
    with path.open("w", encoding="utf-8") as file:
        for line, origin in lines:
            splits.add(line, origin)
            file.write(line + "\n")
    return path


def _split_lines(
    lines: Path, splits: Splits, halves: Mapping[ExampleSplit, Path], card: DatasetCard, counts: Counts
) -> Counter[str]:
    """Write each line to the file of its split, if it has one; return how many are in each."""
    written: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(half.open("w", encoding="utf-8")) for split, half in halves.items()}
        for line, (split, reason) in zip(
            stack.enter_context(lines.open(encoding="utf-8", newline="\n")), splits.decide(), strict=True
        ):
            counts.held_out.update(() if reason is None else (reason,))
            if split not in files:
                counts.examples -= 1
                continue
            files[split].write(line)
            card.add(line)
            written[split] += 1
    return written


def _as_parquet(lines: Path) -> Path:
    """Return the same examples as a Parquet file, in their order, beside the file of lines."""
    path = lines.with_name(f".parquet{lines.name}")
    with lines.open("rb") as file:
        longest = max(map(len, file))
        file.seek(0)
        names = json.loads(file.readline())
    columns = ", ".join(f"{identifier(name)}: {literal(COLUMNS.get(name, 'VARCHAR'))}" for name in names)
    with duckdb.connect() as con:
        con.execute(
            f"COPY (FROM read_json({literal(str(lines))}, format = 'newline_delimited', columns = {{{columns}}}, "
            f"maximum_object_size = {2 * longest})) TO {literal(str(path))} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
    return path


def _no_examples(options: ExportOptions, counts: Counts) -> str:
    if options.is_of_runs and not counts.responses:
        return (
            f"policy {options.policy} has no finished conversations in this range: a response is finished when its "
            "group is in the log, and an agent's run when it has ended (`streamward agents list AGENT`)"
        )
    if not counts.groups and not counts.responses:
        return (
            f"policy {options.policy} has no {options.purpose} groups with responses in this range; see what is there "
            "with `streamward query groups`"
        )
    if counts.held_out:
        return (
            f"every example is held out ({_reasons(counts.held_out)}), so there is nothing to train on; "
            "--with-held-out writes them to a file of their own"
        )
    reasons = _reasons(counts.left_out)
    subject = f"{counts.groups} groups" if counts.groups else f"{counts.responses} conversations"
    return f"{subject} were read and none gives an example ({reasons}); ask for less"


def _by_name(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in counts.most_common())


def _manifest(options: ExportOptions, counts: Counts, files: list[File], ranges: Iterable[Mapping[str, Any]]) -> str:
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "format": options.format,
        "options": asdict(options),
        "source": [dict(row) for row in ranges],
        "counts": asdict(counts) | {"left_out": _by_name(counts.left_out), "held_out": _by_name(counts.held_out)},
        "files": [file._asdict() for file in files],
        "streamward": program_version(),
    }
    return json.dumps(manifest, indent=2) + "\n"


def _examples(rows: Iterable[Row], options: ExportOptions, counts: Counts) -> Iterator[tuple[Example, ExampleOrigin]]:
    """Yield every example with its origin, and count."""
    for group in rows_by_group(rows):
        counts.groups += 1
        counts.responses += len(group)
        examples = FORMATS[options.format](group, options)
        if isinstance(examples, str):
            counts.left_out[examples] += 1
            continue
        origin = origin_of_group(group[0])
        for example in examples:
            counts.examples += 1
            yield example, origin


def rows_by_group(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each group."""
    for _, members in groupby(rows, key=lambda row: (row["groups_partition"], row["groups_offset"])):
        yield list(members)
