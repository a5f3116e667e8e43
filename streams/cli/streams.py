"""`streamward streams`: the stream worker."""

from __future__ import annotations

from functools import partial

import click

from streams.cli.runtime import AppContext, begin, end_at_signals, importing, pass_call, until_stopped


@click.command()
@click.option(
    "--driver",
    type=click.Choice(["faust", "loop"]),
    default=None,
    help="Driver of the stages; short for --set worker.driver=...",
)
@click.pass_context
@pass_call
def streams(call: AppContext, ctx: click.Context, driver: str | None) -> None:
    """Run the stream worker: advantages, batches, rollouts.

    SIGTERM or Ctrl-C ends it, once in-flight work is finished. Several workers share the partitions; those of another
    driver wait until they have left. Exit code 75 means that a watchdog stopped it: start it again.
    """
    call.working = True
    end_at_signals()
    begin(call, "stream worker", "tasks, responses, rewards, groups and adapters")
    with importing():
        from streams.stages import batches
        from streams.stages.rollouts import rollout_stage as rollouts
        from streams.stages.tasks import suites

    rollouts_register = partial(rollouts.register, suite=suites.of_guard(call.settings))
    if (driver or call.settings.worker.driver) == "loop":
        with importing():
            from streams.stages.advantages import loop as advantages
            from streams.worker.batched import run as loop

        with until_stopped() as stop:
            loop.run(call.settings, [advantages.register, batches.register, rollouts_register], stop=stop)
        return
    with importing():
        from streams.stages.advantages import live
        from streams.worker.faust import faust_worker as worker  # takes the signals itself, and drains

    ctx.exit(worker.run(call.settings, [live.register, batches.register, rollouts_register]))
