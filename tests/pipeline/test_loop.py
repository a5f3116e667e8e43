"""The whole loop as a user runs it: it ends by itself, stops cleanly, resumes, and survives kill -9.

demo (a tiny model) ── Ctrl-C ──► demo again ── kill -9 of each process in turn ── Ctrl-C ──► what is left is answered
                                                                                      │
                          one log, and every test of it reads the same ◄──────────────┘
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, DeadLetter, Response, Reward, Task, derive_id
from streams.demo import demo_options as demo, loop_run as loop
from streams.kafka.node import process as broker
from streams.kafka.node.config import DEFAULT_PORT, HOST
from streams.kafka.retry import BrokerUnreachable
from streams.kafka.topics import topics
from streams.plugins.installed import load_plugins
from streams.settings.load import load
from streams.settings.model import Kafka, Settings, Topics
from streams.stages.policy import policy_agent as policy
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, read, records, running, until

pytestmark = pytest.mark.kafka

COMPANIONS = [name for plugin, _, _ in load_plugins() for name in plugin.companions]
GROUPS = 4
SLOTS = 8


@dataclass
class Demo:
    """One run of `streamward demo`, and what it said."""

    folder: Path
    process: subprocess.Popen[str]
    pids: set[int] = field(default_factory=set)
    stdout: str = ""

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.process.pid}.err"

    @property
    def stderr(self) -> str:
        return self.log.read_text()

    @property
    def result(self) -> dict[str, Any]:
        """The JSON line, which is all there is on stdout."""
        (line,) = self.stdout.splitlines()
        return dict(json.loads(line))

    def end(self) -> None:
        self.stdout, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, self.stderr

    def child(self, name: str) -> int:
        """Return the pid of a process of the loop, 0 while it has none."""
        for process in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if name in process.cmdline():
                    self.pids.add(process.pid)
                    return process.pid
        return 0


@contextmanager
def demonstration(folder: Path, *arguments: str) -> Iterator[Demo]:
    """Run the demo in `folder`; leaving the block waits for its end. A failure ends everything it started."""
    errors = folder.parent / f"{folder.name}.err"
    whole = command("--set", f"batches.groups={GROUPS}", "demo", "--data-dir", str(folder), "--output", "json")
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*whole, *arguments], env=environment(), cwd=folder.parent, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    run = Demo(folder, process)
    errors.rename(run.log)
    try:
        yield run
        run.end()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def left_over(folder: Path) -> list[list[str]]:
    """Return the command lines of all processes that have to do with `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in line):
            found.append(line)
    return found


# --- it ends by itself -----------------------------------------------------------------------------------------------


def test_a_demo_without_weights_ends_by_itself_with_a_line_of_json(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    with demonstration(folder, "--engine", "scripted", "--steps", "3", "--minutes", "10") as run:
        pass
    result = run.result
    assert result.keys() >= {
        "held_out", "adapters", "responses", "groups", "batches", "loop_s", "data_dir", "bootstrap"
    }  # fmt: skip
    (score,) = result["held_out"]
    assert (score["version"], score["n"]) == (0, demo.HELD_OUT_TASKS)
    assert 0.2 < score["exact"] < 0.8  # the script is right half of the time
    assert result["batches"] >= 3
    assert (result["adapters"], result["interrupted"]) == (0, False)
    assert result["responses"] >= result["groups"] >= demo.HELD_OUT_TASKS + 3 * GROUPS
    assert result["data_dir"] == str(folder)
    assert json.loads((folder / "report.json").read_text()) == result
    assert (folder / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert left_over(folder) == []
    proposed = run.stderr.partition("Try next:")[2].splitlines()
    commands = [shlex.split(line) for line in proposed if line.startswith("  ")]  # others are of librdkafka's log
    shown = try_next(commands, folder.parent)
    assert shown["adapters list"].startswith('{"policy": "demo", "version": 0')
    assert len(shown["events tail"].splitlines()) == 3
    assert '"balanced": true' in shown["audit"]


def test_up_trains_on_a_table_of_questions_goes_on_where_it_stopped_and_ends_when_all_have_a_fate(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """On a Kafka that is there; `up` with a node of its own is in tests/pipeline/test_own_data.py."""
    rows = [*(f"{n} + 1,{n + 1}\n" for n in range(8)), "0 + 1,1\n", "0 + 1,2\n", "9 + 1,\n"]
    (tmp_path / "sums.csv").write_text("question,answer\n" + "".join(rows))
    (tmp_path / "own.csv").write_text("question,answer\n20 + 1,21\n")
    scripted = ("policy.engine=scripted", 'policy.script={"accuracy": 0.5}', f"batches.groups={GROUPS}")
    words = ["up", "--tasks", "sums.csv", "--map", "prompt=question", "--group-size", "4", "--epochs", "2"]
    words += ["--held-out", "own.csv", "--output", "json", "--minutes", "5", "--skip-bad"]
    topics = Topics(prefix=own_prefix(), partitions=2, policy_partitions=1)
    there = environment(Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics))

    def up(*more: str) -> tuple[dict[str, Any], str]:
        chosen = [word for text in scripted for word in ("--set", text)]
        line = command(*chosen, *words, *more)
        done = subprocess.run(line, env=there, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    first, said = up("--steps", "2")
    assert "sums.csv: 11 rows: 9 tasks (1 contradictory), 1 repeated, 1 skipped" in said
    assert "18 train tasks: 18 new, 0 known" in said and "differed in reward" in said
    assert first["finished"] and first["batches"] >= 2
    second, said = up()
    assert "resuming:" in said and "Mean train reward" not in said
    assert "the last step lacks 2 groups: as many tasks are asked again (learning.fill_last_step)" in said
    assert second["finished"] and (second["batches"], second["groups"]) == (5, 20 + 1)
    assert [(score["version"], score["n"]) for score in second["held_out"]] == [(0, 1)]
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_up_ends_once_tasks_that_are_not_trained_on_are_answered(
    purpose: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    lines = [{"prompt": f"{n} + 1", "answer": f"{n + 1}"} for n in range(4)] + [{"prompt": "Hello."}]
    if purpose == "eval":
        del lines[-1]  # an eval task needs a reward
    (tmp_path / "asked.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    topics = Topics(prefix=own_prefix(), partitions=2, policy_partitions=1)
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics)
    chosen = ["--set", "policy.engine=scripted", "--set", 'policy.script={"latency_ms": 500}']
    words = ["up", "--tasks", "asked.jsonl", "--purpose", purpose, "--group-size", "2", "--output", "json"]

    def up() -> dict[str, Any]:
        line, there = command(*chosen, *words, "--minutes", "5"), environment(settings)
        done = subprocess.run(line, env=there, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    first, again = up(), up()
    answered = Counter(response.task_id for _, response in read(settings, Response))
    assert [*answered.values()] == [2] * len(lines)
    assert first["finished"] and again["finished"] and again["responses"] == 2 * len(lines)


RAISES = """from streamward import entry_point

@entry_point("own/1")
def score(task, response, settings):
    return task.verifier["answr"] in response.text
"""


def test_up_names_a_scorer_that_fails_scores_again_once_it_is_mended_and_says_why_nothing_is_learnt(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(RAISES)
    (tmp_path / "few.jsonl").write_text("".join(f'{{"prompt": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(4)))
    topics = Topics(prefix=own_prefix(), partitions=1, policy_partitions=1)
    there = environment(Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics))
    chosen = ["policy.engine=scripted", 'policy.script={"answers": "wrong"}', "batches.groups=2"]
    line = ["up", "--tasks", "few.jsonl", "--scorer", "own:score", "--group-size", "2", "--minutes", "5"]
    line += ["--output", "json"]

    def up(*settings: str) -> list[str]:
        return command(*(word for text in settings for word in ("--set", text)), *line)

    def said(*settings: str, code: int) -> str:
        run = subprocess.run(up(*settings), env=there, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert run.returncode == code, run.stderr
        return run.stderr

    few = said(*chosen, "batches.groups=5", code=2)
    assert "4 train tasks fill no training step of 5 groups (batches.groups): give more tasks, --epochs 2" in few
    failed = said(*chosen, code=1)
    assert "scoring: own:score: exception: own:score raised KeyError" in failed
    assert "Error: nothing was learnt: no answer of this run has a score. 8 answers have no score: own:score" in failed
    (tmp_path / "own.py").write_text(RAISES.replace('task.verifier["answr"] in response.text', "0.0"))
    text = said(*chosen, code=1)
    assert "scoring: 8 answers have no score and are scored again" in text
    assert "4 trained on, 4 of them taught nothing" not in text  # no version without weights
    assert "Error: nothing is learnt: none of the last 4 groups differed in reward, since no answer is right: " in text
    assert re.search(r"\(expected '[1-4]'\)", text)  # three of the four are shown


def try_next(commands: list[list[str]], folder: Path) -> dict[str, str]:
    """Type the commands that a demo proposes where it ran, but the next demo; return what each printed."""
    shown: dict[str, str] = {}
    assert "demo" in commands[-1]
    try:
        for _, *words in commands[:-1]:
            done = subprocess.run(
                command(*words), env=environment(), cwd=folder, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{words}: {done.stderr}"
            shown.setdefault(" ".join(words[:2]), done.stdout)
    finally:
        subprocess.run(command("admin", "broker", "stop"), env=environment(), cwd=folder, check=True)
    return shown


# --- it is stopped, goes on, and is killed ---------------------------------------------------------------------------


@dataclass
class History:
    """What two runs of the demo and an hour of trouble have left."""

    settings: Settings
    first: Demo
    second: Demo
    versions: list[int]
    """The newest version at each stop."""
    left_over: list[list[str]]


def save_model(folder: Path) -> Path:
    """Write a tiny model whose answers differ in worth: a third of its words are numbers."""
    save_tiny(folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary = data["model"]["vocab"]
    data["model"]["vocab"] = {f"w{word}" if word.isdigit() and i >= 24 else word: i for word, i in vocabulary.items()}
    file.write_text(json.dumps(data))
    return folder


@contextmanager
def default_port_taken() -> Iterator[None]:
    """Have a node that is made meanwhile take any other port, and keep it.

    At the default one other tests start nodes too, also in the moment in which ours was killed.
    """
    held: AbstractContextManager[Any]
    try:
        held = socket.create_server((HOST, DEFAULT_PORT))
    except OSError:  # another test's node has it
        held = nullcontext()
    with held:
        yield


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    root = tmp_path_factory.mktemp("loop")
    folder, model = root / "demo", save_model(root / "model")
    asked = ("--model", str(model), "--steps", "1000", "--minutes", "30")

    def settings() -> Settings:
        return load(file=folder / "streamward.toml", env={})

    def count(kind: type[Any]) -> int:
        return len(read(settings(), kind))

    def newest() -> int:
        return max((event.version for _, event in read(settings(), AdapterEvent) if event.kind == "trained"), default=0)

    def more(kind: type[Any], before: int) -> bool:
        return count(kind) > before

    def replaced(run: Demo, name: str, pid: int) -> bool:
        return run.child(name) not in (0, pid)

    def said(run: Demo) -> str:
        logs = [run.log, *sorted((folder / "logs").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def is_met(met: Callable[[], bool]) -> bool:
        try:
            return met()
        except BrokerUnreachable:  # its node is starting
            return False

    def wait(run: Demo, met: Callable[[], bool], expected: str) -> None:
        try:
            until(lambda: run.process.poll() is not None or is_met(met), expected)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{said(run)}") from None
        assert run.process.poll() is None, said(run)

    with default_port_taken(), demonstration(folder, *asked) as first:
        wait(first, lambda: all(map(first.child, loop.PROCESSES)), "four processes")
        wait(first, lambda: newest() >= 2, "two versions")
        wait(first, lambda: all(map(first.child, COMPANIONS)), "what plugins start beside a demo")
        first.process.send_signal(signal.SIGINT)
    left, versions = left_over(folder), [first.result["adapters"]]

    with demonstration(folder, *asked) as second:
        wait(second, lambda: all(map(second.child, loop.PROCESSES)), "four processes again")
        wait(second, lambda: newest() > versions[0], "a version after the stop")
        effects = {"streams": AdvantagedGroup, "scoring": Reward, "policy": Response, "train": AdapterEvent}
        for name, effect in effects.items():
            pid = second.child(name)
            assert pid, f"{name} does not run: {said(second)}"
            os.kill(pid, signal.SIGKILL)
            before = count(effect)
            wait(second, partial(replaced, second, name, pid), f"another {name}")
            wait(second, partial(more, effect, before), f"work of the new {name}")
        node = broker.status(settings().broker)
        assert node is not None
        os.kill(node.pid, signal.SIGKILL)
        wait(second, lambda: broker.status(settings().broker) not in (None, node), "another node")
        wait(second, lambda: newest() > 0, "an answer of the new node")
        reached = newest()
        wait(second, lambda: newest() > reached + 1, "versions after all that")
        second.process.send_signal(signal.SIGINT)
    versions.append(second.result["adapters"])
    left += left_over(folder)

    broker.ensure(settings().broker)
    try:
        answer_what_waits(settings(), root)
        yield History(settings(), first, second, versions, left)
    finally:
        broker.stop(settings().broker)


def answer_what_waits(settings: Settings, folder: Path) -> None:
    """Run the loop without its trainer until every task has its group: tasks wait for room that no version makes."""
    roomy = settings.model_copy(update={"batches": settings.batches.model_copy(update={"max_policy_lag": 10**6})})
    stop = threading.Event()
    agent = threading.Thread(target=policy.run, args=(roomy,), kwargs={"stop": stop})
    with running(settings, folder, "streams", "scoring"):
        agent.start()
        try:
            until(
                lambda: (
                    {task.task_id for _, task in read(settings, Task)}
                    <= {group.task_id for _, group in read(settings, AdvantagedGroup)}
                ),
                "a group for every task",
                folder=folder,
            )
        finally:
            stop.set()
            agent.join()


@pytest.mark.kills
def test_ctrl_c_stops_every_process_and_the_broker_and_says_how_far_it_came(history: History) -> None:
    assert history.left_over == []
    assert not any(map(psutil.pid_exists, history.first.pids | history.second.pids))
    for run in (history.first, history.second):
        assert run.result["interrupted"] is True
        assert run.result["adapters"] >= 2
        assert "run the same command again" in " ".join(run.stderr.split())


@pytest.mark.kills
def test_a_second_run_resumes(history: History) -> None:
    assert f"resuming: {_resumed(history)} tasks and {history.versions[0]} adapters in the log" in history.second.stderr
    assert history.versions[1] > history.versions[0] >= 2


def _resumed(history: History) -> int:
    (line,) = (line for line in history.second.stderr.splitlines() if line.startswith("resuming"))
    return int(line.split()[1])


@pytest.mark.kills
@pytest.mark.parametrize("name", loop.PROCESSES)
def test_a_killed_process_is_restarted_and_that_is_reported(history: History, name: str) -> None:
    said = " ".join(history.second.stderr.split())
    assert f"{name} ended with signal SIGKILL; restarting it in" in said
    assert f"{name} is running again" in said


@pytest.mark.kills
def test_no_task_was_asked_for_twice(history: History) -> None:
    asked = Counter(task.task_id for _, task in read(history.settings, Task))
    assert set(asked.values()) == {1}


@pytest.mark.kills
def test_each_task_has_exactly_one_group_and_its_copies_are_byte_identical(history: History) -> None:
    copies: dict[str, set[bytes | None]] = defaultdict(set)
    for record, group in read(history.settings, AdvantagedGroup):
        copies[group.task_id].add(record.payload)
    assert copies.keys() == {task.task_id for _, task in read(history.settings, Task)}
    assert {len(payloads) for payloads in copies.values()} == {1}


@pytest.mark.kills
def test_a_group_is_one_whole_sampling_or_says_why_not(history: History) -> None:
    samplings: dict[str | None, dict[int, Response]] = defaultdict(dict)
    for _, response in read(history.settings, Response):
        samplings[response.sampling_id][response.slot] = response
    for _, group in read(history.settings, AdvantagedGroup):
        if group.dropped_reason is not None:
            assert group.left_out
            continue
        slots = samplings[group.sampling_id]
        assert {response.adapter_version for response in slots.values()} == {group.adapter_version}
        assert [member.slot for member in group.responses] == list(range(group.group_size)) == sorted(slots)
        assert all(
            (member.response_id, member.completion_token_ids, member.logprobs)
            == (slots[n].response_id, slots[n].completion_token_ids, slots[n].logprobs)
            for n, member in enumerate(group.responses)
        )


@pytest.mark.kills
def test_every_response_was_scored(history: History) -> None:
    sources = {task.task_id: task.reward_sources for _, task in read(history.settings, Task)}
    expected = {
        derive_id(response.response_id, source.name)
        for _, response in read(history.settings, Response)
        for source in sources[response.task_id]
        if response.error is None
    }
    assert {reward.reward_id for _, reward in read(history.settings, Reward)} == expected


@pytest.mark.kills
def test_batches_are_contiguous_and_their_copies_byte_identical(history: History) -> None:
    copies: dict[int, set[bytes | None]] = defaultdict(set)
    for record, batch in read(history.settings, Batch):
        copies[batch.sequence].add(record.payload)
    assert sorted(copies) == list(range(len(copies)))
    assert {len(payloads) for payloads in copies.values()} == {1}


@pytest.mark.kills
def test_no_group_is_in_two_batches(history: History) -> None:
    at = {record.at.offset: group.group_id for record, group in read(history.settings, AdvantagedGroup)}
    batches = {batch.sequence: batch for _, batch in read(history.settings, Batch)}
    used = Counter(at[offset] for batch in batches.values() for offset in batch.groups_offsets)
    assert set(used.values()) == {1}


@pytest.mark.kills
def test_each_version_was_trained_once_and_in_order(history: History) -> None:
    trained = [event for _, event in read(history.settings, AdapterEvent) if event.kind == "trained"]
    manifests: dict[int, set[Any]] = defaultdict(set)
    for event in trained:
        manifests[event.version].add((event.parent_version, event.last_batch, event.files))
    assert list(dict.fromkeys(event.version for event in trained)) == list(range(1, history.versions[1] + 1))
    assert {len(found) for found in manifests.values()} == {1}
    assert all((v - 1, v - 1) == (parent, last) for v, ((parent, last, _),) in manifests.items())


@pytest.mark.kills
def test_every_response_names_a_version_that_existed(history: History) -> None:
    trained_ms = {0: 0}
    for record, event in read(history.settings, AdapterEvent):
        if event.kind == "trained":
            trained_ms.setdefault(event.version, record.timestamp_ms)
    responses = read(history.settings, Response)
    assert {response.adapter_version for _, response in responses} > {0, 1}
    assert all(trained_ms[response.adapter_version] <= record.timestamp_ms for record, response in responses)


@pytest.mark.kills
def test_every_record_can_be_read_and_only_doubled_work_is_dead_lettered(history: History) -> None:
    for label, topic in topics(history.settings.topics).items():
        assert len(records(history.settings, label)) == len(read(history.settings, topic.event)), label
    reasons = {letter.reason for _, letter in read(history.settings, DeadLetter)}
    assert reasons <= {"superseded", "unknown_response", "late"}
