"""What is trained again without erased persons has the bytes of a log that never had them.

groups of persons ──► tuned, or cut into batches ──► erase --retrain ──► sha256 ──┐
the same groups without the persons', under another policy ──► tuned, trained ────┴──► equal
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import FolderStore
from plugins.privacy.learnt_versions import LearntVersions
from plugins.privacy.person_keys import PersonKeys
from plugins.privacy.privacy_settings import Privacy
from plugins.privacy.train_without import RetrainedVersion, retrain_without
from schemas import key_source
from schemas.events import AdapterEvent, AdvantagedGroup, Batch
from schemas.key_source import NoKeys
from streams.adapters.decisions import read_history
from streams.adapters.versions import manifest_digest
from streams.engines.base_model import Base
from streams.errors import RefusedError
from streams.kafka import admin
from streams.kafka.history import LogHistory
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.support.commands import invoke, rows_of
from tests.support.factories import changed
from tests.support.models.tiny import tiny_group, tiny_model
from tests.support.models.tiny_settings import settings
from tests.support.processes import command, environment, records, spawn, write
from trainer import fleet
from trainer.examples.curation import Curation

__all__ = ["settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

tuned_version = pytest.importorskip("plugins.tuning.tuned_version")
tuner = pytest.importorskip("plugins.tuning.tuner")


class Log:
    """A log with persons."""

    def __init__(self, settings: Settings, base: Base, keys: PersonKeys) -> None:
        self.settings, self._base, self.keys = settings, base, keys

    def person(self, name: str) -> str:
        subject = self.keys.subject_of(None, name, None)
        assert subject is not None
        return subject

    def groups(self, names: Sequence[str | None], **changes: Any) -> list[AdvantagedGroup]:
        """A group for each name."""
        digests = {"base_digest": self._base.base_digest, "tokenizer_digest": self._base.tokenizer_digest}
        made = [tiny_group(tiny_model(), seed, **digests) for seed in range(len(names))]
        return [
            changed(group, subject=None if name is None else self.person(name), **changes)
            for group, name in zip(made, names, strict=True)
        ]

    def tune(self, method: Any = "sft", policy: str = "default", seed: int = 0, **order: Any) -> AdapterEvent:
        trainer = self.settings.trainer.model_copy(update={"seed": seed})
        whole = tuned_version.TuningOrder(
            policy=policy,
            groups_policy=order.pop("groups_policy", policy),
            steps=tuner.TuningSteps(method=method, batch=3),
            curation=Curation(method=method),
            **order,
        )
        event: AdapterEvent = tuned_version.tune(
            self.settings.model_copy(update={"trainer": trainer}), whole, LogHistory(self.settings)
        ).event
        return event

    def erase(self, name: str) -> None:
        rule = self.settings.of_plugin(Privacy)
        with ErasureLog(self.settings) as log:
            Eraser(log, FolderStore(Path(rule.key_folder)), rule).erase(self.person(name), "ann", "asked for")
        self.keys._log().catch_up()

    def learnt(self, *names: str) -> LearntVersions:
        return LearntVersions(self.settings, {self.keys.pseudonym(None, name) for name in names})

    def retrain(self, *names: str, into: Path | None = None) -> list[RetrainedVersion]:
        return list(retrain_without(self.settings, self.learnt(*names), LogHistory(self.settings), into))

    def train(self, policy: str, groups: Sequence[AdvantagedGroup], lag: int) -> list[str]:
        """Write groups and the batches that they fill, and train them; return the digest of each version."""
        batches = self.settings.batches.model_copy(update={"groups": 2, "max_policy_lag": lag})
        self.settings = self.settings.model_copy(
            update={"batches": batches, "policy": self.settings.policy.model_copy(update={"name": policy})}
        )
        write(self.settings, *groups)
        of_policy = (record for record in records(self.settings, "groups") if record.key == policy.encode())
        cut = [batch for batch in driver.cut(self.settings, of_policy) if isinstance(batch, Batch)]
        write(self.settings, *cut)
        fleet.run(self.settings, steps=len(cut), stop=threading.Event())
        state = read_history(self.settings, policy)
        return [manifest_digest(event.files) for _, (_, event) in sorted(state.trained.items())]


@pytest.fixture
def log(settings: Settings, base: Base, tmp_path: Path) -> Iterator[Log]:
    sealing = settings.model_copy(update={"privacy": Privacy(key_folder=str(tmp_path / "keys"), seal="named")})
    keys = PersonKeys(sealing, sealing.of_plugin(Privacy))
    key_source.use(keys)
    yield Log(sealing, base, keys)
    key_source.use(NoKeys())
    keys.close()


PERSONS = [f"person-{number}" for number in range(20)]


@pytest.mark.kills  # three minutes, as 120 versions are tuned
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_each_of_twenty_persons_a_tuned_version_is_that_of_a_log_that_never_had_them(
    log: Log, seed: int
) -> None:
    names = [*PERSONS, None, None]
    groups = log.groups(names)
    write(log.settings, *groups)
    digests = {manifest_digest(log.tune(seed=seed).files)}
    for number, name in enumerate(PERSONS, start=1):
        clean = [changed(group, policy=f"without-{number}", subject=None) for group in groups[number:]]
        write(log.settings, *clean)
        expected = log.tune(policy=f"without-{number}", seed=seed)
        log.erase(name)
        (version,) = log.retrain(*PERSONS[:number])
        assert (version.version, version.by) == (number, f"version {number + 1}")
        assert version.sha256 == manifest_digest(expected.files), name
        digests.add(version.sha256)
    assert len(digests) == 1 + len(PERSONS), "each person made a difference"


def test_erase_retrain_makes_the_versions_again_that_can_be_exact_and_says_of_the_others_why_not(log: Log) -> None:
    groups = log.groups(["ann", "bob", None, None, "ann"])
    write(log.settings, *groups)
    log.tune()
    log.tune("dpo")
    sampled_by_it = [changed(group, adapter_version=1) for group in log.groups([None, None])]
    write(log.settings, *(changed(group, group_id=f"later-{n}") for n, group in enumerate(sampled_by_it)))
    log.tune(start=tuned_version.StartVersion("default", 0))
    clean = [changed(group, policy="clean", subject=None) for group in groups[1:4]]
    write(log.settings, *clean)
    expected = [log.tune(policy="clean"), log.tune("dpo", policy="clean")]

    def shown() -> list[tuple[Any, ...]]:
        rows = rows_of(invoke(log.settings, "privacy", "versions", "ann", "--output", "jsonl"))
        return [(row["version"], row["how"], row["groups"], row["again"]) for row in rows]

    assert shown() == [
        (1, "learnt", 2, "exact, by tuning"),
        (2, "learnt", 2, "exact, by tuning"),
        (3, "learnt", 2, "2 of 7 groups were sampled by such versions"),
    ]
    done = invoke(log.settings, "privacy", "erase", "ann", "--retrain", "--output", "jsonl")
    assert done.exit_code == 0, done.output
    person, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert person["state"] == "erased"
    assert [(row["version"], row["by"]) for row in rows] == [(1, "version 4"), (2, "version 5")]
    assert [row["sha256"] for row in rows] == [manifest_digest(event.files) for event in expected]
    assert "1 versions with something of erased persons were not trained again" in done.stderr
    assert [again for *_, again in shown()][:2] == ["version 4 is in its place", "version 5 is in its place"]
    again = invoke(log.settings, "privacy", "erase", "ann", "--retrain", "--output", "jsonl")
    assert len(again.stdout.splitlines()) == 1, "nothing is trained twice"
    for version in ("4", "5"):
        compared = invoke(log.settings, "reproduce", "--version", version, "--output", "json")
        assert (compared.exit_code, json.loads(compared.stdout)["equal"]) == (0, True), compared.output
    refused = invoke(log.settings, "reproduce", "--version", "1")
    assert "not reproducible: 2 of 5 examples are erased" in refused.output
    events = [event for _, event in sorted(read_history(log.settings, "default").trained.values())]
    assert [(event.version, event.parent_version, event.metadata) for event in events[3:]] == [
        (4, 0, {"instead_of": "1"}),
        (5, 4, {"instead_of": "2"}),
    ]


def test_who_does_not_allow_training_is_in_no_tuning_from_then_on_and_what_was_tuned_before_is_made_again(
    log: Log,
) -> None:
    write(log.settings, *log.groups(["ann", "bob", None]))
    assert log.tune().tuning is not None
    assert invoke(log.settings, "privacy", "restrict", "ann", "--training", "off").exit_code == 0
    log.keys._log().catch_up()
    later = log.tune()
    assert later.tuning is not None and len(later.tuning.groups) == 2
    assert [version.how for version in log.learnt("ann").versions.values()] == ["learnt", "descends"]
    compared = invoke(log.settings, "reproduce", "--version", "1", "--output", "json")
    assert json.loads(compared.stdout)["equal"], compared.output


def test_a_version_of_nobody_else_is_what_it_started_from(log: Log) -> None:
    write(log.settings, *log.groups(["ann", "ann"]))
    log.tune()
    log.erase("ann")
    assert log.retrain("ann") == [RetrainedVersion("default", 1, "default:0", "")]
    assert read_history(log.settings, "default").state.newest == 1


def test_batches_are_cut_and_trained_again_without_a_person_as_a_log_without_them_would_have(
    log: Log, tmp_path: Path
) -> None:
    names = [None, None, None, "ann", None, "bob", None, None, "ann", None]
    groups = log.groups(names, adapter_version=0)
    digests = log.train("default", groups, lag=9)
    whole = log.settings
    expected = log.train(
        "clean", [changed(one, policy="clean") for one, name in zip(groups, names, strict=True) if name != "ann"], lag=9
    )
    log.settings = whole
    log.erase("ann")
    versions = log.learnt("ann").versions.values()
    assert [(version.name.version, version.how, version.way) for version in versions] == [
        (2, "learnt", "batches"),
        (3, "descends", "batches"),
        (4, "descends", "batches"),
        (5, "learnt", "batches"),
    ]
    for start in ("a checkpoint", "the base model"):
        folder = tmp_path / start
        made = log.retrain("ann", into=folder)
        assert [(version.version, version.sha256) for version in made] == list(
            zip((2, 3, 4), expected[1:], strict=True)
        )
        assert (
            sorted(path.name for path in (folder / "default").iterdir() if path.name.startswith("v"))[-1] == "v00000004"
        )
        shutil.rmtree(log.settings.trainer.checkpoints / "default", ignore_errors=True)
    assert expected[0] == digests[0] and not set(expected[1:]) & set(digests)
    assert log.retrain("ann") == [], "without a folder they are left out"


def test_batches_that_were_sampled_by_what_had_seen_a_person_are_not_called_exact(log: Log, tmp_path: Path) -> None:
    names = ["ann", None, None, None, None, None]
    groups = [
        changed(group, adapter_version=version)
        for group, version in zip(log.groups(names), (0, 0, 0, 0, 1, 2), strict=True)
    ]
    log.train("default", groups, lag=2)
    versions = log.learnt("ann").versions.values()
    assert [(version.name.version, version.how, version.why) for version in versions] == [
        (1, "learnt", ""),
        (2, "descends", ""),
        (3, "descends", "2 of 2 groups were sampled by such versions"),
    ]
    assert all(version.tokens > 0 and version.trainer_s > 0 for version in versions)
    log.erase("ann")
    assert [version.version for version in log.retrain("ann", into=tmp_path / "made")] == [1]
    changed_rule = log.settings.batches.model_copy(update={"groups": 3})
    log.settings = log.settings.model_copy(update={"batches": changed_rule})
    with pytest.raises(RefusedError, match=r"batch 0 of default has other groups than these settings make"):
        log.retrain("ann", into=tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.kills
def test_killed_at_any_step_a_retraining_is_finished_by_the_same_command(log: Log, tmp_path: Path) -> None:
    groups = log.groups(["ann", "bob", None])
    write(log.settings, *groups)
    write(log.settings, *(changed(group, policy="clean", subject=None) for group in groups[1:]))
    expected = manifest_digest(log.tune(policy="clean").files)
    log.tune()
    words = command("privacy", "erase", "ann", "--retrain", "--output", "jsonl")
    store = Path(log.settings.adapters.store) / "default"

    def is_asked() -> bool:
        return any(True for _ in admin.read_topic(log.settings, "privacy"))

    for reached in (is_asked, lambda: len(list(store.iterdir())) > 1):
        running = spawn(words, env=environment(log.settings), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while running.poll() is None and not reached():
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
    done = invoke(log.settings, "privacy", "erase", "ann", "--retrain", "--output", "jsonl")
    assert done.exit_code == 0, done.output
    events = [event for _, event in sorted(read_history(log.settings, "default").trained.values())]
    assert [event.metadata for event in events] == [{}, {"instead_of": "1"}]
    assert manifest_digest(events[1].files) == expected
