"""Switch off the time limits of topics while they hold restored records, and set them back.

    switch_off: what they were ──► restores/CLUSTER/TOPIC.json, beside the archive ──► retention.ms = -1, any time taken
    set_back:   each as it was ──► the file is removed

The file is written before the topic is changed, and removed after it is changed back. If a process is killed in
between, its file about an unchanged topic does not count: a restore is in progress only where retention is off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka import admin

from schemas import json_text
from streams.errors import LogError
from streams.kafka import admin as cluster
from streams.kafka.client import admin_client, unreachable
from streams.kafka.topics import ANY_MS, NEWEST, OLDEST, topics
from streams.settings.model import Settings
from streams.tools.archive.store import Store

KEY, OFF = "retention.ms", "-1"
LIFTED = {KEY: OFF, OLDEST: str(ANY_MS), NEWEST: str(ANY_MS)}
"""The settings of a topic that a restore changes: what they are meanwhile."""

Limits = Mapping[str, str | None]
"""The values of LIFTED before, of those that were noted. None: the broker's default."""


class SetBack(NamedTuple):
    """A topic with the retention that it had before a restore."""

    label: str
    retention_ms: str | None
    """None: the broker's default."""


class RestoredTopics:
    """The topics of one log, and what the archive's store notes of their retention."""

    def __init__(self, store: Store, settings: Settings) -> None:
        """`settings` are those of the log. Raises LogError if it does not answer."""
        self._store, self._settings = store, settings
        self._names = {label: topic.name for label, topic in topics(settings.topics).items()}
        self._client = admin_client(settings.kafka)
        try:
            cluster_id = self._client.list_topics(timeout=settings.kafka.request_timeout_s).cluster_id
        except ck.KafkaException as exc:
            raise unreachable(settings.kafka, exc.args[0].str()) from exc
        self._folder = f"restores/{cluster_id}"

    def under_way(self, labels: Iterable[str]) -> set[str]:
        """Return the topics where a restore has switched off retention."""
        now = self._limits(labels)
        return {label for label in now if now[label][KEY] == OFF and self._note(label) is not None}

    def switch_off(self, labels: Iterable[str]) -> None:
        """Switch the limits of these topics off, and note what they were."""
        now = self._limits(labels)
        for label in now.keys() - self.under_way(now):
            self._store.remove(self._file(label))  # of an earlier topic of this name
            self._store.create(self._file(label), json.dumps(now[label]).encode())
        self._alter({label: LIFTED for label, limits in now.items() if limits != LIFTED})

    def set_back(self, labels: Iterable[str]) -> Iterator[SetBack]:
        """Set the limits of restored topics back, and yield each topic."""
        labels = list(labels)
        restored = self.under_way(labels)
        for label in labels:
            note = self._note(label)
            if label in restored and note is not None:
                self._alter({label: note})
                yield SetBack(label, note[KEY])
            self._store.remove(self._file(label))

    def _file(self, label: str) -> str:
        return f"{self._folder}/{self._names[label]}.json"

    def _note(self, label: str) -> Limits | None:
        """Return what was noted of a topic, None if nothing was. Raises LogError if the note is damaged."""
        data = self._store.read(self._file(label))
        try:
            if data is None:
                return None
            note = json_text.parse(data)
            return {KEY: note[KEY]} | {key: note[key] for key in LIFTED if key in note}
        except (ValueError, TypeError, LookupError) as exc:
            raise LogError(
                f"{self._store.location(self._file(label))}: not the {KEY} that was noted here: {exc!r}. Set that of "
                f"{self._names[label]} yourself, and remove this file"
            ) from exc

    def _limits(self, labels: Iterable[str]) -> dict[str, Limits]:
        """Return what was set on each topic that exists."""
        existing = cluster.describe(self._settings)
        existing_names = {label: self._names[label] for label in labels if self._names[label] in existing}
        configs = cluster.configs(self._settings, existing_names.values())
        return {label: {key: configs[name].get(key) for key in LIFTED} for label, name in existing_names.items()}

    def _alter(self, limits: Mapping[str, Limits]) -> None:
        resources = [
            admin.ConfigResource(
                admin.ConfigResource.Type.TOPIC,
                self._names[label],
                incremental_configs=[_entry(key, value) for key, value in of_topic.items()],
            )
            for label, of_topic in limits.items()
        ]
        if not resources:
            return
        for resource, future in self._client.incremental_alter_configs(resources).items():
            try:
                future.result()
            except ck.KafkaException as exc:
                raise LogError(
                    f"{', '.join(LIFTED)} of {resource.name} were not changed: {exc.args[0].str()}. Check access "
                    "rights with `streamward doctor`"
                ) from exc


def _entry(key: str, value: str | None) -> admin.ConfigEntry:
    kinds = admin.AlterConfigOpType
    return admin.ConfigEntry(key, value, incremental_operation=kinds.DELETE if value is None else kinds.SET)
