"""The commands of tenants with their own logs: create, list, show, remove.

create ──► missing rights ──► access and the broker        --dry-run ──► printed, and nothing changed
list, show ◄── recorded rights, compared with those that the broker enforces
remove ──► confirmed, or --yes ──► the broker and access
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from plugins.people.tenants.acls import AclRight
    from plugins.people.tenants.tenant_rights import TenantState
    from streams.output import Output

dry_run_option = click.option("--dry-run", is_flag=True, help="Only print the changes.")


@click.group("tenants")
def access_tenants() -> None:
    """Manage tenants that have their own logs.

    A tenant's topics, groups and transactional ids begin with topics.prefix, its name and a dot, and its principals
    have rights on these only, which the broker enforces. It needs a Kafka with an authorizer. Tenants that share a log
    are set on keys and users instead.
    """


@access_tenants.command("create")
@click.argument("tenant", metavar="NAME")
@click.option(
    "--principal",
    "principals",
    metavar="User:NAME",
    multiple=True,
    required=True,
    help="Kafka principal that gets the rights; may be repeated.",
)
@reason_option
@dry_run_option
@output_option
@pass_call
def tenants_create(
    call: AppContext,
    /,
    tenant: str,
    principals: tuple[str, ...],
    reason: str,
    dry_run: bool,
    output: Output,
) -> None:
    """Grant principals the rights on a tenant's topics.

    They may read, write and create these, and no others. Existing rights stay. Run it again to restore rights that
    `list` shows as missing.
    """
    from plugins.people.access.access_log import AccessLog
    from plugins.people.tenants import tenant_grants
    from streams.access.tenants import tenant_names as tenants
    from streams.kafka import admin

    settings = call.settings if dry_run else call.settings_to_write
    with AccessLog(settings) as log:
        plan = tenant_grants.plan_to_create(log, settings, tenant, principals)
        is_new = tenant not in log.tenant_logs
        if not dry_run:
            tenant_grants.carry_out(log, settings, plan, actor=user_name(), reason=reason)
    result = "would be created" if dry_run else "created"
    _print_rights([*((right, result) for right in plan.gives), *((right, "unchanged") for right in plan.keeps)], output)
    prefix = tenants.own_prefix(settings.topics.prefix, tenant)
    existing = [name for name in admin.describe(settings) if name.startswith(prefix)]
    if is_new and existing:
        click.echo(f"warning: {len(existing)} topics begin with {prefix} already, such as {existing[0]}", err=True)
    if not dry_run:
        click.echo(f"tenant {tenant} sets topics.prefix={prefix} and logs in to Kafka as its principal", err=True)


@access_tenants.command("list")
@output_option
@pass_call
def tenants_list(call: AppContext, /, output: Output) -> None:
    """List tenants with their own logs.

    Shows where the broker differs from the recorded rights. `reached by` lists the operator's principals, whose rights
    also cover other topics.
    """
    from streams import output as show

    rows = [
        {
            "tenant": state.tenant,
            "prefix": state.prefix,
            "principals": list(state.principals),
            "status": state.status,
            "differences": state.differences,
            "reached_by": list(state.reached_by),
        }
        for state in _states(call)
    ]
    columns = [
        show.Column("tenant", "tenant"),
        show.Column("topics", lambda row: row["prefix"] + "*"),
        show.Column("principals", lambda row: ", ".join(row["principals"])),
        show.Column("status", "status"),
        show.Column("reached by", lambda row: ", ".join(row["reached_by"])),
        show.Column("differences", lambda row: "; ".join(row["differences"])),
    ]
    show.rows(rows, columns, output)


@access_tenants.command("show")
@click.argument("tenant", metavar="NAME")
@output_option
@pass_call
def tenants_show(call: AppContext, /, tenant: str, output: Output) -> None:
    """Print every right of a tenant's principals.

    Also prints other rights that are limited to its topics.
    """
    from plugins.people.tenants import tenant_rights
    from streams.errors import NotFoundError

    state = next((state for state in _states(call) if state.tenant == tenant), None)
    if state is None:
        raise NotFoundError(
            f"tenant {tenant[:80]!r} has no log of its own, recorded or at the broker; "
            "`streamward admin access tenants create` gives it one"
        )
    expected = tenant_rights.rights_of(state.prefix, state.principals)
    rows = [
        *((right, "missing" if right in state.missing else "enforced") for right in expected),
        *((right, "not recorded") for right in state.unrecorded),
        *((right, "more than a tenant gets") for right in state.beyond),
        *((right, "denied") for right in state.denied),
    ]
    _print_rights(rows, output)
    if state.reached_by:
        click.echo(f"These principals have rights on more than its topics: {', '.join(state.reached_by)}", err=True)


@access_tenants.command("remove")
@click.argument("tenant", metavar="NAME")
@click.option("--principal", "principals", metavar="User:NAME", multiple=True, help="Only from this principal.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@reason_option
@dry_run_option
@output_option
@pass_call
def tenants_remove(
    call: AppContext,
    /,
    tenant: str,
    principals: tuple[str, ...],
    yes: bool,
    reason: str,
    dry_run: bool,
    output: Output,
) -> None:
    """Remove the rights on a tenant's topics, from all principals or some.

    Topics and records stay.
    """
    from plugins.people.access.access_log import AccessLog
    from plugins.people.tenants import tenant_grants, tenant_rights
    from streams.errors import SettingsError

    if yes and dry_run:
        raise SettingsError("--yes and --dry-run contradict each other; give one of them")
    settings = call.settings if dry_run else call.settings_to_write
    with AccessLog(settings) as log:
        plan = tenant_grants.plan_to_remove(log, settings, tenant, principals)
        if not dry_run:
            if not yes:
                _confirm(plan.takes, tenant)
            tenant_grants.carry_out(log, settings, plan, actor=user_name(), reason=reason)
    _print_rights([(right, "would be removed" if dry_run else "removed") for right in plan.takes], output)
    for right in plan.left:
        click.echo(f"warning: there is still {tenant_rights.describe(right)}", err=True)


def _confirm(takes: tuple[AclRight, ...], tenant: str) -> None:
    """Ask for confirmation. Raises Abort if the user declines, SettingsError without a terminal."""
    from streams.errors import SettingsError

    if not click.get_text_stream("stdin").isatty():
        raise SettingsError(f"`tenants remove {tenant}` asks before it takes rights away; in a script, give --yes")
    principals = ", ".join(sorted({right.principal for right in takes})) or "no principal"
    click.confirm(f"Remove {len(takes)} rights on the log of tenant {tenant} from {principals}?", abort=True, err=True)


def _states(call: AppContext) -> list[TenantState]:
    from plugins.people.access.access_log import AccessLog
    from plugins.people.tenants import tenant_grants

    with AccessLog(call.settings) as log:
        return tenant_grants.states(log, call.settings)


def _print_rights(rights: list[tuple[AclRight, str]], output: Output) -> None:
    from streams import output as show

    rows: list[dict[str, Any]] = [
        {
            "principal": right.principal,
            "operation": right.operation,
            "kind": right.kind,
            "names": f"{right.name}*" if right.is_prefix else right.name,
            "result": result,
        }
        for right, result in rights
    ]
    columns = show.columns("principal, operation, on=kind, names, result")
    show.rows(rows, columns, output)
