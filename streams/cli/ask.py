"""The commands that question the primary version and record feedback: ask, reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.command()
@click.argument("text", metavar="[TEXT]", required=False)
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
@click.option("--again", default=None, metavar="TURN", help="Repeat this recorded call instead: a turn or an answer.")
@click.option("--versions", default=None, metavar="N,N,…", help="Versions that repeat it.")
@click.option("--scorer", "scorers", multiple=True, metavar="NAME[=JSON]", help="Score the answers of --again.")
@click.option(
    "--min-score-delta",
    type=float,
    default=None,
    metavar="D",
    help="Exit code 1 if the last version's score, less that of the recorded answer, is lower.",
)
@output_option
@click.pass_context
@pass_call
def ask(
    call: AppContext,
    ctx: click.Context,
    /,
    text: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    wait_s: float,
    again: str | None,
    versions: str | None,
    scorers: tuple[str, ...],
    min_score_delta: float | None,
    output: Output,
) -> None:
    """Ask the primary version a question.

    Prints the answer and its id. The question is a task of policy.name in the log, and its running agent answers it.

    With --again a recorded call is repeated by each of --versions, after its recorded tokens and sampled as then. The
    table has each answer's difference to the recorded one: [-removed-], {+new+}.
    """
    if (again is None) == (text is None) or (again is None) != (versions is None):
        raise click.UsageError("give TEXT, or --again TURN with --versions")
    if min_score_delta is not None and not scorers:
        raise click.UsageError("--min-score-delta needs --scorer NAME")
    if again is not None:
        delta = _ask_again(call, again, versions or "", scorers, wait_s, output)
        ctx.exit(int(min_score_delta is not None and delta is not None and delta < min_score_delta))
    from schemas.events import Sampling
    from streams import output as show
    from streams.tools import asking

    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    settings = call.settings_to_write
    task = asking.question(settings, text or "", system=system, sampling=sampling, wait_s=wait_s)
    answer = asking.ask(settings, task, wait_s=wait_s)
    show.record({"answer": answer.text, "version": answer.adapter_version, "response": answer.response_id}, output)


def _ask_again(
    call: AppContext, turn: str, versions: str, scorers: tuple[str, ...], wait_s: float, output: Output
) -> float | None:
    """Print the answers of versions to a recorded call; return the last one's score minus the recorded one's.

    None without scorers; an answer that a scorer cannot score is an error.
    """
    from streams import output as show
    from streams.scorers import named_sources
    from streams.tools.forks.repeated_call import differences, repeat_call

    try:
        numbers = [int(part) for part in versions.split(",")]
    except ValueError:
        raise click.UsageError(f"--versions {versions}: expected numbers with commas, e.g. 3,7,20") from None
    answers = repeat_call(call.settings_to_write, turn, numbers, named_sources(scorers), wait_s=wait_s)
    recorded, delta = answers[0], None
    rows = [
        {"version": f"{recorded.version}, recorded", "score": recorded.score, "delta": None, "answer": recorded.text}
    ]
    for answer, difference in differences(answers):
        delta = None if answer.score is None or recorded.score is None else answer.score - recorded.score
        rows.append({"version": str(answer.version), "score": answer.score, "delta": delta, "answer": difference})
    show.rows(rows, show.columns("version, >score, >delta, answer"), output)
    return delta


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
