"""The commands about adapters on a real log: what they show and decide, and who loses when two decide at once."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from schemas.events import AdapterEvent, AdapterKind, AdvantagedGroup, Reward
from streams.adapters import decisions, store as adapter_store
from streams.adapters.versions import read_state
from streams.engines.base_model import digest_of_weights
from streams.errors import RefusedError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.settings.model import Model, Settings
from tests.support.commands import invoke, rows_of
from tests.support.factories import adapter_event
from tests.support.log.shared_node import own_prefix
from tests.support.log.whole_run import BY_NAME, SETTINGS, event_of, whole_log
from tests.support.models.tiny import save_tiny, tiny_model
from tests.support.processes import command, environment, spawn, write
from trainer.step.model import save_adapter, wrap

pytestmark = pytest.mark.kafka

BEGIN_MS = int(time.time() * 1000) - 4 * 3600 * 1000


@pytest.fixture
def made(settings: Settings) -> Settings:
    """Settings whose topics exist, in the shape of the log in memory."""
    topics = SETTINGS.topics.model_copy(update={"prefix": settings.topics.prefix})
    settings = settings.model_copy(update={"topics": topics})
    admin.apply_topics(settings)
    return settings


def run(settings: Settings, *args: str) -> Result:
    return invoke(settings, "adapters", *args)


def event(version: int, kind: AdapterKind = "trained", **changed: Any) -> AdapterEvent:
    fields: dict[str, Any] = {"created_at": 1_700_000_000_000 + version, "actor": "trainer"}
    if kind == "trained":
        fields |= {"parent_version": version - 1, "first_batch": 0, "last_batch": version - 1}
    return adapter_event(kind, version, **fields | changed)


def published(settings: Settings, folder: Path, version: int) -> AdapterEvent:
    """Put an adapter into the store and return the event that says so."""
    local = folder / f"made-{version}"
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(b"weights %d" % version)
    uri, files = adapter_store.publish(local, settings.adapters.store, "default", version)
    return event(version, uri=uri, files=files)


def kinds(settings: Settings) -> list[tuple[str, int]]:
    """Every adapter event, in the order of the log."""
    history = decisions.read_history(settings, "default")
    return [(one.kind, one.version) for _, one in history.events]


def primary(settings: Settings) -> int:
    return read_state(settings, "default").primary


WHY = ("--reason", "it did well")


# --- deciding ---------------------------------------------------------------------------------------------------------


def test_a_promotion_takes_effect_and_says_where_it_lies(made: Settings) -> None:
    write(made, event(1), event(2))
    (row,) = rows_of(run(made, "promote", "1", "--actor", "ada", *WHY))
    topic = f"{made.topics.prefix}adapters"
    assert row["recorded_at"].startswith(f"{topic}[") and row["recorded_at"].endswith("]@2")
    assert (row["serving"]["primary"], row["before"], row["again"]) == (1, 0, False)
    (shown,) = rows_of(run(made, "show", "1"))
    assert [(one["kind"], one["actor"], one["reason"]) for one in shown["events"]][1] == ("promoted", "ada", WHY[1])
    assert shown["status"] == "primary"


def test_the_same_decision_said_again_is_not_written_again_and_a_later_one_is(made: Settings) -> None:
    write(made, event(1), event(2))
    promote = ("promote", "1", "--actor", "ada", *WHY)
    rows_of(run(made, *promote))
    (row,) = rows_of(run(made, *promote))
    assert row["again"]
    assert kinds(made) == [("trained", 1), ("trained", 2), ("promoted", 1)]
    # another version was primary in between: the same words are another fact
    rows_of(run(made, "promote", "2", *WHY))
    (row,) = rows_of(run(made, *promote))
    assert (row["again"], row["serving"]["primary"]) == (False, 1)


def test_of_two_who_looked_before_either_wrote_the_second_is_told_who_won(made: Settings) -> None:
    write(made, event(1), event(2))

    def promotion(version: int, actor: str, reason: str) -> decisions.ProposedDecision:
        return decisions.ProposedDecision(kind="promoted", version=version, actor=actor, reason=reason)

    history = decisions.read_history(made, "default")
    decisions.decide(made, history, promotion(1, "ada", "first"))
    with pytest.raises(RefusedError, match="another decision came first") as lost:
        decisions.decide(made, history, promotion(2, "bob", "second"))
    assert "expected version 0 to be primary, and it is 1" in str(lost.value)
    assert "ada wrote promoted of version 1 at" in str(lost.value)
    assert primary(made) == 1
    assert kinds(made)[2:] == [("promoted", 1), ("promoted", 2)]  # it is in the log, refused, for everybody to see


def test_of_two_operators_at_once_one_wins_and_the_other_is_refused(made: Settings) -> None:
    write(made, event(1), event(2))
    arguments = ("--expected", "0", *WHY, "--output", "jsonl")
    both = [
        spawn(
            command("adapters", "promote", version, "--actor", name, *arguments),
            env=environment(made),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, version in (("ada", "1"), ("bob", "2"))
    ]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in both]
    assert sorted(code for _, _, code in ended) == [0, 4], ended
    (out, _, _), (_, err, _) = sorted(ended, key=lambda one: one[2])
    winner = json.loads(out)["version"]
    assert primary(made) == winner
    assert f"expected version 0 to be primary, and it is {winner}" in err


def test_a_roll_back_leads_to_the_version_before_and_agrees_with_what_was_expected(made: Settings) -> None:
    moves = [event(version, "promoted", expected_version=version - 1) for version in (1, 2, 3)]
    write(made, *map(event, (1, 2, 3)), *moves)
    back = ("rollback", "--expected", "3", "--actor", "ada", "--reason", "it is worse")
    (row,) = rows_of(run(made, *back))
    assert (row["kind"], row["version"], row["serving"]["primary"], row["before"]) == ("rolled_back", 2, 2, 3)
    (row,) = rows_of(run(made, *back))  # the terminal was lost before the answer came, and ada says it again
    assert (row["version"], row["again"]) == (2, True)
    late = run(made, "rollback", "--expected", "3", "--actor", "bob", "--reason", "it is worse")
    assert late.exit_code == 4
    assert "expected version 3 to be primary, and it is 2" in late.stderr
    (row,) = rows_of(run(made, "rollback", "0", "--expected", "2", "--reason", "all of them are"))
    assert row["serving"]["primary"] == 0
    assert [kind for kind, _ in kinds(made)].count("rolled_back") == 2
    (shown,) = rows_of(run(made, "show", "3"))
    assert [(one["kind"], one["version"]) for one in shown["events"]][-1] == ("rolled_back", 2)  # what replaced it


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("promote", "3", *WHY), 3, "no adapter version 3; the newest is 2"),
        (("promote", "9", *WHY), 3, "claims it is refused: version 9 is not the next one after 2"),
        (("promote", "1", *WHY), 4, "version 1 is primary; promoted needs"),
        (("promote", "2", "--expected", "0", *WHY), 4, "expected version 0 to be primary, and it is 1"),
        (("promote", "2", "--reason", " "), 2, "reason"),
        (("promote", "2"), 2, "Missing option '--reason'"),
        (("reject", "1", *WHY), 4, "rejected needs canary or trained"),
        (("retire", "1", *WHY), 4, "retired needs"),
        (("retire", "0", *WHY), 4, "it is never retired"),
        (("rollback", "7", "--expected", "1", *WHY), 3, "no adapter version 7"),
        (("gc", "--keep-best", "1", "--yes", "--dry-run"), 2, "contradict each other"),
        (("gc", "--keep-best", "1", "--by", "sums/exact"), 2, "no version was evaluated so"),
    ],
)
def test_what_is_against_the_rules_is_refused_before_anything_is_written(
    refusing: Settings, arguments: tuple[str, ...], code: int, message: str
) -> None:
    before = kinds(refusing)
    result = run(refusing, *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert kinds(refusing) == before


@pytest.fixture(scope="module")
def refusing(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a log that nothing is written to any more: version 1 is primary, 2 waits, and 9 is forged."""
    topics = SETTINGS.topics.model_copy(update={"prefix": own_prefix()})
    kafka = SETTINGS.kafka.model_copy(update={"bootstrap": kafka_bootstrap})
    store = SETTINGS.adapters.model_copy(update={"store": str(tmp_path_factory.mktemp("store"))})
    settings = SETTINGS.model_copy(update={"topics": topics, "kafka": kafka, "adapters": store})
    admin.apply_topics(settings)
    write(settings, event(1), event(2), event(1, "promoted", expected_version=0), event(9))
    return settings


def test_a_version_that_somebody_forged_is_listed_as_refused_with_the_reason(refusing: Settings) -> None:
    *_, waiting, forged = rows_of(run(refusing, "list"))
    assert (waiting["version"], waiting["status"], waiting["refused"]) == (2, "trained", None)
    assert (forged["version"], forged["status"], forged.keys()) == (9, "refused", waiting.keys())
    assert "none made this" in run(refusing, "list", "--output", "table").stdout


# --- gc ---------------------------------------------------------------------------------------------------------------


def test_gc_shows_what_would_go_and_then_deletes_just_that(made: Settings, tmp_path: Path) -> None:
    moves = [event(1, "promoted", expected_version=0), event(4, "promoted", expected_version=1)]
    scores = [event(2, "evaluated", suite="s", metrics={"exact": 0.9})]
    elsewhere = event(5, uri=str(tmp_path), parent_version=4)  # an event may say anything
    write(made, *(published(made, tmp_path, version) for version in (1, 2, 3, 4)), *moves, *scores, elsewhere)
    write(made, event(5, "rejected"))
    store = Path(made.adapters.store) / "default"
    arguments = ("gc", "--keep-best", "1", "--keep-primaries", "1")
    planned = run(made, *arguments)
    assert f"its files at {tmp_path} are not in this store" in planned.stdout
    assert {row["version"]: row["what"] for row in rows_of(planned)} == {
        1: "keep", 2: "keep", 3: "delete", 4: "keep", 5: "retire",
    }  # fmt: skip
    assert "1 of 5 versions would be deleted" in planned.stderr
    assert all((store / str(version)).is_dir() for version in (1, 2, 3, 4))
    size = {row["version"]: row["bytes"] for row in rows_of(planned)}
    assert size[3] == sum(path.stat().st_size for path in (store / "3").iterdir())

    done = {row["version"]: row["what"] for row in rows_of(run(made, *arguments, "--yes"))}
    assert (done[3], done[5]) == ("deleted", "retired")
    assert sorted(path.name for path in store.iterdir()) == ["1", "2", "4"]
    assert tmp_path.is_dir()
    assert {one["version"]: one["status"] for one in rows_of(run(made, "list"))}[3] == "retired"
    again = {row["version"]: row["what"] for row in rows_of(run(made, *arguments, "--yes"))}
    assert again == {1: "keep", 2: "keep", 3: "gone", 4: "keep", 5: "gone"}


def test_gc_deletes_the_files_of_what_is_retired_already_and_what_killed_publishers_left(
    made: Settings, tmp_path: Path
) -> None:
    # a gc that was killed between the event and the deletion has left them
    write(made, published(made, tmp_path, 1), event(1, "retired"))
    left, in_progress = (Path(made.adapters.store) / "default" / name for name in (".2.killed", ".3.now"))
    for half in (left, in_progress):
        half.mkdir()
    os.utime(left, (0, 0))
    collected = run(made, "gc", "--keep-best", "5", "--yes")
    assert "1 half-written folders of killed publishers were removed" in collected.stderr
    assert (left.exists(), in_progress.exists()) == (False, True)
    (row,) = rows_of(collected)
    assert (row["what"], row["why"]) == ("deleted", "is retired")
    assert not (Path(made.adapters.store) / "default" / "1").exists()
    assert kinds(made) == [("trained", 1), ("retired", 1)]


# --- looking ----------------------------------------------------------------------------------------------------------


def put(settings: Settings, records: Iterable[Record]) -> None:
    """Write the records of the log in memory to the same partitions, and so to the same offsets."""
    with Producer(settings) as producer:
        for record in records:
            topic = settings.topics.prefix + record.at.topic.removeprefix(SETTINGS.topics.prefix)
            to = (topic, record.at.partition)
            producer.send_bytes(to, record.key, record.payload, timestamp_ms=record.timestamp_ms)


def test_lineage_names_every_record_that_made_a_version(made: Settings) -> None:
    log = whole_log(BEGIN_MS)
    put(made, log.records)
    newest = read_state(made, "default").newest
    steps = rows_of(run(made, "lineage", str(newest)))
    assert [(step["version"], step["parent_version"]) for step in steps] == [(n, n - 1) for n in range(newest, 0, -1)]
    batches = {event_of(record).sequence: event_of(record) for record in log.of("batches") if record.key == b"default"}
    groups = {record.at: event_of(record) for record in log.of("groups")}
    rewards = [event_of(record) for record in log.of("rewards")]
    for step in steps:
        made_of = {label: sum(one["count"] for one in found) for label, found in step["made_of"].items()}
        batch = batches[step["version"] - 1]
        of = [
            group
            for at, group in groups.items()
            if at.partition == batch.groups_partition and at.offset in batch.groups_offsets
        ]
        assert all(isinstance(group, AdvantagedGroup) for group in of)
        responses = {response.response_id for group in of for response in group.responses}
        judged = {one.reward_id for one in rewards if isinstance(one, Reward) and one.response_id in responses}
        assert made_of == {
            "batches": 1, "groups": len(of), "responses": len(responses), "rewards": len(judged), "tasks": len(of),
        }  # fmt: skip
        (found,) = step["made_of"]["groups"]
        assert (found["first"], found["last"]) == (min(batch.groups_offsets), max(batch.groups_offsets))
    assert {BY_NAME[record.at.topic].label for record in log.records} >= {"tasks", "rewards"}

    assert len(rows_of(run(made, "lineage", str(newest), "--steps", "1"))) == 1
    table = run(made, "lineage", str(newest), "--output", "table").stdout
    assert f"version {newest} (primary), from version {newest - 1} by batches {newest - 1}-{newest - 1}" in table
    assert "version 0 is the base model" in table


def test_diff_shows_what_differs_down_to_the_tensors(made: Settings, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for version, weight in ((1, 4.0), (2, 5.0)):
        local = tmp_path / f"made-{version}"
        local.mkdir()
        save_file({"lora_A": torch.tensor([3.0, weight])}, local / "adapter_model.safetensors")
        uri, files = adapter_store.publish(local, made.adapters.store, "default", version)
        write(made, event(version, uri=uri, files=files, recipe={"loss": "dapo", "seed": str(version)}))
    (found,) = rows_of(run(made, "diff", "1", "2", "--weights"))
    assert found["recipe"] == {"seed": ["1", "2"]}
    assert found["tensors"] == [{"tensor": "lora_A", "shape": [2], "norm": 5.0, "relative": 0.2}]
    table = run(made, "diff", "1", "2", "--weights", "--output", "table")
    assert "20.000%" in table.stdout, table.stderr
    assert run(made, "diff", "0", "2", "--weights").exit_code == 3


def test_an_exported_version_is_what_peft_and_transformers_load_as_it_is(made: Settings, tmp_path: Path) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = save_tiny(tmp_path / "base")
    trained = wrap(tiny_model(), made.trainer)
    for name, weights in trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    (local := tmp_path / "trained").mkdir()
    save_adapter(trained, local, "base")  # a path that means something in the trainer's folder alone
    uri, files = adapter_store.publish(local, made.adapters.store, "default", 1)
    write(made, event(1, uri=uri, files=files, base_digest=digest_of_weights(tiny_model())))
    settings = made.model_copy(update={"model": Model(base=str(base))})

    (alone,) = rows_of(run(settings, "export", "1", str(tmp_path / "alone")))
    (whole,) = rows_of(run(settings, "export", "1", str(tmp_path / "whole"), "--merge"))
    assert (alone["base"], whole["base"]) == (str(base), "")
    loaded = [
        trained,
        AutoPeftModelForCausalLM.from_pretrained(alone["folder"]),
        AutoModelForCausalLM.from_pretrained(whole["folder"]),
    ]
    tokenizers = [AutoTokenizer.from_pretrained(written["folder"]) for written in (alone, whole)]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "3 14 15 9"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        for tokenizer in tokenizers
    ]
    tokens = prompts[0].input_ids
    assert torch.equal(tokens, prompts[1].input_ids)
    logits = [model.eval()(tokens).logits for model in loaded]
    answer = loaded[1].generate(**prompts[0], max_new_tokens=4, do_sample=False)[0, tokens.shape[1] :]
    assert tokenizers[0].decode(answer)
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[0], logits[2], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits[0], tiny_model()(tokens).logits, atol=1e-2)

    again = run(settings, "export", "1", alone["folder"])
    assert again.exit_code == 4 and "is not empty" in again.stderr
    save_tiny(other := tmp_path / "other")
    tiny_model(seed=1).save_pretrained(other)
    wrong = run(made.model_copy(update={"model": Model(base=str(other))}), "export", "1", str(tmp_path / "wrong"))
    assert wrong.exit_code == 4 and "set model.base and model.dtype to what it was trained on" in wrong.stderr
    assert not (tmp_path / "wrong").exists()


def test_a_policy_that_the_log_does_not_know_names_those_that_it_does(made: Settings) -> None:
    assert [row["version"] for row in rows_of(run(made, "list", "--policy", "new"))] == [0]  # nobody was trained yet
    write(made, event(1), event(1, policy="lab"))
    for typed in ("list", "lineage 1"):
        result = run(made, *typed.split(), "--policy", "defualt")
        assert result.exit_code == 3
        assert "the log has no policy 'defualt', only default, lab" in result.stderr
    result = run(made, "promote", "1", "--reason", "x", "--policy", "defualt")
    assert (result.exit_code, "there is no policy 'defualt'" in result.stderr) == (3, True)


def test_list_shows_digest_age_and_the_share_of_a_canary(made: Settings, tmp_path: Path) -> None:
    metrics = {"exact": 0.5, "mean_reward": 0.75, "n": 4.0}
    write(made, published(made, tmp_path, 1), event(1, "canary_started", expected_version=0, share=0.25))
    write(made, event(1, "evaluated", suite="mine@1", metrics=metrics))
    registry = tmp_path / "adapter_registry.json"
    base, one = rows_of(run(made, "list", "--registry", str(registry)))
    assert json.loads(registry.read_text())["adapters"]["default@1"]["status"] == one["status"]
    assert (base["sha256"], one["status"], one["share"]) == (None, "canary", 0.25)
    table = run(made, "list", "--output", "table").stdout
    assert "canary 25%" in table and "mine@1 0.500, reward 0.750 (n 4)" in table
    assert one["sha256"][:12] in table
    assert " d " in table
