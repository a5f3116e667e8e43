"""The commands of privacy: privacy erase, revoke, finish, list.

PERSON ──► pseudonym ──► asked ──► key deleted ──► confirmed
"""

from __future__ import annotations

import click

from streams.cli.route_commands import RouteCommand, add_routes


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
            "Delete the keys that are due, and those that a backup brought back.",
            columns=COLUMNS,
        ),
        "list": RouteCommand(
            "list_persons", "List the persons that were to be erased, by their pseudonyms.", columns=COLUMNS
        ),
    },
)
