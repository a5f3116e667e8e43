"""The commands improve run and improve demo.

run ──► a process for each of: curate follow, datasets follow, retrain follow, jobs run, streams
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from streams.cli.runtime import AppContext, pass_call, until_stopped


@click.command("run")
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
        from plugins.improve.demo import improve_run as processes
        from plugins.improve.triggers.rule import read_rule
        from streams.kafka import admin

        order = processes.ImproveOrder.of(rule, read_rule(rule), catalogue=catalogue, every=every)
        admin.check_topics(call.settings, patient=True)
        processes.run(call.settings, order, stop=stop, say=lambda line: click.echo(line, err=True))


@click.command("demo")
@click.option("--minutes", type=float, default=15.0, show_default=True, help="Stop after this many minutes.")
@click.option("--model", metavar="NAME", help="A known model, a hub id or a folder.  [default: model.base]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the questions.")
@click.option("--fresh", is_flag=True, help="Start over: delete the log, the adapters and the checkpoints.")
@click.option(
    "--data-dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(".streamward/improve-demo"),
    show_default=True,
    help="Folder of log, adapters and data sets.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="json: end with one line on stdout."
)
@pass_call
def improve_demo(call: AppContext, /, output: str, **chosen: Any) -> None:
    """Watch a version learn from served runs.

    Sums are served, judged by a rule and a person, and a version is tuned on the good runs and released; then a judge
    that says yes to everything is stopped. Starts Apache Kafka and every process that this takes.
    """
    from plugins.improve.demo.improve_demo import ImproveDemo, run
    from streams import output as show

    console = show.console(sys.stderr if output == "json" else None)
    report = run(ImproveDemo(config=call.config, overrides=call.overrides, **chosen), console)
    if output == "json":
        sys.stdout.write(json.dumps(report) + "\n")
