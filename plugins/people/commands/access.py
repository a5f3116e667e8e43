"""The commands of access: admin access keys create, list, revoke; check; audit.

    create ──► key_created ──► access, and the key to stdout, once        revoke ──► key_revoked ──► access
    check ──► allowed, or exit code 4 with the reason                     audit ◄── requests

The commands of users and signing keys are in users.py, those of tenants in tenants.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plugins.people.commands.tenants import access_tenants
from plugins.people.commands.users import ROLES, access_signing_key, access_users
from streams.cli.runtime import AppContext, json_option, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def access() -> None:
    """Manage API keys, users and tenants.

    `streamward serve` requires keys with serve.auth=keys, and offers a login with people.signing_key.
    """


access.add_command(access_users)
access.add_command(access_signing_key)
access.add_command(access_tenants)


@access.group("keys")
def access_keys() -> None:
    """Create, list and revoke API keys."""


@access_keys.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the key.")
@click.option("--tenant", help="Tenant whose jobs and files the key sees.  [default: all tenants]")
@click.option("--name", help="Display name.")
@click.option("--expires", metavar="DURATION", help="Lifetime of the key: 12h, 30d, 8w.  [default: no expiry]")
@click.option("--agent", "agent_id", metavar="ID", help="Agent that the key is limited to.  [default: any]")
@pass_call
def keys_create(
    call: AppContext,
    /,
    role: Any,
    tenant: str | None,
    name: str | None,
    expires: str | None,
    agent_id: str | None,
) -> None:
    """Create a key and print it once; the log stores only its hash."""
    from plugins.people.access.access_log import AccessLog
    from plugins.people.access.keys import duration_ms

    lifetime_ms = None if expires is None else duration_ms(expires)
    with AccessLog(call.settings_to_write) as log:
        key = log.create(
            role=role, actor=user_name(), name=name, tenant=tenant, agent_id=agent_id, lasts_ms=lifetime_ms
        )
    click.echo(key.text)
    click.echo(f"key {key.key_id} has role {role}. It is not shown again: store it with your secrets", err=True)


@access_keys.command("list")
@output_option
@pass_call
def keys_list(call: AppContext, /, output: Output) -> None:
    """List every key, the oldest first."""
    from plugins.people.access import keys
    from plugins.people.access.access_log import AccessLog
    from streams import output as show
    from streams.kafka import times

    with AccessLog(call.settings) as log:
        rows = [keys.row(key, times.now_ms()) for key in log.keys.values()]
    show.rows(rows, show.columns("key=key_id, name, role, tenant, agent=agent_id, status"), output)


@access_keys.command("revoke")
@click.argument("key_id", metavar="ID")
@reason_option
@json_option
@pass_call
def keys_revoke(call: AppContext, /, key_id: str, reason: str, output: Output) -> None:
    """Revoke a key for good. Servers refuse it as soon as they have read the record."""
    from plugins.people.access import keys
    from plugins.people.access.access_log import AccessLog
    from streams import output as show
    from streams.kafka import times

    with AccessLog(call.settings_to_write) as log:
        show.record(keys.row(log.revoke(key_id, actor=user_name(), reason=reason), times.now_ms()), output)


@access.command("check")
@click.argument("subject", metavar="KEY-ID|USER")
@click.argument("action")
@json_option
@pass_call
def access_check(call: AppContext, /, subject: str, action: str, output: Output) -> None:
    """Say whether a key or a user may do ACTION.

    Prints the reason. Exit code 4 if not.
    """
    from plugins.people.access.access_log import AccessLog
    from streams import output as show
    from streams.access import roles
    from streams.errors import RefusedError, SettingsError
    from streams.kafka import times

    actions = {str(name): name for name in roles.every_action()}
    if action not in actions:
        raise SettingsError(f"there is no action {action!r}; expected one of {', '.join(actions)}")
    with AccessLog(call.settings) as log:
        principal = log.users.get(subject) or log.get(subject)
    refusal = principal.why_refused(times.now_ms())
    decision = roles.decide(principal, actions[action]) if refusal is None else roles.Decision(False, refusal)
    if not decision.allowed:
        raise RefusedError(decision.why)
    show.record({"allowed": True, "why": decision.why}, output)


@access.command("audit")
@click.option("--since", metavar="TIME|AGE", help="Only requests since this time: ISO 8601 (UTC), or an age (2h).")
@click.option("--denied", is_flag=True, help="Only refused requests.")
@click.option(
    "--key", "key_id", metavar="ID", help="Only requests with this key, or of `user NAME`; `anonymous`: without a key."
)
@click.option("--tenant", help="Only requests with this tenant's keys.")
@output_option
@pass_call
def access_audit(
    call: AppContext, /, since: str | None, denied: bool, key_id: str | None, tenant: str | None, output: Output
) -> None:
    """Print the requests to servers that require keys.

    Each has its principal, action, resource and verdict, and no body. Servers record requests with serve.requests=lossy
    (the default) or required.
    """
    from plugins.people.access.keys import printable_id
    from schemas.events import RequestEvent
    from streams import output as show
    from streams.cli import events_view
    from streams.errors import SettingsError
    from streams.kafka import times

    if key_id is not None and key_id.startswith("sw_"):
        raise SettingsError(f"--key: there is no key {printable_id(key_id)}")
    begin = times.Begin("start") if since is None else times.Begin("time", times.parse_time(since, "--since"))
    table = events_view.EventLines(many_topics=False) if output == "table" else None
    for record in times.tail(call.settings, times.named(call.settings, ["requests"]), begin, until_end=True):
        event = record.event
        if isinstance(event, RequestEvent):
            if (denied and event.allowed) or key_id not in (None, event.subject_id):
                continue
            if tenant not in (None, event.tenant):
                continue
        if table is not None:
            table.add(record)
        else:
            show.check_reader()
            print(events_view.json_of(record), flush=True)
