"""The commands that change adapter versions: promote, reject, rollback, retire, adopt, gc.

    adapters promote, reject, rollback, retire ──► one event, read back ──► it took effect, or exit code 4
    adapters adopt ──► a model of another server, asked once ──► the next version, without weights
    adapters gc ──► versions to delete, with reasons ──► with --yes: retired by event, then deleted from the store

A canary's share has no command: it grows only in `rollouts.mode=canary`.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from streams.cli.adapters import adapters, policy_option, read
from streams.cli.runtime import AppContext, VersionNumber, output_option, pass_call, user_name

if TYPE_CHECKING:
    from schemas.events import AdapterKind
    from streams.adapters.decisions import AdapterDecision, AdapterHistory
    from streams.adapters.retention import RetentionDecision
    from streams.output import Output

__all__ = ["adapters"]
"""The group of commands, with those of adapters.py."""

version_option = click.option(
    "--version", type=VersionNumber(min=0), required=True, metavar="N", help="Version to decide about."
)


@dataclass(frozen=True)
class DecisionOptions:
    """The options of every decision."""

    policy: str | None
    actor: str
    reason: str
    output: Output


def decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every decision: --reason, --actor, --policy, --output; the command gets them as `decision`."""

    @functools.wraps(command)
    def decide(*args: Any, policy: str | None, actor: str | None, reason: str, output: Output, **rest: Any) -> None:
        command(*args, decision=DecisionOptions(policy, actor or user_name(), reason, output), **rest)

    for option in (
        output_option,
        policy_option,
        click.option("--actor", default=None, metavar="NAME", help="Actor to record.  [default: your user name]"),
        click.option("--reason", required=True, metavar="TEXT", help="Reason to record."),
    ):
        decide = option(decide)
    return decide


@adapters.command("promote")
@version_option
@click.option(
    "--expect",
    type=int,
    default=None,
    metavar="M",
    help="Only if version M is primary.  [default: the current primary]",
)
@decision_options
@pass_call
def adapters_promote(call: AppContext, /, version: int, expect: int | None, decision: DecisionOptions) -> None:
    """Make a version primary.

    It replaces the primary at the start of the command. If another decision came first, nothing changes and the exit
    code is 4.
    """
    _decide(call, "promoted", version, decision, expect=expect)


@adapters.command("reject")
@version_option
@decision_options
@pass_call
def adapters_reject(call: AppContext, /, version: int, decision: DecisionOptions) -> None:
    """Reject a version; if it is the candidate, its canary ends.

    Its files stay in the store, and it can no longer be promoted.
    """
    _decide(call, "rejected", version, decision)


@adapters.command("rollback")
@click.option(
    "--to",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Version to return to.  [default: the previous primary]",
)
@click.option("--expect", type=int, required=True, metavar="M", help="Primary to roll back.")
@decision_options
@pass_call
def adapters_rollback(call: AppContext, /, to: int | None, expect: int, decision: DecisionOptions) -> None:
    """Roll back to an older version.

    Only if version M is primary: if another decision came first, nothing changes and the exit code is 4. Agents follow
    at once; a response in progress stays on the version it began with.
    """
    from streams.adapters.decisions import rollback_target

    history = read(call, decision.policy)
    if to is None:
        to = rollback_target(history, expect, actor=decision.actor, reason=decision.reason)
    _decide(call, "rolled_back", to, decision, expect=expect, history=history)


@adapters.command("retire")
@version_option
@decision_options
@pass_call
def adapters_retire(call: AppContext, /, version: int, decision: DecisionOptions) -> None:
    """Retire a version for good.

    Its files stay until `adapters gc` deletes them.
    """
    from streams.errors import RefusedError

    if version == 0:
        raise RefusedError("version 0 is the base model, which any roll-back may return to; it is never retired")
    _decide(call, "retired", version, decision)


def _decide(
    call: AppContext,
    kind: AdapterKind,
    version: int,
    decision: DecisionOptions,
    *,
    expect: int | None = None,
    history: AdapterHistory | None = None,
) -> None:
    from streams import output as show
    from streams.adapters import decisions

    history = read(call, decision.policy) if history is None else history
    proposed = decisions.ProposedDecision(
        kind=kind, version=version, actor=decision.actor, reason=decision.reason, expect=expect
    )
    show.record(_row(decisions.decide(call.settings_to_write, history, proposed)), decision.output)


def _row(decision: AdapterDecision) -> dict[str, Any]:
    return {
        "policy": decision.event.policy,
        "version": decision.event.version,
        "kind": decision.event.kind,
        "at": str(decision.at),
        "primary": decision.state.primary,
        "before": decision.before,
        "again": decision.again,
    }


# --- adopt ------------------------------------------------------------------------------------------------------------


@adapters.command("adopt")
@click.option(
    "--dataset", default=None, metavar="NAME[@DIGEST]", help="Take the model that was tuned on this data set."
)
@click.option("--model", default=None, metavar="NAME", help="Model, by its name at the server.")
@click.option("--url", default=None, metavar="URL", help="Its server, up to /v1.  [default: outside.url]")
@click.option("--actor", default=None, metavar="NAME", help="Actor to record.  [default: your user name]")
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
    from streams import output as show
    from streams.improve.datasets.outside_version import AdoptionOrder, adopt

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
@click.option("--actor", default=None, metavar="NAME", help="Actor to record.  [default: your user name]")
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
        show.Column("version", "version", right=True),
        show.Column("status", "status"),
        show.Column("what", "what"),
        show.Column("bytes", lambda row: show.size(row["bytes"]), right=True),
        show.Column("score", "score", right=True),
        show.Column("why", "why"),
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
