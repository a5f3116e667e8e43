"""The commands of users and of the key that signs their tokens.

users create, set-password ──► a password from the terminal or stdin, never an argument ──► its hash ──► access
users list ──► rows        set-roles, disable, enable ──► access ──► every server that follows
signing-key rotate ──► public half ──► access, private half ──► the file people.signing_key
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, json_option, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from plugins.people.access.access_log import AccessLog
    from plugins.people.access.users import User
    from streams.output import Output

ROLES = ("viewer", "submitter", "trainer", "promoter", "admin")
roles_option = click.option(
    "--role", "roles", type=click.Choice(ROLES), multiple=True, required=True, help="Role of the user; may be repeated."
)


@click.group("users")
def access_users() -> None:
    """Create, list, change and disable users.

    Users log in with a password or through OIDC.
    """


@access_users.command("create")
@click.argument("name")
@roles_option
@click.option("--tenant", help="Tenant whose jobs and files the user sees.  [default: all tenants]")
@json_option
@pass_call
def users_create(call: AppContext, /, name: str, roles: Any, tenant: str | None, output: Output) -> None:
    """Create a user. The password is prompted for, or is the first line of stdin."""
    from plugins.people.access import users
    from plugins.people.logins import logins

    users.checked_name(name)
    password = _password()
    _change_user(
        call, output, lambda log: logins.create_user(log, name, password, roles, actor=user_name(), tenant=tenant)
    )


@access_users.command("list")
@output_option
@pass_call
def users_list(call: AppContext, /, output: Output) -> None:
    """List every user."""
    from plugins.people.access import users
    from plugins.people.access.access_log import AccessLog
    from streams import output as show

    with AccessLog(call.settings) as log:
        rows = [users.row(user) for user in log.users.values()]
    columns = show.columns("user=user_id, name, roles, tenant, issuer, status")
    show.rows(rows, columns, output)


@access_users.command("set-password")
@click.argument("name")
@reason_option
@json_option
@pass_call
def users_set_password(call: AppContext, /, name: str, reason: str, output: Output) -> None:
    """Change a user's password, and end the user's sessions.

    The password is prompted for, or is the first line of stdin.
    """
    from plugins.people.logins import logins

    password = _password()
    _change_user(call, output, lambda log: logins.set_password(log, name, password, actor=user_name(), reason=reason))


@access_users.command("set-roles")
@click.argument("name")
@roles_option
@reason_option
@json_option
@pass_call
def users_set_roles(call: AppContext, /, name: str, roles: Any, reason: str, output: Output) -> None:
    """Replace the roles of a user."""
    from plugins.people.logins import logins

    _change_user(call, output, lambda log: logins.set_roles(log, name, roles, actor=user_name(), reason=reason))


@access_users.command("disable")
@click.argument("name")
@reason_option
@json_option
@pass_call
def users_disable(call: AppContext, /, name: str, reason: str, output: Output) -> None:
    """Disable a user and end the user's sessions."""
    from plugins.people.logins import logins

    _change_user(call, output, lambda log: logins.disable(log, name, actor=user_name(), reason=reason))


@access_users.command("enable")
@click.argument("name")
@reason_option
@json_option
@pass_call
def users_enable(call: AppContext, /, name: str, reason: str, output: Output) -> None:
    """Enable a disabled user."""
    from plugins.people.logins import logins

    _change_user(call, output, lambda log: logins.enable(log, name, actor=user_name(), reason=reason))


@click.group("signing-key")
def access_signing_key() -> None:
    """Manage the key that signs access tokens."""


@access_signing_key.command("rotate")
@click.option("--revoke", is_flag=True, help="Refuse the tokens of earlier keys at once, for instance after a leak.")
@reason_option
@json_option
@pass_call
def signing_key_rotate(call: AppContext, /, revoke: bool, reason: str, output: Output) -> None:
    """Replace the key in the file people.signing_key.

    Every server of the log needs the file. Tokens of the previous key are accepted until they expire. Servers re-read
    the file automatically; if each has a copy, replace all copies within 5 minutes.
    """
    from plugins.people.access.access_log import AccessLog
    from plugins.people.logins import logins
    from plugins.people.settings import People
    from streams import output as show
    from streams.errors import SettingsError

    settings = call.settings_to_write
    path = settings.of_plugin(People).signing_key
    if path is None:
        raise SettingsError(
            "people.signing_key is not set; name the file, e.g. --set people.signing_key=/etc/streamward/signing.pem"
        )
    with AccessLog(settings) as log:
        key = logins.rotate(log, path, actor=user_name(), reason=reason, revoke=revoke)
    show.record({"kid": key.kid, "file": str(path), "earlier": "revoked" if revoke else "expire"}, output)


def _change_user(call: AppContext, output: Output, change: Callable[[AccessLog], User]) -> None:
    from plugins.people.access import users
    from plugins.people.access.access_log import AccessLog
    from streams import output as show

    with AccessLog(call.settings_to_write) as log:
        show.record(users.row(change(log)), output)


def _password() -> str:
    """Return a password, typed twice at a terminal, or the first line of stdin."""
    stdin = click.get_text_stream("stdin")
    if stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return stdin.readline().rstrip("\r\n")
