"""Who does not allow training is answered and recorded, and enters no group; who expires and returns has a new key.

restrict, over HTTP or as a command ──► the join drops the person's groups ──► no batch has one
no record for the retention ──► finish ──► expired, deleted, confirmed ──► the next call: another pseudonym, another key
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import FolderStore
from plugins.privacy.person_keys import PersonKeys
from plugins.privacy.person_records import newest_records
from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import AdvantagedGroup, Batch, PrivacyEvent, Response, RewardSource, Task, Turn
from schemas.key_source import ErasedError
from schemas.serde import Poison, decode, encode
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.history import LogHistory
from streams.settings.model import Batches, Settings
from streams.stages.tasks.submit import submit
from streams.tools.replay import driver
from tests.support.agent_server import check_audit, serving, settings_of
from tests.support.commands import invoke, rows_of
from tests.support.factories import response, reward, task
from tests.support.log.registry_cases import made as made
from tests.support.processes import read, records, write

pytestmark = pytest.mark.kafka

WEEK_MS = 7 * 24 * 3600 * 1000


def answered(subject: str | None, name: str, right: tuple[float, ...] = (0.0, 1.0)) -> list[Any]:
    """Return a task of a person, its answers and their rewards, which differ."""
    now = times.now_ms()
    asked = task(
        task_id=name, subject=subject, group_size=2, created_at=now, reward_sources=(RewardSource(name="exact"),)
    )
    answers = [
        response(task_id=name, subject=subject, sampling_id=name, slot=slot, group_size=2, created_at=now)
        for slot in range(2)
    ]
    scores = [
        reward(answer, subject=subject, value=value, created_at=now)
        for answer, value in zip(answers, right, strict=True)
    ]
    return [asked, *answers, *scores]


@pytest.fixture
def sealing(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Settings]:
    plain = settings_of(kafka_bootstrap, tmp_path).model_copy(update={"batches": Batches(groups=1)})
    yield plain.model_copy(update={"privacy": Privacy(key_folder=str(tmp_path / "keys"), seal="named")})
    key_source.use(key_source.NoKeys())


def person(name: str) -> str:
    subject = key_source.current().subject_of(None, name, None)
    assert subject is not None
    return subject


def test_a_person_who_does_not_allow_training_is_answered_and_is_in_no_group_and_no_batch(sealing: Settings) -> None:
    with serving(sealing) as url:

        def restrict(training: str) -> dict[str, Any]:
            body = {"person": "ann", "training": training, "reason": "she asked for it"}
            answer = httpx.post(f"{url}/privacy/restrict", json=body, timeout=300)
            assert answer.is_success, answer.text
            return dict(answer.json())

        nothing = httpx.post(f"{url}/privacy/restrict", json={"person": "ann"}, timeout=300)
        assert nothing.status_code == 400 and "there is nothing to restrict" in nothing.text
        assert restrict("off")["training"] == restrict("off")["training"] == "off"
        chat = {"model": "sums", "messages": [{"role": "user", "content": "marigold?"}], "user": "ann"}
        assert httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=300).is_success
        [row] = rows_of(invoke(sealing, "privacy", "list", "--output", "jsonl"))
        assert (row["state"], row["training"]) == ("kept", "off")
    assert [(event.kind, event.reason) for _, event in read(sealing, PrivacyEvent)] == [
        ("restricted", "she asked for it")
    ], "the same again is no event"
    ann, bob = person("ann"), person("bob")
    assert [turn.subject for _, turn in read(sealing, Turn)] == [ann], "it was recorded"
    write(sealing, *answered(ann, "hers"), *answered(bob, "his"), *answered(None, "nobody's"))
    groups = {group.task_id: group for group in driver.join(sealing) if isinstance(group, AdvantagedGroup)}
    assert groups["hers"].dropped_reason == "no_training" and groups["hers"].responses == ()
    assert [left.reason for left in groups["hers"].left_out] == ["no_training"] * 2
    assert [len(groups[name].responses) for name in ("his", "nobody's")] == [2, 2]
    write(sealing, *groups.values())
    places = {event.task_id: record.at.offset for record, event in read(sealing, AdvantagedGroup)}
    batches = [batch for batch in driver.cut(sealing, records(sealing, "groups")) if isinstance(batch, Batch)]
    trained_on = {offset for batch in batches for offset in batch.groups_offsets}
    assert trained_on == {places["his"], places["nobody's"]}
    write(sealing, *batches)
    check_audit(sealing)
    status = invoke(sealing, "status")
    assert '"reason": "no_training", "count": 1' in status.output, status.output
    lifted = invoke(sealing, "privacy", "restrict", "ann", "--training", "on", "--output", "jsonl")
    assert json.loads(lifted.stdout)["training"] == "on", lifted.output
    write(sealing, *answered(ann, "later"))
    key_source.current()._log().catch_up()  # type: ignore[attr-defined]
    later = [group for group in driver.join(sealing) if isinstance(group, AdvantagedGroup) and group.task_id == "later"]
    assert [len(group.responses) for group in later] == [2]


# --- retention --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rule(tmp_path: Path) -> Privacy:
    return Privacy(key_folder=str(tmp_path / "keys"), seal="named", retention_s=WEEK_MS / 1000)


@pytest.fixture
def keys(made: Settings, rule: Privacy) -> Iterator[PersonKeys]:
    source = PersonKeys(made, rule)
    key_source.use(source)
    yield source
    key_source.use(key_source.NoKeys())


def expire(made: Settings, rule: Privacy, keys: PersonKeys, after_ms: int, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Let time pass, and erase persons whose retention is over; return whom."""
    real = times.now_ms
    store = FolderStore(Path(rule.key_folder))
    with monkeypatch.context() as later, ErasureLog(made) as log:
        later.setattr(times, "now_ms", lambda: real() + after_ms)
        eraser = Eraser(log, store, rule)
        assert eraser.has_retention
        newest = newest_records(made, LogHistory(made))
        states = list(eraser.expire(newest, keys.following, "cron"))
    keys._log().catch_up()
    return {state.person for state in states if state.word == "erased" and store.get(state.person) is None}


def words_of(payload: bytes) -> str:
    event = decode(payload, Response)
    return event.reason if isinstance(event, Poison) else event.text


def test_a_person_without_a_record_for_the_retention_is_erased_and_returns_with_another_key(
    made: Settings, rule: Privacy, keys: PersonKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hal, kept = person("hal"), person("ida")
    old = encode(response(subject=hal, text="heliotrope"))
    write(made, task(task_id="hal-1", subject=hal), task(task_id="ida-1", subject=kept))
    with ErasureLog(made) as log:
        log.note(hal, "restricted", "hal", "asked for", restrictions={"training": "off"})
        log.note(kept, "restricted", "ida", "asked for", restrictions={"retention_s": "0"})
    assert expire(made, rule, keys, WEEK_MS - 60_000, monkeypatch) == set()
    shutil.copytree(rule.key_folder, tmp_path / "backup")
    assert expire(made, rule, keys, WEEK_MS + 60_000, monkeypatch) == {hal}
    assert expire(made, rule, keys, WEEK_MS + 60_000, monkeypatch) == set(), "once"
    again = person("hal")
    assert again == person("hal") == person(hal) == keys.following(hal) != hal
    assert not key_source.may_train(again), "what was restricted stays so"
    assert words_of(encode(response(subject=again, text="marigold"))) == "marigold"
    assert words_of(old) == "erased"
    shutil.copytree(tmp_path / "backup", rule.key_folder, dirs_exist_ok=True)
    restarted = PersonKeys(made, rule)
    key_source.use(restarted)
    assert person("hal") == again, "a restored key does not bring the old pseudonym back"
    assert words_of(old) == "erased"
    with ErasureLog(made) as log:
        assert restarted.generations(None, "hal", log) == [hal, again]
        with pytest.raises(RefusedError, match="nothing takes that back"):
            log.note(hal, "revoked", "hal", "by mistake")
        eraser = Eraser(log, FolderStore(Path(rule.key_folder)), rule)
        assert hal in {state.person for state in eraser.finish("cron")}, "the restored key is deleted again"
        assert eraser.erase(again, "hal", "asked for").word == "erased"
    restarted._log().catch_up()
    with pytest.raises(ErasedError):
        person("hal")


def test_a_task_that_was_read_before_the_log_could_be_is_submitted_for_the_person_who_returned(
    made: Settings, rule: Privacy, keys: PersonKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    joe = person("joe")
    write(made, task(task_id="joe-1", subject=joe))
    assert joe in expire(made, rule, keys, WEEK_MS + 60_000, monkeypatch)
    submit(made, [task(task_id="joe-2", subject=joe)])
    [sent] = [record.decode(Task) for record in records(made, "tasks") if record.key == b"joe-2"]
    assert not isinstance(sent, Poison), sent
    assert sent.subject == keys.following(joe) and sent.messages[0].content


def test_finish_erases_persons_whose_own_retention_is_over(sealing: Settings) -> None:
    with serving(sealing) as url:
        chat = {"model": "sums", "messages": [{"role": "user", "content": "heliotrope?"}], "user": "ann"}

        def ask(path: str, body: Any = None) -> Any:
            answer = httpx.post(url + path, json=body, timeout=300)
            assert answer.is_success, answer.text
            return answer.json()

        ask("/v1/chat/completions", chat)
        first = ask("/privacy/restrict", {"person": "ann", "retention_s": 3600})
        assert ask("/privacy/finish")["data"] == []
        write(sealing, *answered(None, "other"))
        assert first["retention_s"] == 3600
        ask("/privacy/restrict", {"person": "ann", "retention_s": 1})
        rows: list[dict[str, Any]] = []
        for _ in range(300):
            rows = ask("/privacy/finish")["data"]
            if rows:
                break
        assert [(row["person"], row["state"]) for row in rows] == [(first["person"], "erased")]
        ask("/v1/chat/completions", chat)
    subjects = [turn.subject for _, turn in read(sealing, Turn) if isinstance(turn, Turn)]
    assert len(subjects) == 1 and subjects[0] != first["person"]
    check_audit(sealing)
