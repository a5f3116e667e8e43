"""The schemas of this package over Confluent's Schema Registry API, read only.

    schemas/versions.py ──► GET /schemas/ids/{id}, /subjects/{topic}-value/versions/{version} ──► any Confluent client
                        ──► POST /subjects/{topic}-value: which version is this schema?

A consumer in any language finds the writer's schema of a record by the id in its frame, and a producer the id of its
schema. The ids are those of `schemas/lock.json`, the same everywhere, so any server will do; subjects are named by
Confluent's TopicNameStrategy, with the topics of this deployment.

Services never register schemas at run time, so any other POST, PUT and DELETE is refused. It has no TLS and no users:
it serves the repository's public files, on the loopback address by default.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from schemas import ids, json_text, versions as schema_versions
from schemas.versions import Schema
from streams.errors import SettingsError
from streams.kafka.topics import topics
from streams.observability import http_server
from streams.observability.http_server import Site
from streams.settings.model import Settings

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

NOT_FOUND, NO_SUBJECT, NO_VERSION, NO_SCHEMA, NO_AVRO, FORBIDDEN = 404, 40401, 40402, 40403, 42201, 403
"""Confluent's own error codes; their first three digits are the HTTP status."""

Answer = tuple[int, Any]
"""HTTP status and JSON body."""


@contextlib.contextmanager
def serve(settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve until the block is left, and yield the URL; port 0 takes a free one.

    Raises SettingsError if the port is taken.
    """
    subjects = _subjects(settings or Settings())
    site = Site(
        lambda path: _as_json(answer(path, subjects)),
        CONTENT_TYPE,
        _as_json(READ_ONLY),
        lambda path, body: _as_json(look_up(path, body, subjects)),
    )
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(http_server.serve(site, host, port))
        except (OSError, OverflowError) as exc:
            raise SettingsError(f"{host}:{port} cannot be served: {exc}; choose another --port, or 0") from exc
        yield url


def _subjects(settings: Settings) -> dict[str, list[Schema]]:
    """Return the versions of each subject, oldest first."""
    return {
        f"{topic.name}-value": schema_versions.files().versions(topic.event.__name__)
        for topic in topics(settings.topics).values()
    }


def answer(path: str, subjects: dict[str, list[Schema]]) -> Answer:
    """Return what a GET of `path` (without its query) gives."""
    match [part for part in path.split("/") if part]:
        case [] | ["mode"] | ["config"] | ["config", _]:
            return 200, {"mode": "READONLY", "compatibilityLevel": "FULL_TRANSITIVE"}
        case ["schemas", "types"]:
            return 200, ["AVRO"]
        case ["schemas", "ids", text, *rest] if rest in ([], ["schema"], ["versions"], ["subjects"]):
            return _by_id(text, rest, subjects)
        case ["subjects"]:
            return 200, list(subjects)
        case ["subjects", subject, "versions", *rest] if len(rest) <= 2 and rest[1:] in ([], ["schema"]):
            return _by_subject(subject, rest, subjects)
        case _:
            return _error(NOT_FOUND, f"{path} is not served here; see /subjects and /schemas/ids/{{id}}")


def look_up(path: str, body: bytes, subjects: dict[str, list[Schema]]) -> Answer:
    """Return which version of a subject the schema in `body` is; schemas are the same if their canonical form is.

    This is the one POST that changes nothing. Serializers that must not register schemas send it.
    """
    match [part for part in path.split("/") if part]:
        case ["subjects", subject]:
            versions = subjects.get(subject)
        case _:
            return READ_ONLY
    if versions is None:
        return _no_subject(subject, subjects)
    try:
        text = json_text.parse(body)["schema"]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str) or ids.fingerprint(text) is None:
        return _error(NO_AVRO, 'the body holds no Avro schema; expected {"schema": "..."}, a schema as JSON text')
    schema = ids.schema_from_text(text)
    if schema is None or schema not in versions:
        return _error(
            NO_SCHEMA,
            f"the schema is no version of {subject}, known: 1 to {len(versions)}. Use one of them (GET /subjects/"
            f"{subject}/versions/latest)",
        )
    return _entry(subject, schema)


def _by_id(text: str, rest: list[str], subjects: dict[str, list[Schema]]) -> Answer:
    schema = schema_versions.files().by_id(int(text)) if text.isdecimal() and len(text) <= 10 else None
    if schema is None:
        ids_here = schema_versions.files().schemas
        return _error(NO_SCHEMA, f"schema id {text} is not in lock.json (known: {min(ids_here)} to {max(ids_here)})")
    holders = [subject for subject, versions in subjects.items() if schema in versions]
    match rest:
        case ["schema"]:
            return 200, schema.definition
        case ["versions"]:
            return 200, [{"subject": subject, "version": schema.version} for subject in holders]
        case ["subjects"]:
            return 200, holders
        case _:
            return 200, {"schema": schema.text, "schemaType": "AVRO"}


def _by_subject(subject: str, rest: list[str], subjects: dict[str, list[Schema]]) -> Answer:
    versions = subjects.get(subject)
    if versions is None:
        return _no_subject(subject, subjects)
    if not rest:
        return 200, [schema.version for schema in versions]
    number = str(versions[-1].version) if rest[0] in ("latest", "-1") else rest[0]
    schema = next((schema for schema in versions if str(schema.version) == number), None)
    if schema is None:
        return _error(NO_VERSION, f"version {number} of {subject} does not exist; known: 1 to {len(versions)}")
    if rest[1:] == ["schema"]:
        return 200, schema.definition
    return _entry(subject, schema)


def _entry(subject: str, schema: Schema) -> Answer:
    entry = {"subject": subject, "version": schema.version, "id": schema.id}
    return 200, {**entry, "schemaType": "AVRO", "schema": schema.text}


def _no_subject(subject: str, subjects: dict[str, list[Schema]]) -> Answer:
    return _error(NO_SUBJECT, f"subject {subject} does not exist; known: {', '.join(subjects)}")


def _error(code: int, message: str) -> Answer:
    return int(str(code)[:3]), {"error_code": code, "message": message}


def _as_json(answered: Answer) -> tuple[int, str]:
    status, body = answered
    return status, json.dumps(body)


READ_ONLY = _error(
    FORBIDDEN,
    "this registry is read only: services never register schemas. Set auto.register.schemas=false; a new schema is "
    "made from schemas/events.py by `python -m schemas.generate`",
)
"""The answer to a request that would change something."""
