"""`streamward policy`: the agent that answers tasks."""

from __future__ import annotations

import click

from streams.cli.engine_options import agent_options, on_engine
from streams.cli.runtime import AppContext, begin, importing, pass_call, until_stopped


@click.command()
@click.option(
    "--fleet", is_flag=True, help="Answer for every policy in the log (fleet.policies), not only policy.name."
)
@agent_options
@click.pass_context
@pass_call
def policy(call: AppContext, ctx: click.Context, fleet: bool, on: str | None, replicas: int | None) -> None:
    """Run a policy agent: tasks in, responses out.

    It answers the tasks of policy.name with the engine in policy.engine. SIGTERM or Ctrl-C ends it, once in-flight work
    is finished. Several agents share the partitions.

    With --fleet it answers for all policies in turn: one base model, and fleet.states adapters in memory
    (docs/fleet.md).
    """
    call.working = True
    if fleet:
        call.refuse_one_policy("policy")
    if (run_agents := on_engine(on, replicas)) is not None:
        ctx.exit(run_agents(call, ["policy", *(["--fleet"] if fleet else [])], replicas or 1))
    with until_stopped() as stop:
        policies = "every policy" if fleet else call.settings.policy.name
        begin(call, f"policy agent of {policies} ({call.settings.policy.engine})", "tasks")
        with importing():
            from streams.engines.build import import_libraries
            from streams.stages.policy import policy_agent

            import_libraries(call.settings)

        policy_agent.run(call.settings, stop=stop, fleet=fleet)
