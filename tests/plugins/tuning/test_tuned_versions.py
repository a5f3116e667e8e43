"""Tuned versions on a real log: made of answers or a file, one on top of the other, and made again byte for byte."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugins.tuning.tuned_version import StartVersion, TuningOrder, tune
from plugins.tuning.tuner import TuningSteps
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    AnsweringAgent,
    Coordinates,
    GroupResponse,
    Sampling,
    TokensElsewhere,
    TunedGroup,
    derive_id,
)
from streams.adapters import store
from streams.adapters.versions import manifest_digest, read_state
from streams.engines.base_model import Base
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka import admin
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.topics import LABELS
from streams.settings.model import Adapters, Archive, Settings
from streams.tools.archive import history, sync
from tests.support.commands import invoke
from tests.support.factories import PROGRAM, changed, outside, response, trained
from tests.support.models.chat_tiny import base
from tests.support.models.tiny import tiny_group, tiny_model
from tests.support.models.tiny_log import cut, write
from tests.support.models.tiny_settings import settings
from tests.support.processes import command as process, environment, spawn, write as send
from trainer import fleet
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import answer_of, digest
from trainer.reproduce import retrain
from trainer.reproduce.recorded import ReproducedVersion
from trainer.versions import announce, checkpoint

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


def groups(base: Base, count: int = 5, **changes: Any) -> list[AdvantagedGroup]:
    """Groups of four answers whose rewards are their slots."""
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    return [tiny_group(tiny_model(), seed, **{**digests, **changes}) for seed in range(count)]


def order(method: Any, **more: Any) -> TuningOrder:
    rule = {name: more.pop(name) for name in ("min_reward", "every", "margin", "purpose") if name in more}
    steps = {name: more.pop(name) for name in ("epochs", "batch", "beta") if name in more}
    whole = {"policy": "default", "groups_policy": "default", **more}
    return TuningOrder(
        steps=TuningSteps(method=method, **{"batch": 2, **steps}), curation=Curation(method=method, **rule), **whole
    )


def made(settings: Settings, method: Any, **more: Any) -> AdapterEvent:
    return tune(settings, order(method, **more), LogHistory(settings)).event


def again(settings: Settings, *, policy: str = "default", start: int = 0, **more: Any) -> list[ReproducedVersion]:
    log = LogHistory(settings)
    version, files = more.pop("version", None), more.pop("files", ())
    planned = retrain.plan(settings, policy, version, log, start=start, files=files)
    return list(retrain.run(planned, settings, log, **more))


def verdicts(found: list[ReproducedVersion]) -> list[tuple[int, bool]]:
    return [(one.version, one.equal) for one in found]


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ASKED = [{"role": "user", "content": "21 22"}]
SFT = {"messages": [*ASKED, {"role": "assistant", "content": "23"}]}
DPO = {
    "prompt": ASKED,
    "chosen": [{"role": "assistant", "content": "23"}],
    "rejected": [{"role": "assistant", "content": "24 25"}],
}


# --- made, and made again ---------------------------------------------------------------------------------------------


def test_sft_on_the_log_then_dpo_on_top_come_out_equal_and_reproducing_writes_nothing(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    *given, last = groups(base)
    *rejected, best = last.responses
    by_agent = (*(replace(one, agent_id="other") for one in rejected), replace(best, agent_id="calc", program=PROGRAM))
    send(settings, *given, replace(last, responses=by_agent))
    first = made(settings, "sft", epochs=2)
    assert first.agents == (AnsweringAgent(agent_id="calc", program=PROGRAM),), "not those of answers left out"
    second = made(settings, "dpo", margin=1.0)
    third = made(settings, "dpo", start=StartVersion("default", 1), beta=0.5)
    assert [(one.version, one.parent_version) for one in (first, second, third)] == [(1, 0), (2, 1), (3, 1)]
    assert len({manifest_digest(one.files) for one in (first, second, third)}) == 3
    assert first.tuning is not None
    assert [(one.slots) for one in first.tuning.groups] == [(3,)] * 5
    before = admin.offsets(settings, LABELS)
    assert verdicts(again(settings, version=2)) == [(1, True), (2, True)]
    assert verdicts(again(settings)) == [(1, True), (3, True)], "version 3 does not come from version 2"
    assert verdicts(again(settings, version=2, start=1)) == [(2, True)]
    elsewhere = settings.trainer.model_copy(update={"learning_rate": 0.5, "seed": 9, "checkpoints": tmp_path / "c"})
    assert verdicts(again(settings.model_copy(update={"trainer": elsewhere}))) == [(1, True), (3, True)]
    assert admin.offsets(settings, LABELS) == before


def test_a_tuned_version_serves_like_any_other(settings: Settings, base: Base, tmp_path: Path) -> None:
    send(settings, *groups(base))
    event = made(settings, "sft")
    state = read_state(settings, "default")
    assert (state.newest, state.versions[1].tuned_by, state.refused) == (1, "sft", ())
    assert event.uri is not None
    store.fetch(settings.adapters.store, event.uri, event.files, tmp_path / "fetched")
    shown = invoke(settings, "adapters", "list", "--output", "jsonl")
    assert [json.loads(line)["tuned_by"] for line in shown.stdout.splitlines()] == [None, "sft"]
    lineage = invoke(settings, "adapters", "lineage", "1", "--output", "table")
    assert "version 1 (trained), from version 0 by sft on 5 examples (5 groups of default)" in lineage.stdout
    assert about_adapters(settings) == []
    beyond = (TunedGroup(offset=99, slots=(0,)),)
    forged = changed(event.tuning, start_version=1, groups=beyond)
    event_id = derive_id("default", 2, "trained")
    send(settings, changed(event, version=2, parent_version=1, event_id=event_id, tuning=forged))
    ((category, what),) = about_adapters(settings)
    assert category == "phantom"
    assert "groups[0]@99, but the topic ends before that" in what


def about_adapters(settings: Settings) -> list[tuple[str, str]]:
    """What the audit finds wrong with adapters; the groups of this log have no tasks, which it finds, too."""
    found = json.loads(invoke(settings, "audit", "--output", "json").stdout)
    return [
        (category, one["what"])
        for category, several in found.items()
        if isinstance(several, list)
        for one in several
        if ".adapters[" in one["at"]
    ]


def test_answers_whose_tokens_a_group_left_in_their_responses_are_fetched_and_the_archive_has_them_all(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"archive": Archive(store=str(tmp_path / "archive"))})
    send(settings, *(without_tokens(settings, one) for one in groups(base)))
    slim = made(settings, "dpo")
    sync.sync(settings, ["groups", "responses", "adapters"])
    cut(settings, "groups", 3)
    archived = history.of(settings, "auto")
    planned = retrain.plan(settings, "default", None, archived)
    assert verdicts(list(retrain.run(planned, settings, archived))) == [(1, True)]
    assert slim.tuning is not None
    whole = [
        tuple(answer_of(one, one.responses[slot]) for slot in group.slots)
        for one, group in zip(groups(base), slim.tuning.groups, strict=True)
    ]
    assert digest(whole) == slim.tuning.digest


def without_tokens(settings: Settings, group: AdvantagedGroup) -> AdvantagedGroup:
    """The group as it is written where it would be too large: its responses, which are sent, have the tokens."""
    slim: list[GroupResponse] = []
    for one in group.responses:
        places: list[Coordinates] = []
        answer = response(
            sampling_id="s", task_id=group.task_id, slot=one.slot, policy=group.policy,
            prompt_token_ids=group.prompt_token_ids, completion_token_ids=one.completion_token_ids,
            logprobs=one.logprobs, loss_mask=one.loss_mask,
        )  # fmt: skip
        with Producer(settings) as producer:
            producer.send(answer, on_ack=places.append)
        count = TokensElsewhere(completion_tokens=one.completion_tokens, loss_tokens=one.loss_tokens)
        slim.append(
            changed(
                one, response_id=answer.response_id, partition=places[0].partition, offset=places[0].offset,
                elsewhere=count, completion_token_ids=(), logprobs=(), loss_mask=(),
            )
        )  # fmt: skip
    return changed(group, responses=tuple(slim))


def test_files_are_named_by_their_sha256_and_needed_to_make_a_version_again(settings: Settings, tmp_path: Path) -> None:
    sft, dpo = lines(tmp_path / "sft.jsonl", SFT, SFT), lines(tmp_path / "dpo.jsonl", DPO)
    made(settings, "sft", file=sft)
    second = made(settings, "dpo", file=dpo)
    assert second.tuning is not None
    assert (second.tuning.file, second.tuning.examples, second.tuning.groups) == ("dpo.jsonl", 1, ())
    moved = [sft.rename(tmp_path / "elsewhere.jsonl"), dpo]
    assert verdicts(again(settings, files=moved)) == [(1, True), (2, True)]
    with pytest.raises(RefusedError, match=r"version 1 of default was tuned on sft.jsonl with sha256 .* --file FILE"):
        again(settings, files=[dpo])
    with pytest.raises(NotFoundError, match="No such file"):
        again(settings, files=[tmp_path / "nowhere"])


def test_a_trained_policy_is_tuned_under_another_name_from_its_version(settings: Settings, base: Base) -> None:
    write(settings, base, range(2))
    fleet.run(settings, steps=2, stop=threading.Event())
    event = made(settings, "sft", policy="coach", start=StartVersion("default", 2))
    assert event.tuning is not None
    assert (event.version, event.parent_version) == (1, None)
    assert (event.tuning.start_policy, event.tuning.start_version) == ("default", 2)
    assert event.tuning.groups_policy == "default"
    assert verdicts(again(settings, policy="coach")) == [(1, True)]
    lineage = invoke(settings, "adapters", "lineage", "1", "--policy", "coach", "--output", "table")
    assert "version 1 (trained), from version 2 of default by sft" in lineage.stdout
    assert about_adapters(settings) == []


# --- nothing half-made ------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """As if the process had ended here."""


@pytest.mark.kills
@pytest.mark.parametrize("then", [{}, {"epochs": 3}], ids=["the same command", "another one"])
def test_killed_between_store_and_log_it_is_no_version_and_the_next_command_makes_it(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch, then: dict[str, Any]
) -> None:
    send(settings, *groups(base))
    with monkeypatch.context() as patch:
        patch.setattr(announce, "Producer", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            made(settings, "sft")
    assert read_state(settings, "default").newest == 0
    (left,) = (Path(settings.adapters.store) / "default").iterdir()
    event = made(settings, "sft", **then)
    assert (event.uri == str(left) or event.uri == left.as_uri()) == (not then)
    assert verdicts(again(settings)) == [(1, True)]


@pytest.mark.kills
def test_killed_while_it_trains_it_leaves_nothing_and_the_same_command_makes_the_version(
    settings: Settings, base: Base
) -> None:
    send(settings, *groups(base))
    arguments = ("tune", "sft", "--epochs", "100000", "--batch", "2", "--output", "jsonl")
    running = spawn(process(*arguments), env=environment(settings), stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert any("step 20 of" in line for line in running.stderr), "it ended before its 20th step"
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not list(admin.read_topic(settings, "adapters"))
    assert not Path(settings.adapters.store).exists()
    done = invoke(settings, "tune", "sft", "--batch", "2", "--output", "jsonl")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["version"], found["examples"], found["start"]) == (1, 5, "default:0")
    shown = invoke(settings, "reproduce", "--output", "json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["reproduced"] == found["sha256"]


def test_two_at_once_are_one_and_a_refusal(settings: Settings, base: Base) -> None:
    send(settings, *groups(base))
    with (
        checkpoint.hold_line(settings.trainer.checkpoints, "default"),
        pytest.raises(RefusedError, match="policy default is already being tuned"),
    ):
        made(settings, "sft")


def test_a_version_that_somebody_else_made_meanwhile_counts_and_ours_is_made_again_on_top(
    settings: Settings, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, which shares no lock with this one."""
    send(settings, *groups(base))
    there = settings.model_copy(
        update={"trainer": settings.trainer.model_copy(update={"checkpoints": tmp_path / "there"})}
    )
    publish, theirs = store.publish, list[AdapterEvent]()

    def second(*arguments: Any, **named: Any) -> Any:
        if not theirs:
            monkeypatch.setattr(store, "publish", publish)
            theirs.append(made(there, "sft", epochs=2))
        return publish(*arguments, **named)

    monkeypatch.setattr(store, "publish", second)
    ours = made(settings, "sft")
    assert [one.version for one in (*theirs, ours)] == [1, 2]
    assert ours.parent_version == 1
    assert verdicts(again(settings)) == [(1, True), (2, True)]
    assert [category for category, _ in about_adapters(settings)] == ["superseded"]


def test_a_tuning_that_is_overtaken_each_time_is_refused_with_the_way_out(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(settings, *groups(base))
    publish = store.publish

    def late(local: Path, place: str, policy: str, version: int, *rest: Any, **named: Any) -> Any:
        uri, files = publish(local, place, policy, version, *rest, **named)
        send(settings, trained(version, policy=policy, uri=uri, files=files, base_digest=None))
        return uri, files

    monkeypatch.setattr(store, "publish", late)
    with pytest.raises(RefusedError, match=r"made versions of default while it was tuned, 5 times.*take turns"):
        made(settings, "sft")


# --- what cannot be tuned on ------------------------------------------------------------------------------------------


def test_an_empty_selection_says_how_many_groups_were_looked_at_and_why_none_fits(
    settings: Settings, base: Base
) -> None:
    flat, *others = groups(base, 3)
    equal = tuple(changed(one, reward=0.5) for one in flat.responses)
    other_tokenizer = changed(others[1], tokenizer_digest="another")
    send(settings, changed(flat, responses=equal), others[0], others[0], other_tokenizer)
    with pytest.raises(NotFoundError, match=r"3 train groups of policy default were looked at and none fits \(3 b"):
        made(settings, "sft", min_reward=4.0)
    with pytest.raises(NotFoundError, match=r"\(2 best and worst are too close, 1 all rewards are equal\)"):
        made(settings, "dpo", margin=9.0)
    with pytest.raises(NotFoundError, match=r"no eval groups of policy default in this range"):
        made(settings, "sft", purpose="eval")
    found = tune(settings, order("sft"), LogHistory(settings))
    assert (found.looked_at, found.left_out) == (3, {"all rewards are equal": 1, "of another tokenizer": 1})
    assert read_state(settings, "default").newest == 1


def test_greedy_answers_and_those_of_another_model_may_be_imitated(settings: Settings, base: Base) -> None:
    """Their logprobs are of no use, and none are needed."""
    send(settings, *groups(base, 2, sampling=Sampling(temperature=0.0), base_digest="a larger one"))
    assert made(settings, "sft").tuning is not None


def test_answers_that_do_not_fit_the_model_are_left_out(settings: Settings, base: Base) -> None:
    long = groups(base, 1, prompt=260)
    odd = [changed(one, prompt_token_ids=(1, 99)) for one in groups(base, 2)[1:]]
    send(settings, *long, *odd)
    with pytest.raises(NotFoundError, match=r"1 longer than the context of 256 tokens, 1 of tokens that the vocab"):
        made(settings, "sft")


def test_settings_without_effect_are_refused_before_anything_is_read(settings: Settings) -> None:
    for wrong, said in (({"margin": 1.0}, "needs dpo"), ({"epochs": 0}, "expected 1 or more")):
        with pytest.raises(SettingsError, match=said):
            made(settings, "sft", **wrong)
    with pytest.raises(NotFoundError, match="policy default has no adapter version 7"):
        made(settings, "sft", start=StartVersion("default", 7))
    with pytest.raises(RefusedError, match="cannot be kept in a store"):
        made(settings, "sft", policy="../default")


def test_a_version_is_tuned_from_files_that_were_moved_and_not_from_a_model_elsewhere(
    settings: Settings, tmp_path: Path
) -> None:
    file = lines(tmp_path / "sft.jsonl", SFT)
    made(settings, "sft", file=file)
    place = Path(settings.adapters.store).rename(tmp_path / "moved")
    moved = settings.model_copy(update={"adapters": Adapters(store=str(place))})
    assert made(moved, "sft", file=file).parent_version == 1
    send(moved, outside(3))
    with pytest.raises(NotFoundError, match=r"version 3 of default is theirs at http.* no weights here to tune"):
        made(moved, "sft", file=file, start=StartVersion("default", 3))


# --- what cannot be made again ----------------------------------------------------------------------------------------


def test_another_learning_rate_makes_other_bytes_and_is_named(settings: Settings, base: Base) -> None:
    send(settings, *groups(base))
    made(settings, "sft")
    trainer = settings.trainer.model_copy(update={"learning_rate": 0.5})
    other = settings.model_copy(update={"trainer": trainer})
    (found,) = again(other, changed=["trainer.learning_rate"])
    assert [(one.kind, one.name) for one in found.differences] == [
        ("file", "adapter_model.safetensors"),
        ("recipe", "trainer.learning_rate"),
    ]


def test_groups_that_retention_has_deleted_are_reported_before_the_first_step(settings: Settings, base: Base) -> None:
    send(settings, *groups(base))
    made(settings, "sft")
    cut(settings, "groups", 2)
    with pytest.raises(RefusedError, match=r"version 1 of default: .*@0: 2 of 5 groups .*--source archive"):
        again(settings)


def test_a_log_with_other_answers_in_their_place_is_found_out(settings: Settings, base: Base) -> None:
    """The same event over other groups, as in a log that somebody restored wrongly."""
    send(settings, *groups(base))
    event = made(settings, "sft")
    other = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": "other-tuned."})})
    admin.apply_topics(other)
    moved = [
        changed(one, responses=tuple(changed(each, completion_token_ids=(9,) * len(each.completion_token_ids))
                                     for each in one.responses))
        for one in groups(base)
    ]  # fmt: skip
    send(other, *moved, event)
    (found,) = again(other)
    assert ("data", "digest of the examples") in [(one.kind, one.name) for one in found.differences]


def test_a_version_cannot_be_made_again_from_one_that_it_does_not_come_from(settings: Settings, base: Base) -> None:
    send(settings, *groups(base))
    for start in (0, 0, 1):
        made(settings, "sft", start=StartVersion("default", start), epochs=1 + read_state(settings, "default").newest)
    with pytest.raises(SettingsError, match=r"version 3 does not come from version 2: 3 <- 1 <- version 0"):
        again(settings, start=2)
