"""The commands that keep the log longer than its retention.

    archive sync ──► what is new, into files      archive verify ──► each byte of them, exit code 1 if one is wrong
    archive list ──► what there is                archive restore ──► back into empty topics, with every offset
    archive compact ──► fewer, larger files       archive expire ──► what is older than an age is removed

Queries, replay and reproduce read the archive by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped
from streams.cli.topics import complete_topic

if TYPE_CHECKING:
    from streams.output import Output


names_argument = click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)


def _labels(call: AppContext, names: tuple[str, ...]) -> list[str]:
    from streams.kafka import times
    from streams.kafka.topics import LABELS

    return [topic.label for topic in times.named(call.settings, names or LABELS)]


@click.group()
def archive() -> None:
    """Keep topics in files, beyond their retention.

    The archive is stored in archive.store: a Delta table per topic, which other engines read too.
    Commands take a TOPIC by label (tasks) or full name; default: all topics.
    """


@archive.command("sync")
@names_argument
@click.option("--follow", is_flag=True, help="Repeat every archive.follow_s seconds, until Ctrl-C.")
@output_option
@pass_call
def archive_sync(call: AppContext, names: tuple[str, ...], follow: bool, output: Output) -> None:
    """Archive what is new in the log.

    Prints each partition with new records, and what the archive holds of it now. It may be killed at any moment, and
    two may run at once. If retention has deleted records that were not archived yet, that is an error: nothing is
    archived after a gap.

    With --follow and metrics.port it serves /metrics, /healthz and /readyz.
    """
    from streams import output as show
    from streams.tools.archive import sync as syncing

    labels = _labels(call, names)
    with until_stopped() as stop:
        call.working = follow
        done = (
            syncing.run(call.settings, labels, stop=stop) if follow else syncing.sync(call.settings, labels, stop=stop)
        )
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        show.Column("first", "first", right=True),
        show.Column("next", "next", right=True),
        show.Column("new records", "records", right=True),
        show.Column("not events", "bad", right=True),
        show.Column("new segments", "segments", right=True),
    ]
    new = [each for each in done if each.records]
    rows = [{"topic": each.label, **each._asdict()} for each in new]
    show.rows([{name: row[name] for name in row if name != "label"} for row in rows], columns, output)
    records, bad = sum(each.records for each in new), sum(each.bad for each in new)
    headers_left_out = sum(each.headers_left_out for each in new)
    click.echo(
        f"{records} records archived in {call.settings.archive.store}"
        + (f"; {bad} of them are not events, and are kept as they are" if bad else "")
        + (f"; {headers_left_out} of them are kept without headers: a name is not UTF-8" if headers_left_out else "")
        + (f"; {len(done) - len(new)} partitions were up to date" if len(new) < len(done) else ""),
        err=True,
    )


@archive.command("list")
@names_argument
@output_option
@pass_call
def archive_list(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Print what is archived of each partition. Needs no broker."""
    from streams import output as show
    from streams.tools.archive.segments import ArchiveReader

    kept = ArchiveReader(call.settings)
    rows = []
    for label in _labels(call, names):
        for partition in kept.partitions(label):
            segments = kept.segments(label, partition)
            rows.append(
                {
                    "topic": label,
                    "partition": partition,
                    "first": segments[0].first if segments else None,
                    "next": kept.next_offset(label, partition),
                    "records": sum(each.records for each in segments),
                    "bad": sum(each.bad for each in segments),
                    "segments": len(segments),
                    "bytes": sum(each.bytes for each in segments),
                    "from": min((each.from_ms for each in segments), default=None),
                    "to": max((each.to_ms for each in segments), default=None),
                    "schema_ids": sorted({number for each in segments for number in each.schema_ids}),
                }
            )
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        show.Column("first", "first", right=True),
        show.Column("next", "next", right=True),
        show.Column("records", "records", right=True),
        show.Column("not events", "bad", right=True),
        show.Column("segments", "segments", right=True),
        show.Column("bytes", "bytes", right=True),
        show.Column("from", lambda row: "" if row["from"] is None else show.moment(row["from"])),
        show.Column("to", lambda row: "" if row["to"] is None else show.moment(row["to"])),
    ]
    show.rows(rows, columns, output)
    if not rows:
        click.echo(
            f"{call.settings.archive.store} holds nothing; `streamward archive sync` archives the log.", err=True
        )


@archive.command("verify")
@names_argument
@output_option
@click.pass_context
@pass_call
def archive_verify(call: AppContext, ctx: click.Context, names: tuple[str, ...], output: Output) -> None:
    """Name each file that is missing or changed.

    Reads every byte of the archive. The exit code is 0 only if nothing is wrong. Needs no broker.
    """
    from streams import output as show
    from streams.tools.archive import verify as verifying

    found = verifying.verify(call.settings, _labels(call, names))
    columns = [
        show.Column(
            "partition", lambda row: row["label"] if row["partition"] is None else f"{row['label']}[{row['partition']}]"
        ),
        show.Column("file", "file"),
        show.Column("what", "what"),
    ]
    if found.findings or output == "jsonl":
        show.rows([finding._asdict() for finding in found.findings], columns, output)
    wrong = len({(each.label, each.partition, each.file) for each in found.findings})
    click.echo(
        f"{found.segments} segments with {found.records} records, of which {found.bad} are not events: "
        + (f"{wrong} files are missing or damaged" if wrong else "every byte is as it was written"),
        err=True,
    )
    ctx.exit(1 if found.findings else 0)


@archive.command("compact")
@names_argument
@output_option
@pass_call
def archive_compact(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Merge small files into larger ones.

    `archive sync` does so by itself where a partition has many. Rows stay as they are; files that were replaced are
    removed a day later, by this command too. It may be killed at any moment. Needs no broker.
    """
    from streams import output as show
    from streams.tools.archive import compact as compacting

    done = compacting.compact(call.settings, _labels(call, names))
    columns = [
        show.Column("topic", "topic"),
        show.Column("files before", "before", right=True),
        show.Column("files", "after", right=True),
        show.Column("removed", "removed", right=True),
    ]
    show.rows([{"topic": each.label, **_without_label(each._asdict())} for each in done], columns, output)
    before, after = sum(each.before for each in done), sum(each.after for each in done)
    click.echo(f"{before} files were part of the archive, and {after} are now", err=True)


@archive.command("expire")
@names_argument
@click.option("--older-than", metavar="AGE", required=True, help="An age, e.g. 90d, or an ISO 8601 time.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@output_option
@pass_call
def archive_expire(call: AppContext, names: tuple[str, ...], older_than: str, dry_run: bool, output: Output) -> None:
    """Remove the oldest records from the archive.

    A file is removed once all of its records are older, and with it each before it, so that no gap is left. Queries,
    replays and restores then begin after it. Its bytes stay for a day, and are removed by the next `archive expire` or
    `archive compact`. Needs no broker.
    """
    from streams import output as show
    from streams.kafka.times import parse_time
    from streams.tools.archive import compact as compacting

    before_ms = parse_time(older_than, "--older-than")
    done = compacting.expire(call.settings, before_ms, _labels(call, names), dry_run=dry_run)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        show.Column("first left", "first", right=True),
        show.Column("records", "records", right=True),
        show.Column("segments", "segments", right=True),
        show.Column("bytes", "bytes", right=True),
    ]
    show.rows([{"topic": each.label, **_without_label(each._asdict())} for each in done], columns, output)
    records, segments = sum(each.records for each in done), sum(each.segments for each in done)
    what = "would be removed" if dry_run else "are removed"
    click.echo(f"{records} records in {segments} segments {what}, all before {show.moment(before_ms)}", err=True)


def _without_label(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "label"}


@archive.command("restore")
@names_argument
@click.option(
    "--into-prefix", metavar="PREFIX", default=None, help="Into the topics with this prefix instead of topics.prefix."
)
@click.option("--fill", is_flag=True, help="Also into topics that hold the first records of their archive.")
@click.option("--set-back", is_flag=True, help="Restore nothing: set the retention of restored topics back.")
@output_option
@pass_call
def archive_restore(
    call: AppContext, names: tuple[str, ...], into_prefix: str | None, fill: bool, set_back: bool, output: Output
) -> None:
    """Restore the archive into empty topics.

    Each record returns to its partition and offset, with its key, timestamp and headers; a record with a header name
    that is not UTF-8 returns without headers. Missing topics are created; one that holds records is refused, unless it
    holds all of its archive: then nothing is done. An interrupted restore continues when it is repeated.

    The retention of the topics is switched off (retention.ms=-1), since it would delete records this old at once. What
    it was is kept in the archive. When you have what you need, --set-back sets it again, also after a restore that was
    killed; Kafka then deletes what is older.
    """
    from streams import output as show
    from streams.tools.archive import restore as restoring

    settings = call.settings_to_write
    into = settings
    if into_prefix is not None:
        into = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": into_prefix})})
    if set_back:
        restored = restoring.set_back(settings, _labels(call, names), into=into)
        columns = [show.Column("topic", "topic"), show.Column("retention_ms", "retention_ms", right=True)]
        show.rows([{"topic": one.label, "retention_ms": one.retention_ms} for one in restored], columns, output)
        click.echo(f"The retention of {len(restored)} topics {into.topics.prefix}* is what it was.", err=True)
        return
    done = restoring.restore(settings, _labels(call, names), into=into, fill=fill)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        show.Column("first", "first", right=True),
        show.Column("next", "next", right=True),
        show.Column("records", "records", right=True),
    ]
    rows = [
        {
            "topic": each.label,
            "partition": each.partition,
            "first": each.first,
            "next": each.next,
            "records": each.records,
            "headers_left_out": each.headers_left_out,
        }
        for each in done
    ]
    show.rows(rows, columns, output)
    if not (records := sum(each.records for each in done)):
        click.echo(f"{into.topics.prefix}* holds all of the archive already; nothing was changed.", err=True)
        return
    headers_left_out = sum(each.headers_left_out for each in done)
    if headers_left_out:
        click.echo(f"{headers_left_out} of these records have no headers: a name was not UTF-8.", err=True)
    click.echo(
        f"{records} records are restored to {into.topics.prefix}*. The retention of these topics is off now "
        "(retention.ms=-1); `streamward archive restore --set-back`, with the same names, sets it back.",
        err=True,
    )
