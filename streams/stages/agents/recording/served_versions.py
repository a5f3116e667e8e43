"""Keep the versions that the log asks for ready in the engine, for one policy or every policy of a fleet.

    adapters ──► AdapterFollower, in a thread ──► PolicyVersions of each policy ──► engine
                     primary and candidate are loaded as soon as they are known, of a fleet once a call comes
                     a version that a call names is loaded when it is asked for

A version that cannot be loaded is not tried again before a restart, and the one before it answers; the same holds for
an outside model, since its answers have no tokens to record. A fleet has fleet.states policies in memory; the least
recently used one leaves.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from streams.adapters import serving
from streams.adapters.follower import AdapterFollower
from streams.adapters.local import fetch_version
from streams.adapters.router import BASE, VersionRouter
from streams.engines.protocol import TokenEngine
from streams.engines.sharing import SharedTokenEngine
from streams.errors import CallError, EventError
from streams.files import Scratch
from streams.kafka.client import POLL_S
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage
from streams.observability import catalog
from streams.observability.metrics import OFF
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ServedModel

LOADED = 4
"""Number of versions that stay loaded in addition to primary and candidate: the most recently requested."""
log = logging.getLogger("streamward.agents")


class PolicyVersions:
    """The versions of one policy, and the engine that holds those that answer."""

    def __init__(self, settings: Settings, engine: TokenEngine, router: VersionRouter, folder: Path) -> None:
        """`router` is kept up to date by a follower; `folder` gets the adapters."""
        self._settings, self.engine, self.router, self._folder = settings, engine, router, folder
        self.policy = settings.policy.name
        self._lock = threading.Lock()
        self._loaded = {BASE}
        self._used, self._uses = dict[int, int](), count()
        """When each version was last used, as a count of uses."""

    def version_for(self, name: str, key: str, pin: int | None) -> int:
        """Return the version that answers a call of model `name`: this policy, or a version of it. Raises CallError.

        `key` decides its side of a canary; `pin` is the only version that its trajectory may use.
        """
        _, separator, number = name.partition("@")
        if separator:
            named = int(number) if number.isdecimal() and len(number) < 10 else -1
            if pin not in (None, named):
                text = f"version {pin} answers all runs of this task; ask for {self.policy}, not for {name}"
                raise CallError("invalid", text, "model")
            pin = named
        if pin is None:
            return serving.answers(self.router.serving_here, key)
        if pin not in self.router.statuses:
            newest = serving.newest(self.router.serving)
            text = f"{self.policy} has no version {number or pin}; its newest is {newest}"
            raise CallError("not_found", text, "model")
        if (outside := self.router.outside(pin)) is not None:
            text = (
                f"version {pin} is {outside.model} at {outside.url}, and calls are answered with tokens of models here"
            )
            raise CallError("not_found", f"{text}; ask that server, or for another version", "model")
        if self.router.is_retired(pin):
            raise CallError("not_found", f"version {pin} is retired and its files are gone", "model")
        return pin

    def models(self) -> list[ServedModel]:
        """Return the names that can be requested, the policy itself first."""
        router, versions = self.router, self.router.adapters.versions
        number = router.serving_here.primary
        primary = ServedModel(self.policy, number, versions[number].created_at, "primary")
        versioned = [
            ServedModel(f"{self.policy}@{number}", number, versions[number].created_at, status)
            for number, status in sorted(router.statuses.items())
            if status != "retired" and router.outside(number) is None
        ]
        return [primary, *versioned]

    def load(self, version: int) -> None:
        """Return once the engine has `version` ready. Raises EventError."""
        with self._lock:
            if version not in self._loaded:
                self._fetch(version)
                self._loaded.add(version)
            self._tidy()

    def use(self, version: int) -> bool:
        """Return whether the engine has `version`, and mark it as used: versions unused for long are unloaded."""
        self._used[version] = next(self._uses)
        return version in self._loaded

    def folder(self, version: int) -> Path | None:
        """Return the local folder of a version; None for one that is not loaded, and for the base."""
        return self._folder / str(version) if version != BASE and version in self._loaded else None

    def unload(self) -> None:
        """Remove all adapters of this policy from the engine; answers in progress finish."""
        with self._lock:
            self._drop(self._loaded - {BASE})

    def _fetch(self, version: int) -> None:
        base_digest = None if self.engine.name == "scripted" else self.engine.base_digest
        adapter, folder = self.router.adapters.versions[version], self._folder / str(version)
        self.engine.load(version, fetch_version(self._settings, adapter, base_digest, folder))
        log.info("version %d of %s is loaded", version, self.policy)

    def _tidy(self) -> None:
        current = self.router.serving_here
        unneeded = self._loaded - {BASE, current.primary, current.candidate}
        self._drop(sorted(unneeded, key=lambda version: self._used.get(version, -1))[:-LOADED])

    def _drop(self, versions: Iterable[int]) -> None:
        for version in tuple(versions):
            self._loaded.remove(version)
            self.engine.unload(version)
            shutil.rmtree(self._folder / str(version), ignore_errors=True)

    def load_what_answers(self) -> None:
        """Load primary and candidate; one that cannot be loaded is not tried again, and the one before it answers."""
        current = self.router.serving_here
        for version in (current.candidate, current.primary):
            if version is None or version in self._loaded:
                continue
            try:
                self.load(version)
            except EventError as exc:
                if exc.reason == "store_unreachable":
                    log.warning("version %d of %s is not loaded yet: %s", version, self.policy, exc)
                    continue
                self.router.unusable.add(version)
                log.error(
                    "version %d cannot be used, version %d answers: %s", version, self.router.serving_here.primary, exc
                )


class ServedVersions:
    """The versions of every policy of a server. Use as a context manager."""

    def __init__(self, settings: Settings, engine: TokenEngine, outage: BrokerOutage, *, fleet: bool = False) -> None:
        """Read the log; for a single policy load the versions that answer. Raises LogError, NotFoundError for a missing
        topic."""
        self._settings, self._engine = settings, engine
        self.single = None if fleet else settings.policy.name
        """The only policy; None for a fleet."""
        self._meter = outage.meter if fleet else OFF  # its reports are about fleets
        self._shared = SharedTokenEngine(engine)
        self._scratch = Scratch("served")
        self._versions: dict[str, PolicyVersions] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()
        """Policies with adapters in memory, the least recently used first."""
        self._lock = threading.Lock()
        self._adapters = AdapterFollower(settings, outage, self.serves)
        partitions = settings.topics.policy_partitions
        single = self.single
        self._adapters.assign(range(partitions) if single is None else [partition_of(single, partitions)])
        if single is not None:
            self.make_resident(single)

    def __enter__(self) -> ServedVersions:
        return self

    def __exit__(self, *_: object) -> None:
        self._adapters.close()
        self._scratch.close()

    def serves(self, policy: str) -> bool:
        """Whether this server answers for a policy."""
        return policy == self.single if self.single is not None else self._settings.fleet.serves(policy)

    @property
    def policies(self) -> list[str]:
        """The policies that have a version, and the single one in any case, by name."""
        return sorted(self._adapters.policies) if self.single is None else [self.single]

    def of(self, policy: str) -> PolicyVersions:
        """Return the versions of a policy."""
        with self._lock:
            if policy not in self._versions:
                rule = self._settings.policy.model_copy(update={"name": policy})
                settings = self._settings.model_copy(update={"policy": rule})
                engine = self._engine if self.single is not None else self._shared.share(policy)
                router, folder = self._adapters.router(policy), self._scratch.folder / policy
                self._versions[policy] = PolicyVersions(settings, engine, router, folder)
            return self._versions[policy]

    def other_base(self, policy: str) -> str | None:
        """Return the digest of the base model of a fleet's policy, if it is not that of the engine."""
        base = self._adapters.of(policy).newest_base
        is_ours = self.single is not None or self._engine.name == "scripted" or base in (None, self._engine.base_digest)
        return None if is_ours else base

    def make_resident(self, policy: str) -> None:
        """Load the versions that answer for a policy; the least recently used policy leaves. Blocks while it is
        fetched."""
        with self._lock:
            was_resident = policy in self._resident
            self._resident[policy] = None
            self._resident.move_to_end(policy)
            leaving = list(self._resident)[: -self._settings.fleet.states]
            for other in leaving:
                del self._resident[other]
        for other in leaving:
            self._versions[other].unload()
            self._meter.add(catalog.FLEET_EVICTIONS)
        if not was_resident:
            began = time.perf_counter()
            self.of(policy).load_what_answers()
            self._meter.add(catalog.FLEET_SWAPS, "store")
            self._meter.observe(catalog.FLEET_SWAP_SECONDS, time.perf_counter() - began, "store")
        self._meter.set(catalog.FLEET_HELD, len(self._resident))

    def is_resident(self, policy: str) -> bool:
        """Return whether a policy is in memory, and mark it as used."""
        with self._lock:
            if policy in self._resident:
                self._resident.move_to_end(policy)
                return True
        return False

    def follow(self, stop: threading.Event) -> None:
        """Take in decisions until `stop` is set. Raises LogError."""
        while not stop.is_set():
            self._adapters.poll(POLL_S)
            self._load_what_answers()

    def catch_up(self) -> None:
        """Take in every decision that the log has by now. Raises LogError."""
        self._adapters.catch_up()
        self._load_what_answers()

    def _load_what_answers(self) -> None:
        for policy in tuple(self._resident):
            self.of(policy).load_what_answers()
            if policy not in self._resident:  # it left meanwhile
                self.of(policy).unload()
