"""The commands that decide about adapter versions.

    adapters promote, reject, rollback, retire ──► one event, read back ──► it took effect, or exit code 4
    adapters gc ──► what would be deleted, and why ──► with --yes: retired by event, then deleted from the store

A canary's share has no command: it grows in `rollouts.mode=canary` alone.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from streams.cli.adapters import adapters, policy_option, read
from streams.cli.runtime import AppContext, output_option, pass_call, user_name

if TYPE_CHECKING:
    from schemas.events import AdapterKind
    from streams.adapters.decisions import AdapterDecision, AdapterHistory
    from streams.adapters.retention import RetentionDecision
    from streams.output import Output

__all__ = ["adapters"]
"""The group, with the commands of both modules; adapter_import.py adds one more."""

version_option = click.option(
    "--version", type=click.IntRange(min=0), required=True, metavar="N", help="The version this is about."
)


@dataclass(frozen=True)
class DecisionOptions:
    """What the options of every decision say."""

    policy: str | None
    actor: str
    reason: str
    output: Output


def _by_a_person(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every decision has: --reason, --actor, --policy and --output; the command gets them as `given`."""

    @functools.wraps(command)
    def collected(*args: Any, policy: str | None, actor: str | None, reason: str, output: Output, **rest: Any) -> None:
        command(*args, given=DecisionOptions(policy, actor or user_name(), reason, output), **rest)

    for option in (
        output_option,
        policy_option,
        click.option("--actor", default=None, metavar="NAME", help="Who decides.  [default: your user name]"),
        click.option("--reason", required=True, metavar="TEXT", help="Why. It is recorded in the log."),
    ):
        collected = option(collected)
    return collected


@adapters.command("promote")
@version_option
@click.option(
    "--expect", type=int, default=None, metavar="M", help="Only if version M is primary.  [default: the present one]"
)
@_by_a_person
@pass_call
def adapters_promote(call: AppContext, /, version: int, expect: int | None, given: DecisionOptions) -> None:
    """Make a version primary.

    It replaces the primary that served when the command started. If another decision came first, nothing changes and
    the exit code is 4.
    """
    _decide(call, "promoted", version, given, expect=expect)


@adapters.command("reject")
@version_option
@_by_a_person
@pass_call
def adapters_reject(call: AppContext, /, version: int, given: DecisionOptions) -> None:
    """Reject a version; if it is the candidate, its canary ends.

    Its files stay in the store, and it can no longer be promoted.
    """
    _decide(call, "rejected", version, given)


@adapters.command("rollback")
@click.option(
    "--to",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Return to this one.  [default: the previous primary]",
)
@click.option("--expect", type=int, required=True, metavar="M", help="The primary that is rolled back.")
@_by_a_person
@pass_call
def adapters_rollback(call: AppContext, /, to: int | None, expect: int, given: DecisionOptions) -> None:
    """Roll back to an older version.

    Only if version M is primary: if another decision came first, nothing changes and the exit code is 4. Agents follow
    at once; responses they have begun end on the version they began with.
    """
    from streams.adapters.decisions import rollback_target

    life = read(call, given.policy)
    if to is None:
        to = rollback_target(life, expect, actor=given.actor, reason=given.reason)
    _decide(call, "rolled_back", to, given, expect=expect, life=life)


@adapters.command("retire")
@version_option
@_by_a_person
@pass_call
def adapters_retire(call: AppContext, /, version: int, given: DecisionOptions) -> None:
    """Take a version out of use, for good.

    Its files stay until `adapters gc` deletes them.
    """
    from streams.errors import RefusedError

    if version == 0:
        raise RefusedError("version 0 is the base model, which any roll-back may return to; it is never retired")
    _decide(call, "retired", version, given)


def _decide(
    call: AppContext,
    kind: AdapterKind,
    version: int,
    given: DecisionOptions,
    *,
    expect: int | None = None,
    life: AdapterHistory | None = None,
) -> None:
    from streams import output as show
    from streams.adapters import decisions

    life = read(call, given.policy) if life is None else life
    proposed = decisions.ProposedDecision(
        kind=kind, version=version, actor=given.actor, reason=given.reason, expect=expect
    )
    made = decisions.decide(call.settings_to_write, life, proposed)
    show.record(_row(made), given.output)


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
@click.option("--keep-best", type=click.IntRange(min=0), required=True, metavar="K", help="Keep the K best versions.")
@click.option("--by", default=None, metavar="SUITE/METRIC", help="What is best.  [default: the only suite]")
@click.option(
    "--keep-primaries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the last N primaries, for a roll-back.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and why; the default.")
@click.option("--yes", is_flag=True, help="Delete them.")
@click.option("--actor", default=None, metavar="NAME", help="Who decides.  [default: your user name]")
@policy_option
@output_option
@pass_call
def adapters_gc(call: AppContext, /, **options: Any) -> None:
    """Show which versions would be deleted; with --yes, delete them.

    Kept are the serving version, the primaries before it, versions without a decision, and the best. Each of the others
    is retired by an event, and then its files are deleted from the store. `streamward reproduce` can recreate them.
    """
    from streams import output as show
    from streams.adapters import retention
    from streams.errors import SettingsError

    asked = GcOptions(**options)
    if asked.yes and asked.dry_run:
        raise SettingsError("--yes and --dry-run contradict each other; give one of them")
    life = read(call, asked.policy)
    measure = retention.measure(life.state, asked.by) if asked.keep_best or asked.by else None
    fates = retention.plan(life.state, best=asked.keep_best, primaries=asked.keep_primaries, by=measure)
    rows = []
    for fate in fates:
        row = _fate(call, life, fate)
        if asked.yes and row["what"] in ("delete", "retire"):
            life, row["what"] = _delete(call, life, fate, row["what"], asked.actor or user_name())
        rows.append(row)
    columns = [
        show.Column("version", "version", right=True),
        show.Column("status", "status"),
        show.Column("what", "what"),
        show.Column("bytes", lambda row: show.size(row["bytes"]), right=True),
        show.Column("score", "score", right=True),
        show.Column("why", "why"),
    ]
    show.rows(rows, columns, asked.output)
    _sweep(call, life.state.policy, delete=asked.yes)
    going = [row for row in rows if row["what"] in ("delete", "deleted")]
    total = show.size(sum(row["bytes"] for row in going))
    click.echo(
        f"{len(going)} of {len(rows)} versions {'were' if asked.yes else 'would be'} deleted, {total}."
        + ("" if asked.yes or not going else " Give --yes to do it."),
        err=True,
    )


def _sweep(call: AppContext, policy: str, *, delete: bool) -> None:
    """Remove what killed publishers left; without `delete`, say what would be removed."""
    from streams.adapters import store

    left = store.abandoned(call.settings.adapters.store, policy)
    for folder in left if delete else ():
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        click.echo(
            f"{len(left)} half-written folders of killed publishers {'were' if delete else 'would be'} removed, such "
            f"as {left[0]}",
            err=True,
        )


def _fate(call: AppContext, life: AdapterHistory, fate: RetentionDecision) -> dict[str, Any]:
    """Return a version's row; `what` is keep, delete, retire (its files are not in this store) or gone."""
    from streams.adapters import store

    version = fate.version
    here = store.uri_of(call.settings.adapters.store, life.state.policy, version.version)
    size = store.size_of(here) if version.uri == here else 0  # an event may name any URI
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
    """Retire a version, and delete its files once that took effect. Return the history after it, and what was done."""
    from streams.adapters import decisions, store
    from streams.errors import RefusedError

    number = fate.version.version
    if fate.version.status != "retired":
        try:
            retire = decisions.ProposedDecision(kind="retired", version=number, actor=actor, reason=f"gc: {fate.why}")
            decisions.decide(call.settings_to_write, life, retire)
        except RefusedError as exc:  # it was put to use meanwhile
            click.echo(f"version {number} stays: {exc}", err=True)
            return life, "keep"
        life = read(call, life.state.policy)
    if what != "delete" or life.state.versions[number].status != "retired":
        return life, "retired"
    store.remove(store.uri_of(call.settings.adapters.store, life.state.policy, number))
    return life, "deleted"
