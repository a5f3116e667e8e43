"""The commands that look into the log, and put tasks there.

    topics  schemas  tasks  events  adapters     groups of commands, hooked into the root by cli.py

As thin as those in cli.py, and as careful not to import anything before a command runs.

Not covered: writing anything but tasks by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.errors import NotFoundError
from streams.shell import Call, output_option, pass_call

if TYPE_CHECKING:
    from schemas.events import AdapterEvent
    from streams.adapters import AdapterState
    from streams.show import Output


def _complete_topic(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from streams.topics import LABELS

    return [label for label in LABELS if label.startswith(incomplete)]


# --- topics -----------------------------------------------------------------------------------------------------------


@click.group()
def topics() -> None:
    """Create the topics, and look at them."""


@topics.command("apply")
@output_option
@pass_call
def topics_apply(call: Call, output: Output) -> None:
    """Create the topics that are missing. One that exists in another shape is an error, never changed."""
    from streams import cluster, show

    done = cluster.apply_topics(call.settings)
    columns = [show.Column("topic", "topic"), show.Column("result", "result")]
    show.rows([{"topic": name, "result": result} for name, result in done.items()], columns, output)


@topics.command("list")
@output_option
@pass_call
def topics_list(call: Call, output: Output) -> None:
    """Print each topic of this deployment: what lies in it, by which key, and how much."""
    from streams import cluster, show
    from streams.topics import topics as shapes

    settings = call.settings
    wanted = shapes(settings.topics)
    existing = cluster.describe(settings)
    bounds = cluster.offsets(settings, [label for label, topic in wanted.items() if topic.name in existing])
    data = [
        {
            "label": label,
            "name": topic.name,
            "partitions": existing.get(topic.name),
            "records": sum(high - low for (name, _), (low, high) in bounds.items() if name == topic.name)
            if topic.name in existing
            else None,
            "event": topic.event.__name__,
            "key": topic.key or "as in the source",
        }
        for label, topic in wanted.items()
    ]
    columns = [
        show.Column("label", "label"),
        show.Column("name", "name"),
        show.Column(
            "partitions", lambda row: "missing" if row["partitions"] is None else row["partitions"], right=True
        ),
        show.Column("records", "records", right=True),
        show.Column("event", "event"),
        show.Column("key", "key"),
    ]
    show.rows(data, columns, output)
    if any(row["partitions"] is None for row in data):
        click.echo("Some topics do not exist; create them with `streamward topics apply`.", err=True)


@topics.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=_complete_topic)
@output_option
@pass_call
def topics_describe(call: Call, names: tuple[str, ...], output: Output) -> None:
    """Print partitions, offsets and configuration of each TOPIC, or of all: by label (tasks) or full name."""
    from streams import cluster, show
    from streams import tail as tails
    from streams.topics import LABELS

    settings = call.settings
    shapes = tails.named(settings, names or LABELS)
    bounds = cluster.offsets(settings, [topic.label for topic in shapes])
    configs = cluster.configs(settings, [topic.name for topic in shapes])
    columns = [
        show.Column("topic", "topic"),
        show.Column("partition", "partition", right=True),
        show.Column("first", "first", right=True),
        show.Column("next", "next", right=True),
        show.Column("records", "records", right=True),
    ]
    for number, topic in enumerate(shapes):
        partitions = [
            {"partition": partition, "first": low, "next": high, "records": high - low}
            for (name, partition), (low, high) in bounds.items()
            if name == topic.name
        ]
        if output == "jsonl":
            print(show.json_line({"topic": topic.name, "config": configs[topic.name], "partitions": partitions}))
            continue
        if number:
            print()
        show.rows([{"topic": topic.name, **row} for row in partitions], columns, output)
        show.record(dict(sorted(configs[topic.name].items())), output)


# --- schemas ----------------------------------------------------------------------------------------------------------


@click.group()
def schemas() -> None:
    """Look at the Avro schemas of the events, and serve them."""


@schemas.command("list")
@output_option
def schemas_list(output: Output) -> None:
    """Print every schema that ever had an id."""
    from schemas.registry import files
    from streams import show

    data = [
        {"id": schema.id, "event": schema.event, "version": schema.version, "sha256": schema.sha256}
        for schema in files().schemas.values()
    ]
    columns = [
        show.Column("id", "id", right=True),
        show.Column("event", "event"),
        show.Column("version", "version", right=True),
        show.Column("sha256", lambda row: row["sha256"][:16]),
    ]
    show.rows(data, columns, output)


@schemas.command("check")
@click.pass_context
def schemas_check(ctx: click.Context) -> None:
    """Check the files against their lock, and every version against every other; exit code 1 if something is wrong."""
    from schemas.registry import SchemaError, check, files

    try:
        registry = files()
        problems = list(check(registry))
    except SchemaError as exc:
        problems = [str(exc)]
    for problem in problems:
        click.echo(problem)
    if problems:
        ctx.exit(1)
    click.echo(f"{len(registry.schemas)} schemas are as locked, and every version reads every other.", err=True)


# --- tasks ------------------------------------------------------------------------------------------------------------


@click.group()
def tasks() -> None:
    """Put tasks into the log."""


# --- events -----------------------------------------------------------------------------------------------------------


@click.group()
def events() -> None:
    """Look at what lies in the topics."""


@events.command("tail")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=_complete_topic)
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", default=None, help="End after N records.")
@click.option(
    "--from",
    "begin",
    metavar="start|end|-N|TIME",
    default=None,
    help="Begin at the first record, behind the last one, with the last N of each topic, or at an ISO 8601 time (UTC). "
    "Otherwise at the end, or at the start with --until-end.",
)
@click.option("--until-end", is_flag=True, help="End where the topics end now, instead of waiting for more.")
@output_option
@click.pass_context
@pass_call
def events_tail(
    call: Call,
    ctx: click.Context,
    names: tuple[str, ...],
    count: int | None,
    begin: str | None,
    until_end: bool,
    output: Output,
) -> None:
    """Print the events of each TOPIC (by label, e.g. tasks, or full name) as they come, until Ctrl-C.

    A record that cannot be decoded is shown with its reason, and makes the exit code 1. Nothing is committed: looking
    changes nothing.
    """
    from itertools import islice

    from schemas.serde import Poison
    from streams import show_events
    from streams import tail as tails

    start = tails.parse_begin(begin or ("start" if until_end else "end"))
    shapes = tails.named(call.settings, names)
    table = show_events.EventLines(several=len(shapes) > 1) if output == "table" else None
    poisoned = False
    for seen in islice(tails.tail(call.settings, shapes, start, until_end=until_end), count):
        if table is not None:
            table.add(seen)
        else:
            print(show_events.json_of(seen), flush=True)
        poisoned |= isinstance(seen.event, Poison)
    ctx.exit(1 if poisoned else 0)


# --- adapters ---------------------------------------------------------------------------------------------------------

policy_option = click.option("--policy", default=None, metavar="NAME", help="Of this policy, instead of policy.name.")


@click.group()
def adapters() -> None:
    """Look at the versions of a policy."""


@adapters.command("list")
@policy_option
@output_option
@pass_call
def adapters_list(call: Call, policy: str | None, output: Output) -> None:
    """Print every version of the policy: its status, where it comes from, and its held-out score."""
    from streams import show
    from streams.adapters import read_state

    state = read_state(call.settings, policy or call.settings.policy.name)
    columns = [
        show.Column("version", "version", right=True),
        show.Column("status", "status"),
        show.Column("parent", "parent_version", right=True),
        show.Column("batches", "batches"),
        show.Column("held out", lambda row: {suite: _score(metrics) for suite, metrics in row["held_out"].items()}),
        show.Column("created", lambda row: show.moment(row["created_at"]) if row["created_at"] else ""),
        show.Column("uri", "uri"),
    ]
    show.rows([_version(state, number) for number in sorted(state.versions)], columns, output)


@adapters.command("show")
@click.argument("version", type=click.IntRange(min=0))
@policy_option
@output_option
@pass_call
def adapters_show(call: Call, version: int, policy: str | None, output: Output) -> None:
    """Print everything the log says about VERSION: recipe, metrics, files, and each event of its life."""
    from streams import show

    name = policy or call.settings.policy.name
    state, life = _life(call, name, version)
    if version not in state.versions:
        raise NotFoundError(
            f"policy {name} has no adapter version {version}; the newest is {state.newest} "
            "(`streamward adapters list` shows all of them)"
        )
    row = _version(state, version)
    trained = next((event for _, event in life if event.kind == "trained"), None)
    row |= {
        "recipe": dict(trained.recipe) if trained else {},
        "files": [{"path": f.path, "bytes": f.bytes, "sha256": f.sha256} for f in state.versions[version].files],
        "events": [
            {
                "at": str(at),
                "created_at": event.created_at,
                "kind": event.kind,
                "actor": event.actor,
                "reason": event.reason,
            }
            for at, event in life
        ],
    }
    if output == "jsonl":
        print(show.json_line(row))
        return
    _show_version(row)


def _show_version(row: dict[str, Any]) -> None:
    from streams import show

    parts = {name: row.pop(name) for name in ("metrics", "held_out", "recipe", "files", "events")}
    row["created_at"] = show.moment(row["created_at"]) if row["created_at"] else ""
    show.record(row, "table")
    for title, part in parts.items():
        if not part:
            continue
        print(f"\n{title.replace('_', ' ')}")
        if isinstance(part, dict):
            show.record(part, "table")
        elif title == "files":
            columns = [show.Column(name, name) for name in ("path", "bytes", "sha256")]
            show.rows(part, columns, "table")
        else:
            time = show.Column("time", lambda event: show.moment(event["created_at"]))
            show.rows(part, [time, *(show.Column(name, name) for name in ("kind", "actor", "at", "reason"))], "table")


def _version(state: AdapterState, number: int) -> dict[str, Any]:
    version = state.versions[number]
    batches = None if version.first_batch is None else f"{version.first_batch}-{version.last_batch}"
    return {
        "policy": state.policy,
        "version": number,
        "status": version.status,
        "parent_version": version.parent_version,
        "batches": batches,
        "created_at": version.created_at or None,
        "uri": version.uri,
        "base_digest": version.base_digest,
        "metrics": dict(version.metrics),
        "held_out": {suite: dict(metrics) for suite, metrics in version.evaluated.items()},
    }


def _score(metrics: dict[str, float]) -> str:
    """Return the one number of a held-out evaluation that a table has room for, and of how many."""
    name = next((name for name in ("exact", "reward_mean", "reward") if name in metrics), next(iter(metrics), ""))
    count = f" (n {metrics['n']:.0f})" if "n" in metrics else ""
    return f"{metrics[name]:.3f}{count}" if name else "no metric"


def _life(call: Call, policy: str, version: int) -> tuple[AdapterState, list[tuple[Any, AdapterEvent]]]:
    """Return the state of a policy, and the events that name a version, with where they lie."""
    from schemas.events import AdapterEvent
    from streams import adapters as versions
    from streams.cluster import read_topic
    from streams.log import partition_of

    settings = call.settings
    state, life = versions.empty(policy), []
    for record in read_topic(settings, "adapters", partition=partition_of(policy, settings.topics.policy_partitions)):
        event = record.decode(AdapterEvent)
        if isinstance(event, AdapterEvent) and event.policy == policy:
            state = versions.fold(state, event)
            if event.version == version:
                life.append((record.at, event))
    return state, life
