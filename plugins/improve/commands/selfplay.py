"""The commands of self-play: run, show.

catalogue.yaml ──► tasks, by schedule or once ──► figures by category
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, begin, output_option, pass_call, until_stopped, user_name

if TYPE_CHECKING:
    from plugins.improve.selfplay.selfplay_figures import Facet
    from streams.output import Output


@click.group()
def selfplay() -> None:
    """Ask a policy a catalogue of questions, again and again."""


@selfplay.command("run")
@click.argument("catalogue", metavar="CATALOGUE.yaml", type=click.Path(path_type=Path))
@click.option("--every", metavar="AGE", help="Ask by schedule: 30m, 6h, 1d.  [default: ask once]")
@click.option("--daily", metavar="HH:MM", help="Ask every day at this time (UTC).")
@output_option
@pass_call
def selfplay_run(call: AppContext, /, catalogue: Path, every: str | None, daily: str | None, output: Output) -> None:
    """Ask the questions of a catalogue, once or by schedule.

    CATALOGUE is YAML or JSON with scenarios (docs/improve.md). Of the times that were missed while no process ran the
    newest is made up for. Several processes may ask one catalogue: nothing is asked twice. SIGTERM or Ctrl-C ends it.
    """
    from plugins.improve.selfplay import selfplay_runner
    from plugins.improve.selfplay.catalogue import read_catalogue
    from plugins.improve.triggers.tick_schedule import TickSchedule
    from plugins.improve.triggers.trigger_log import TriggerLog
    from streams import output as show
    from streams.errors import SettingsError

    asked = read_catalogue(catalogue)
    try:
        schedule = TickSchedule.parse(every, daily)
    except ValueError as exc:
        raise SettingsError(f"--{exc}") from exc
    if schedule is None:
        with TriggerLog(call.settings_to_write) as trigger_log:
            started = selfplay_runner.SelfPlayRunner(call.settings, asked, trigger_log).ask_once(user_name())
        row = {"catalogue": asked.name, "run": started.crossing.event_id, "questions": len(started.tasks)}
        show.record(row, output)
        return
    call.working = True
    with until_stopped() as stop:
        begin(call, "selfplay", "triggers")
        selfplay_runner.follow(call.settings_to_write, asked, schedule, stop=stop)


@selfplay.command("show")
@click.argument("name", metavar="CATALOGUE")
@click.option("--policy", default=None, metavar="NAME", help="Policy that answered.  [default: policy.name]")
@click.option(
    "--by",
    "facet",
    type=click.Choice(["category", "scenario", "version", "cell"]),
    default="category",
    show_default=True,
    help="A row for each of these; cell: of a curriculum.",
)
@output_option
@pass_call
def selfplay_show(call: AppContext, /, name: str, policy: str | None, facet: Facet, output: Output) -> None:
    """Print the success of a policy in a catalogue, by category."""
    from plugins.improve.selfplay.selfplay_figures import figures
    from schemas.events import AdvantagedGroup
    from schemas.serde import Poison
    from streams import output as show
    from streams.kafka.admin import read_topic
    from streams.kafka.record import partition_of

    policy = policy or call.settings.policy.name
    partition = partition_of(policy, call.settings.topics.policy_partitions)
    groups = (record.decode(AdvantagedGroup) for record in read_topic(call.settings, "groups", partition=partition))
    answered = (group for group in groups if not isinstance(group, Poison) and group.policy == policy)
    columns = [
        *(show.Column(column, column) for column in (facet, "answers", "failed")),
        show.Column("success", lambda row: show.with_interval(row, "success")),
        show.Column("mean reward", lambda row: None if row["mean_reward"] is None else f"{row['mean_reward']:.3f}"),
    ]
    show.rows(figures(name, answered, facet), columns, output)
