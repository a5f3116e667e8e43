"""The commands that question the primary version and record feedback: ask, reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.command()
@click.argument("text", metavar="TEXT")
@click.option("--system", default=None, metavar="TEXT", help="System message.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Maximum tokens of the answer."
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0: always the likeliest token."
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)
@output_option
@pass_call
def ask(
    call: AppContext,
    /,
    text: str,
    system: str | None,
    max_tokens: int,
    temperature: float,
    wait_s: float,
    output: Output,
) -> None:
    """Ask the primary version a question.

    Prints the answer and its id. The question is a task of policy.name in the log, and its running agent answers it.
    """
    from schemas.events import Sampling
    from streams import output as show
    from streams.tools import asking

    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    settings = call.settings_to_write
    task = asking.question(settings, text, system=system, sampling=sampling, wait_s=wait_s)
    answer = asking.ask(settings, task, wait_s=wait_s)
    show.record({"answer": answer.text, "version": answer.adapter_version, "response": answer.response_id}, output)


@click.command()
@click.argument("response_id", metavar="RESPONSE_ID")
@click.argument("value", type=float)
@click.option("--source", default=None, metavar="NAME", help="Author of the feedback.  [default: your user name]")
@click.option("--reason", default=None, metavar="TEXT", help="Reason to record.")
@output_option
@pass_call
def reward(
    call: AppContext, response_id: str, value: float, source: str | None, reason: str | None, output: Output
) -> None:
    """Record feedback on a response, turn or trajectory.

    It becomes a reward from source feedback/NAME, for queries and exports. No group counts it: GRPO learns only from
    the scorers of a task, which score all its responses.
    """
    from streams import output as show
    from streams.tools import asking

    settings = call.settings_to_write
    answer = asking.find_answer(settings, response_id)
    coordinates = asking.give_feedback(settings, answer, value, source=source or user_name(), reason=reason)
    show.record({"reward": value, "response": response_id, "at": str(coordinates)}, output)
