"""The commands about experiments: experiments list, show, compare.

To delete an experiment, delete its topics: their names begin with the prefix that `experiments show` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def experiments() -> None:
    """Look at experiments and their results."""


@experiments.command("list")
@output_option
@pass_call
def experiments_list(call: AppContext, output: Output) -> None:
    """Print every experiment of this log."""
    from streams import output as show
    from streams.errors import SettingsError
    from streams.tools.replay import comparison, experiments as records

    rows, every = [], records.read(call.settings)
    for name, one in every.items():
        newest, state, reason = 0, str(one.kind), one.reason
        try:
            newest = comparison.side(call.settings, name, every).newest
        except SettingsError as exc:  # anybody who may write events may write odd ones
            state, reason = "unreadable", str(exc)
        counts = {key: one.counts.get(key, 0) for key in ("tasks", "groups", "batches", "steps")}
        rows.append(
            {"experiment": name, "policy": one.policy, "state": state, "created_at": one.created_at, **counts,
             "newest": newest, "changed": list(one.changed), "reason": reason}
        )  # fmt: skip
    columns = [
        show.Column("experiment", "experiment"),
        show.Column("of", "policy"),
        show.Column("state", "state"),
        show.Column("created", lambda row: show.moment(row["created_at"])),
        *(show.Column(title, title, right=True) for title in ("tasks", "groups", "steps", "newest")),
        show.Column("changed", "changed", optional=True),
    ]
    show.rows(rows, columns, output)


@experiments.command("show")
@click.argument("name")
@output_option
@pass_call
def experiments_show(call: AppContext, name: str, output: Output) -> None:
    """Print where an experiment came from.

    Which offsets of which topics, under which settings and code, and each of its events.
    """
    from streams import output as show
    from streams.kafka.topics import topics
    from streams.tools.replay import experiments as records

    one = records.find(call.settings, name)
    own = records.of(call.settings, one)
    row: dict[str, Any] = {
        "experiment": name,
        "policy": one.policy,
        "state": one.kind,
        "reason": one.reason,
        "topics": own.topics.prefix,
        "config": str(one.folder / "streamward.toml"),
        "code_version": one.code_version,
        "selection": dict(one.selection),
        "changed": {key: one.settings.get(key, "") for key in one.changed},
        "counts": dict(one.counts),
        "ranges": [f"{r.topic}[{r.partition}]@{r.first}-{r.next - 1}" for r in one.ranges if r.first < r.next],
        "events": [
            {"created_at": e.created_at, "kind": e.kind, "actor": e.actor, "reason": e.reason} for e in one.events
        ],
    }
    if output == "jsonl":
        print(show.json_line(row | {"settings": dict(one.settings), "labels": list(topics(own.topics))}))
        return
    events = row.pop("events")
    show.record({key: value for key, value in row.items() if value not in ("", {}, [])}, "table")
    print("\nevents")
    columns = [
        show.Column("created", lambda e: show.moment(e["created_at"])),
        *(show.Column(title, title) for title in ("kind", "actor", "reason")),
    ]
    show.rows(events, columns, "table")


@experiments.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@output_option
@pass_call
def experiments_compare(call: AppContext, first: str, second: str, output: Output) -> None:
    """Print held-out scores side by side.

    A and B are experiments, or policies of this log. The exit code is 3 if neither has a score.
    """
    from streams import output as show
    from streams.errors import NotFoundError
    from streams.tools.replay import comparison

    lines = [comparison.side(call.settings, name) for name in (first, second)]
    for one in lines:
        if not one.scores:
            how = f"`streamward replay evaluate {one.name}`" if one.is_experiment else "eval tasks for its versions"
            click.echo(f"{one.name} has no held-out score; evaluate it with {how}.", err=True)
    if not any(one.scores for one in lines):
        raise NotFoundError(f"neither {first} nor {second} has a held-out score, so there is nothing to compare")
    rows = comparison.rows(*lines)
    names = list(rows[0])[2:4]
    columns = [
        show.Column("suite", "suite"),
        show.Column("version", "version", right=True),
        *(show.Column(name, name, right=True) for name in (*names, "difference", "within")),
        show.Column("n", lambda row: "/".join(map(str, row["n"])), right=True),
    ]
    show.rows(rows, columns, output)
