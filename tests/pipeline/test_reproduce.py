"""What the log recorded gives the same bytes again; and where it does not, it is said what differs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Coordinates, Sampling
from streams.adapters.local import fetch_version
from streams.adapters.versions import manifest_digest, read_state
from streams.engines.base_model import Base
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.files import sha256_of
from streams.kafka import admin
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.topics import LABELS
from streams.settings.model import Adapters, Archive, Model, Settings, Topics, Trainer
from streams.tools.archive import history, sync
from streams.tools.query import session
from tests.support.commands import invoke, rows_of
from tests.support.factories import in_version_1
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny_log import batch_of, cut, groups_of, manifests, trained, write
from tests.support.models.tiny_settings import settings
from tests.support.older_schemas import older_schemas
from tests.support.processes import command as process, environment
from trainer import fleet, policy_trainer
from trainer.reproduce import retrain
from trainer.reproduce.recorded import ReproducedVersion
from trainer.versions import checkpoint

__all__ = ["settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


@pytest.fixture(scope="module")
def finished(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> Settings:
    """Settings of a log with three versions, trained in one go. Tests only read it."""
    folder = tmp_path_factory.mktemp("finished")
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": Topics(prefix=own_prefix(), partitions=4, policy_partitions=2),
            "trainer": Trainer(checkpoints=folder / "checkpoints"),
            "adapters": Adapters(store=str(folder / "adapters")),
            "model": Model(base=base.model.config._name_or_path),
        }
    )
    admin.apply_topics(settings)
    write(settings, base, range(3))
    train(settings, 3)
    return settings


def train(settings: Settings, steps: int) -> None:
    fleet.run(settings, steps=steps, stop=threading.Event())


def with_trainer(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"trainer": settings.trainer.model_copy(update=changes)})


def again(
    settings: Settings, version: int | None = None, *, start: int = 0, source: history.Source = "log", **more: Any
) -> list[ReproducedVersion]:
    kept = history.of(settings, source)
    return list(retrain.run(retrain.plan(settings, "default", version, kept, start=start), settings, kept, **more))


def verdicts(made: list[ReproducedVersion]) -> list[tuple[int, bool]]:
    return [(one.version, one.equal) for one in made]


def rewritten(settings: Settings, finished: Settings, base: Base, **changes: Any) -> None:
    """Write the finished log anew, with `changes` in the first group of batch 1."""
    write(settings, base, range(1))
    write(settings, base, range(1, 2), **changes)
    write(settings, base, range(2, 3))
    with Producer(settings) as producer:
        for event in trained(finished):
            producer.send(event)


# --- moved ------------------------------------------------------------------------------------------------------------


def test_a_folder_that_was_moved_is_served_exported_reproduced_and_cleaned_up(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    """The addresses in the log are those of the folder before; nothing is there any more."""
    before, after = tmp_path / "before", tmp_path / "after"

    def in_folder(folder: Path) -> Settings:
        placed = with_trainer(settings, checkpoints=folder / "checkpoints")
        return placed.model_copy(update={"adapters": Adapters(store=str(folder / "adapters"))})

    write(settings, base, range(2))
    train(in_folder(before), 2)
    assert all(event.uri is not None and f"{before}/" in event.uri for event in trained(settings))
    before.rename(after)
    moved = in_folder(after)
    newest = read_state(moved, "default").versions[2]
    served = fetch_version(moved, newest, base.base_digest, tmp_path / "served")  # as policy agents and servers do
    assert {path.name: sha256_of(path) for path in served.iterdir()} == {
        file.path: file.sha256 for file in newest.files
    }
    given = invoke(moved, "adapters", "export", "2", str(tmp_path / "exported"))
    assert given.exit_code == 0, given.output
    assert verdicts(again(moved, 2, start=1)) == [(2, True)]
    shown = invoke(moved, "adapters", "gc", "--keep-best", "0", "--keep-primaries", "0", "--output", "jsonl")
    assert shown.exit_code == 0 and "not in this store" not in shown.output, shown.output
    assert all(json.loads(line)["bytes"] > 0 for line in shown.stdout.splitlines())


# --- equal ------------------------------------------------------------------------------------------------------------


def test_every_version_of_a_finished_run_comes_out_equal_and_nothing_is_written_to_the_log(finished: Settings) -> None:
    before = admin.offsets(finished, LABELS)
    made = again(finished)
    assert verdicts(made) == [(1, True), (2, True), (3, True)]
    assert [(one.version, one.reproduced) for one in made] == manifests(finished)
    assert admin.offsets(finished, LABELS) == before


def test_it_is_equal_whatever_the_settings_of_this_machine_are(finished: Settings, tmp_path: Path) -> None:
    here = with_trainer(finished, checkpoints=tmp_path, learning_rate=0.5, seed=7, lora_rank=2)
    assert verdicts(again(here, 2)) == [(1, True), (2, True)]


class Crash(BaseException):
    """As if the process had ended here."""


def test_a_run_that_was_killed_and_resumed_is_equal(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when version 2 is checkpointed and not yet announced."""
    write(settings, base, range(3))
    train(settings, 1)
    with monkeypatch.context() as patch:
        patch.setattr(policy_trainer.store, "publish", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            train(settings, 1)
    train(settings, 1)
    assert verdicts(again(settings)) == [(1, True), (2, True), (3, True)]


def test_a_line_whose_recipe_changed_midway_is_equal(settings: Settings, base: Base) -> None:
    write(settings, base, range(3))
    train(settings, 1)
    train(with_trainer(settings, learning_rate=0.01, loss="dr_grpo"), 2)
    rates = [event.recipe["trainer.learning_rate"] for event in trained(settings)]
    assert rates == ["0.001", "0.01", "0.01"]
    assert verdicts(again(settings)) == [(1, True), (2, True), (3, True)]


def test_a_line_that_learns_from_positive_advantages_alone_from_its_second_version_on_is_equal(
    settings: Settings, base: Base
) -> None:
    write(settings, base, range(2))
    train(settings, 1)
    train(with_trainer(settings, advantages="positive"), 1)
    assert [event.recipe["trainer.advantages"] for event in trained(settings)] == ["both", "positive"]
    assert verdicts(again(settings)) == [(1, True), (2, True)]
    assert verdicts(again(settings, changed=["trainer.advantages"])) == [(1, True), (2, False)]


def test_groups_that_the_trainer_refused_are_refused_again_and_written_nowhere(settings: Settings, base: Base) -> None:
    write(settings, base, range(1), sampling=Sampling(temperature=0.0))
    write(settings, base, range(1))  # the same batch again: the first of a name counts
    train(settings, 1)
    before = admin.offsets(settings, ["dead-letters"])
    (made,) = again(settings)
    assert made.equal and made.made_from.endswith(", 1 groups and 1 refused")
    assert admin.offsets(settings, ["dead-letters"]) == before


def test_it_goes_on_from_a_checkpoint_to_the_same_bytes(finished: Settings) -> None:
    assert verdicts(again(finished, start=2)) == [(3, True)]


def test_a_base_model_that_lies_elsewhere_now_is_taken_for_what_it_is(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    then, now = tmp_path / "then", tmp_path / "now"
    shutil.copytree(base.model.config._name_or_path, then)
    write(settings, base, range(1))
    train(settings.model_copy(update={"model": Model(base=str(then))}), 1)
    then.rename(now)
    assert verdicts(again(settings.model_copy(update={"model": Model(base=str(now))}))) == [(1, True)]
    with pytest.raises(SettingsError, match=r"which is not here: .* --set model\.base=FOLDER"):
        again(settings.model_copy(update={"model": Model(base=str(tmp_path / "nowhere"))}))


def test_a_device_that_is_not_here_is_replaced_by_the_one_in_the_settings_and_named(
    settings: Settings, finished: Settings, base: Base
) -> None:
    write(settings, base, range(1))
    event = trained(finished)[0]
    with Producer(settings) as producer:
        producer.send(replace(event, recipe=event.recipe | {"model.device": "cuda:99", "device": "NVIDIA H100"}))
    (made,) = again(settings)
    assert made.equal
    assert {one.name: one.recorded for one in made.other_recipe} == {"device": "NVIDIA H100", "model.device": "cuda:99"}


def test_a_trainer_goes_on_from_what_was_kept_of_it(settings: Settings, base: Base, tmp_path: Path) -> None:
    write(settings, base, range(3))
    train(settings, 3)
    kept = tmp_path / "kept"
    assert verdicts(again(settings, 2, into=kept)) == [(1, True), (2, True)]
    assert checkpoint.versions(kept / "default") == [1, 2]
    train(with_trainer(settings, checkpoints=kept), 1)  # refused if version 3 came out otherwise
    with pytest.raises(RefusedError, match="not empty; name an empty folder"):
        again(settings, 2, into=kept)


def test_with_the_copy_in_kafka_gone_the_archive_alone_gives_the_same_bytes(
    settings: Settings, base: Base, nowhere: Settings, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"archive": Archive(store=str(tmp_path / "archive"))})
    write(settings, base, range(2))
    train(settings, 2)
    sync.sync(settings, ["groups", "responses", "batches", "adapters"])
    for label, records in {"groups": 4, "batches": 2, "adapters": 2}.items():
        cut(settings, label, records)
    with pytest.raises(NotFoundError):
        again(settings)
    assert verdicts(again(settings, source="auto")) == [(1, True), (2, True)]
    alone = settings.model_copy(update={"kafka": nowhere.kafka})
    assert verdicts(again(alone, source="archive")) == [(1, True), (2, True)]


def test_a_log_that_began_with_an_older_schema_trains_reproduces_and_is_queried_through(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    with older_schemas(tmp_path / "schemas", {AdvantagedGroup: {"metadata"}}) as files:
        write(settings, base, range(1), encoded=lambda event: in_version_1(event, files))
        train(settings, 1)
        sync.sync(settings, ["groups", "batches", "adapters"])
        write(settings, base, range(1, 2), metadata={"later": "yes"})
        train(settings, 1)
        assert verdicts(again(settings)) == [(1, True), (2, True)]
        cut(settings, "groups", 2)  # the older half is stored in the archive alone
        assert verdicts(again(settings, source="auto")) == [(1, True), (2, True)]
        con = session.connect(settings=settings)
        found = "SELECT _schema_id, cardinality(metadata), count(*) FROM groups GROUP BY ALL ORDER BY ALL"
        first, second = (schema.id for schema in files.versions("AdvantagedGroup"))
        assert con.sql(found).fetchall() == [(first, 0, 2), (second, 0, 1), (second, 1, 1)]
        lineage = "SELECT version, count(*) FROM lineage GROUP BY ALL ORDER BY 1"
        assert con.sql(lineage).fetchall() == [(1, 8), (2, 8)]


# --- different --------------------------------------------------------------------------------------------------------


def test_another_learning_rate_makes_other_bytes_and_is_named(finished: Settings) -> None:
    (made,) = again(with_trainer(finished, learning_rate=0.5), changed=["trainer.learning_rate"])
    assert (made.version, made.equal) == (1, False)
    assert [(one.kind, one.name) for one in made.differences] == [
        ("file", "adapter_model.safetensors"),
        ("recipe", "trainer.learning_rate"),
    ]
    assert (made.differences[1].recorded, made.differences[1].reproduced) == ("0.001", "0.5")


def test_another_thread_count_is_named_even_where_the_bytes_are_the_same(finished: Settings) -> None:
    made = again(with_trainer(finished, threads=2), 1, changed=["trainer.threads"])
    assert {one.name: one.reproduced for one in made[0].other_recipe} == {"threads": "2", "trainer.threads": "2"}


def test_a_group_with_another_reward_is_found_at_the_version_it_went_into(
    settings: Settings, finished: Settings, base: Base
) -> None:
    first = groups_of(base, 1)[0]
    better = replace(first.responses[0], reward=9.0, advantage=9.0)
    rewritten(settings, finished, base, responses=(better, *first.responses[1:]))
    made = again(settings)
    assert verdicts(made) == [(1, True), (2, False)]
    assert [(one.kind, one.name, one.version) for one in made[1].differences] == [
        ("file", "adapter_model.safetensors", 2),
        ("data", "reward", 2),
    ]


def test_a_group_of_which_only_the_advantages_changed_makes_other_bytes(
    settings: Settings, finished: Settings, base: Base
) -> None:
    first = groups_of(base, 1)[0]
    other = replace(first.responses[0], advantage=9.0)
    rewritten(settings, finished, base, responses=(other, *first.responses[1:]))
    made = again(settings)
    assert verdicts(made) == [(1, True), (2, False)]
    assert {one.kind for one in made[1].differences} == {"file"}


# --- what cannot be made again ----------------------------------------------------------------------------------------


def test_groups_that_retention_has_cut_are_refused_with_the_way_out_which_works(settings: Settings, base: Base) -> None:
    write(settings, base, range(3))
    train(settings, 3)
    cut(settings, "groups", 1)
    with pytest.raises(RefusedError, match=r"groups\[\d\]@0: retention has cut 1 of 2 .* --from-version 2") as caught:
        again(settings)
    assert caught.value.exit_code == 4 and "--source archive" in str(caught.value)
    cut(settings, "batches", 1)
    with pytest.raises(RefusedError, match=r"batch 1 of default, expected 0: .* --from-version 2"):
        again(settings)
    assert verdicts(again(settings, start=2)) == [(3, True)]


def test_a_log_that_ends_before_the_groups_that_a_batch_names_is_refused_at_once(
    settings: Settings, finished: Settings
) -> None:
    with Producer(settings) as producer:
        producer.send(batch_of(0, [Coordinates("", 0, 5)]))
        producer.send(trained(finished)[0])
    with pytest.raises(RefusedError, match=r"groups\[0\]@5: a group of batch 0, but the log ends at 0"):
        again(settings)


def test_a_version_or_policy_that_is_not_there_is_not_found(finished: Settings) -> None:
    with pytest.raises(NotFoundError, match="no adapter version 4; the newest is 3"):
        again(finished, 4)
    with pytest.raises(NotFoundError, match="policy nobody has no version in"):
        retrain.plan(finished, "nobody", None, LogHistory(finished))


def copied_as(version: int, checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint to that of another version, whole in itself."""
    shutil.copytree(checkpoint, target)
    state, manifest = (json.loads((target / name).read_text()) for name in ("state.json", "manifest.json"))
    (target / "state.json").write_text(json.dumps(state | {"version": version}))
    (target / "manifest.json").write_text(json.dumps(manifest | {"state.json": sha256_of(target / "state.json")}))


def test_a_checkpoint_is_taken_only_if_it_is_there_and_whole_and_of_this_log(
    finished: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    here = with_trainer(finished, checkpoints=folder)
    copied_as(1, finished.trainer.checkpoints / "default" / "v00000002", folder / "default" / "v00000001")
    with pytest.raises(NotFoundError, match="no checkpoint of version 2; there are checkpoints of versions: 1"):
        again(here, start=2)
    with pytest.raises(RefusedError, match="the checkpoint is of another log"):
        again(here, start=1)
    (folder / "default" / "v00000001" / "rng.safetensors").unlink()
    with pytest.raises(RefusedError, match="the checkpoint is incomplete"):
        again(here, start=1)
    with pytest.raises(SettingsError, match="cannot be trained from version 3"):
        again(here, 3, start=3)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_fresh_process_in_another_folder_prints_one_object_in_a_pipe(finished: Settings, tmp_path: Path) -> None:
    done = subprocess.run(
        process("reproduce", "--version", "2"),
        env=environment(finished) | {"PYTHONPATH": str(Path(retrain.__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("seconds") > 0
    assert said == {
        "version": 2,
        "equal": True,
        "recorded": manifest_digest(trained(finished)[1].files),
        "reproduced": manifest_digest(trained(finished)[1].files),
        "batches": [0, 1],
    }
    assert "version 1 of 2: equal" in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_command_ends_with_1_and_names_the_difference(finished: Settings, log_as_before: None) -> None:
    result = invoke(finished, "--set", "trainer.seed=5", "reproduce", "--version", "2")
    assert result.exit_code == 1, result.stderr
    said = json.loads(result.stdout)
    assert (said["version"], said["equal"], said["reproduced"]) == (2, False, None)
    assert {"version": 1, "kind": "recipe", "name": "trainer.seed", "recorded": "0", "reproduced": "5"} in said[
        "differences"
    ]
    shown = invoke(finished, "--set", "trainer.seed=5", "reproduce", "--version", "1", "--output", "table")
    assert "NOT equal from version 1 on" in shown.stdout
    assert "likely cause: trainer.seed is 5 here, recorded 0" in shown.stdout


def test_the_command_has_a_line_for_each_version_if_asked(finished: Settings, log_as_before: None) -> None:
    result = invoke(finished, "reproduce", "--output", "jsonl", "--source", "log")
    lines = rows_of(result)
    assert [(line["version"], line["equal"], line["batches"]) for line in lines] == [
        (1, True, [0, 0]),
        (2, True, [0, 1]),
        (3, True, [0, 2]),
    ]
    assert len({line["reproduced"] for line in lines}) == 3


def test_the_command_ends_with_3_for_a_version_nobody_knows(finished: Settings, log_as_before: None) -> None:
    result = invoke(finished, "reproduce", "--version", "9")
    assert result.exit_code == 3 and "no adapter version 9" in result.stderr
