"""The commands of privacy: privacy erase, revoke, restrict, finish, list, export, trail, versions.

PERSON ──► pseudonym ──► asked ──► key deleted ──► confirmed
             └──► records, opened              └──► groups ──► versions that learnt ──► trained again without them
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.route_commands import RouteCommand, RoutedCommand, add_routes
from streams.cli.runtime import AppContext, importing, output_option, pass_call, reason_option, user_name

if TYPE_CHECKING:
    from plugins.privacy.erasure_log import ErasureLog
    from streams.output import Output
    from streams.tools.archive.history import Source


@click.group()
def privacy() -> None:
    """Erase and export what persons said."""


COLUMNS = "person state training asked_at due_at deleted_at"
ROOM = "plugins.privacy.rooms:Erasures"

add_routes(
    privacy,
    ROOM,
    {
        "revoke": RouteCommand(
            "revoke_erasure", "Take an erasure back while its key exists.", arguments="person", columns=COLUMNS
        ),
        "restrict": RouteCommand(
            "restrict_person",
            """Keep a person's words from training, or for a time of their own.

            With --training off what the person says is answered and recorded, and from then on enters no group, tuning
            or data set; --training on takes that back. What was trained before is listed by `streamward privacy
            versions`.
            """,
            arguments="person",
            columns=COLUMNS,
        ),
        "finish": RouteCommand(
            "finish_erasures",
            "Delete keys that are due, and erase persons who expired.",
            columns=COLUMNS,
        ),
        "list": RouteCommand(
            "list_persons", "List the pseudonyms of persons that were erased or restricted.", columns=COLUMNS
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

    with ErasureLog(call.settings) as log:
        subjects = _subjects(call, person, log)
        if not log.state(subjects[-1]).is_erased:
            log.note(subjects[-1], "exported", user_name(), reason)
    for label, record, event in records_of(call.settings, *subjects):
        print(show.json_line({"topic": label, "at": str(record.at), "event": event}))


@privacy.command("versions")
@click.argument("person")
@output_option
@pass_call
def privacy_versions(call: AppContext, person: str, output: Output) -> None:
    """List the versions that learnt from a person.

    Those that descend from them are in the list, too, with what their training took, and how often they were deployed.

    Deleting a key untrains none of them. Later answers of these policies were sampled by weights that had learnt from
    the person, so what was trained on those is listed as descending. The last column says whether `streamward privacy
    erase PERSON --retrain` trains a version again exactly, and if not, why.
    """
    from plugins.privacy.erasure_log import ErasureLog
    from plugins.privacy.learnt_versions import LearntVersions
    from streams import output as show

    with ErasureLog(call.settings) as log:
        subjects = _subjects(call, person, log)
    versions = LearntVersions(call.settings, set(subjects)).versions.values()
    names = ("policy", "version", "how", "groups", "tokens", "trainer_s", "rollouts", "again")
    columns = [show.Column(name, name) for name in names]
    rows = [
        {
            "policy": version.name.policy,
            "version": version.name.version,
            **{name: getattr(version, name) for name in ("how", "groups", "tokens", "trainer_s", "rollouts")},
            "again": version.why or f"exact, by {version.way}",
        }
        for version in sorted(versions, key=lambda version: version.name)
    ]
    show.rows(rows, columns, output)


@privacy.command("trail")
@click.argument("person")
@output_option
@pass_call
def privacy_trail(call: AppContext, person: str, output: Output) -> None:
    """List who read a person's words, and when.

    Requests of serve.auth=keys are listed, and commands of users; processes of the loop are not.
    """
    from plugins.privacy.erasure_log import ErasureLog
    from plugins.privacy.person_records import reads_of
    from streams import output as show

    with ErasureLog(call.settings) as log:
        subjects = _subjects(call, person, log)
    rows = [
        {
            "at": show.moment(event.created_at),
            "by": event.subject_id,
            "role": event.role,
            "tenant": event.tenant,
            "how": f"{event.method} {event.resource}",
            "status": event.status,
            "persons": "named" if is_named else "may be among those that are not named",
        }
        for event, is_named in reads_of(call.settings, *subjects)
    ]
    names = ("at", "by", "role", "tenant", "how", "status", "persons")
    show.rows(rows, [show.Column(name, name) for name in names], output)


class ErasingCommand(RoutedCommand):
    """`privacy erase`, which can train versions again afterwards."""

    @cached_property
    def _parameters(self) -> list[click.Parameter]:
        retrain = click.Option(
            ["--retrain"], is_flag=True, help="Then train the versions again that learnt from erased persons."
        )
        into = click.Option(
            ["--into"],
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="With --retrain: keep the checkpoints of versions made of batches here.  [default: they are left out]",
        )
        return [*super()._parameters, retrain, into]

    def _answer(
        self,
        output: Output,
        source: Source = "auto",
        actor: str | None = None,
        *,
        retrain: bool = False,
        into: Path | None = None,
        **fields: Any,
    ) -> None:
        if into is not None and not retrain:
            raise click.UsageError("--into has no effect without --retrain")
        super()._answer(output, source, actor, **fields)
        if retrain:
            _retrain(click.get_current_context().ensure_object(AppContext), fields["person"], into, output)


privacy.add_command(
    ErasingCommand(
        "erase",
        ROOM,
        RouteCommand(
            "erase_person",
            """Make a person's words unreadable, and delete the key.

            PERSON is the name that calls and tasks have for one, or the pseudonym. With privacy.grace_s the key is
            deleted later, by `streamward privacy finish`; until then `streamward privacy revoke` takes it back. The
            same again continues where a crash interrupted it.

            With --retrain, versions that can be trained again exactly are: a tuned version becomes the next of its
            policy, versions of batches are checkpoints in a FOLDER. `streamward privacy versions` lists the others.
            """,
            arguments="person",
            columns=COLUMNS,
        ),
    )
)


def _retrain(call: AppContext, person: str, into: Path | None, output: Output) -> None:
    """Train the versions again that learnt from this person, or another one who was erased."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process has it; read when torch is loaded
    from plugins.privacy.erasure_log import ErasureLog
    from plugins.privacy.learnt_versions import LearntVersions
    from streams import output as show
    from streams.kafka.history import LogHistory

    with importing():
        from plugins.privacy.train_without import retrain_without
    settings = call.settings_to_write
    with ErasureLog(settings) as log:
        erased = {state.person for state in log.states.values() if state.is_erased}
        erased.update(_subjects(call, person, log))
    learnt = LearntVersions(settings, erased)
    rows = [version._asdict() for version in retrain_without(settings, learnt, LogHistory(settings), into)]
    show.rows(rows, [show.Column(name, name) for name in ("policy", "version", "by", "sha256")], output)
    if left := sum(not version.is_replaced for version in learnt.versions.values()) - len(rows):
        click.echo(f"{left} versions with something of erased persons were not trained again.", err=True)


def _subjects(call: AppContext, person: str, log: ErasureLog) -> list[str]:
    """Return the pseudonyms of a person, the one in use last."""
    from plugins.privacy.person_keys import PersonKeys
    from plugins.privacy.privacy_settings import Privacy
    from streams.errors import SettingsError

    rule = call.settings.of_plugin(Privacy)
    if not rule.has_store:
        raise SettingsError("no keys are kept here; set privacy.key_folder or privacy.command")
    return PersonKeys(call.settings, rule).generations(None, person, log)
