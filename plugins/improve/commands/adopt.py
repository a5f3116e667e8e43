"""The command adapters adopt: a model of another server, asked once ──► the next version, without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.adapters import policy_option
from streams.cli.runtime import AppContext, actor_option, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.command("adopt")
@click.option(
    "--dataset", default=None, metavar="NAME[@DIGEST]", help="Take the model that was tuned on this data set."
)
@click.option("--model", default=None, metavar="NAME", help="Model, by its name at the server.")
@click.option("--url", default=None, metavar="URL", help="Its server, up to /v1.  [default: outside.url]")
@actor_option
@policy_option
@output_option
@pass_call
def adapters_adopt(
    call: AppContext, /, actor: str | None, policy: str | None, output: Output, **model: str | None
) -> None:
    """Make a model of another server the next version.

    Its server must be at outside.url and speak OpenAI's chat completions. It is asked once, and is then treated like
    any trained version: guard, canary, promotion, roll-back. Its answers have no tokens, so its groups enter no batch,
    and it cannot be reproduced, exported or tuned. Repeating the command changes nothing.
    """
    from plugins.improve.datasets.outside_version import AdoptionOrder, adopt
    from streams import output as show

    settings = call.settings_to_write
    order = AdoptionOrder(policy=policy or settings.policy.name, actor=actor or user_name(), **model)
    adopted = adopt(settings, order)
    event, outside = adopted.event, adopted.event.outside
    assert outside is not None  # noqa: S101 - `adopt` makes no other
    row = {
        "policy": event.policy,
        "version": event.version,
        "model": outside.model,
        "url": outside.url,
        "dataset": outside.dataset,
        "prompt_usd": outside.prompt_usd,
        "completion_usd": outside.completion_usd,
        "again": adopted.again,
    }
    show.record(row, output)
