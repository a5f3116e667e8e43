"""The command that makes an adapter from elsewhere a version: adapters import.

a folder, a recipe ──► checked ──► the next version of the policy ──► what it is, or exit code 4 and nothing written
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.adapters import policy_option
from streams.cli.release import adapters
from streams.cli.runtime import AppContext, importing, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output

__all__ = ["adapters"]
"""The group, with the commands of all three modules."""


@adapters.command("import")
@click.option(
    "--parent", type=click.IntRange(min=0), required=True, metavar="V", help="The version that it was trained from."
)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="The adapter, as peft writes it: adapter_config.json, adapter_model.safetensors.",
)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Who trained it, as JSON: framework, framework_version, trained_by; `export --format verl` writes the rest.",
)
@click.option("--actor", default=None, metavar="NAME", help="Who imports it.  [default: your user name]")
@policy_option
@output_option
@pass_call
def adapters_import(
    call: AppContext,
    /,
    parent: int,
    folder: Path,
    recipe: Path,
    actor: str | None,
    policy: str | None,
    output: Output,
) -> None:
    """Make an adapter that was trained elsewhere a version here.

    It becomes version V + 1, in place of batch V, which has to be in the log, and is then treated like any trained
    version. Only if V is the newest version: if another was made from it, nothing is written and the exit code is 4, as
    for an adapter of another base model or shape. The same import again changes nothing. The trainer continues from
    it with a fresh optimizer; `streamward reproduce` cannot make it again.
    """
    import os

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    from schemas.conventions import trained_elsewhere
    from streams import output as show
    from streams.adapters.versions import manifest_digest

    settings = call.settings_to_write
    with importing():
        from trainer.bridges import bring, foreign

    order = bring.ImportOrder(
        policy=policy or settings.policy.name,
        parent=parent,
        folder=folder,
        recipe=foreign.read_recipe(recipe),
        actor=actor or user_name(),
    )
    made = bring.bring(settings, order)
    row = {
        "policy": made.event.policy,
        "version": made.event.version,
        "parent": made.event.parent_version,
        "trained": trained_elsewhere(made.event.recipe),
        "sha256": manifest_digest(made.event.files),
        "uri": made.event.uri,
        "left_out": made.left_out,
        "again": made.again,
    }
    show.record(row, output)
