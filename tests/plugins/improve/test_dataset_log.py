"""Data sets on a real log: one event whatever is killed and repeated, the command line, and the follower."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from gateway.http.principal import set_principal
from plugins.improve.datasets import dataset_log, dataset_rebuild
from plugins.improve.datasets.dataset_build import DatasetOrder, build
from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.rooms.dataset_list import BuiltDatasets, DatasetsQuery
from plugins.improve.settings import Improve
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import DatasetEvent, Message, OutsideTuning
from streams.errors import ContaminatedError, NotFoundError, RefusedError
from streams.kafka import admin
from streams.kafka.history import LogHistory
from streams.settings.model import Settings
from streamward import DatasetCurationHostedService
from tests.plugins.improve.judged_log import judge, promoted, served
from tests.support import factories
from tests.support.agent_server import serving, settings_of
from tests.support.callers import key
from tests.support.commands import invoke, rows_of
from tests.support.documented import HOOKS
from tests.support.processes import command as command_line, environment, read, spawn, until, write

pytestmark = pytest.mark.kafka
QUESTIONS = ("4 + 7 =", "What is the capital of France?", "Who wrote Faust?")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    admin.apply_topics(settings)
    return settings


def order(folder: Path, **rule: Any) -> DatasetOrder:
    whole = {"policy": "default", "eval_share": 0.0, **rule}
    return DatasetOrder(name="coach", rule=DatasetRule(**whole), actor="ann", reason="a test", root=folder)


def built(settings: Settings) -> list[DatasetEvent]:
    return [event for _, event in read(settings, DatasetEvent)]


def test_a_build_that_is_repeated_is_one_event_and_one_folder(settings: Settings, tmp_path: Path) -> None:
    promoted(settings, *QUESTIONS)
    first, is_new = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    again, is_new_again = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert (is_new, is_new_again, again) == (True, False, first)
    assert built(settings) == [first]
    assert [str(path) for path in (tmp_path / "sets").iterdir()] == [first.folder]


def test_a_build_that_was_killed_before_its_event_is_repeated_into_the_same_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(settings, *QUESTIONS)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(dataset_log, "announce", kill)
        with pytest.raises(Killed):
            build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert built(settings) == []
    event, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert built(settings) == [event]
    assert [str(path) for path in (tmp_path / "sets").iterdir()] == [event.folder]


def test_two_builds_at_once_are_one_fact(settings: Settings, tmp_path: Path) -> None:
    promoted(settings, *QUESTIONS)
    event, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    write(settings, event)
    log = dataset_log.read(settings)
    assert [placed.event for placed in log.placed] == [event] and len(built(settings)) == 2


def test_a_later_verdict_of_a_person_makes_another_build_and_leaves_the_first_what_it_was(
    settings: Settings, tmp_path: Path
) -> None:
    end = served(settings, "run-1", "4 + 7 =")
    judge(settings, "run-1", end, labeller="gates", actor="curate")
    promoted(settings, "Who wrote Faust?")
    first, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    judge(settings, "run-1", end, "reject")
    second, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert (first.counts["train"], second.counts["train"]) == (2, 1)
    audited = json.loads(invoke(settings, "audit", "--output", "json").stdout)
    assert not any(
        "datasets" in entry["at"] for found in audited.values() if isinstance(found, list) for entry in found
    )
    for event in (first, second):
        to = tmp_path / event.digest
        result = invoke(settings, "improve", "datasets", "rebuild", f"coach@{event.digest[:8]}", "--to", str(to))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["manifest_equal"] is True
        assert event.folder is not None
        names = {path.name for path in to.iterdir()}
        assert names == {path.name for path in Path(event.folder).iterdir()}
        assert all((to / name).read_bytes() == (Path(event.folder) / name).read_bytes() for name in names)


def test_a_rebuild_that_differs_ends_with_4_and_names_the_files(settings: Settings, tmp_path: Path) -> None:
    promoted(settings, *QUESTIONS)
    event, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    forged = replace(event, event_id="forged", dataset="other", digest="0" * 64)
    write(settings, forged)
    result = invoke(settings, "improve", "datasets", "rebuild", "other", "--to", str(tmp_path / "again"))
    assert (result.exit_code, json.loads(result.stdout)["equal"]) == (4, False)
    assert "expected 000000000000" in result.stderr


def test_questions_that_are_others_than_in_the_build_before_are_in_event_and_command(
    settings: Settings, tmp_path: Path
) -> None:
    promoted(settings, *(f"Who wrote book number {number}?" for number in range(24)))
    first, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert first.inputs["script:latin"] == 24 and first.drift_from is None and first.drift == {}
    promoted(settings, *(f"Ποιος έγραψε το βιβλίο {number};" for number in range(24)))
    second, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    assert second.drift_from == first.digest
    assert second.drift["script"] == 1.0 > second.drift["script.bound"] > second.drift["messages"] == 0.0
    shown = json.loads(invoke(settings, "improve", "datasets", "show", "coach").stdout)
    assert "script" in shown["moved"] and shown["inputs"] == {**second.inputs}

    greek = [json.dumps({"question": f"Ποιος το έγραψε {number};"}) for number in range(24)]
    (tmp_path / "new.jsonl").write_text("\n".join(greek))
    against = f"coach@{first.digest[:8]}"
    checked = invoke(
        settings, "improve", "data", "check", str(tmp_path / "new.jsonl"), "--against", against, "--output", "jsonl"
    )
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["drift"]["script"] == 1.0

    forged = replace(second, event_id="forged", inputs={"script:latin": 48})
    write(settings, forged)
    audited = invoke(settings, "audit").output
    assert "its rows make another profile of questions" in audited


def test_the_commands_list_and_show_what_was_built(settings: Settings, tmp_path: Path) -> None:
    promoted(settings, *QUESTIONS)
    settings = settings.model_copy(update={"improve": Improve(datasets=tmp_path / "sets")})
    result = invoke(settings, "improve", "datasets", "build", "coach", "--policy", "default", "--eval", "0")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert Path(made["folder"]).parent == tmp_path / "sets"
    assert (made["train"], made["eval"], made["recorded"]) == (3, 0, True)
    (listed,) = rows_of(invoke(settings, "improve", "datasets", "list"))
    assert (listed["dataset"], listed["digest"]) == ("coach", made["digest"])
    shown = json.loads(invoke(settings, "improve", "datasets", "show", "coach").stdout)
    assert shown["labellers"] == {"person": 3} and shown["rule"]["eval_share"] == "0.0"
    assert invoke(settings, "improve", "datasets", "show", "coch").exit_code == 3
    assert invoke(settings, "improve", "datasets", "build", "A B").exit_code == 2


def test_a_build_is_found_by_the_beginning_of_its_digest_and_by_its_tenant(settings: Settings, tmp_path: Path) -> None:
    promoted(settings, *QUESTIONS)
    event, _ = build(settings, order(tmp_path), LogHistory(settings))
    log = dataset_log.read(settings)
    assert log.find(f"coach@{event.digest[:6]}") == log.find("coach") == event
    assert log.find("coach", (None,)) == event
    with pytest.raises(NotFoundError, match="no data set"):
        log.find("coach", ("acme",))
    with pytest.raises(NotFoundError, match="has no build abc"):
        log.find("coach@abc")
    other = replace(event, event_id="x", digest=event.digest[:20] + "0" * 44)
    with pytest.raises(RefusedError, match="2 builds of coach begin with"):
        dataset_log.DatasetLog([*log.placed, replace_event(log.placed[0], other)]).find(f"coach@{event.digest[:6]}")


def replace_event(placed: dataset_log.PlacedDataset, event: DatasetEvent) -> dataset_log.PlacedDataset:
    return placed._replace(event=event)


def test_the_service_builds_when_enough_new_runs_were_promoted_and_not_again(
    settings: Settings, tmp_path: Path
) -> None:
    promoted(settings, *QUESTIONS[:2])
    stop = threading.Event()

    def works(minimum: int, count: int) -> None:
        with DatasetCurationHostedService(settings, order(tmp_path / "sets"), minimum, stop=stop) as service:

            def is_there() -> bool:
                service.step()
                return len(built(settings)) == count

            until(is_there, f"{count} builds")
            assert service.step() is None and len(built(settings)) == count

    works(2, 1)
    works(2, 1)  # another process, after the first was killed: nothing is due
    promoted(settings, QUESTIONS[2])
    works(2, 1)
    judge(settings, "late", served(settings, "late", "And who painted it?"))
    works(2, 2)
    assert [event.counts["train"] for event in built(settings)] == [2, 4]


def test_data_sets_are_listed_over_http_and_a_tenants_key_sees_its_own(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    admin.apply_topics(settings)
    promoted(settings, *QUESTIONS)
    event, _ = build(settings, order(tmp_path / "sets"), LogHistory(settings))
    outside = OutsideTuning(endpoint="https://tuner/v1", job="ftjob-1", model="m", result="m:1", cost_usd=0.5)
    for kind in ("submitted", "succeeded"):
        about: dict[str, Any] = {"kind": kind, "outside": outside, "manifest_sha256": None, "files": ()}
        write(settings, replace(event, event_id=f"{kind}", **about))
    theirs = replace(event, event_id="theirs", dataset="other", tenant="acme")
    write(settings, theirs)
    with serving(settings) as url, httpx.Client(base_url=url, event_hooks=HOOKS, timeout=300) as client:
        listed = client.get("/datasets").json()["data"]
        one = client.get("/datasets", params={"dataset": "coach"}).json()["data"]
    assert [entry["dataset"] for entry in listed] == ["coach", "other"]
    assert (one[0]["digest"], one[0]["counts"]["train"], one[0]["labellers"]) == (event.digest, 3, {"person": 3})
    assert [(job["status"], job["result"], job["cost_usd"]) for job in one[0]["submissions"]] == [
        ("succeeded", "m:1", 0.5)
    ]
    scope: dict[str, Any] = {"type": "http", "headers": []}
    set_principal(scope, key("viewer", tenant="acme"))
    room, as_tenant = BuiltDatasets(settings), Request(scope)
    assert [entry.dataset for entry in room.list_datasets(as_tenant, DatasetsQuery()).data] == ["other"]


@pytest.mark.kills
def test_a_follower_that_is_killed_at_random_moments_leaves_whole_sets_and_one_event_for_each(
    settings: Settings, tmp_path: Path
) -> None:
    moments, to = random.Random(7), tmp_path / "sets"
    follow = command_line(
        "improve", "datasets", "follow", "coach", "--policy", "default", "--new", "1", "--to", str(to)
    )
    for number in range(4):
        promoted(settings, f"What is {number} + {number}?")
        process = spawn(follow, env=environment(settings), stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=1.0 + 4.0 * moments.random())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process = spawn(follow, env=environment(settings), stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(built(settings)) and examples_in(built(settings)[-1]) == 4, "a set of all runs")
    finally:
        process.kill()
        process.wait()
    events = built(settings)
    assert len({event.event_id for event in events}) == len(events)
    for event in events:
        assert event.folder is not None
        contents = dataset_rebuild.contents(settings, event, LogHistory(settings))
        assert {path.name: path.read_bytes() for path in Path(event.folder).iterdir()} == dict(contents)
    whole = [str(path) for path in to.iterdir() if not path.name.startswith(".")]
    assert set(whole) >= {event.folder for event in events}


def examples_in(event: DatasetEvent) -> int:
    return event.counts["train"] + event.counts["eval"]


def test_no_data_set_is_built_of_held_out_questions_and_who_allows_it_is_recorded(
    settings: Settings, tmp_path: Path
) -> None:
    promoted(settings, *QUESTIONS)
    messages = (Message(role="user", content=QUESTIONS[1].upper()),)
    metadata = {"suite": "cities@1", "suite_size": "1", "suite_index": "0"}
    write(
        settings, factories.task(policy="default", purpose="eval", group_size=1, metadata=metadata, messages=messages)
    )
    wanted = order(tmp_path / "sets")
    with pytest.raises(ContaminatedError, match="data set coach: contaminated: 1 of 3 rows"):
        build(settings, wanted, LogHistory(settings))
    assert built(settings) == [] and not (tmp_path / "sets").exists()
    event, _ = build(settings, replace(wanted, allow_contaminated=True), LogHistory(settings))
    assert event.metadata == {"contamination": '{"cities@1": 1}', CONTAMINATION_ALLOWED_BY: "ann"}
    again = dataset_rebuild.rebuild(settings, event, LogHistory(settings))
    assert again.event.digest == event.digest, "the rows do not depend on who allows them"
