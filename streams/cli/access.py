"""The commands of access: make, list and revoke keys; say what a key or a person may do.

create ──► key_created ──► access, and the key to stdout, once        check ──► allowed or not, and why
list ──► rows        revoke ──► key_revoked ──► access ──► whoever follows        audit ◄── requests
users, signing-key: people.py beside this        tenants: tenants.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.people import ROLES, access_signing_key, access_users
from streams.cli.runtime import AppContext, json_option, output_option, pass_call, user_name
from streams.cli.tenants import access_tenants

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def access() -> None:
    """Say who may call, and as what.

    `streamward serve` asks for keys with serve.auth=keys, and lets people log in with login.signing_key.
    """


access.add_command(access_users)
access.add_command(access_signing_key)
access.add_command(access_tenants)


@access.group("keys")
def access_keys() -> None:
    """Make, list and revoke keys."""


@access_keys.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--tenant", help="Whose jobs and files it sees; without it, all of them.")
@click.option("--name", help="What people call it.")
@click.option("--expires", metavar="DURATION", help="How long it is good for: 12h, 30d, 8w; without it, for ever.")
@click.option("--agent", "agent_id", metavar="ID", help="The only agent that it may be.")
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
    """Make a key, and print it: once, since the log has only what recognises it."""
    from streams.access.access_log import AccessLog
    from streams.access.keys import duration_ms

    lasts = None if expires is None else duration_ms(expires)
    with AccessLog(call.settings_to_write) as log:
        made = log.create(role=role, actor=user_name(), name=name, tenant=tenant, agent_id=agent_id, lasts_ms=lasts)
    click.echo(made.text)
    click.echo(f"key {made.key_id} has role {role}. It is shown this once: keep it where secrets are kept", err=True)


@access_keys.command("list")
@output_option
@pass_call
def keys_list(call: AppContext, /, output: Output) -> None:
    """List every key, the oldest first."""
    from streams import output as show
    from streams.access import keys
    from streams.access.access_log import AccessLog
    from streams.kafka import times

    with AccessLog(call.settings) as log:
        found = [keys.row(key, times.now_ms()) for key in log.keys.values()]
    show.rows(found, _columns(), output)


@access_keys.command("revoke")
@click.argument("key_id", metavar="ID")
@click.option("--reason", default="asked for", help="Why, for whoever reads the log.")
@json_option
@pass_call
def keys_revoke(call: AppContext, /, key_id: str, reason: str, output: Output) -> None:
    """Revoke a key for ever. Whoever follows the log knows it once it has read the record."""
    from streams import output as show
    from streams.access import keys
    from streams.access.access_log import AccessLog
    from streams.kafka import times

    with AccessLog(call.settings_to_write) as log:
        show.record(keys.row(log.revoke(key_id, actor=user_name(), reason=reason), times.now_ms()), output)


@access.command("check")
@click.argument("who", metavar="KEY-ID|USER")
@click.argument("action")
@json_option
@pass_call
def access_check(call: AppContext, /, who: str, action: str, output: Output) -> None:
    """Say whether a key or a user may do ACTION.

    And why; it ends with code 4 if not.
    """
    from streams import output as show
    from streams.access import roles
    from streams.access.access_log import AccessLog
    from streams.errors import RefusedError, SettingsError
    from streams.kafka import times

    wanted = next((known for known in roles.ACTIONS if known == action), None)
    if wanted is None:
        raise SettingsError(f"there is no action {action!r}; expected one of {', '.join(roles.ACTIONS)}")
    with AccessLog(call.settings) as log:
        asks = log.users.get(who) or log.get(who)
    why = asks.why_refused(times.now_ms())
    decision = roles.decide(asks, wanted) if why is None else roles.Decision(False, why)
    if not decision.allowed:
        raise RefusedError(decision.why)
    show.record({"allowed": True, "why": decision.why}, output)


@access.command("audit")
@click.option("--since", metavar="TIME|AGE", help="From then on: a time as ISO 8601 (UTC), or an age, as 2h.")
@click.option("--denied", is_flag=True, help="Only what was not allowed.")
@click.option(
    "--key", "key_id", metavar="ID", help="Only what came with this key, or from `user NAME`; `anonymous`: without one."
)
@click.option("--tenant", help="Only what this tenant's keys asked.")
@output_option
@pass_call
def access_audit(
    call: AppContext, /, since: str | None, denied: bool, key_id: str | None, tenant: str | None, output: Output
) -> None:
    """Print what was asked of servers with keys.

    Who, which action, of what, and whether it was allowed. Servers write it with serve.requests=lossy (the default) or
    required. It has no bodies.
    """
    from schemas.events import RequestEvent
    from streams import output as show
    from streams.access.keys import shown
    from streams.cli import events_view
    from streams.errors import SettingsError
    from streams.kafka import times

    if key_id is not None and key_id.startswith("sw_"):
        raise SettingsError(f"--key: there is no key {shown(key_id)}")
    begin = times.Begin("start") if since is None else times.Begin("time", times.parse_time(since, "--since"))
    table = events_view.EventLines(several=False) if output == "table" else None
    for seen in times.tail(call.settings, times.named(call.settings, ["requests"]), begin, until_end=True):
        event = seen.event
        if isinstance(event, RequestEvent):
            if (denied and event.allowed) or key_id not in (None, event.subject_id):
                continue
            if tenant not in (None, event.tenant):
                continue
        if table is not None:
            table.add(seen)
        else:
            show.check_reader()
            print(events_view.json_of(seen), flush=True)


def _columns() -> list[Any]:
    from streams import output as show

    return [
        show.Column("key", "key_id"),
        show.Column("name", "name"),
        show.Column("role", "role"),
        show.Column("tenant", "tenant"),
        show.Column("agent", "agent_id"),
        show.Column("status", "status"),
    ]
