"""A person is erased once that is asked, whatever crashes and whatever backups bring back; unknown is not erased."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import PERSONS, ErasureLog, PersonState
from plugins.privacy.key_checks import check_keys
from plugins.privacy.key_store import CommandStore, FolderStore, KeyStore, KeyStoreError
from plugins.privacy.learnt_versions import LearntVersions
from plugins.privacy.person_keys import PersonKeys
from plugins.privacy.person_records import records_of
from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import AdvantagedGroup, PrivacyEvent, Response, derive_id
from schemas.key_source import KEY_BYTES, ErasedError, NoKeys
from schemas.serde import Poison, decode, encode
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.settings.model import Archive, Settings
from tests.support.factories import PERSON, adapter_event, batch, group, privacy_event, response
from tests.support.log.registry_cases import Case, check_case, check_decisions, made as made
from tests.support.log.whole_run import recounted, wrong
from tests.support.processes import read, records
from trainer.reproduce.erased_examples import refuse_erased

CANARY = "heliotrope"


class CrashError(Exception):
    """The process ends here."""


@pytest.fixture
def rule(tmp_path: Path) -> Privacy:
    return Privacy(key_folder=str(tmp_path / "keys"), seal="named")


@pytest.fixture
def keys(made: Settings, rule: Privacy) -> Iterator[PersonKeys]:
    source = PersonKeys(made, rule)
    key_source.use(source)
    yield source
    key_source.use(NoKeys())
    source.close()


def sealed_answer(keys: PersonKeys, person: str) -> tuple[str, bytes]:
    """Return the pseudonym of a person, and the record of an answer to one."""
    subject = keys.subject_of(None, person, None)
    assert subject is not None
    return subject, encode(response(subject=subject, text=CANARY))


def reason_of(payload: bytes) -> str:
    read = decode(payload, Response)
    return read.reason if isinstance(read, Poison) else read.text


# --- keys -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import base64, pathlib, secrets, sys
verb, name = sys.argv[1:]
path = pathlib.Path(__file__).parent / name
if verb == "create" and not path.exists():
    path.write_bytes(secrets.token_bytes(64))
if verb == "delete":
    path.unlink(missing_ok=True)
elif not path.exists():
    sys.exit(3)
else:
    print(base64.b64encode(path.read_bytes()).decode())
"""


@pytest.fixture(params=["folder", "command"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "keys")
    program = tmp_path / "keys_of_persons.py"
    program.write_text(PROGRAM)
    return CommandStore([sys.executable, str(program)])


def test_a_key_is_made_once_and_deleted_once(store: KeyStore) -> None:
    assert store.get(PERSON) is None
    key = store.create(PERSON)
    assert store.create(PERSON) == store.get(PERSON) == key and len(key) == KEY_BYTES
    store.delete(PERSON)
    store.delete(PERSON)
    assert store.get(PERSON) is None


def test_all_who_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made_keys = set(threads.map(lambda _: FolderStore(tmp_path / "keys").create(PERSON), range(64)))
    assert len(made_keys) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [PERSON]


@pytest.mark.parametrize("content", [b"", b"short", bytes(KEY_BYTES)])
def test_a_damaged_key_is_an_error_and_no_key(tmp_path: Path, content: bytes) -> None:
    store = FolderStore(tmp_path)
    store.create(PERSON)
    next(tmp_path.rglob(PERSON)).write_bytes(content)
    with pytest.raises(KeyStoreError, match="restore it"):
        store.get(PERSON)


def test_a_command_that_fails_is_an_error_and_no_key() -> None:
    with pytest.raises(KeyStoreError, match="ended with code 1"):
        CommandStore([sys.executable, "-c", "raise SystemExit(1)"]).get(PERSON)


def test_doctor_finds_keys_that_a_backup_of_the_log_would_have_and_keys_that_others_can_read(tmp_path: Path) -> None:
    def found(folder: Path) -> list[tuple[str, str]]:
        settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
        settings = settings.model_copy(update={"privacy": Privacy(key_folder=str(folder))})
        return [(finding.state, finding.what) for finding in check_keys(settings)]

    [(state, what)] = found(tmp_path / "archive" / "keys")
    assert state == "failed" and "is in archive.store=" in what
    folder = tmp_path / "new" / "keys"
    assert [state for state, _ in found(folder)] == ["ok"]
    FolderStore(folder).create(PERSON)
    [(state, what)] = found(folder)
    assert state == "ok" and "cannot be seen from here" in what
    next(folder.rglob(PERSON)).chmod(0o640)
    [(state, what)] = found(folder)
    assert state == "failed" and "can be reached by other users" in what
    assert list(check_keys(Settings())) == []


# --- erasures ---------------------------------------------------------------------------------------------------------

CASE = Case(
    PERSONS,
    privacy_event(),
    privacy_event(reason="by mistake"),
    lambda state: None if state.asked is None else state.asked.reason,
    lambda event: event.reason,
)
pytestmark = pytest.mark.kafka


def test_of_two_requests_at_once_the_first_counts(made: Settings, caplog: pytest.LogCaptureFixture) -> None:
    check_case(made, CASE, caplog)


def test_requests_of_many_processes_take_effect_one_after_another(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn(state: PersonState) -> PrivacyEvent:
        return privacy_event("asked" if state.asked is None else "revoked", state.sequence)

    check_decisions(made, CASE, turn, monkeypatch)


def test_from_the_request_on_the_words_are_unreadable_and_revoked_brings_them_back(
    made: Settings, rule: Privacy, keys: PersonKeys
) -> None:
    subject, payload = sealed_answer(keys, "ann")
    assert reason_of(payload) == CANARY
    rule = replace_rule(rule, grace_s=1000.0)
    with ErasureLog(made) as log:
        eraser = Eraser(log, FolderStore(Path(rule.key_folder)), rule)
        assert eraser.erase(subject, "ann", "asked for").word == "asked"
        assert next(iter(eraser.finish("cron"))).word == "asked"  # it is not due
        keys._log().catch_up()
        assert reason_of(payload) == "erased"
        log.note(subject, "revoked", "ann", "by mistake")
        keys._log().catch_up()
        assert reason_of(payload) == CANARY


def replace_rule(rule: Privacy, **changes: Any) -> Privacy:
    return Privacy(**{**dict(rule), **changes})


@pytest.mark.parametrize("step", range(4))
def test_a_crash_between_any_two_steps_is_made_good_by_the_next_run(
    made: Settings, rule: Privacy, keys: PersonKeys, step: int
) -> None:
    subject, payload = sealed_answer(keys, f"bob-{step}")
    left = step

    def passed() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CrashError

    class CrashingLog(ErasureLog):
        def note(self, *words: Any, **fields: Any) -> PersonState:
            passed()
            return super().note(*words, **fields)

    class CrashingStore(FolderStore):
        def delete(self, name: str) -> None:
            passed()
            super().delete(name)

    folder = Path(rule.key_folder)
    with CrashingLog(made) as log, pytest.raises(CrashError):
        Eraser(log, CrashingStore(folder), rule).erase(subject, "bob", "asked for")
    with ErasureLog(made) as log:
        state = Eraser(log, FolderStore(folder), rule).erase(subject, "bob", "again")
        assert state.word == "erased" and len(state.effective) == 3
    assert FolderStore(folder).get(subject) is None
    keys._log().catch_up()
    assert reason_of(payload) == "erased"


def test_keys_that_a_backup_brings_back_open_nothing_and_are_deleted_again(
    made: Settings, rule: Privacy, keys: PersonKeys, tmp_path: Path
) -> None:
    subject, payload = sealed_answer(keys, "cat")
    folder = Path(rule.key_folder)
    shutil.copytree(folder, tmp_path / "backup")
    with ErasureLog(made) as log:
        eraser = Eraser(log, FolderStore(folder), rule)
        assert eraser.erase(subject, "cat", "asked for").word == "erased"
        shutil.copytree(tmp_path / "backup", folder, dirs_exist_ok=True)
        restarted = PersonKeys(made, rule)  # a process that starts with the restored keys
        key_source.use(restarted)
        assert reason_of(payload) == "erased"
        restarted.close()
        with pytest.raises(RefusedError, match="nothing brings it back"):
            log.note(subject, "revoked", "cat", "by mistake")
        assert subject in {state.person for state in eraser.finish("cron")}
        assert FolderStore(folder).get(subject) is None


def test_a_wrong_key_store_is_not_an_erasure(made: Settings, rule: Privacy, keys: PersonKeys, tmp_path: Path) -> None:
    _, payload = sealed_answer(keys, "dan")
    empty = replace_rule(rule, key_folder=str(tmp_path / "empty"))
    wrong_keys = PersonKeys(made, empty), PersonKeys(made, replace_rule(empty, unknown="dead_letter"))
    key_source.use(wrong_keys[0])
    with pytest.raises(KeyStoreError, match="does not say that it was erased"):
        decode(payload, Response)
    key_source.use(wrong_keys[1])
    assert reason_of(payload) == "unknown_key"
    for source in wrong_keys:
        source.close()


def test_nothing_new_is_taken_for_an_erased_person_and_what_is_under_way_has_no_words(
    made: Settings, rule: Privacy, keys: PersonKeys
) -> None:
    subject, _ = sealed_answer(keys, "eve")
    with ErasureLog(made) as log:
        Eraser(log, FolderStore(Path(rule.key_folder)), rule).erase(subject, "eve", "asked for")
    keys._log().catch_up()
    with pytest.raises(ErasedError):
        keys.subject_of(None, "eve", None)
    payload = encode(response(subject=subject, text=CANARY))
    assert CANARY.encode() not in payload and reason_of(payload) == "erased"
    assert keys.subject_of(None, "eva", None) != subject


def test_a_pseudonym_is_of_one_tenant_and_of_its_own_store(made: Settings, rule: Privacy, tmp_path: Path) -> None:
    keys = PersonKeys(made, rule)
    names = {keys.pseudonym(tenant, "ann") for tenant in (None, "red", "blue")}
    assert len({name.rpartition(".")[2] for name in names}) == 3
    assert keys.pseudonym("red", "ann").startswith("red.p-")
    assert PersonKeys(made, replace_rule(rule, key_folder=str(tmp_path / "other"))).pseudonym(None, "ann") not in names
    assert keys.pseudonym("red", keys.pseudonym("red", "ann")) == keys.pseudonym("red", "ann")


@pytest.mark.parametrize(
    ("seal", "tenants", "tenant", "person", "is_sealed"),
    [
        ("off", "", None, "ann", False),
        ("named", "", None, "ann", True),
        ("named", "", None, None, False),
        ("all", "", None, None, True),
        ("all", "red, blue", "red", None, True),
        ("all", "red, blue", "green", "ann", False),
        ("all", "red, blue", None, "ann", False),
    ],
)
def test_words_are_sealed_by_rule(
    made: Settings, rule: Privacy, seal: Any, tenants: str, tenant: str | None, person: str | None, *, is_sealed: bool
) -> None:
    keys = PersonKeys(made, replace_rule(rule, seal=seal, tenants=tenants))
    assert (keys.subject_of(tenant, person, "a key") is not None) == is_sealed


@pytest.mark.parametrize(
    ("policies", "policy", "is_sealed"),
    [
        ("", "sums", True),
        ("support, red.*", "support", True),
        ("support, red.*", "red.sums", True),
        ("support, red.*", "sums", False),
        ("support, red.*", None, True),
    ],
)
def test_words_to_some_policies_are_sealed_and_those_to_none(
    made: Settings, rule: Privacy, policies: str, policy: str | None, *, is_sealed: bool
) -> None:
    keys = PersonKeys(made, replace_rule(rule, seal="named", policies=policies))
    assert (keys.subject_of(None, "ann", None, policy) is not None) == is_sealed


# --- records and versions ---------------------------------------------------------------------------------------------


def test_the_versions_that_learnt_from_a_person_are_listed_with_those_that_descend(
    made: Settings, keys: PersonKeys, rule: Privacy
) -> None:
    subject = keys.subject_of(None, "fay", None)
    groups = [group(task_id=f"t{n}", subject=subject if n == 1 else None, policy="fay") for n in range(3)]
    with Producer(made) as producer:
        for event in groups:
            producer.send(event)
    places = [record.at for record, event in read(made, AdvantagedGroup) if event.policy == "fay"]
    where = {"policy": "fay", "groups_partition": places[0].partition}
    versions = [
        adapter_event("trained", number + 1, policy="fay", parent_version=number, first_batch=0, last_batch=number)
        for number in range(3)
    ]
    with Producer(made) as producer:
        for number, place in enumerate(places):
            producer.send(batch(sequence=number, groups_offsets=(place.offset,), **where))
        for version in versions:
            producer.send(version)
    assert subject is not None
    assert learnt(made, subject) == [(2, "learnt", 1), (3, "descends", 0)]
    [(label, _, event)] = records_of(made, subject)
    assert (label, event) == ("groups", groups[1])
    with ErasureLog(made) as log:
        Eraser(log, FolderStore(Path(rule.key_folder)), rule).erase(subject, "fay", "asked for")
    keys._log().catch_up()
    assert learnt(made, subject) == [(2, "learnt", 1), (3, "descends", 0)]
    [(_, _, event)] = records_of(made, subject)
    assert event.sealed and not any(event.prompt_token_ids)
    with pytest.raises(RefusedError, match="not reproducible: 2 of 6 examples are erased"):
        refuse_erased((record, None) for record in group_records(made))


def learnt(made: Settings, subject: str) -> list[tuple[int, str, int]]:
    versions = LearntVersions(made, {subject}).versions.values()
    return [(version.name.version, version.how, version.groups) for version in versions]


def group_records(made: Settings) -> Iterator[Record]:
    for record in records(made, "groups"):
        event = record.decode_closed(AdvantagedGroup)
        if isinstance(event, AdvantagedGroup) and event.policy == "fay":
            yield record


# --- the recount ------------------------------------------------------------------------------------------------------


def events(*kinds: Any) -> list[PrivacyEvent]:
    return [
        privacy_event(kind, number, event_id=derive_id(PERSON, kind, number), created_at=times.now_ms())
        for number, kind in enumerate(kinds)
    ]


def test_the_recount_accepts_an_erasure_and_finds_a_deletion_before_its_request() -> None:
    whole = events("exported", "asked", "revoked", "asked", "deleted", "confirmed")
    assert wrong(*whole) == [] and recounted(*whole).counts["privacy events"] == 6
    assert [category for category, _, _ in wrong(*events("deleted", "confirmed"))] != []
