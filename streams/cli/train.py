"""`streamward train`: the trainer."""

from __future__ import annotations

import click

from streams.cli import on_ray
from streams.cli.runtime import AppContext, begin, importing, pass_call, until_stopped


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=None, help="End after this many batches.")
@click.option("--fleet", is_flag=True, help="Train every policy in the log (fleet.policies), not only policy.name.")
@click.option(
    "--launcher",
    type=click.Choice(["ray"]),
    default=None,
    help="Run the trainer's processes on the nodes of the Ray cluster in RAY_ADDRESS (docs/scale.md).",
)
@click.pass_context
@pass_call
def train(call: AppContext, ctx: click.Context, steps: int | None, fleet: bool, launcher: str | None) -> None:
    """Run the trainer: batches in, adapter versions out.

    It trains policy.name, resuming from its newest checkpoint. SIGTERM or Ctrl-C ends it, once the current step is
    finished.

    With --fleet it trains all policies in turn: one base model, and fleet.states adapters in memory. Several such
    processes share the policies (docs/fleet.md).

    With trainer.processes above 1, that many processes share every batch, each on its own device if
    model.device=cuda. If one of them dies, all end with exit code 75: start the command again.
    """
    call.working = True
    from trainer.ranks.launcher import place_from_env, run_ranks

    if fleet:
        call.refuse_one_policy("train")
    place = place_from_env(call.settings)
    arguments = ["train", *(["--fleet"] if fleet else []), *([] if steps is None else ["--steps", str(steps)])]
    if launcher == "ray":
        ctx.exit(on_ray.trainer(call, arguments, place))
    processes = call.settings.trainer.processes
    if place is None and processes > 1:
        ctx.exit(run_ranks(call.again(*arguments), processes))
    if place is not None and place.rank > 0:
        with importing():
            from trainer.versions import learner

        learner.help_out(call.settings, place)
        return
    with until_stopped() as stop:
        begin(call, f"trainer of {'every policy' if fleet else call.settings.policy.name}", "batches")
        with importing():
            from trainer.fleet import run

        run(call.settings, is_fleet=fleet, steps=steps, stop=stop, place=place)
