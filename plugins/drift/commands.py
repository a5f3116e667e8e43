"""`streamward drift`: the eight ways of ways.py for a model, or for a chat template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.errors import SettingsError

if TYPE_CHECKING:
    from plugins.drift.ways import WayReport
    from streams.output import Output

MARKER = re.compile(
    r"<\|[^|<>\s]+\|>|<｜[^｜<>\s]+｜>|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>|</?s>"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
)
"""What a template writes as a control token."""


@click.command()
@click.argument("model", required=False)
@click.option(
    "--template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A chat template in place of the model's own; its markers become control tokens.",
)
@output_option
@pass_call
def drift(call: AppContext, /, model: str | None, template: Path | None, output: Output) -> None:
    """Show where tokenizing a conversation again drifts.

    MODEL is a known model, a folder or a hub id; default: model.base. Trainers that keep messages tokenize them again,
    and train on tokens that were never sampled. For each of eight ways it prints the smallest conversation that shows
    it, and what the recorder of `streamward serve` does there. No weights are read, and no broker has to run.
    """
    from plugins.drift.ways import DriftModel, reports
    from streams import output as show
    from streams.engines.base_model import load_tokenizer

    tokenizer: Any = load_tokenizer(model or call.settings.model.base)
    if template is not None:
        use_template(tokenizer, template)
    show.rows(
        [plain(report) for report in reports(DriftModel(tokenizer))],
        [
            show.Column("way", "way"),
            show.Column("", "drifts"),
            show.Column("the last message", "shown"),
            show.Column("sampled", "sampled"),
            show.Column("tokenized again", "again"),
            show.Column("recorded here", "here"),
        ],
        output,
    )


def use_template(tokenizer: Any, template: Path) -> None:
    """Give a tokenizer another chat template. Raises SettingsError if it cannot be read."""
    try:
        tokenizer.chat_template = template.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(
            f"--template {template}: cannot be read: {exc}; name a file with a Jinja chat template"
        ) from exc
    markers = sorted({*MARKER.findall(tokenizer.chat_template)} - tokenizer.get_vocab().keys())
    tokenizer.add_special_tokens({"additional_special_tokens": markers}, replace_extra_special_tokens=False)


def plain(report: WayReport) -> dict[str, Any]:
    """Return a report as a row."""
    drift = report.drift
    row: dict[str, Any] = {"way": report.name, "fault": report.fault, "here": report.here or None}
    if drift is None:
        return row | {
            "drifts": False if report.here else None,
            "shown": None,
            "sampled": None,
            "again": None,
            "conversation": None,
        }
    last = drift.conversation[-1]
    text = last.content or f"{last.tool_calls[0].name}({last.tool_calls[0].arguments})"
    conversation = [{"role": message.role, "content": message.content} for message in drift.conversation]
    return row | {
        "drifts": True,
        "shown": json.dumps(text),
        "sampled": drift.sampled,
        "again": drift.again,
        "conversation": conversation,
    }
