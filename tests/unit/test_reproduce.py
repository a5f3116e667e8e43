"""What is read off the log to train a version again, and what is said of it; without a broker and without training."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from schemas.events import AdapterFile, Coordinates, Event
from schemas.serde import encode
from streams.adapters.store import manifest_of
from streams.adapters.versions import manifest_digest
from streams.cli.reproduce import row
from streams.errors import RefusedError
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.output import json_line
from streams.settings.model import Settings, Trainer
from tests.support import factories
from tests.support.factories import adapter_event
from trainer.reproduce.recorded import PlannedStep, ReproducedVersion, ReproductionPlan, recorded_events
from trainer.reproduce.retrain import plan
from trainer.step.recipe import RecipeDifference

FILES = (
    AdapterFile(path="adapter_config.json", sha256="c" * 64, bytes=2),
    AdapterFile(path="adapter_model.safetensors", sha256="a" * 64, bytes=9),
)
OTHER = (FILES[0], AdapterFile(path="adapter_model.safetensors", sha256="b" * 64, bytes=9))
PARTITION = partition_of("default", Settings().topics.policy_partitions)


class Kept:
    """A history of these payloads by label, all in one partition, from offset `first` on."""

    def __init__(self, first: int = 0, **payloads: list[bytes]) -> None:
        self._first, self._payloads = first, payloads

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        return {
            (f"streamward.{label}", PARTITION): (self._first, self._first + len(self._payloads.get(label, [])))
            for label in labels
        }

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        for topic, partition in starts:
            for offset, payload in enumerate(self._payloads.get(topic.removeprefix("streamward."), []), self._first):
                yield Record(Coordinates(topic, partition, offset), 0, b"default", payload)

    def fetch(self, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        raise AssertionError("nothing is fetched to plan")


batch = partial(factories.batch, groups_partition=PARTITION)
trained = partial(factories.trained, files=FILES)


def encoded(*events: Event) -> list[bytes]:
    return [encode(one) for one in events]


def test_the_first_announcement_of_a_version_is_the_one_that_counts() -> None:
    payloads = encoded(
        trained(1), trained(1, files=OTHER), trained(2, policy="another"), adapter_event("rejected", 1, files=FILES)
    )
    found = recorded_events(Settings(), "default", Kept(adapters=[b"no event", *payloads]))
    assert {number: one.files for number, one in found.items()} == {1: FILES}


def test_the_plan_has_the_first_batch_of_each_name_and_none_of_other_policies() -> None:
    batches = encoded(batch(0), batch(0, groups_offsets=(0, 1)), batch(0, policy="another"), batch(1), batch(2))
    made = plan(
        Settings(), "default", 2, Kept(adapters=encoded(trained(1), trained(2)), batches=batches, groups=[b"", b""])
    )
    assert [(at.offset, one.sequence, one.groups_offsets) for at, one in made.batches] == [(0, 0, (0,)), (3, 1, (0,))]


def test_a_log_that_has_no_batches_any_more_is_refused_with_what_to_do(tmp_path: Path) -> None:
    settings = Settings(trainer=Trainer(checkpoints=tmp_path))
    with pytest.raises(RefusedError, match=r"batch 0 of default is missing.*--source archive.*has none of versions"):
        plan(settings, "default", 2, Kept(adapters=encoded(trained(1), trained(2))))
    with pytest.raises(RefusedError, match="no checkpoint before it helps"):
        plan(settings, "default", 1, Kept(adapters=encoded(trained(1))))


def test_a_version_that_no_batch_made_is_refused_where_no_plugin_makes_it_again() -> None:
    ours = trained(2, first_batch=None, last_batch=None, parent_version=1, actor="merge")
    history = Kept(adapters=encoded(trained(1), ours, trained(3)))
    with pytest.raises(RefusedError, match=r"version 2 of default .* was made by merge, .*no loaded plugin makes such"):
        plan(Settings(), "default", 2, history)
    with pytest.raises(RefusedError, match="version 2 of default is on the way"):
        plan(Settings(), "default", 3, history)


# --- as printed -------------------------------------------------------------------------------------------------------


def made(version: int, *differences: RecipeDifference) -> ReproducedVersion:
    return ReproducedVersion(
        version=version, made_from="a batch", recorded=FILES, reproduced=OTHER if differences else FILES,
        differences=differences, other_recipe=(), seconds=0.25,
    )  # fmt: skip


THREADS = RecipeDifference(version=2, kind="recipe", name="threads", recorded="1", reproduced="4")
PLAN = ReproductionPlan(
    policy="default",
    start=1,
    version=3,
    events={2: trained(2), 3: trained(3)},
    steps=tuple(PlannedStep(trained(n + 1), Coordinates("batches", 0, n), batch(n)) for n in (1, 2)),
)


def test_an_equal_version_is_one_object_with_these_keys() -> None:
    assert json.loads(json_line(row(PLAN, made(3), 1.23456, version=3))) == {
        "version": 3,
        "equal": True,
        "recorded": manifest_digest(FILES),
        "reproduced": manifest_digest(FILES),
        "batches": [1, 2],
        "seconds": 1.235,
    }


def test_a_version_that_was_not_reached_says_where_an_earlier_one_differed() -> None:
    said = json.loads(json_line(row(PLAN, made(2, THREADS), 1, version=3)))
    assert (said["equal"], said["recorded"], said["reproduced"]) == (False, manifest_digest(FILES), None)
    assert said["differences"] == [
        {"version": 2, "kind": "recipe", "name": "threads", "recorded": "1", "reproduced": "4"}
    ]


def test_the_digest_of_a_manifest_is_that_of_what_sha256sum_prints(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.safetensors").write_bytes(b"weights")
    listed = subprocess.run(
        ["sha256sum", "a.json", "b.safetensors"], cwd=tmp_path, check=True, capture_output=True
    ).stdout
    summed = subprocess.run(["sha256sum"], input=listed, check=True, capture_output=True).stdout
    assert manifest_digest(reversed(manifest_of(tmp_path))) == summed.split()[0].decode()
