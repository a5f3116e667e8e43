"""The commands that change adapter versions: promote, reject, rollback, retire, gc.

    adapters promote, reject, rollback, retire ──► one event, read back ──► it took effect, or exit code 4
    adapters gc ──► versions to delete, with reasons ──► with --yes: retired by event, then deleted from the store

A canary's share has no command: it grows only in `rollouts.mode=canary`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from streams.cli.adapters import adapters, policy_option, read
from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, actor_option, output_option, pass_call, user_name

if TYPE_CHECKING:
    from streams.adapters.decisions import AdapterHistory
    from streams.adapters.retention import RetentionDecision
    from streams.output import Output

__all__ = ["adapters"]
"""The group of commands, with those of adapters.py."""

add_routes(
    adapters,
    "gateway.log.adapters:PublishedAdapters",
    {
        "promote": RouteCommand(
            "promote_adapter",
            """Make a version primary.

            It replaces the primary at the start of the command. If another decision came first, nothing changes and the
            exit code is 4.
            """,
            arguments="version",
        ),
        "reject": RouteCommand(
            "reject_adapter",
            """Reject a version; if it is the candidate, its canary ends.

            Its files stay in the store, and it can no longer be promoted.
            """,
            arguments="version",
        ),
        "rollback": RouteCommand(
            "rollback_adapter",
            """Roll back to an older version.

            If another decision came first, nothing changes and the exit code is 4. Agents follow at once; a response in
            progress stays on the version it began with.
            """,
            arguments="version",
        ),
        "retire": RouteCommand(
            "retire_adapter",
            """Retire a version for good.

            Its files stay until `adapters gc` deletes them.
            """,
            arguments="version",
        ),
    },
)


# --- gc ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GcOptions:
    """The options of `adapters gc`."""

    keep_best: int
    by: str | None
    keep_primaries: int
    dry_run: bool
    yes: bool
    actor: str | None
    policy: str | None
    output: Output


@adapters.command("gc")
@click.option(
    "--keep-best", type=click.IntRange(min=0), required=True, metavar="K", help="Number of best versions to keep."
)
@click.option("--by", default=None, metavar="SUITE/METRIC", help="Measure of the best.  [default: the only suite]")
@click.option(
    "--keep-primaries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of last primaries to keep, for a roll-back.",
)
@click.option("--dry-run", is_flag=True, help="Only show the versions to delete, with reasons; the default.")
@click.option("--yes", is_flag=True, help="Delete them.")
@actor_option
@policy_option
@output_option
@pass_call
def adapters_gc(call: AppContext, /, **options: Any) -> None:
    """Delete old versions; without --yes, only show them.

    It keeps the serving version, the primaries before it, versions without a decision, and the best. It retires each of
    the others by an event, and then deletes its files from the store. `streamward reproduce` can recreate them.
    """
    from streams import output as show
    from streams.adapters import retention
    from streams.errors import SettingsError

    chosen = GcOptions(**options)
    if chosen.yes and chosen.dry_run:
        raise SettingsError("--yes and --dry-run contradict each other; give one of them")
    history = read(call, chosen.policy)
    measure = retention.measure(history.state, chosen.by) if chosen.keep_best or chosen.by else None
    fates = retention.plan(history.state, best=chosen.keep_best, primaries=chosen.keep_primaries, by=measure)
    rows = []
    for fate in fates:
        row = _fate(call, history, fate)
        if chosen.yes and row["what"] in ("delete", "retire"):
            history, row["what"] = _delete(call, history, fate, row["what"], chosen.actor or user_name())
        rows.append(row)
    columns = [
        *show.columns(">version, status, what"),
        show.Column("bytes", lambda row: show.size(row["bytes"]), right=True),
        *show.columns(">score, why"),
    ]
    show.rows(rows, columns, chosen.output)
    _sweep(call, history, delete=chosen.yes)
    going = [row for row in rows if row["what"] in ("delete", "deleted")]
    total = show.size(sum(row["bytes"] for row in going))
    click.echo(
        f"{len(going)} of {len(rows)} versions {'were' if chosen.yes else 'would be'} deleted, {total}."
        + ("" if chosen.yes or not going else " Give --yes to do it."),
        err=True,
    )


def _sweep(call: AppContext, history: AdapterHistory, *, delete: bool) -> None:
    """Remove the folders that killed publishers left; without `delete`, only name them."""
    from streams.adapters import store

    uris = [version.uri for version in history.state.versions.values()]
    left = store.abandoned_folders(call.settings.adapters.store, history.state.policy, uris)
    for folder in left if delete else ():
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        click.echo(
            f"{len(left)} half-written folders of killed publishers {'were' if delete else 'would be'} removed, such "
            f"as {left[0]}",
            err=True,
        )


def _fate(call: AppContext, history: AdapterHistory, fate: RetentionDecision) -> dict[str, Any]:
    """Return a version's row; `what` is keep, delete, retire (its files are not in this store) or gone."""
    from streams.adapters import store

    version = fate.version
    is_here = store.is_of(call.settings.adapters.store, history.state.policy, version.version, version.uri)
    place = call.settings.adapters.store
    size = store.size_of(place, version.uri) if version.uri is not None and is_here else 0  # an event may name any URI
    action = "keep"
    if fate.goes:
        action = "delete" if size else "gone" if version.status == "retired" else "retire"
    elsewhere = f"; its files at {version.uri} are not in this store" if version.uri is not None and not is_here else ""
    return {
        "policy": history.state.policy,
        "version": version.version,
        "status": version.status,
        "what": action,
        "bytes": size,
        "score": fate.score,
        "why": fate.reason + elsewhere,
    }


def _delete(
    call: AppContext, history: AdapterHistory, fate: RetentionDecision, action: str, actor: str
) -> tuple[AdapterHistory, str]:
    """Retire a version, and delete its files once that took effect. Return the new history and the action taken."""
    from streams.adapters import decisions, store
    from streams.errors import RefusedError

    number = fate.version.version
    if fate.version.status != "retired":
        try:
            reason = f"gc: {fate.reason}"
            retire = decisions.ProposedDecision(kind="retired", version=number, actor=actor, reason=reason)
            decisions.decide(call.settings_to_write, history, retire)
        except RefusedError as exc:  # it came into use meanwhile
            click.echo(f"version {number} stays: {exc}", err=True)
            return history, "keep"
        history = read(call, history.state.policy)
    if action != "delete" or history.state.versions[number].status != "retired":
        return history, "retired"
    if fate.version.uri is not None:
        store.remove(call.settings.adapters.store, fate.version.uri)  # `_fate` has checked that it is here
    return history, "deleted"
