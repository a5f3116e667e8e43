"""A word that only one person said is in no byte of the log or of the loop's state, and after the erasure in no answer.

up --tasks (two persons, the word in prompt, answer and metadata) ──► every file but what `up` itself prints
privacy erase ──► query, audit, archive, events tail: none has the word any more, the other person's words are there
serve, with calls that fail ──► what it prints, TMPDIR, caches: no word; then export ──► words of the other alone
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streams.kafka.node import process as broker
from streams.settings.model import Broker
from tests.support.log.secured_node import free_ports
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, said, spawn, until

pytestmark = pytest.mark.kafka

CANARY, OTHER = "heliotrope", "marigold"
CONFIG = """\
[model]
base = "{tiny}"
[policy]
engine = "scripted"
[batches]
groups = 2
[broker]
data_dir = "{folder}/kafka"
[archive]
store = "{folder}/archive"
[privacy]
key_folder = "{folder}/keys"
seal = "named"
[serve]
port = {port}
"""


def surroundings(folder: Path) -> dict[str, str]:
    """Return an environment whose temporary files and caches are in the folder, where they are searched."""
    places = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": folder / "cache"}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return environment() | {name: str(place) for name, place in places.items()}


def run(folder: Path, *words: str, fails: bool = False) -> str:
    done = subprocess.run(
        command("--config", str(folder / "streamward.toml"), *words),
        env=surroundings(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert fails or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a log in which two persons spoke."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "streamward.toml").write_text(
        CONFIG.format(folder=folder, tiny=save_tiny(folder / "tiny"), port=free_ports(1)[0])
    )
    tasks = [
        {"prompt": f"{word} {n} + 1 =", "answer": f"{word}{n}", "user": user, "metadata": {"note": word}}
        for user, word in (("ann", CANARY), ("bob", OTHER))
        for n in range(3)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
    # it ends with an error: the script is always right, so nothing is learnt
    said = run(
        folder, "up", "--tasks", "tasks.jsonl", "--group-size", "2", "--minutes", "4", "--output", "json", fails=True
    )
    assert json.loads(said)["groups"] == 6
    (folder / "tasks.jsonl").unlink()
    yield folder
    broker.stop(Broker(data_dir=folder / "kafka"))


def files_with(folder: Path, word: str) -> list[str]:
    """Return the files that have a word, but the report that `up` writes for its user."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "report.json"]
    return [str(path.relative_to(folder)) for path in paths if word.encode() in path.read_bytes()]


def ask_server(folder: Path) -> None:
    """Ask a server in calls of both persons, of which some fail, and look for the words while it runs."""
    port = tomllib.loads((folder / "streamward.toml").read_text())["serve"]["port"]
    words = command("--config", str(folder / "streamward.toml"), "serve")
    with (folder / "serve.log").open("w") as log:
        server = spawn(words, env=surroundings(folder), cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, said(folder)
        try:
            return httpx.get(f"{url}/healthz", timeout=300).is_success
        except httpx.TransportError:
            return False

    try:
        until(answers, "the server to answer", folder=folder)
        for user, word in (("ann", CANARY), ("bob", OTHER)):
            message = [{"role": "user", "content": f"{word}?"}]
            for wrong in ({}, {"max_tokens": word}, {"model": f"no-{user}"}, {"messages": [{"role": word}]}):
                call = {"model": "default", "messages": message, "user": user, **wrong}
                status = httpx.post(f"{url}/v1/chat/completions", json=call, timeout=300).status_code
                assert (status == 200) == (not wrong), (status, wrong)
        assert files_with(folder, CANARY) == files_with(folder, OTHER) == []
    finally:
        server.terminate()
        server.wait(300)


def test_the_word_is_in_no_file_and_after_the_erasure_in_no_answer(log: Path) -> None:
    assert any((log / "kafka").rglob("*responses*/*.log"))
    assert files_with(log, CANARY) == files_with(log, OTHER) == []
    run(log, "admin", "broker", "start")
    question = "SELECT r.text, t.messages FROM responses AS r JOIN tasks AS t USING (task_id)"
    before = run(log, "query", question)
    assert CANARY in before and OTHER in before
    assert json.loads(run(log, "audit"))["balanced"] is True
    ask_server(log)
    run(log, "admin", "archive", "sync")
    assert files_with(log, CANARY) == []
    run(log, "privacy", "erase", "ann")
    run(log, "export", "exported", "--format", "prompts")
    assert {name.partition("/")[0] for name in files_with(log, OTHER)} == {"exported"}
    shown = [run(log, "query", question), run(log, "events", "tail", "tasks", "--from", "start", "--until-end")]
    shown += [run(log, "query", "FROM groups"), run(log, "query", "FROM privacy"), run(log, "privacy", "list")]
    assert OTHER in shown[0]
    assert [text for text in shown if CANARY in text] == []
    audit = json.loads(run(log, "audit"))
    assert audit["balanced"] is True and (audit["tasks"], audit["responses"], audit["groups"]) == (6, 12, 6)
    assert files_with(log, CANARY) == []
