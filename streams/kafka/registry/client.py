"""The ids of a Schema Registry, found out once and kept.

    settings.schemas ──► subjects <topic>-value, every version ──► schemas.ids ──► frames, written and read
                          └─ away, or not registered: a command fails, a process waits, and is not ready

A process asks at its start for every version of every event, and then never again, but for an id that it has not met:
an outage later changes nothing. That one question waits as the start does, since what a record means must not depend
on when it was read. Nothing is registered here (streams/kafka/registry/register.py): a version that the registry does
not hold is waited for, and no other id is ever written in its place.

Not covered: keeping ids on disk. A process that starts while the registry is away waits for it.
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

from schemas import ids as numbering
from schemas.ids import RegistryIds, RegistryVersion
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError
from streams.kafka.retry import StoppedWaiting
from streams.kafka.topics import Topic, topics
from streams.observability.metrics import OFF, SCHEMA_REGISTRY, Meter
from streams.settings.model import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

ANSWER_S = 10.0
"""How long one question may take."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""Between two looks whether the registry is back; each is twice as long as the one before."""
_EXPERIMENT = re.compile(r"experiment\.[^.]+\.$")
"""What streams/tools/replay/experiments.py puts behind the prefix of the log that an experiment replays."""

log = logging.getLogger("streamward.schemas")

T = TypeVar("T")


class RegistryUnavailable(LogError):
    """The registry did not answer; it may later."""


def use(settings: Settings) -> None:
    """Write and read with the ids that the settings name; a registry is asked when the first record needs it."""
    if settings.schemas.registry_url:
        numbering.use_later(partial(connect, settings))
    else:
        numbering.use(numbering.LOCK_IDS)


def wait(settings: Settings, meter: Meter = OFF, stop: threading.Event | None = None) -> None:
    """Find the ids out, and return; while the registry is away, or lacks a schema, wait for it and say so once.

    From then on an id that is unknown is waited for in the same way. Raises StoppedWaiting once `stop` is set,
    RefusedError if the registry lets us not in, SettingsError if its ids clash with ours, or it cannot be asked so.
    """
    if not settings.schemas.registry_url:
        numbering.use(numbering.LOCK_IDS)
        return
    patiently = partial(_patiently, settings, meter, stop or threading.Event())

    def ask(known: int, schema_id: int) -> str | None:
        return patiently(partial(text_of, settings, known, schema_id))

    numbering.use(patiently(partial(connect, settings, ask)))


def _patiently(settings: Settings, meter: Meter, stop: threading.Event, call: Callable[[], T]) -> T:
    began, pause_s, told = time.monotonic(), FIRST_PAUSE_S, None
    while True:
        try:
            result = call()
        except (RegistryUnavailable, NotFoundError) as exc:
            meter.beat()
            meter.ready(SCHEMA_REGISTRY, str(exc))
            if told is not type(exc):
                log.warning("%s. Waiting", exc)
                told = type(exc)
        else:
            meter.ready(SCHEMA_REGISTRY)
            if told is not None:
                waited_s = time.monotonic() - began
                log.info("the Schema Registry at %s answers, after %.0f s", settings.schemas.registry_url, waited_s)
            return result
        if stop.wait(pause_s):
            raise StoppedWaiting(
                f"the Schema Registry at {settings.schemas.registry_url} has not answered: stopping all the same. What "
                "is not done is done again"
            )
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


# --- what it holds ----------------------------------------------------------------------------------------------------


def connect(settings: Settings, ask: Callable[[int, int], str | None] | None = None) -> RegistryIds:
    """Return the numbering of the registry; `ask` is given an id that exists, and one that is asked about.

    Raises Away if it does not answer, NotFoundError if a schema is not registered, RefusedError, and SettingsError for
    an id that means one thing there and another in lock.json.
    """
    with asking(settings) as client:
        held = [one for topic in topics(settings.topics).values() for one in versions(client, settings, topic)]
    known = held[0].id if held else 0
    ids = RegistryIds(
        held,
        partial(ask or partial(text_of, settings), known),
        where=str(settings.schemas.registry_url),
        own_ids=settings.schemas.own_ids,
    )
    if lacking := ids.lacking():
        names = ", ".join(f"{schema.event} version {schema.version}" for schema in lacking)
        address = "" if held else ", or name the address of Confluent's API (Apicurio's ends in /apis/ccompat/v7)"
        raise NotFoundError(
            f"the Schema Registry at {settings.schemas.registry_url} does not hold {names}; register every version "
            f"with `streamward schemas register`{address}"
        )
    if clash := next(ids.clashes(), None):
        raise SettingsError(clashing(clash))
    return ids


def clashing(clash: str) -> str:
    """Return what to do about a clash of `Given.clashes`."""
    return (
        f"{clash}. If no record of this log was written before the registry was set, set schemas.own_ids=false; else "
        "use a registry that gives these subjects other ids, or leave schemas.registry_url out"
    )


def subject_of(settings: Settings, topic: Topic) -> str:
    """Return the subject of a topic's values, by TopicNameStrategy. An experiment's records have its source's ids."""
    return f"{_EXPERIMENT.sub('', settings.topics.prefix)}{topic.label}-value"


def versions(client: SchemaRegistryClient, settings: Settings, topic: Topic) -> list[RegistryVersion]:
    """Return every version of a topic's subject, oldest first; none if there is no such subject."""
    subject = subject_of(settings, topic)
    numbers = unless_missing(lambda: client.get_versions(subject)) or []
    found = [client.get_version(subject, number) for number in sorted(numbers)]
    return [RegistryVersion(topic.event.__name__, one.version, one.schema_id, one.schema.schema_str) for one in found]


def text_of(settings: Settings, known: int, schema_id: int) -> str | None:
    """Return the schema with this id, or None if the registry has none.

    Raises Away if it does not answer, or does not know an id that it gave us either: it is about to start.
    """
    with asking(settings) as client:
        found = unless_missing(lambda: client.get_schema(schema_id))
        if found is not None:
            return str(found.schema_str)
        if unless_missing(lambda: client.get_schema(known)) is None:
            raise RegistryUnavailable(
                f"the Schema Registry at {settings.schemas.registry_url} does not know schema id {known}, which it "
                "gave: it is another one, or has not read what it holds"
            )
    return None


def unless_missing(call: Callable[[], T]) -> T | None:
    """Return what `call` returns, None if the registry says that there is no such thing."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        return call()
    except SchemaRegistryError as exc:
        if exc.http_status_code == 404:
            return None
        raise


# --- asking it --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def asking(settings: Settings) -> Iterator[SchemaRegistryClient]:
    """Yield Confluent's client, and translate what it raises: Away, RefusedError or SettingsError."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

    where = f"the Schema Registry at {settings.schemas.registry_url}"
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
            raise RegistryUnavailable(f"{where} cannot answer now: {exc}. Check that it is healthy") from exc
        who = "check schemas.registry_username, registry_password, and what that user may do"
        raise RefusedError(f"{where} refused: {exc}; {who if status in (401, 403) else 'see its log'}") from exc
    except Exception as exc:
        if not _is_transport(exc):
            raise
        raise RegistryUnavailable(
            f"{where} does not answer: {_reason(exc)}. Check that it runs, and that schemas.registry_url is right"
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
    """Tell whether the HTTP client failed, whichever of its names Confluent's uses, or what came is no JSON."""
    names = {kind.__module__.partition(".")[0] for kind in type(exc).__mro__}
    return bool(names & {"httpx", "httpx2"}) or isinstance(exc, (OSError, ssl.SSLError, ValueError))


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
