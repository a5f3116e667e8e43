"""The commands of privacy: privacy erase, revoke, finish, list, export, versions.

PERSON ──► pseudonym ──► asked ──► key deleted ──► confirmed
             └──► records, opened              └──► groups ──► versions that learnt from them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def privacy() -> None:
    """Erase and export what persons said."""


COLUMNS = "person state asked_at due_at deleted_at"

add_routes(
    privacy,
    "plugins.privacy.rooms:Erasures",
    {
        "erase": RouteCommand(
            "erase_person",
            """Make a person's words unreadable, and delete the key.

            PERSON is the name that calls and tasks have for one, or the pseudonym. With privacy.grace_s the key is
            deleted later, by `streamward privacy finish`; until then `streamward privacy revoke` takes it back. The
            same again continues where a crash interrupted it.
            """,
            arguments="person",
            columns=COLUMNS,
        ),
        "revoke": RouteCommand(
            "revoke_erasure", "Take an erasure back while its key exists.", arguments="person", columns=COLUMNS
        ),
        "finish": RouteCommand(
            "finish_erasures",
            "Delete keys that are due, or that a backup brought back.",
            columns=COLUMNS,
        ),
        "list": RouteCommand(
            "list_persons", "List the persons that were to be erased, by their pseudonyms.", columns=COLUMNS
        ),
    },
)


@privacy.command("export")
@click.argument("person")
@reason_option
@pass_call
def privacy_export(call: AppContext, person: str, reason: str) -> None:
    """Print all records of a person as lines of JSON.

    An event records that they were given out.
    """
    from plugins.privacy.erasure_log import ErasureLog
    from plugins.privacy.person_records import records_of
    from streams import output as show

    subject = _subject(call, person)
    with ErasureLog(call.settings) as log:
        if not log.state(subject).is_erased:
            log.note(subject, "exported", user_name(), reason)
    for label, record, event in records_of(call.settings, subject):
        print(show.json_line({"topic": label, "at": str(record.at), "event": event}))


@privacy.command("versions")
@click.argument("person")
@output_option
@pass_call
def privacy_versions(call: AppContext, person: str, output: Output) -> None:
    """List the versions that learnt from a person.

    Those that descend from them are in the list, too.

    Deleting a key untrains none of them. Later answers of these policies were sampled by weights that had learnt from
    the person, so what was trained on those is listed as descending.
    """
    from plugins.privacy.person_records import versions_of
    from streams import output as show

    names = ("policy", "version", "how", "groups")
    columns = [show.Column(name, name) for name in names]
    rows = [
        {name: getattr(version, name) for name in names}
        for version in versions_of(call.settings, _subject(call, person))
    ]
    show.rows(rows, columns, output)


def _subject(call: AppContext, person: str) -> str:
    from plugins.privacy.person_keys import PersonKeys
    from plugins.privacy.privacy_settings import Privacy
    from streams.errors import SettingsError

    rule = call.settings.of_plugin(Privacy)
    if not rule.has_store:
        raise SettingsError("no keys are kept here; set privacy.key_folder or privacy.command")
    return PersonKeys(call.settings, rule).pseudonym(None, person)
