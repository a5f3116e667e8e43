"""`streamward train`: the trainer."""

from __future__ import annotations

import click

from streams.cli.engine_options import engine_option
from streams.cli.runtime import (
    ALLOW_CONTAMINATED,
    AppContext,
    allow_option,
    begin,
    importing,
    pass_call,
    until_stopped,
    user_name,
)


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=None, help="End after this many batches.")
@click.option("--fleet", is_flag=True, help="Train every policy in the log (fleet.policies), not only policy.name.")
@engine_option("--launcher", "trainer", "Run the trainer's processes on the nodes of a cluster.")
@allow_option
@click.pass_context
@pass_call
def train(
    call: AppContext, ctx: click.Context, steps: int | None, fleet: bool, launcher: str | None, allow_contaminated: bool
) -> None:
    """Run the trainer: batches in, adapter versions out.

    It trains policy.name, resuming from its newest checkpoint. SIGTERM or Ctrl-C ends it, once the current step is
    finished.

    With --fleet it trains all policies in turn: one base model, and fleet.states adapters in memory. Several such
    processes share the policies (docs/fleet.md).

    A batch with a question that a suite holds out from the policy is refused: one of guard.suite, or of a suite that
    its versions were asked (docs/data.md).

    With trainer.processes above 1, that many processes share every batch, each on its own device if
    model.device=cuda. If one of them dies, all end with exit code 75: start the command again.
    """
    call.working = True
    from streams.plugins.engines import engine_work
    from trainer.ranks.launcher import place_from_env, run_ranks

    if fleet:
        call.refuse_one_policy("train")
    place = place_from_env(call.settings)
    flags = [name for name, is_set in (("--fleet", fleet), (ALLOW_CONTAMINATED, allow_contaminated)) if is_set]
    arguments = ["train", *flags, *([] if steps is None else ["--steps", str(steps)])]
    if launcher is not None:
        ctx.exit(engine_work(launcher, "trainer")(call, arguments, place))
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
            from streams.kafka.retry import BrokerOutage
            from streams.rows.training_gate import TrainingCheck
            from trainer.fleet import run

        allowed_by = user_name() if allow_contaminated else None
        check = TrainingCheck(call.settings, allowed_by=allowed_by, outage=BrokerOutage(call.settings.kafka, stop))
        run(call.settings, is_fleet=fleet, steps=steps, stop=stop, place=place, check=check.check_batch)
