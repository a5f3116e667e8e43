"""What an agent keeps of adapters: two that answer by turns are fetched once, and what nobody needs goes away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.events import AdapterKind
from streams.adapters import store
from streams.adapters.router import VersionRouter
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.errors import EventError
from streams.settings.model import Adapters, Settings
from streams.stages.policy.adapter_cache import CACHED, AdapterCache
from tests.support.factories import adapter_event, trained


class Noted(ScriptedEngine):
    """Notes which folders it was handed."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: dict[int, Path | None] = {}

    def serve(self, version: int, adapter: Path | None) -> None:
        super().serve(version, adapter)
        self.handed[version] = adapter


class World:
    """An engine, an adapter cache and a store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.engine, self.router = folder / "store", Noted(), VersionRouter("default")
        self.cache = AdapterCache(Settings(adapters=Adapters(store=str(self.store))), self.engine, self.router)

    def move(self, kind: AdapterKind, version: int, expected: int | None = None) -> None:
        self.router.take(adapter_event(kind, version, expected_version=expected, share=0.5))

    def train(self, version: int, folder: Path) -> None:
        made = folder / f"made-{version}"
        made.mkdir()
        (made / "adapter_model.safetensors").write_bytes(b"%d" % version)
        uri, files = store.publish(made, str(self.store), "default", version)
        self.router.take(trained(version, uri=uri, files=files))

    def kept(self) -> set[int]:
        return {version for version, folder in self.engine.handed.items() if folder is not None and folder.is_dir()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for version in range(1, CACHED + 4):
        made.train(version, tmp_path)
    yield made
    made.cache.close()
    assert not made.kept()


def test_two_versions_by_turns_are_fetched_once(world: World) -> None:
    world.cache.serve(1)
    world.cache.serve(2)
    shutil.rmtree(world.store)
    for version in (1, 2, 0, 1):
        world.cache.serve(version)
        assert world.engine.served_version == version
    with pytest.raises(EventError):
        world.cache.serve(3)
    assert world.engine.served_version == 1


def test_a_folder_that_somebody_removed_is_fetched_again(world: World) -> None:
    world.cache.serve(1)
    world.cache.serve(2)
    first = world.engine.handed[1]
    assert first is not None
    shutil.rmtree(first)
    world.cache.serve(1)
    assert world.kept() == {1, 2}


def test_the_last_few_are_kept_and_primary_and_candidate_whenever_they_were_served(world: World) -> None:
    world.move("promoted", 1, 0)
    world.move("canary_started", 2, 1)
    last = range(1, CACHED + 4)
    for version in last:
        world.cache.serve(version)
    assert world.kept() == {1, 2, *list(last)[-CACHED:]}


def test_what_is_retired_goes_with_the_next_swap(world: World) -> None:
    world.cache.serve(1)
    world.cache.serve(2)
    world.move("retired", 1)
    world.cache.serve(3)
    assert world.kept() == {2, 3}
