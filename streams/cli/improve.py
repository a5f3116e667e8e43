"""The commands that make better versions from what was served: improve run, and a group for each step.

run ──► a process for each of: curate follow, datasets follow, retrain follow, jobs run, streams
"""

from __future__ import annotations

from pathlib import Path

import click

from streams.cli.curate import curate
from streams.cli.data import data
from streams.cli.datasets import datasets
from streams.cli.prompt_versions import prompts
from streams.cli.retraining import retrain
from streams.cli.runtime import AppContext, InOrder, pass_call, until_stopped
from streams.cli.selfplay import selfplay


@click.group(cls=InOrder)
def improve() -> None:
    """Make better versions from what was served."""


@improve.command("run")
@click.option(
    "--rule",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    metavar="FILE",
    help="When to retrain, and how (retrain.toml).",
)
@click.option(
    "--selfplay",
    "catalogue",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Catalogue of scenarios to ask on a schedule.",
)
@click.option("--every", default="1h", show_default=True, metavar="TIME", help="How often to ask them.")
@pass_call
def improve_run(call: AppContext, /, rule: Path, catalogue: Path | None, every: str) -> None:
    """Turn served runs into better versions until interrupted.

    Starts one process for each step: verdicts on ended runs, data sets of the promoted ones, the rule that starts a
    retraining, the jobs that it starts, and the stream worker, whose guard and canary release what they make
    (rollouts.mode). Run the processes that answer with it: `streamward serve`, or `policy` and `scoring`.
    """
    call.working = True
    with until_stopped() as stop:
        from streams.demo import improve_run as processes
        from streams.improve.triggers.rule import read_rule
        from streams.kafka import admin

        order = processes.ImproveOrder.of(rule, read_rule(rule), catalogue=catalogue, every=every)
        admin.check_topics(call.settings, patient=True)
        processes.run(call.settings, order, stop=stop, say=lambda line: click.echo(line, err=True))


for command in (curate, data, datasets, retrain, selfplay, prompts):
    improve.add_command(command)
