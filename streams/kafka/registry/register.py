"""Register every version of every schema with a Schema Registry.

    schemas/avro ──► compared with every version the registry holds under our subjects ──► incompatible: RefusedError
                 ──► FULL_TRANSITIVE for each subject ──► the versions it lacks, in the order of lock.json

Everything is checked here before anything is changed: a registry with level NONE would accept anything. Versions that
exist are kept, so a second call changes nothing. An empty registry that counts from 1 gives the ids of lock.json,
because the order is the same. Nothing is ever removed, and a registry in mode READONLY refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from schemas import ids as schema_ids, versions as schema_versions
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
"""Apicurio 3.3 mistakes this text, a default of JSON in a string, for an object, and then finds no Avro schema. With
the brace escaped it is the same JSON."""


class Registered(NamedTuple):
    """The result for one version."""

    subject: str
    event: str
    version: int
    """Its id in lock.json."""
    id: int | None
    """Its id in the registry; None if it has none yet (a dry run)."""
    result: str
    """there, registered, or missing (a dry run)."""


class Planned(NamedTuple):
    """The registry's versions, and the subjects with another compatibility level."""

    held: list[RegistryVersion]
    subjects: Mapping[str, str]
    """Versions by event."""
    other_level: dict[str, str]
    """Present level by subject, without the subjects that have LEVEL."""


def register(settings: Settings, *, dry_run: bool = False) -> tuple[list[Registered], dict[str, str]]:
    """Register what is missing; return every version, and the level that each changed subject had before.

    With `dry_run` nothing is changed, and the same is returned. Raises SettingsError without a registry,
    RegistryUnavailable if it does not answer, RefusedError if any version there and any of ours cannot read each other
    (nothing is changed then), or if the registry refuses, or gives an id that clashes with one of lock.json.
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
        done = [_registered(client, plan, schema, dry_run) for schema in schema_versions.files().schemas.values()]
        registered = plan.held if dry_run else _planned(client, settings).held
    ids = RegistryIds(
        registered, lambda _: None, url=str(settings.schemas.registry_url), own_ids=settings.schemas.own_ids
    )
    if clash := next(ids.clashes(), None):
        raise RefusedError(f"{clashing(clash)}. {'Nothing was changed' if dry_run else 'Every version is registered'}")
    return done, plan.other_level


def _planned(client: SchemaRegistryClient, settings: Settings) -> Planned:
    shapes = topics(settings.topics).values()
    registered = [version for topic in shapes for version in versions(client, settings, topic)]
    subjects = {topic.event.__name__: subject_of(settings, topic) for topic in shapes}
    levels = {subject: _level(client, subject) for subject in subjects.values()}
    return Planned(registered, subjects, {subject: level for subject, level in levels.items() if level != LEVEL})


def _level(client: SchemaRegistryClient, subject: str) -> str:
    """Return the level set for a subject itself; empty if it has none: the global one may change."""
    return str(unless_missing(lambda: client.get_compatibility(subject)) or "")


def incompatible(plan: Planned) -> Iterator[str]:
    """Yield a sentence for each version in the registry and version of ours of which one cannot read the other."""
    for version in plan.held:
        local = schema_ids.schema_from_text(version.text)
        if local is not None and local.event == version.event:
            continue
        subject = plan.subjects[version.event]
        their_name = f"{subject}: version {version.number} in the registry (id {version.id})"
        for schema in schema_versions.files().versions(version.event):
            our_name = f"version {schema.version} of schemas/lock.json"
            for (reader, reading), (writer, writing) in product(
                ((their_name, version.text), (our_name, schema.text)), repeat=2
            ):
                if reader != writer and (conflict := schema_versions.cannot_read(reading, writing)) is not None:
                    yield (
                        f"{subject}: {reader.removeprefix(f'{subject}: ')} cannot read "
                        f"{writer.removeprefix(f'{subject}: ')}: {conflict}. Take that version out of the registry, or "
                        "use another topics.prefix"
                    )


def _registered(client: SchemaRegistryClient, plan: Planned, schema: Schema, dry_run: bool) -> Registered:
    from confluent_kafka.schema_registry import Schema as Text

    subject = plan.subjects[schema.event]
    equal = [
        version
        for version in plan.held
        if version.event == schema.event and schema_ids.schema_from_text(version.text) == schema
    ]
    if equal:
        return Registered(subject, schema.event, schema.version, equal[0].id, "there")
    if dry_run:
        return Registered(subject, schema.event, schema.version, None, "missing")
    schema_id = client.register_schema(subject, Text(schema.text.replace(_EMPTY, _ESCAPED), "AVRO"))
    return Registered(subject, schema.event, schema.version, schema_id, "registered")
