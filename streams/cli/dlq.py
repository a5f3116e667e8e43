"""The commands of dead letters: records that a stage could not use.

    admin dlq list, show ──► dead letters with their reasons and original bytes
    admin dlq retry, drop ──► a decision, once ──► the original redriven to its topic, or not

A retry helps only once the cause is fixed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, several, user_name
from streams.errors import NotFoundError, RefusedError, SettingsError, StreamwardError

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.dead_letters.letters import Letter, Letters, Matching, Verdict
    from streams.tools.dead_letters.originals import Original
    from streams.tools.dead_letters.redrive import RedriveOrder, RedriveOutcome

DUMPED_BYTES = 4096
"""Bytes to dump of a payload that is not an event; --raw writes all of them."""


@click.group()
def dlq() -> None:
    """Inspect, retry or drop dead letters.

    A dead letter is a record that a stage could not use. LETTER is its id, six or more of its first characters, or
    coordinates as topic[partition]@offset: its own, or those of the source record.
    """


_filters = several(
    click.option("--reason", metavar="REASON", default=None, help="Only with this reason."),
    click.option("--stage", metavar="STAGE", default=None, help="Only those of this stage."),
    click.option("--topic", metavar="TOPIC", default=None, help="Only about records of this topic, by label or name."),
    click.option(
        "--since",
        metavar="TIME",
        default=None,
        help="Only those written since this time or age.",
    ),
)
"""Adds the options that choose dead letters; the command gets `reason`, `stage`, `topic` and `since`."""


def _matching(
    call: AppContext, letters: Letters, *, reason: str | None, stage: str | None, topic: str | None, since: str | None
) -> Matching:
    from streams.kafka.times import parse_time
    from streams.tools.dead_letters.letters import Matching, topic_named

    since_ms = None if since is None else parse_time(since, "--since")
    name = None if topic is None else topic_named(call.settings, letters, topic)
    return Matching(reason=reason, stage=stage, topic=name, since_ms=since_ms)


# --- looking ----------------------------------------------------------------------------------------------------------


@dlq.command("list")
@_filters
@click.option("--all", "include_decided", is_flag=True, help="Also list those that were retried or dropped.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", default=None, help="Only the newest N.")
@output_option
@pass_call
def dlq_list(
    call: AppContext, /, include_decided: bool, limit: int | None, output: Output, **filters: str | None
) -> None:
    """Print the open dead letters, newest last."""
    from streams import output as show
    from streams.tools.dead_letters import letters as dead_letters

    letters = dead_letters.load(call.settings)
    criteria = _matching(call, letters, **filters)
    matches = letters.matching(criteria) if include_decided else letters.matching(criteria, "open")
    columns = [
        show.Column("letter", lambda row: row["letter"][:8]),
        show.Column("when", lambda row: show.moment(row["written_at"])),
        *show.columns("stage, reason, source, state"),
        show.Column("error", lambda row: row["error"].removeprefix(f"{row['source']}: "), optional=True),
    ]
    show.rows([_row(letters, letter) for letter in matches[-limit if limit else 0 :]], columns, output)
    if not matches:
        decided = len(letters.matching(criteria))
        click.echo(f"No such dead letter is open{f'; {decided} are decided (--all)' if decided else ''}.", err=True)


def _row(letters: Letters, letter: Letter) -> dict[str, Any]:
    event = letter.event
    return {
        "letter": event.dead_letter_id,
        "at": str(letter.at),
        "written_at": letter.written_ms,
        "stage": event.stage,
        "reason": event.reason,
        "source": str(letter.source),
        "source_timestamp": event.source_timestamp,
        "bytes": letter.payload_bytes,
        "state": letters.state(letter),
        "error": event.error,
    }


@dlq.command("show")
@click.argument("name", metavar="LETTER")
@click.option(
    "--raw",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE|-",
    default=None,
    help="Write only the original bytes to FILE or stdout.",
)
@output_option
@pass_call
def dlq_show(call: AppContext, name: str, raw: Path | None, output: Output) -> None:
    """Print a dead letter with its original record.

    The payload is printed as JSON if it can be decoded, else as a hex dump, after the fields that can be read. If
    two stages wrote dead letters about the same coordinates, both are printed.
    """
    from streams import output as show
    from streams.errors import EventError
    from streams.tools.dead_letters import letters as dead_letters
    from streams.tools.dead_letters.originals import originals

    settings = call.settings
    letters = dead_letters.load(settings)
    matches = letters.find(name, prefix=settings.topics.prefix)
    for number, (letter, original) in enumerate(originals(settings, matches)):
        if isinstance(original, EventError):
            raise original
        if raw is not None:
            _write_raw(original.payload, raw, letter)
            return
        row = _row(letters, letter) | {
            "decisions": [
                {
                    "at": str(decision.at),
                    "written_at": decision.written_ms,
                    "state": decision.verdict,
                    "said": decision.said,
                }
                for decision in letters.decisions(letter.source)
            ],
            "key": None if original.key is None else _text(original.key),
            "headers": {header: _text(value) for header, value in original.headers.items()},
            "payload": _payload(call, letter, original),
        }
        if output == "jsonl":
            print(show.json_line(row))
            continue
        if number:
            print()
        _show(row, original)


def _write_raw(payload: bytes | None, raw: Path, letter: Letter) -> None:
    if payload is None:
        raise NotFoundError(
            f"{letter.source}: there are no bytes to write: the record is a tombstone, without a payload"
        )
    if str(raw) == "-":
        click.get_binary_stream("stdout").write(payload)
        return
    try:
        raw.write_bytes(payload)
    except OSError as exc:
        raise StreamwardError(f"{raw}: {exc.strerror}; give a file that can be written, or - for stdout") from exc


def _payload(call: AppContext, letter: Letter, original: Original) -> dict[str, Any] | None:
    """Return the original's payload as a JSON object; None for a tombstone."""
    from schemas.serde import Poison, decode, fields_read
    from streams.kafka.topics import topics

    if original.payload is None:
        return None
    shape = next((t for t in topics(call.settings.topics).values() if t.name == letter.event.source_topic), None)
    as_text = {"base64": base64.b64encode(original.payload).decode()}
    if shape is None:
        error = f"{letter.event.source_topic} is not a topic of this deployment, so the type of its events is unknown"
        return {"poison": {"reason": "unknown_topic", "error": error}} | as_text
    event = decode(original.payload, shape.event)
    if isinstance(event, Poison):
        fields = fields_read(original.payload, shape.event)
        return {"poison": {"reason": event.reason, "error": event.error}, "fields": fields} | as_text
    return {"kind": shape.event.__name__, "event": event}


def _show(row: dict[str, Any], original: Original) -> None:
    import json

    from streams import output as show

    payload, decisions = row.pop("payload"), row.pop("decisions")
    times = {name: show.moment(row[name]) for name in ("written_at", "source_timestamp")}
    show.record(row | times, "table")
    if decisions:
        print("\ndecisions")
        time = show.Column("time", lambda decision: show.moment(decision["written_at"]))
        show.rows(decisions, [time, *(show.Column(name, name) for name in ("state", "at", "said"))], "table")
    if payload is None:
        print("\nno payload: a tombstone")
    elif "event" in payload:
        print(f"\npayload: {payload['kind']}")
        text = json.dumps(json.loads(show.json_line(payload["event"])), indent=2, ensure_ascii=False)
        for line in text.splitlines():
            print(show.printable(line))
    else:
        print(f"\npayload: {payload['poison']['reason']}: {show.printable(payload['poison']['error'])}")
        fields = payload.get("fields")
        if fields:
            print("\nfields that can be read")
            show.record({name: show.json_line(value) for name, value in fields.items()}, "table")
            print()
        for line in hex_dump(original.payload or b""):
            print(line)


def hex_dump(data: bytes) -> Iterator[str]:
    """Yield lines of offset, 16 bytes, and the same as ASCII, as `hexdump -C` prints them; at most DUMPED_BYTES."""
    for start in range(0, min(len(data), DUMPED_BYTES), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"{start:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  |{text}|"
    if len(data) > DUMPED_BYTES:
        yield f"... {len(data) - DUMPED_BYTES} bytes more; --raw FILE writes all of them"


def _text(data: bytes) -> str:
    """Return bytes as text if they are printable, else as a Python literal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)
    return text if text.isprintable() else repr(data)


# --- deciding ---------------------------------------------------------------------------------------------------------


_deciding = several(
    click.argument("names", metavar="[LETTER]...", nargs=-1),
    _filters,
    click.option(
        "--all-matching", is_flag=True, help="Decide about all open ones that match the filters, instead of LETTER."
    ),
    click.option("--why", "note", metavar="TEXT", default="", help="Reason to record with your name."),
    click.option("--dry-run", is_flag=True, help="Print what would happen, and write nothing."),
    output_option,
)
"""Adds the arguments that `retry` and `drop` share."""


@dlq.command("retry")
@_deciding
@click.option("--force", is_flag=True, help="Also retry records that would fail again or were dropped.")
@click.option("--source-gone", is_flag=True, help="Also retry records whose source is no longer on its topic.")
@click.option("--unfinished", is_flag=True, help="With --all-matching: finish interrupted retries instead.")
@pass_call
def dlq_retry(call: AppContext, /, output: Output, **options: Any) -> None:
    """Redrive original records to their topics.

    Use it once the cause is fixed. The record keeps its key, payload and headers, and gets the header
    streamward-retry. Nothing is retried twice, even if two users try at once; a retry finishes another that was
    interrupted two minutes earlier. A record that would fail again is refused with exit code 4, and so is a dead letter
    that the record at its source does not confirm.
    """
    _decide(call, "retried", Choice(**options), output)


@dlq.command("drop")
@_deciding
@pass_call
def dlq_drop(call: AppContext, /, output: Output, **options: Any) -> None:
    """Close dead letters without a retry.

    They are no longer listed; the log keeps them, with actor and reason.
    """
    _decide(call, "dropped", Choice(**options), output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options of `retry` and `drop`: which dead letters to decide about, and how."""

    names: tuple[str, ...]
    all_matching: bool
    note: str
    dry_run: bool
    reason: str | None
    stage: str | None
    topic: str | None
    since: str | None
    force: bool = False
    source_gone: bool = False
    unfinished: bool = False

    @property
    def filters(self) -> dict[str, str | None]:
        """The filters, which need --all-matching."""
        return {"reason": self.reason, "stage": self.stage, "topic": self.topic, "since": self.since}


def _decide(call: AppContext, verdict: Verdict, choice: Choice, output: Output) -> None:
    from streams.tools.dead_letters import letters as dead_letters, redrive

    if bool(choice.names) == choice.all_matching:
        raise SettingsError(
            "name each dead letter (`streamward admin dlq list` shows them), or give --all-matching; one of the two"
        )
    if choice.names and (choice.unfinished or any(choice.filters.values())):
        raise SettingsError(
            "--reason, --stage, --topic, --since and --unfinished choose dead letters for --all-matching"
        )
    settings = call.settings if choice.dry_run else call.settings_to_write
    letters = dead_letters.load(settings)
    if choice.names:
        chosen = [letter for name in choice.names for letter in letters.find(name, prefix=settings.topics.prefix)]
    else:
        criteria = _matching(call, letters, **choice.filters)
        chosen = letters.matching(criteria, "retried" if choice.unfinished else "open")
    order = redrive.RedriveOrder(
        verdict=verdict,
        actor=user_name(),
        why=choice.note,
        force=choice.force,
        source_gone=choice.source_gone,
        dry_run=choice.dry_run,
    )
    outcomes: Iterable[RedriveOutcome] = redrive.decide(settings, letters, chosen, order)
    if choice.unfinished:
        outcomes = (outcome for outcome in outcomes if outcome.result != "already")
    _report(outcomes, order, output)


def _report(outcomes: Iterable[RedriveOutcome], order: RedriveOrder, output: Output) -> None:
    """Print a line per outcome, and a summary. Raises the error of the only refusal, or RefusedError for several."""
    from collections import Counter

    from streams import output as show

    columns = [
        show.Column("letter", lambda row: row["letter"][:8], 8),
        show.Column("result", "result", 11),
        show.Column("source", "source", 40),
        show.Column("what", lambda row: row["error"] or (f"now {row['at']}" if row["at"] else "")),
    ]
    lines = show.Lines(columns) if output == "table" else None
    counts: Counter[str] = Counter()
    errors: list[StreamwardError] = []
    for outcome in outcomes:
        counts[outcome.result] += 1
        errors += [outcome.error] if outcome.error else []
        row = {
            "letter": outcome.letter.event.dead_letter_id,
            "source": str(outcome.letter.source),
            "result": outcome.result,
            "at": None if outcome.at is None else str(outcome.at),
            "error": None if outcome.error is None else str(outcome.error),
        }
        if lines is None:
            print(show.json_line(row), flush=True)
        else:
            lines.add(row)
    words = {"already": f"{order.verdict} already", "would retry": "would be retried", "would drop": "would be dropped"}
    summary = ", ".join(f"{count} {words.get(result, result)}" for result, count in counts.items())
    click.echo(f"{summary}." if summary else "No dead letter matches.", err=True)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RefusedError(f"{len(errors)} of {counts.total()} dead letters were refused; their lines have the reasons")
