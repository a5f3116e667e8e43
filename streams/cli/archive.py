"""The commands that keep the log longer than its retention: admin archive …

    sync ──► new records into files       verify ──► each byte checked, exit code 1 if one is wrong
    list ──► archived ranges              restore ──► back into empty topics, with every offset
    compact ──► fewer, larger files       expire ──► records beyond an age removed

Queries, replay and reproduce read the archive by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped
from streams.cli.topics import complete_topic

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.archive.segments import ArchiveReader


names_argument = click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)


def _labels(call: AppContext, names: tuple[str, ...]) -> list[str]:
    from streams.kafka import times
    from streams.kafka.topics import LABELS

    return [topic.label for topic in times.named(call.settings, names or LABELS)]


@click.group()
def archive() -> None:
    """Archive topics beyond their retention.

    The archive is stored in archive.store: a Delta table per topic, which other engines can read.
    Commands take a TOPIC by label (tasks) or full name; default: all topics.
    """


@archive.command("sync")
@names_argument
@click.option("--follow", is_flag=True, help="Repeat every archive.follow_s seconds, until Ctrl-C.")
@output_option
@pass_call
def archive_sync(call: AppContext, names: tuple[str, ...], follow: bool, output: Output) -> None:
    """Archive new records of the log.

    Prints each partition with new records, and its archived range. It may be killed at any moment, and two may run at
    once. If retention has deleted records before they were archived, that is an error: nothing is archived after a gap.

    With --follow and metrics.port it serves /metrics, /healthz and /readyz.
    """
    from streams import output as show
    from streams.tools.archive import sync as syncing

    labels = _labels(call, names)
    with until_stopped() as stop:
        call.working = follow
        archive_once = syncing.run if follow else syncing.sync
        partitions = archive_once(call.settings, labels, stop=stop)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">first, >next, >new records=records, >not events=bad, >new segments=segments"),
    ]
    changed = [partition for partition in partitions if partition.records or partition.holes]
    show.rows(_rows(changed), columns, output)
    records, bad, holes = _total(changed, "records"), _total(changed, "bad"), _total(changed, "holes")
    headers_left_out = _total(changed, "headers_left_out")
    click.echo(
        f"{records} records archived in {call.settings.archive.store}"
        + (f"; {bad} of them are not events, and are archived as they are" if bad else "")
        + (f"; {headers_left_out} of them are kept without headers: a name is not UTF-8" if headers_left_out else "")
        + (f"; {holes} offsets hold no record (transactions, or compaction)" if holes else "")
        + (f"; {len(partitions) - len(changed)} partitions were up to date" if len(changed) < len(partitions) else ""),
        err=True,
    )


@archive.command("list")
@names_argument
@output_option
@pass_call
def archive_list(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Print the archived range of each partition. Needs no broker."""
    from streams import output as show
    from streams.tools.archive.segments import ArchiveReader

    reader = ArchiveReader(call.settings)
    rows = []
    for label in _labels(call, names):
        rows += [_partition_row(reader, label, partition) for partition in reader.partitions(label)]
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">first, >next, >records, >not events=bad, >segments, >bytes"),
        show.Column("from", lambda row: "" if row["from"] is None else show.moment(row["from"])),
        show.Column("to", lambda row: "" if row["to"] is None else show.moment(row["to"])),
    ]
    show.rows(rows, columns, output)
    if not rows:
        click.echo(
            f"{call.settings.archive.store} is empty; `streamward admin archive sync` archives the log.", err=True
        )


def _partition_row(reader: ArchiveReader, label: str, partition: int) -> dict[str, Any]:
    segments = reader.segments(label, partition)
    return {
        "topic": label,
        "partition": partition,
        "first": segments[0].first if segments else None,
        "next": reader.next_offset(label, partition),
        "records": _total(segments, "records"),
        "bad": _total(segments, "bad"),
        "segments": len(segments),
        "bytes": _total(segments, "bytes"),
        "from": min((segment.from_ms for segment in segments), default=None),
        "to": max((segment.to_ms for segment in segments), default=None),
        "schema_ids": sorted({number for segment in segments for number in segment.schema_ids}),
    }


@archive.command("verify")
@names_argument
@output_option
@click.pass_context
@pass_call
def archive_verify(call: AppContext, ctx: click.Context, names: tuple[str, ...], output: Output) -> None:
    """Verify every byte of the archive.

    Names each file that is missing or changed. The exit code is 0 only if nothing is wrong. Needs no broker.
    """
    from streams import output as show
    from streams.tools.archive import verify as verifying

    result = verifying.verify(call.settings, _labels(call, names))
    columns = [
        show.Column(
            "partition", lambda row: row["label"] if row["partition"] is None else f"{row['label']}[{row['partition']}]"
        ),
        *show.columns("file, what"),
    ]
    if result.findings or output == "jsonl":
        show.rows([finding._asdict() for finding in result.findings], columns, output)
    wrong = len({(finding.label, finding.partition, finding.file) for finding in result.findings})
    click.echo(
        f"{result.segments} segments with {result.records} records, of which {result.bad} are not events: "
        + (f"{wrong} files are missing or damaged" if wrong else "every byte is as it was written"),
        err=True,
    )
    ctx.exit(1 if result.findings else 0)


@archive.command("compact")
@names_argument
@output_option
@pass_call
def archive_compact(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Merge small files into larger ones.

    `admin archive sync` does so automatically for partitions with many files. Rows do not change; replaced files are
    removed a day later, also by this command. It may be killed at any moment. Needs no broker.
    """
    from streams import output as show
    from streams.tools.archive import compact as compacting

    tables = compacting.compact(call.settings, _labels(call, names))
    columns = show.columns("topic, >files before=before, >files=after, >removed")
    show.rows(_rows(tables), columns, output)
    before, after = _total(tables, "before"), _total(tables, "after")
    click.echo(f"the archive had {before} files, and has {after} now", err=True)


@archive.command("expire")
@names_argument
@click.option("--older-than", metavar="AGE", required=True, help="An age, e.g. 90d, or an ISO 8601 time.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@output_option
@pass_call
def archive_expire(call: AppContext, names: tuple[str, ...], older_than: str, dry_run: bool, output: Output) -> None:
    """Remove the oldest records from the archive.

    A file is removed once all its records are older, together with the files before it, so that no gap is left.
    Queries, replays and restores then begin after it. Its bytes stay for a day; the next `admin archive expire` or
    `admin archive compact` removes them. Needs no broker.
    """
    from streams import output as show
    from streams.kafka.times import parse_time
    from streams.tools.archive import compact as compacting

    before_ms = parse_time(older_than, "--older-than")
    partitions = compacting.expire(call.settings, before_ms, _labels(call, names), dry_run=dry_run)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">first left=first, >records, >segments, >bytes"),
    ]
    show.rows(_rows(partitions), columns, output)
    records, segments = _total(partitions, "records"), _total(partitions, "segments")
    result = "would be removed" if dry_run else "are removed"
    click.echo(f"{records} records in {segments} segments {result}, all before {show.moment(before_ms)}", err=True)


def _rows(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Return named tuples as rows whose `label` is called `topic`."""
    rows = []
    for entry in entries:
        row = entry._asdict()
        rows.append({"topic": row.pop("label"), **row})
    return rows


def _total(entries: Iterable[Any], field: str) -> int:
    return sum(getattr(entry, field) for entry in entries)


@archive.command("restore")
@names_argument
@click.option(
    "--into-prefix",
    metavar="PREFIX",
    default=None,
    help="Restore into topics with this prefix instead of topics.prefix.",
)
@click.option("--fill", is_flag=True, help="Also restore into topics that hold the first records of their archive.")
@click.option("--set-back", is_flag=True, help="Only set the retention of restored topics back.")
@output_option
@pass_call
def archive_restore(
    call: AppContext, names: tuple[str, ...], into_prefix: str | None, fill: bool, set_back: bool, output: Output
) -> None:
    """Restore the archive into empty topics.

    Each record returns to its partition and offset, with its key, timestamp and headers; a record with a header name
    that is not UTF-8 returns without headers. Offsets that held no record hold none again. Missing topics are created.
    A topic that holds records is refused, unless it holds all of its archive: then nothing is done. Repeat an
    interrupted restore to continue it.

    The retention of the topics is switched off (retention.ms=-1), since it would delete records this old at once. The
    archive records the old value. When you have what you need, --set-back restores it, also after a killed restore;
    Kafka then deletes older records.
    """
    from streams import output as show
    from streams.tools.archive import restore as restoring

    settings = call.settings_to_write
    target = settings
    if into_prefix is not None:
        target = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": into_prefix})})
    if set_back:
        restored = restoring.set_back(settings, _labels(call, names), into=target)
        columns = [show.Column("topic", "topic"), show.Column("retention_ms", "retention_ms", right=True)]
        show.rows([{"topic": topic.label, "retention_ms": topic.retention_ms} for topic in restored], columns, output)
        click.echo(f"The retention of {len(restored)} topics {target.topics.prefix}* is what it was.", err=True)
        return
    partitions = restoring.restore(settings, _labels(call, names), into=target, fill=fill)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">first, >next, >records"),
    ]
    fields = ("partition", "first", "next", "records", "headers_left_out", "holes")
    rows = [{"topic": part.label, **{name: getattr(part, name) for name in fields}} for part in partitions]
    show.rows(rows, columns, output)
    records = _total(partitions, "records")
    if not records:
        click.echo(f"{target.topics.prefix}* holds all of the archive already; nothing was changed.", err=True)
        return
    if holes := _total(partitions, "holes"):
        click.echo(f"{holes} offsets between them hold no record, as before; aborted transactions fill them.", err=True)
    headers_left_out = _total(partitions, "headers_left_out")
    if headers_left_out:
        click.echo(f"{headers_left_out} of these records have no headers: a name was not UTF-8.", err=True)
    click.echo(
        f"{records} records are restored to {target.topics.prefix}*. The retention of these topics is off now "
        "(retention.ms=-1); `streamward admin archive restore --set-back`, with the same names, sets it back.",
        err=True,
    )
