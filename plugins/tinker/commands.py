"""`streamward calls`: the worker of other people's training loops."""

from __future__ import annotations

import click

from streams.cli.runtime import AppContext, begin, importing, pass_call, until_stopped


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=None, help="End after this many calls.")
@pass_call
def calls(call: AppContext, /, count: int | None) -> None:
    """Serve the training calls that `streamward serve` records.

    A program that uses the Tinker API computes losses, steps, saves and samples through the server; this process does
    the work, with model.base. Several such processes share the models of one fleet.name, and have to share
    trainer.checkpoints. One that was killed continues where it was: no call is done twice, none is lost. SIGTERM or
    Ctrl-C ends it, once the current call is finished (docs/tinker.md).
    """
    call.working = True
    with until_stopped() as stop:
        begin(call, "worker of training calls", "training-calls")
        with importing():
            from plugins.tinker.worker.call_worker import run

        run(call.settings, stop=stop, calls=count)
