"""The schema ids of a Schema Registry, fetched once and kept in memory.

    settings.schemas ──► subjects <topic>-value, every version ──► schemas.ids ──► frames, written and read
                          └─ unreachable, or not registered: a command fails, a process waits, and is not ready

A process asks for every version of every event when it starts, and later only about an id that it does not know: an
outage after the start changes nothing. That request waits for the registry as the start does, since the meaning of a
record must not depend on when it was read. Nothing is registered here (streams/kafka/registry/register.py): the process
waits for a version that the registry does not hold, and never writes another id in its place.

Every request has a time limit, ANSWER_S: Confluent's client has none of its own.
"""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from schemas import ids as schema_ids
from schemas.ids import RegistryIds, RegistryVersion
from streams.egress.address_guard import require_host
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError
from streams.kafka.retry import StoppedWaiting
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import Topic, topics
from streams.observability.metrics import OFF, SCHEMA_REGISTRY, Meter
from streams.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

ANSWER_S = 10.0
"""How long the registry may be silent within one request."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""Delays between attempts to reach the registry; each is twice the one before."""
_EXPERIMENT = re.compile(r"experiment\.[^.]+\.$")
"""Suffix that streams/tools/replay/experiments.py appends to the prefix of the replayed log."""

log = logging.getLogger("streamward.schemas")

T = TypeVar("T")


class RegistryUnavailable(LogError):
    """The registry did not answer; it may answer later."""


def use(settings: Settings) -> None:
    """Write and read with the ids and keys of the settings; a registry is asked when the first record needs it."""
    use_keys(settings)
    if settings.schemas.registry_url:
        schema_ids.use_later(partial(connect, settings))
    else:
        schema_ids.use(schema_ids.LOCK_IDS)


def wait(settings: Settings, meter: Meter = OFF, stop: threading.Event | None = None) -> None:
    """Fetch the ids; while the registry is unreachable or lacks a schema, wait for it, and log that once.

    A lookup of an unknown id waits in the same way from then on. Raises StoppedWaiting once `stop` is set, RefusedError
    if the registry denies access, SettingsError if its ids clash with ours or the settings cannot work.
    """
    use_keys(settings)
    if not settings.schemas.registry_url:
        schema_ids.use(schema_ids.LOCK_IDS)
        return
    retrying = partial(_retrying, settings, meter, stop or threading.Event())

    def ask(known_id: int, schema_id: int) -> str | None:
        return retrying(partial(text_of, settings, known_id, schema_id))

    schema_ids.use(retrying(partial(connect, settings, ask)))


def _retrying(settings: Settings, meter: Meter, stop: threading.Event, call: Callable[[], T]) -> T:
    began, pause_s, logged = time.monotonic(), FIRST_PAUSE_S, None
    while True:
        try:
            result = call()
        except (RegistryUnavailable, NotFoundError) as exc:
            meter.heartbeat()
            meter.not_ready(SCHEMA_REGISTRY, str(exc))
            if logged is not type(exc):
                log.warning("%s. Waiting", exc)
                logged = type(exc)
        else:
            meter.ready(SCHEMA_REGISTRY)
            if logged is not None:
                waited_s = time.monotonic() - began
                log.info("the Schema Registry at %s answers, after %.0f s", settings.schemas.registry_url, waited_s)
            return result
        if stop.wait(pause_s):
            raise StoppedWaiting(
                f"the Schema Registry at {settings.schemas.registry_url} has not answered: stopping all the same. "
                "Unfinished work is repeated at the next start"
            )
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


# --- its contents -----------------------------------------------------------------------------------------------------


def connect(settings: Settings, ask: Callable[[int, int], str | None] | None = None) -> RegistryIds:
    """Return the ids of the registry; `ask` looks an unknown id up, given one that exists and the unknown one.

    Raises RegistryUnavailable, RefusedError, NotFoundError if a schema is not registered, and SettingsError for an id
    with different meanings there and in lock.json.
    """
    with asking(settings) as client:
        registered = [
            version for topic in topics(settings.topics).values() for version in versions(client, settings, topic)
        ]
    known_id = registered[0].id if registered else 0
    ids = RegistryIds(
        registered,
        partial(ask or partial(text_of, settings), known_id),
        url=str(settings.schemas.registry_url),
        own_ids=settings.schemas.own_ids,
    )
    if lacking := ids.lacking():
        names = ", ".join(f"{schema.event} version {schema.version}" for schema in lacking)
        address = "" if registered else ", or name the address of Confluent's API (Apicurio's ends in /apis/ccompat/v7)"
        raise NotFoundError(
            f"the Schema Registry at {settings.schemas.registry_url} does not hold {names}; register every version "
            f"with `streamward admin schemas register`{address}"
        )
    if clash := next(ids.clashes(), None):
        raise SettingsError(clashing(clash))
    return ids


def clashing(clash: str) -> str:
    """Return what to do about a clash of `RegistryIds.clashes`."""
    return (
        f"{clash}. If no record of this log was written before the registry was set, set schemas.own_ids=false; else "
        "use a registry that gives these subjects other ids, or leave schemas.registry_url out"
    )


def subject_of(settings: Settings, topic: Topic) -> str:
    """Return the subject of a topic's values, by TopicNameStrategy. An experiment has its source's."""
    return f"{_EXPERIMENT.sub('', settings.topics.prefix)}{topic.label}-value"


def versions(client: SchemaRegistryClient, settings: Settings, topic: Topic) -> list[RegistryVersion]:
    """Return every version of a topic's subject, oldest first; none if the subject does not exist."""
    subject = subject_of(settings, topic)
    numbers = unless_missing(lambda: client.get_versions(subject)) or []
    registered = [client.get_version(subject, number) for number in sorted(numbers)]
    return [
        RegistryVersion(topic.event.__name__, version.version, version.schema_id, version.schema.schema_str)
        for version in registered
    ]


def text_of(settings: Settings, known_id: int, schema_id: int) -> str | None:
    """Return the schema with this id, or None if the registry has none.

    Raises RegistryUnavailable if it does not answer, or does not know the id `known_id` either: it is still starting.
    """
    with asking(settings) as client:
        schema = unless_missing(lambda: client.get_schema(schema_id))
        if schema is not None:
            return str(schema.schema_str)
        if unless_missing(lambda: client.get_schema(known_id)) is None:
            raise RegistryUnavailable(
                f"the Schema Registry at {settings.schemas.registry_url} does not know schema id {known_id}, which it "
                "gave: it is another registry, or has not loaded its contents yet"
            )
    return None


def unless_missing(call: Callable[[], T]) -> T | None:
    """Return what `call` returns, or None if the registry answers 404."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        return call()
    except SchemaRegistryError as exc:
        if exc.http_status_code == 404:
            return None
        raise


# --- requests ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def asking(settings: Settings) -> Iterator[SchemaRegistryClient]:
    """Yield Confluent's client, and translate its errors to RegistryUnavailable, RefusedError or SettingsError."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

    registry = f"the Schema Registry at {settings.schemas.registry_url}"
    require_host(settings.schemas.registry_url or "", "schemas.registry_url")
    try:
        client = SchemaRegistryClient(_client_config(settings))
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"schemas.registry_url={settings.schemas.registry_url}, registry_ca_location="
            f"{settings.schemas.registry_ca_location}: {exc}. The latter must be a readable PEM file"
        ) from exc
    try:
        with client:
            yield client
    except SchemaRegistryError as exc:
        status = exc.http_status_code
        if status >= 500 or status in (408, 429):
            raise RegistryUnavailable(f"{registry} cannot answer now: {exc}. Check that it is healthy") from exc
        advice = "check schemas.registry_username, registry_password, and what that user may do"
        raise RefusedError(f"{registry} refused: {exc}; {advice if status in (401, 403) else 'see its log'}") from exc
    except Exception as exc:  # Confluent uses one of two HTTP clients: `_is_transport` decides
        if not _is_transport(exc):
            raise
        raise RegistryUnavailable(
            f"{registry} does not answer: {_reason(exc)}. Check that it runs, and that schemas.registry_url is right"
        ) from exc


def _client_config(settings: Settings) -> dict[str, Any]:
    rule = settings.schemas
    config: dict[str, Any] = {"url": rule.registry_url, "timeout": ANSWER_S, "max.retries": 0}
    if rule.registry_username is not None and rule.registry_password is not None:
        config["basic.auth.user.info"] = f"{rule.registry_username}:{rule.registry_password.get_secret_value()}"
    if rule.registry_ca_location is not None:
        config["ssl.ca.location"] = str(rule.registry_ca_location)
    return config


def _is_transport(exc: Exception) -> bool:
    """Whether the HTTP client failed (Confluent uses one of two), or the answer is not JSON."""
    names = {kind.__module__.partition(".")[0] for kind in type(exc).__mro__}
    return bool(names & {"httpx", "httpx2"}) or isinstance(exc, (OSError, ssl.SSLError, ValueError))


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
