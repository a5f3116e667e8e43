"""The commands that compare experiments: replay list, show, compare.

To delete an experiment, delete its topics: their names begin with the prefix that `replay show` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.replay import replay
from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output

__all__ = ["replay"]
"""The group of commands, with those of replay.py."""


@replay.command("list")
@output_option
@pass_call
def replay_list(call: AppContext, output: Output) -> None:
    """Print every experiment of this log."""
    from streams import output as show
    from streams.errors import SettingsError
    from streams.kafka.record import cut
    from streams.tools.replay import comparison, experiments as records

    rows, recorded = [], records.read(call.settings)
    for name, experiment in recorded.items():
        newest, state, reason = 0, str(experiment.kind), experiment.reason
        try:
            newest = comparison.side(call.settings, name, recorded).newest
        except SettingsError as exc:  # any producer may write an odd event
            state, reason = "unreadable", cut(str(exc))
        counts = {key: experiment.counts.get(key, 0) for key in ("tasks", "groups", "batches", "steps")}
        rows.append(
            {
                "experiment": name,
                "policy": experiment.policy,
                "state": state,
                "created_at": show.moment(experiment.created_at),
                **counts,
                "newest": newest,
                "changed": list(experiment.changed),
                "reason": reason,
            }
        )
    columns = [
        *show.columns("experiment, of=policy, state, created=created_at"),
        *(show.Column(title, title, right=True) for title in ("tasks", "groups", "steps", "newest")),
        show.Column("changed", "changed", optional=True),
    ]
    show.rows(rows, columns, output)


@replay.command("show")
@click.argument("name")
@output_option
@pass_call
def replay_show(call: AppContext, name: str, output: Output) -> None:
    """Print the origin of an experiment.

    The offsets that it was made from, its settings and code version, and its events.
    """
    from streams import output as show
    from streams.kafka.topics import topics
    from streams.tools.replay import experiments as records

    experiment = records.find(call.settings, name)
    settings = records.of(call.settings, experiment)
    row: dict[str, Any] = {
        "experiment": name,
        "policy": experiment.policy,
        "state": experiment.kind,
        "reason": experiment.reason,
        "topics": settings.topics.prefix,
        "config": str(experiment.folder / "streamward.toml"),
        "code_version": experiment.code_version,
        "selection": dict(experiment.selection),
        "changed": {key: experiment.settings.get(key, "") for key in experiment.changed},
        "counts": dict(experiment.counts),
        "ranges": [f"{r.topic}[{r.partition}]@{r.first}-{r.next - 1}" for r in experiment.ranges if r.first < r.next],
        "events": [
            {"created_at": show.moment(e.created_at), "kind": e.kind, "actor": e.actor, "reason": e.reason}
            for e in experiment.events
        ],
    }
    if output == "jsonl":
        print(show.json_line(row | {"settings": dict(experiment.settings), "labels": list(topics(settings.topics))}))
        return
    events = row.pop("events")
    show.record({key: value for key, value in row.items() if value not in ("", {}, [])}, "table")
    print("\nevents")
    columns = [
        show.Column("created", "created_at"),
        *(show.Column(title, title) for title in ("kind", "actor", "reason")),
    ]
    show.rows(events, columns, "table")


@replay.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@output_option
@pass_call
def replay_compare(call: AppContext, first: str, second: str, output: Output) -> None:
    """Print held-out scores side by side.

    A and B are experiments, or policies of this log. The exit code is 3 if neither has a score.
    """
    from streams import output as show
    from streams.errors import NotFoundError
    from streams.tools.replay import comparison

    sides = [comparison.side(call.settings, name) for name in (first, second)]
    for side in sides:
        if not side.scores:
            way_out = (
                f"`streamward replay evaluate {side.name}`" if side.is_experiment else "eval tasks for its versions"
            )
            click.echo(f"{side.name} has no held-out score; evaluate it with {way_out}.", err=True)
    if not any(side.scores for side in sides):
        raise NotFoundError(f"neither {first} nor {second} has a held-out score, so there is nothing to compare")
    rows = comparison.rows(*sides)
    names = list(rows[0])[2:4]
    columns = [
        *show.columns("suite, >version"),
        *(show.Column(name, name, right=True) for name in (*names, "difference", "within")),
        show.Column("n", lambda row: "/".join(map(str, row["n"])), right=True),
    ]
    show.rows(rows, columns, output)
