"""Twenty erasures, each killed with -9 at a step, and once more where it continued, come to an end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import FolderStore
from plugins.privacy.person_keys import PersonKeys
from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import PrivacyEvent, Response
from schemas.key_source import NoKeys
from schemas.serde import Poison, decode, encode
from streams.settings.model import Settings
from tests.support.factories import response
from tests.support.log.registry_cases import made as made
from tests.support.log.whole_run import recounted
from tests.support.processes import environment, read

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

PROGRAM = """
import os, signal, sys
from pathlib import Path
from plugins.privacy.erasing import Eraser
from plugins.privacy.erasure_log import ErasureLog
from plugins.privacy.key_store import FolderStore
from plugins.privacy.privacy_settings import Privacy
from streams.settings.load import load

person, left = sys.argv[1], int(sys.argv[2])

def step():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def before_and_after(owner, name):
    method = getattr(owner, name)
    def wrapped(*words, **fields):
        step()
        result = method(*words, **fields)
        step()
        return result
    setattr(owner, name, wrapped)

for owner, name in ((ErasureLog, "note"), (FolderStore, "delete"), (Path, "unlink")):
    before_and_after(owner, name)
settings = load()
rule = settings.of_plugin(Privacy)
with ErasureLog(settings) as log:
    Eraser(log, FolderStore(Path(rule.key_folder)), rule).erase(person, "bob", "asked for")
"""
STEPS = 10
"""Before and after `asked`, the deletion of the key and of its file within, `deleted` and `confirmed`."""


@pytest.fixture
def sealing(made: Settings, tmp_path: Path) -> Iterator[Settings]:
    rule = Privacy(key_folder=str(tmp_path / "keys"), seal="named")
    settings = made.model_copy(update={"privacy": rule})
    key_source.use(PersonKeys(settings, rule))
    yield settings
    key_source.use(NoKeys())


def test_twenty_erasures_that_are_killed_between_any_two_events_end(sealing: Settings) -> None:
    keys, store = key_source.current(), FolderStore(Path(sealing.of_plugin(Privacy).key_folder))
    persons: dict[str, bytes] = {}
    for number in range(20):
        subject = keys.subject_of(None, f"person-{number}", None)
        assert subject is not None
        persons[subject] = encode(response(subject=subject, text="heliotrope"))
    kills = 0
    for number, person in enumerate(persons):
        for step in (number % STEPS, (number + 3) % 4):
            words = [sys.executable, "-c", PROGRAM, person, str(step)]
            done = subprocess.run(words, env=environment(sealing), capture_output=True, text=True, timeout=300)
            assert done.returncode in (-signal.SIGKILL, 0), done.stderr
            kills += done.returncode == -signal.SIGKILL
    assert kills >= 20
    with ErasureLog(sealing) as log:
        eraser = Eraser(log, store, sealing.of_plugin(Privacy))
        list(eraser.finish("cron"))
        unasked = [person for person in persons if log.state(person).asked is None]
        for person in unasked:
            eraser.erase(person, "bob", "asked for")
        assert {log.state(person).word for person in persons} == {"erased"}
        assert [person for person in persons if store.get(person) is not None] == []
        assert {len(log.state(person).effective) for person in persons} == {3}
    key_source.current()._log().catch_up()  # type: ignore[attr-defined]
    for payload in persons.values():
        opened = decode(payload, Response)
        assert isinstance(opened, Poison) and opened.reason == "erased"
    events = [event for _, event in read(sealing, PrivacyEvent)]
    assert recounted(*events).counts["privacy events"] == len(events)
