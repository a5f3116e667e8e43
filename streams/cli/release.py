"""The commands that decide about adapter versions.

    adapters promote, reject, rollback, retire ──► one event, read back ──► it took effect, or exit code 4
    adapters gc ──► what would go, and why ──► with --yes: retired by event, then deleted from the store

As thin as those in root.py, and as careful not to import anything before a command runs.

Not covered: canaries, whose shares grow by `rollouts.mode=canary` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.cli.adapters import adapters, policy_option, read
from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from schemas.events import AdapterKind
    from streams.adapters.decisions import AdapterDecision, AdapterHistory
    from streams.adapters.retention import RetentionDecision
    from streams.output import Output

__all__ = ["adapters"]
"""The group, with its commands of both modules."""

F = TypeVar("F", bound=Callable[..., Any])

version_option = click.option(
    "--version", type=click.IntRange(min=0), required=True, metavar="N", help="The version this is about."
)


def _by_a_person(command: F) -> F:
    """Add what every decision has: --reason, --actor, --policy and --output."""
    for option in (
        output_option,
        policy_option,
        click.option("--actor", default=None, metavar="NAME", help="Who decides; your user name unless said."),
        click.option("--reason", required=True, metavar="TEXT", help="Why. It stays in the log."),
    ):
        command = option(command)
    return command


@adapters.command("promote")
@version_option
@click.option(
    "--expect", type=int, default=None, metavar="M", help="Only if version M is primary; what is, unless said."
)
@_by_a_person
@pass_call
def adapters_promote(call: AppContext, /, version: int, expect: int | None, **given: Any) -> None:
    """Make a version primary.

    It replaces the primary that was in force when you looked. If somebody was faster nothing changes, and the exit
    code is 4.
    """
    _decide(call, "promoted", version, expect=expect, **given)


@adapters.command("reject")
@version_option
@_by_a_person
@pass_call
def adapters_reject(call: AppContext, /, version: int, **given: Any) -> None:
    """Turn a version down; if it is the candidate, its canary ends.

    It stays in the store, and cannot be promoted any more.
    """
    _decide(call, "rejected", version, **given)


@adapters.command("rollback")
@click.option(
    "--to", type=click.IntRange(min=0), default=None, metavar="N", help="The version to go back to; the primary before."
)
@click.option("--expect", type=int, required=True, metavar="M", help="The primary that is taken back.")
@_by_a_person
@pass_call
def adapters_rollback(call: AppContext, /, to: int | None, expect: int, policy: str | None, **given: Any) -> None:
    """Take the primary back, and serve an older version.

    Only if version M is primary: if somebody was faster nothing changes, and the exit code is 4. Agents follow at
    once; what they are answering ends on the version it began with.
    """
    from streams.adapters.decisions import rollback_target

    life = read(call, policy)
    if to is None:
        to = rollback_target(life, expect, actor=_actor(given["actor"]), reason=given["reason"])
    _decide(call, "rolled_back", to, expect=expect, policy=policy, life=life, **given)


@adapters.command("retire")
@version_option
@_by_a_person
@pass_call
def adapters_retire(call: AppContext, /, version: int, **given: Any) -> None:
    """Take a version out of use for ever.

    Its files stay until `adapters gc` deletes them.
    """
    from streams.errors import RefusedError

    if version == 0:
        raise RefusedError("version 0 is the base model, to which a roll-back may always lead; it is never retired")
    _decide(call, "retired", version, **given)


def _actor(given: str | None) -> str:
    import getpass

    return given or getpass.getuser()


def _decide(
    call: AppContext,
    kind: AdapterKind,
    version: int,
    *,
    policy: str | None,
    actor: str | None,
    reason: str,
    output: Output,
    expect: int | None = None,
    life: AdapterHistory | None = None,
) -> None:
    from streams import output as show
    from streams.adapters import decisions

    life = read(call, policy) if life is None else life
    proposed = decisions.ProposedDecision(kind=kind, version=version, actor=_actor(actor), reason=reason, expect=expect)
    made = decisions.decide(call.settings, life, proposed)
    show.record(_row(made), output)


def _row(made: AdapterDecision) -> dict[str, Any]:
    return {
        "policy": made.event.policy,
        "version": made.event.version,
        "kind": made.event.kind,
        "at": str(made.at),
        "primary": made.state.primary,
        "before": made.before,
        "again": made.again,
    }


# --- gc ---------------------------------------------------------------------------------------------------------------


@adapters.command("gc")
@click.option("--keep-best", type=click.IntRange(min=0), required=True, metavar="K", help="Keep the K best versions.")
@click.option("--by", default=None, metavar="SUITE/METRIC", help="What is best; the only suite there is unless said.")
@click.option(
    "--keep-primaries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the last N that were primary, for a roll-back.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and why. So it is without --yes.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--actor", default=None, metavar="NAME", help="Who decides; your user name unless said.")
@policy_option
@output_option
@pass_call
def adapters_gc(
    call: AppContext,
    keep_best: int,
    by: str | None,
    keep_primaries: int,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    policy: str | None,
    output: Output,
) -> None:
    """Show which versions would be deleted; with --yes, delete them.

    What serves, what served before it, what nobody has decided about, and the best stay. Each of the others is retired
    by an event, and then its files are deleted from the store. `streamward reproduce` can make them again.
    """
    from streams import output as show
    from streams.adapters import retention
    from streams.errors import SettingsError

    if yes and dry_run:
        raise SettingsError("--yes and --dry-run contradict each other; give one of them")
    life = read(call, policy)
    measure = retention.measure(life.state, by) if keep_best or by else None
    fates = retention.plan(life.state, best=keep_best, primaries=keep_primaries, by=measure)
    rows = []
    for fate in fates:
        row = _fate(call, life, fate)
        if yes and row["what"] in ("delete", "retire"):
            life, row["what"] = _delete(call, life, fate, row["what"], _actor(actor))
        rows.append(row)
    columns = [
        show.Column("version", "version", right=True),
        show.Column("status", "status"),
        show.Column("what", "what"),
        show.Column("bytes", lambda row: show.size(row["bytes"]), right=True),
        show.Column("score", "score", right=True),
        show.Column("why", "why"),
    ]
    show.rows(rows, columns, output)
    going = [row for row in rows if row["what"] in ("delete", "deleted")]
    total = show.size(sum(row["bytes"] for row in going))
    click.echo(
        f"{len(going)} of {len(rows)} versions {'were' if yes else 'would be'} deleted, {total}."
        + ("" if yes or not going else " Give --yes to do it."),
        err=True,
    )


def _fate(call: AppContext, life: AdapterHistory, fate: RetentionDecision) -> dict[str, Any]:
    """Return what becomes of a version as a row; `what` is keep, delete, retire (no files of ours) or gone."""
    from streams.adapters import store

    version = fate.version
    here = store.uri_of(call.settings.adapters.store, life.state.policy, version.version)
    size = store.size_of(here) if version.uri == here else 0  # an event may name any place: ours is deleted
    what = "keep"
    if fate.goes:
        what = "delete" if size else "gone" if version.status == "retired" else "retire"
    elsewhere = f"; its files at {version.uri} are not in this store" if version.uri not in (here, None) else ""
    return {
        "policy": life.state.policy,
        "version": version.version,
        "status": version.status,
        "what": what,
        "bytes": size,
        "score": fate.score,
        "why": fate.why + elsewhere,
    }


def _delete(
    call: AppContext, life: AdapterHistory, fate: RetentionDecision, what: str, actor: str
) -> tuple[AdapterHistory, str]:
    """Retire a version, and delete its files once that has taken effect. Return the life after, and what was done."""
    from streams.adapters import decisions, store
    from streams.errors import RefusedError

    number = fate.version.version
    if fate.version.status != "retired":
        try:
            retire = decisions.ProposedDecision(kind="retired", version=number, actor=actor, reason=f"gc: {fate.why}")
            decisions.decide(call.settings, life, retire)
        except RefusedError as exc:  # somebody put it to use while we looked
            click.echo(f"version {number} stays: {exc}", err=True)
            return life, "keep"
        life = read(call, life.state.policy)
    if what != "delete" or life.state.versions[number].status != "retired":
        return life, "retired"
    store.remove(store.uri_of(call.settings.adapters.store, life.state.policy, number))
    return life, "deleted"
