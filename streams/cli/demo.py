"""`streamward demo`: the whole loop on one machine.

Not covered: what it does; that is `streams/demo/run.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from streams.cli.runtime import AppContext, pass_call


@click.command()
@click.option("--minutes", type=float, default=8.0, show_default=True, help="Stop after so long.")
@click.option("--steps", type=int, default=20, show_default=True, help="Stop after so many adapter versions.")
@click.option("--model", metavar="NAME", help="A model known here, a hub id or a folder.  [default: model.base]")
@click.option(
    "--generator", default="sums", show_default=True, metavar="sums|reasoning-gym:NAME", help="What is asked."
)
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm", "scripted"]),
    default="transformers",
    show_default=True,
    help="What answers. For vllm a server is started (see make setup-vllm), or --set policy.servers names one. The "
    "scripted engine has no weights, so nothing is trained.",
)
@click.option("--fresh", is_flag=True, help="Begin anew: throw away the log, the adapters and the checkpoints.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path(".streamward/demo"),
    show_default=True,
    help="Where everything lies.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="json: end with one line on stdout."
)
@pass_call
def demo(
    call: AppContext,
    minutes: float,
    steps: int,
    model: str | None,
    generator: str,
    engine: str,
    fresh: bool,
    data_dir: Path,
    output: str,
) -> None:
    """Watch a model learn from a real Kafka log.

    Starts Apache Kafka, the stream worker, a scoring agent, a policy agent and the trainer, feeds them tasks, and shows
    where every group is. Ctrl-C stops everything cleanly; the same command goes on from where the log stands.
    """
    from rich.console import Console

    from streams.demo import run as loop

    options = loop.DemoOptions(
        data_dir=data_dir,
        minutes=minutes,
        steps=steps,
        model=model,
        generator=generator,
        engine=engine,
        fresh=fresh,
        overrides=call.overrides,
    )
    loop.check(options)
    result = loop.run(options, Console(stderr=output == "json"))
    if output == "json":
        sys.stdout.write(json.dumps(result) + "\n")
