"""The command that makes an adapter of another trainer a version: adapters import.

a folder and a recipe ──► checked ──► the next version, or exit code 4 and nothing written
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.adapters import policy_option
from streams.cli.runtime import AppContext, actor_option, importing, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.command("import")
@click.option(
    "--parent", type=click.IntRange(min=0), required=True, metavar="V", help="Version that it was trained from."
)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Adapter in peft's layout: adapter_config.json, adapter_model.safetensors.",
)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Origin as JSON: framework, framework_version, trained_by; `export --format verl` writes the rest.",
)
@actor_option
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
    """Import an adapter that another trainer made.

    It becomes version V + 1, in place of the next batch, which must be in the log, and is then treated like any trained
    version. V must be the newest version: otherwise nothing is written and the exit code is 4, as for an adapter of
    another base model or shape. Repeating an import changes nothing. The trainer continues from it with a fresh
    optimizer; `streamward reproduce` cannot remake it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    from schemas.conventions import trained_elsewhere
    from streams import output as show
    from streams.adapters.versions import manifest_digest

    settings = call.settings_to_write
    with importing():
        from plugins.bridges import bring, foreign

    order = bring.ImportOrder(
        policy=policy or settings.policy.name,
        parent=parent,
        folder=folder,
        recipe=foreign.read_recipe(recipe),
        actor=actor or user_name(),
    )
    version = bring.bring(settings, order)
    row = {
        "policy": version.event.policy,
        "version": version.event.version,
        "parent": version.event.parent_version,
        "trained": trained_elsewhere(version.event.recipe),
        "reason": version.event.reason,
        "sha256": manifest_digest(version.event.files),
        "uri": version.event.uri,
        "left_out": version.left_out,
        "again": version.again,
    }
    show.record(row, output)
