"""Put every version of every schema into a Schema Registry.

    schemas/avro ──► all that the registry holds under our subjects is read, and compared ──► one cannot: RefusedError
                 ──► FULL_TRANSITIVE for each subject ──► the versions it lacks, in the order of lock.json

Nothing is changed before all of it was checked, here: a registry would let everything pass where its own level is NONE.
What is there already stays, so to call it again changes nothing. An empty registry that counts from 1 gives the ids of
lock.json, because the order is the same.

Not covered: taking anything away, and modes: a registry that is READONLY refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from schemas import ids as numbering, versions as registry
from schemas.ids import RegistryIds, RegistryVersion
from schemas.versions import Schema
from streams.errors import RefusedError, SettingsError
from streams.kafka.registry.client import asking, clashing, subject_of, unless_missing, versions
from streams.kafka.topics import topics
from streams.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

LEVEL = "FULL_TRANSITIVE"
_EMPTY, _ESCAPED = '"{}"', '"{\\u007d"'
"""Apicurio 3.3 takes this text, our default of JSON in a string, for an object, and then finds no Avro schema. With its
brace escaped it is the same JSON."""


class Registered(NamedTuple):
    """What became of one version."""

    subject: str
    event: str
    version: int
    """As in lock.json."""
    id: int | None
    """The registry's; None if it has none yet (a dry run)."""
    result: str
    """there, registered, or missing (a dry run)."""


class Planned(NamedTuple):
    """What the registry holds, and which subjects have another level."""

    held: list[RegistryVersion]
    subjects: Mapping[str, str]
    """By event."""
    other_level: dict[str, str]
    """By subject, the level it has now; those that have LEVEL are left out."""


def register(settings: Settings, *, dry_run: bool = False) -> tuple[list[Registered], dict[str, str]]:
    """Register what is missing; return every version, and the level that each changed subject had before.

    With `dry_run` nothing is changed, and the same is returned. Raises SettingsError without a registry, Away if it
    does not answer, RefusedError if any version there and any of ours cannot read each other (nothing is changed then),
    or if the registry refuses, or gives an id that clashes with one of lock.json.
    """
    if not settings.schemas.registry_url:
        raise SettingsError("schemas.registry_url is not set; name the Schema Registry to register with")
    with asking(settings) as client:
        plan = _planned(client, settings)
        if problems := list(incompatible(plan)):
            raise RefusedError("\n".join([*problems, "Nothing was changed"]))
        if not dry_run:
            for subject in plan.other_level:
                client.set_compatibility(subject, LEVEL)
        done = [_registered(client, plan, schema, dry_run) for schema in registry.files().schemas.values()]
        held = plan.held if dry_run else _planned(client, settings).held
    ids = RegistryIds(held, lambda _: None, where=str(settings.schemas.registry_url), own_ids=settings.schemas.own_ids)
    if clash := next(ids.clashes(), None):
        raise RefusedError(f"{clashing(clash)}. {'Nothing was changed' if dry_run else 'Every version is registered'}")
    return done, plan.other_level


def _planned(client: SchemaRegistryClient, settings: Settings) -> Planned:
    wanted = topics(settings.topics).values()
    held = [one for topic in wanted for one in versions(client, settings, topic)]
    subjects = {topic.event.__name__: subject_of(settings, topic) for topic in wanted}
    levels = {subject: _level(client, subject) for subject in subjects.values()}
    return Planned(held, subjects, {subject: level for subject, level in levels.items() if level != LEVEL})


def _level(client: SchemaRegistryClient, subject: str) -> str:
    """Return the level of a subject of its own; empty if it has none: what holds for all may change."""
    return str(unless_missing(lambda: client.get_compatibility(subject)) or "")


def incompatible(plan: Planned) -> Iterator[str]:
    """Yield a sentence for each version in the registry and version of ours of which one cannot read the other."""
    for one in plan.held:
        if numbering.ours(one.text) is not None and numbering.ours(one.text).event == one.event:  # type: ignore[union-attr]
            continue
        subject = plan.subjects[one.event]
        theirs = f"{subject}: version {one.number} in the registry (id {one.id})"
        for schema in registry.files().versions(one.event):
            own = f"version {schema.version} of schemas/lock.json"
            for (reader, reading), (writer, writing) in product(((theirs, one.text), (own, schema.text)), repeat=2):
                if reader != writer and (why := registry.cannot_read(reading, writing)) is not None:
                    yield (
                        f"{subject}: {reader.removeprefix(f'{subject}: ')} cannot read "
                        f"{writer.removeprefix(f'{subject}: ')}: {why}. Take that version out of the registry, or use "
                        "another topics.prefix"
                    )


def _registered(client: SchemaRegistryClient, plan: Planned, schema: Schema, dry_run: bool) -> Registered:
    from confluent_kafka.schema_registry import Schema as Text

    subject = plan.subjects[schema.event]
    there = [one for one in plan.held if one.event == schema.event and numbering.ours(one.text) == schema]
    if there:
        return Registered(subject, schema.event, schema.version, there[0].id, "there")
    if dry_run:
        return Registered(subject, schema.event, schema.version, None, "missing")
    schema_id = client.register_schema(subject, Text(schema.text.replace(_EMPTY, _ESCAPED), "AVRO"))
    return Registered(subject, schema.event, schema.version, schema_id, "registered")
