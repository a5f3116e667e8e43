"""Write what was answered and how it was judged as a data set for other trainers.

    groups ─┐
    responses ─┼─► one row per response of a group, in log order ──► examples ──► train, test ──► manifest.json
    tasks ─┘                                                         by format    by task id

The same records under the same options give the same bytes, and the manifest says which records, how many examples and
the sha256 of each file. Which split an example is in depends on its task alone, so no question is on both sides. A
group that came twice counts once.

Not covered: token ids. Who wants to train on those trains from the log (`streamward replay`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.files import sha256_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.views import literal

Format = Literal["sft", "preference", "prompts", "openai", "openai-preference"]
MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
CHUNK_ROWS = 2048

ROWS = """
WITH counted AS (
    SELECT _partition AS groups_partition, _offset AS groups_offset, group_id, task_id, scenario, adapter_version,
           UNNEST(responses) AS member
    FROM groups
    WHERE policy = {policy} AND purpose = {purpose} AND dropped_reason IS NULL
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _partition, _offset) = 1
), asked AS (
    SELECT task_id, messages, verifier FROM whole.tasks
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
)
SELECT counted.group_id, counted.task_id, counted.scenario, counted.adapter_version, asked.messages, asked.verifier,
       member.slot AS slot, member.reward AS reward, member.advantage AS advantage, responses.text AS text,
       responses.finish_reason AS finish_reason, responses._partition AS responses_partition,
       responses._offset AS responses_offset, counted.groups_partition, counted.groups_offset
FROM counted
JOIN whole.responses AS responses ON responses._partition = member.partition AND responses._offset = member."offset"
JOIN asked ON asked.task_id = counted.task_id
ORDER BY counted.groups_partition, counted.groups_offset, slot
"""
"""One row per response that counted, those of one group together. The groups are those in scope; their tasks and
responses may lie before it."""
LABELS = ("tasks", "responses", "groups")
"""The topics it reads."""

Row = Mapping[str, Any]
Example = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to write."""

    policy: str
    format: Format = "sft"
    purpose: str = "train"
    min_reward: float | None = None
    """sft and openai: a response needs at least this reward."""
    margin: float = 0.0
    """Preference formats: best and worst must differ by more than this."""
    all_responses: bool = False
    """sft and openai: every response of a group that is good enough, not only the best one."""
    test_share: float = 0.1
    """Share of the tasks whose examples go to `test`."""
    seed: int = 0
    """Another seed puts other tasks into `test`."""
    files: Literal["jsonl", "parquet"] = "jsonl"


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
    """Groups that gave no example, by reason."""


def check(options: ExportOptions) -> None:
    """Raise SettingsError for options that have no effect together, or no meaning."""
    if not 0 <= options.test_share < 1:
        raise SettingsError(f"--test {options.test_share:g}: expected a share from 0 to below 1")
    single = options.format in ("sft", "openai")
    if not single and (options.min_reward is not None or options.all_responses):
        raise SettingsError(
            f"--min-reward and --all choose among responses one by one, which --format {options.format} does not; "
            "leave them out, or use --format sft"
        )
    if not options.format.endswith("preference") and options.margin:
        raise SettingsError("--margin compares the best response with the worst: it needs --format preference")
    if options.format.startswith("openai") and options.files == "parquet":
        raise SettingsError(f"--format {options.format} is JSON lines by definition; leave --files parquet out")


def statement(options: ExportOptions) -> str:
    """Return the SQL, over the views of streams/tools/query/session.py, whose rows `write` takes."""
    return ROWS.format(policy=literal(options.policy), purpose=literal(options.purpose))


def sources(settings: Settings) -> set[str]:
    """Return the names of the topics whose ranges a manifest states."""
    return {topics(settings.topics)[label].name for label in LABELS}


def write(rows: Iterable[Row], options: ExportOptions, folder: Path, *, ranges: Iterable[Mapping[str, Any]]) -> Counts:
    """Write the data set that `options` ask for to `folder`, which must be empty or not there; return the counts.

    `rows` are those of `statement`; `ranges` says which records they were taken from, for the manifest. Files appear
    under their names when all is written, the manifest last.

    Raises RefusedError if the folder holds something, NotFoundError if nothing fits.
    """
    check(options)
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder}: not empty; name a new folder, or remove what is in it")
    folder.mkdir(parents=True, exist_ok=True)
    counts = Counts()
    splits = ("train", "test") if options.test_share else ("train",)
    halves = {split: folder / f".{split}.half" for split in splits}
    writers = {split: _WRITERS[options.files](half) for split, half in halves.items()}
    try:
        for example, task_id in _examples(rows, options, counts):
            writers[split_of(task_id, options)].add(example)
    finally:
        for writer in writers.values():
            writer.close()
    if not counts.examples:
        for half in halves.values():
            half.unlink(missing_ok=True)
        raise NotFoundError(_nothing(options, counts))
    files = []
    for split, half in halves.items():
        if not writers[split].examples:  # readers of data sets do not take an empty file
            half.unlink(missing_ok=True)
            continue
        target = folder / f"{split}.{options.files}"
        files.append(File(target.name, split, writers[split].examples, half.stat().st_size, sha256_of(half)))
        half.rename(target)
    (folder / MANIFEST).write_text(_manifest(options, counts, files, ranges))
    return counts


def split_of(task_id: str, options: ExportOptions) -> str:
    """Return the split of a task: a share of the tasks, by a hash of the id.

    >>> split_of("t1", Options(policy="p")) == split_of("t1", Options(policy="p"))
    True
    """
    draw = int.from_bytes(hashlib.sha256(f"{options.seed}\x1f{task_id}".encode()).digest()[:8], "big") / 2**64
    return "test" if draw < options.test_share else "train"


def _nothing(options: ExportOptions, counts: Counts) -> str:
    if not counts.groups:
        return (
            f"policy {options.policy} has no {options.purpose} groups with responses in this range; see what is there "
            "with `streamward query groups`"
        )
    reasons = ", ".join(f"{number} {reason}" for reason, number in counts.left_out.most_common())
    return f"{counts.groups} groups were read and none gives an example ({reasons}); ask for less"


def _manifest(options: ExportOptions, counts: Counts, files: list[File], ranges: Iterable[Mapping[str, Any]]) -> str:
    from importlib.metadata import version

    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "format": options.format,
        "options": asdict(options),
        "source": [dict(row) for row in ranges],
        "counts": {**asdict(counts), "left_out": dict(sorted(counts.left_out.items()))},
        "files": [file._asdict() for file in files],
        "streamward": version("streamward"),
    }
    return json.dumps(manifest, indent=2) + "\n"


# --- examples ---------------------------------------------------------------------------------------------------------


def _examples(rows: Iterable[Row], options: ExportOptions, counts: Counts) -> Iterator[tuple[Example, str]]:
    """Yield every example with the id of its task, and count."""
    make = _FORMATS[options.format]
    for _, members in groupby(rows, key=lambda row: (row["groups_partition"], row["groups_offset"])):
        group = list(members)
        counts.groups += 1
        counts.responses += len(group)
        made = make(group, options)
        if isinstance(made, str):
            counts.left_out[made] += 1
            continue
        for example in made:
            counts.examples += 1
            yield example, group[0]["task_id"]


def _single(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """A prompt with an answer worth imitating: {messages, …}, the last message being the answer."""
    floor = options.min_reward
    good = [row for row in group if floor is None or row["reward"] >= floor]
    if not good:
        return "below the least reward"
    chosen = good if options.all_responses else [_best(good)]
    return [{"messages": [*_messages(row), _answer(row)], "reward": row["reward"], **_origin(row)} for row in chosen]


def _openai(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """OpenAI's chat format for supervised fine-tuning: {messages} and nothing else."""
    made = _single(group, options)
    return made if isinstance(made, str) else [{"messages": example["messages"]} for example in made]


def _preference(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """Best against worst of a group, as TRL's conversational preference format: {prompt, chosen, rejected, …}."""
    best, worst = _best(group), _worst(group)
    if best["reward"] - worst["reward"] <= options.margin:
        return "best and worst are too close"
    if best["text"] == worst["text"]:
        return "best and worst say the same"
    return [
        {
            "prompt": _messages(best),
            "chosen": [_answer(best)],
            "rejected": [_answer(worst)],
            "chosen_reward": best["reward"],
            "rejected_reward": worst["reward"],
            **_origin(best),
            "rejected_at": _at(worst),
        }
    ]


def _openai_preference(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """OpenAI's format for preference fine-tuning: {input, preferred_output, non_preferred_output}."""
    made = _preference(group, options)
    if isinstance(made, str):
        return made
    return [
        {
            "input": {"messages": example["prompt"]},
            "preferred_output": example["chosen"],
            "non_preferred_output": example["rejected"],
        }
        for example in made
    ]


def _prompts(group: list[Row], options: ExportOptions) -> list[Example] | str:
    """A prompt with everything it was answered and how that was judged: {prompt, verifier, completions, rewards, …}."""
    first = group[0]
    return [
        {
            "prompt": _messages(first),
            "verifier": first["verifier"],
            "completions": [row["text"] for row in group],
            "rewards": [row["reward"] for row in group],
            "task_id": first["task_id"],
            "scenario": first["scenario"],
            "adapter_version": first["adapter_version"],
            "group_at": f"groups[{first['groups_partition']}]@{first['groups_offset']}",
        }
    ]


_FORMATS: dict[Format, Callable[[list[Row], ExportOptions], list[Example] | str]] = {
    "sft": _single,
    "preference": _preference,
    "prompts": _prompts,
    "openai": _openai,
    "openai-preference": _openai_preference,
}


def _best(group: list[Row]) -> Row:
    return max(group, key=lambda row: (row["reward"], -row["slot"]))


def _worst(group: list[Row]) -> Row:
    return min(group, key=lambda row: (row["reward"], row["slot"]))


def _answer(row: Row) -> Example:
    return {"role": "assistant", "content": row["text"]}


def _origin(row: Row) -> Example:
    return {
        "task_id": row["task_id"],
        "scenario": row["scenario"],
        "adapter_version": row["adapter_version"],
        "finish_reason": row["finish_reason"],
        "response_at": _at(row),
    }


def _at(row: Row) -> str:
    return f"responses[{row['responses_partition']}]@{row['responses_offset']}"


def _messages(row: Row) -> list[Example]:
    """Return the prompt as chat templates and OpenAI's API take it; what is not set is left out."""
    messages = []
    for message in row["messages"]:
        said = {
            name: message[name] for name in ("role", "content", "name", "tool_call_id") if message[name] is not None
        }
        if message["tool_calls"]:
            said["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in message["tool_calls"]
            ]
        messages.append(said)
    return messages


# --- files ------------------------------------------------------------------------------------------------------------


class _Jsonl:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.examples = 0
        self._file = path.open("w", encoding="utf-8")

    def add(self, example: Example) -> None:
        self._file.write(json.dumps(example, ensure_ascii=False) + "\n")
        self.examples += 1

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """Row groups of CHUNK_ROWS examples, under one schema that has every message field."""

    def __init__(self, path: Path) -> None:
        self.examples = 0
        self._path = path
        self._waiting: list[Example] = []
        self._writer: Any = None

    def add(self, example: Example) -> None:
        self._waiting.append(example)
        self.examples += 1
        if len(self._waiting) == CHUNK_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, _arrow_schema(self._waiting[0]), compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=self._writer.schema))
        self._waiting = []


def _arrow_schema(example: Example) -> Any:
    """Return the Arrow schema of examples that look like this one."""
    import pyarrow as pa

    function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
    call = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)])
    names = ("role", "content", "name", "tool_call_id")
    message = pa.struct([*((name, pa.string()) for name in names), ("tool_calls", pa.list_(call))])
    types: dict[str, Any] = {
        **dict.fromkeys(("messages", "prompt", "chosen", "rejected"), pa.list_(message)),
        **dict.fromkeys(("reward", "chosen_reward", "rejected_reward"), pa.float64()),
        "rewards": pa.list_(pa.float64()),
        "completions": pa.list_(pa.string()),
        "adapter_version": pa.int32(),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in example])


_WRITERS: dict[str, type[_Jsonl] | type[_Parquet]] = {"jsonl": _Jsonl, "parquet": _Parquet}
