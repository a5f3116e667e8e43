"""`streamward demo`: the loop of streams/demo on generated tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from streams import output as show
from streams.cli.runtime import AppContext, json_object, pass_call
from streams.errors import StreamwardError


@click.command()
@click.option("--minutes", type=float, default=8.0, show_default=True, help="Stop after this many minutes.")
@click.option("--steps", type=int, help="Stop after this many adapter versions.  [default: 20; of bisect 6]")
@click.option("--model", metavar="NAME", help="A known model, a hub id or a folder.  [default: model.base]")
@click.option(
    "--task",
    metavar="NAME",
    help="Task family: sums, an environment of several turns (calculator, lookup, guess), a word that is paid for "
    "(bisect), or reasoning-gym:NAME.  "
    "[default: sums; with --break calculator]",
)
@click.option(
    "--options",
    default="{}",
    metavar="JSON",
    help='Options of the family, e.g. {"noise": 5}; see `tasks generate --list`.',
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the tasks, held-out tasks included.")
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm", "scripted"]),
    default="transformers",
    show_default=True,
    help="The engine that answers. vllm starts a server (see make setup-vllm), or --set policy.servers names one. The "
    "scripted engine has no weights, so nothing is trained.",
)
@click.option(
    "--break",
    "breaks",
    multiple=True,
    metavar="PART=SHARE",
    help="Let this share of a part fail, to see what the run makes of it, as environment=0.9.",
)
@click.option("--fresh", is_flag=True, help="Start over: delete the log, the adapters and the checkpoints.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path(".streamward/demo"),
    show_default=True,
    help="Folder of log, adapters and checkpoints.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="json: end with one line on stdout."
)
@pass_call
def demo(
    call: AppContext,
    /,
    output: str,
    options: str,
    breaks: tuple[str, ...],
    task: str | None,
    steps: int | None,
    **chosen: Any,
) -> None:
    """Watch a model learn from a real Kafka log.

    Starts Apache Kafka, the stream worker, a scoring agent, a policy agent and the trainer, submits tasks, and shows
    the state of every group. Ctrl-C stops everything cleanly; run the same command again to resume. It writes its
    settings to ./streamward.toml, unless that is your own file, so that other commands find its log.
    """
    from streams.demo import demo_options as loop

    console = show.console(sys.stderr if output == "json" else None)
    family_options = json_object(options, "--options")
    task = task or ("calculator" if breaks else "sums")
    plan = loop.DemoOptions(
        **chosen,
        task=task,
        steps=loop.steps_of(task) if steps is None else steps,
        options=family_options,
        config=call.config,
        overrides=(*call.overrides, *map(loop.fault, breaks)),
    )
    result = loop.run(plan, console)
    if output == "json":
        sys.stdout.write(json.dumps(result) + "\n")
    if result["failure"] is not None:
        raise StreamwardError(result["failure"])
