"""Switch the retention of topics off while restored records are in them, and set it back.

    switch_off: what it was ──► restores/CLUSTER/TOPIC.json, beside the archive ──► retention.ms = -1
    set_back:   retention.ms as it was ──► the file is removed

The file is written before the topic is changed and removed after it was changed back, so a process that is killed in
between leaves a file about a topic as it was, which does not count: a restore is under way where the retention is off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka import admin

from schemas import json_text
from streams.errors import LogError
from streams.kafka import admin as cluster
from streams.kafka.client import admin_client, unreachable
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.store import Store

KEY, OFF = "retention.ms", "-1"


class SetBack(NamedTuple):
    """A topic whose retention is as it was before a restore."""

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
        """Return those of the topics whose retention a restore has switched off."""
        now = self._retentions(labels)
        return {label for label in now if now[label] == OFF and self._note(label) is not None}

    def switch_off(self, labels: Iterable[str]) -> None:
        """Switch the retention of these topics off, and note what it was."""
        now = self._retentions(labels)
        for label in now.keys() - self.under_way(now):
            self._store.remove(self._file(label))  # of an earlier topic of this name
            self._store.create(self._file(label), json.dumps({KEY: now[label]}).encode())
        self._alter({label: OFF for label, value in now.items() if value != OFF})

    def set_back(self, labels: Iterable[str]) -> Iterator[SetBack]:
        """Set the retention of restored topics back, and yield each."""
        labels = list(labels)
        restored = self.under_way(labels)
        for label in labels:
            note = self._note(label)
            if label in restored and note is not None:
                if note.retention_ms != OFF:
                    self._alter({label: note.retention_ms})
                yield note
            self._store.remove(self._file(label))

    def _file(self, label: str) -> str:
        return f"{self._folder}/{self._names[label]}.json"

    def _note(self, label: str) -> SetBack | None:
        """Return what was noted of a topic, None if nothing was. Raises LogError if the note is damaged."""
        data = self._store.read(self._file(label))
        try:
            return None if data is None else SetBack(label, json_text.parse(data)[KEY])
        except (ValueError, TypeError, LookupError) as exc:
            raise LogError(
                f"{self._store.location(self._file(label))}: not the {KEY} that was noted here: {exc!r}. Set that of "
                f"{self._names[label]} yourself, and remove this file"
            ) from exc

    def _retentions(self, labels: Iterable[str]) -> dict[str, str | None]:
        """Return the retention that was set on each topic that exists, None where the broker's default holds."""
        existing = cluster.describe(self._settings)
        existing_names = {label: self._names[label] for label in labels if self._names[label] in existing}
        configs = cluster.configs(self._settings, existing_names.values())
        return {label: configs[name].get(KEY) for label, name in existing_names.items()}

    def _alter(self, values: dict[str, str | None]) -> None:
        resources = [
            admin.ConfigResource(
                admin.ConfigResource.Type.TOPIC, self._names[label], incremental_configs=[_entry(value)]
            )
            for label, value in values.items()
        ]
        if not resources:
            return
        for resource, future in self._client.incremental_alter_configs(resources).items():
            try:
                future.result()
            except ck.KafkaException as exc:
                raise LogError(
                    f"{KEY} of {resource.name} was not changed: {exc.args[0].str()}. Check access rights with "
                    "`streamward doctor`"
                ) from exc


def _entry(value: str | None) -> admin.ConfigEntry:
    kinds = admin.AlterConfigOpType
    return admin.ConfigEntry(KEY, value, incremental_operation=kinds.DELETE if value is None else kinds.SET)
