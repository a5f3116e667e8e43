"""The commands of guardrails, most of which routes answer: moderate, validate, bias detect, bias balance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def guardrails() -> None:
    """Look at texts by the rules of guardrails."""


add_routes(
    guardrails,
    "plugins.guardrails.guardrail_routes:GuardrailRoutes",
    {
        "moderate": RouteCommand(
            "moderate_content",
            "Look at a text: personal data, injections, your patterns.",
            arguments="text",
            columns="kind rule verdict reason",
        ),
        "validate": RouteCommand(
            "validate_answer",
            "Check an answer: schema, pattern, length, language, tool, sources.",
            arguments="answer",
            columns="valid problems",
        ),
    },
)


@guardrails.group()
def bias() -> None:
    """Measure what scores owe to a term, and balance data sets."""


add_routes(
    bias,
    "plugins.guardrails.bias_routes:BiasDetection",
    {
        "detect": RouteCommand(
            "detect_bias",
            "Compare scores of texts and of their swaps, as of he and she.",
            columns="version n first second difference low high proven",
        ),
    },
)


@bias.command("balance")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--terms", default=None, metavar="FIRST=SECOND,…", help="Terms.  [default: guardrails.bias_terms]")
@click.option("--pairs", is_flag=True, help="Only rows with a term; TARGET is a suite, NAME.yaml, that measures bias.")
@output_option
@pass_call
def balance(call: AppContext, source: Path, target: Path, terms: str | None, pairs: bool, output: Output) -> None:
    """Write rows, each with a term followed by a swapped copy."""
    from plugins.guardrails.bias.balanced_rows import balance_file
    from plugins.guardrails.guardrail_settings import Guardrails
    from streams import output as show
    from streams.errors import SettingsError
    from streams.scorers.term_swaps import TermSwaps, read_terms

    text = call.settings.of_plugin(Guardrails).bias_terms if terms is None else terms
    try:
        swaps = TermSwaps(read_terms(text))
    except ValueError as exc:
        raise SettingsError(f"terms: {exc}") from exc
    show.record(balance_file(source, target, swaps, as_pairs=pairs)._asdict(), output)
