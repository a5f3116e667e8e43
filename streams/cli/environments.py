"""The commands about environments: replay.

tasks, trajectories, turns ──► the same seeds and replies once more ──► tools/episodes.py ──► equal, or what differs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def environments() -> None:
    """Look at what agents act in."""


@environments.command("replay")
@click.argument("wanted", metavar="[TASK|TRAJECTORY]", required=False)
@click.option("--all", "all_of_them", is_flag=True, help="Every episode that is in the log.")
@output_option
@pass_call
def environments_replay(call: AppContext, wanted: str | None, all_of_them: bool, output: Output) -> None:
    """Play episodes of the log again, from their seeds and the recorded replies, and compare.

    TASK or TRAJECTORY is an id, or the beginning of one. Nothing is sampled and nothing is written. What an environment
    shows, its rewards and whether the goal was reached have to be as recorded; where they are not, the command says so
    and ends with an error.
    """
    from streams import output as show
    from streams.errors import EventError, NotFoundError, SettingsError
    from streams.stages.agents.episodes import listed_one
    from streams.tools import episodes

    if (wanted is None) != all_of_them:
        raise SettingsError("name a task or a trajectory, or ask for --all")
    found = episodes.recorded(call.settings, wanted)
    if not found:
        what = "no episode is in the log" if wanted is None else f"no episode begins with {wanted!r}"
        raise NotFoundError(f"{what}; `streamward agents list environment` shows the runs of the built-in agent")
    runs = list(episodes.replayed(found, listed_one))
    differ = [run for run in runs if run.differs is not None]
    skipped = [run for run in runs if run.skipped is not None]
    for run in differ:
        click.echo(f"{run.trajectory_id} ({run.environment}): {run.differs}", err=True)
    for reason in dict.fromkeys(run.skipped for run in skipped):
        click.echo(f"not replayed: {reason}", err=True)
    counts = {"episodes": len(runs) - len(skipped), "turns": sum(run.turns for run in runs)}
    show.record(counts | {"differ": len(differ), "not_replayed": len(skipped)}, output)
    if differ:
        raise EventError(f"{len(differ)} of {len(runs)} episodes are not what they were")
