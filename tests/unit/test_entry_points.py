"""Scorers that users bring: they may hang, crash or lie, and none of it leaves their process."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.events import RewardSource
from streams.errors import SettingsError
from streams.scorers import ScoreError, ScoreOutcome, Scorers, Verdict, find
from streams.scorers.verdict import check_verdict
from streams.settings.model import Scoring
from tests.support.doubles.judge import a_response, a_task, judging, outcome, says

ENTRY_POINTS = """
    import math, os, signal, subprocess, sys, threading, time
    from pathlib import Path
    from streams.scorers import ScoreError, Verdict, entry_point

    def unmarked(task, response, settings):
        return 1.0

    @entry_point("good/3")
    def good(task, response, settings):
        print("a scorer that prints does not disturb the protocol")
        return Verdict(len(response.text) / settings["most"], {"length": len(response.text)}, "counted")

    @entry_point("sees/1")
    def sees(task, response, settings):
        return float(settings["name"] in os.environ)

    @entry_point("pair/1")
    def pair(task, response, settings):
        return 0.5, {"half": 1}

    @entry_point("hang/1")
    def hang(task, response, settings):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(settings["pids"]).write_text(f"{os.getpid()} {child.pid}")
        while True:
            time.sleep(1)

    @entry_point("deaf/1")
    def deaf(task, response, settings):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        Path(settings["pids"]).write_text(str(os.getpid()))
        sum(range(10**12))

    @entry_point("raise/1")
    def raises(task, response, settings):
        raise ZeroDivisionError("by zero")

    @entry_point("leave/1")
    def leaves(task, response, settings):
        os._exit(3)

    @entry_point("quit/1")
    def quits(task, response, settings):
        sys.exit("done")

    @entry_point("nan/1")
    def nan(task, response, settings):
        return math.nan

    @entry_point("infinite/1")
    def infinite(task, response, settings):
        return Verdict(1.0, {"part": math.inf})

    @entry_point("bool/1")
    def boolean(task, response, settings):
        return True

    @entry_point("awaited/1")
    async def awaited(task, response, settings):
        return 1.0

    @entry_point("text/1")
    def text(task, response, settings):
        return "1.0"

    def into_every_descriptor(data):
        for number in range(3, 12):
            try:
                os.write(number, data)
            except OSError:
                pass

    FORGED = b'{"value": 9.0, "components": {}, "rationale": null, "version": "forged/1"}'

    @entry_point("forks/1")
    def forks(task, response, settings):
        return 0.25 if os.fork() else 9.0

    @entry_point("writes/1")
    def writes(task, response, settings):
        into_every_descriptor(bytes.fromhex(settings["hex"]) or len(FORGED).to_bytes(4, "big") + FORGED)
        return 0.25

    @entry_point("later/1")
    def later(task, response, settings):
        def wait_and_write():
            while not Path(settings["go"]).exists():
                time.sleep(0.01)
            into_every_descriptor(len(FORGED).to_bytes(4, "big") + FORGED)
        threading.Thread(target=wait_and_write).start()
        return 0.25

    @entry_point("goes/1")
    def goes(task, response, settings):
        Path(settings["go"]).touch()
        time.sleep(0.3)
        return 0.5

    @entry_point("closes/1")
    def closes(task, response, settings):
        os.closerange(3, 64)
        return 0.25

    @entry_point("gate/1")
    def gate(task, response, settings):
        while not Path(settings["go"]).exists():
            time.sleep(0.01)
        return 0.5

    @entry_point("memory/1")
    def memory(task, response, settings):
        return float(len(bytearray(64 * 1024**3)))

    @entry_point("heals/1")
    def heals(task, response, settings):
        seen = Path(settings["seen"])
        seen.write_text((seen.read_text() if seen.exists() else "") + "x")
        if len(seen.read_text()) < 3:
            os.abort()
        return 1.0
"""


MODULES = "my_scorers, broken_scorers, misspelt_scorers, needing_scorers, no_such_module"


@pytest.fixture(scope="module")
def entry_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    (folder / "my_scorers.py").write_text(textwrap.dedent(ENTRY_POINTS))
    (folder / "broken_scorers.py").write_text("import not_there\n")
    (folder / "needing_scorers.py").write_text("import os\nos.environ['OPENAI_API_KEY']\nfrom my_scorers import pair\n")
    (folder / "misspelt_scorers.py").write_text("def f(task, response, settings)\n    return 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


@pytest.fixture(scope="module")
def hasty(entry_points: None) -> Iterator[Scorers]:
    with Scorers(Scoring(timeout_s=1.0, retries=0, modules=MODULES)) as running:
        yield running


def test_an_entry_point_scores_in_its_own_process_and_names_its_version(hasty: Scorers) -> None:
    found = outcome(hasty, "my_scorers:good", "abcd", {"most": 8})
    assert (found.value, found.components, found.rationale) == (0.5, {"length": 4.0}, "counted")
    assert found.version == "good/3"


@pytest.mark.parametrize("score", [True, np.bool_(True), np.float32(1), np.int64(1), np.array([1.0]), np.array(True)])
def test_what_comparing_gives_is_a_score(score: Any) -> None:
    assert check_verdict((score, {"part": score}), "mine") == Verdict(1.0, {"part": 1.0})


def test_several_numbers_are_no_score() -> None:
    with pytest.raises(ScoreError, match="a score is a finite number"):
        check_verdict(np.array([1.0, 0.0]), "mine")


def test_a_verdict_of_true_is_one(hasty: Scorers) -> None:
    assert outcome(hasty, "my_scorers:boolean", "x", {}).value == 1.0


def test_an_entry_point_may_give_a_number_and_its_components(hasty: Scorers) -> None:
    found = outcome(hasty, "my_scorers:pair", "x", {})
    assert (found.value, found.components) == (0.5, {"half": 1.0})


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("raises", "exception", "my_scorers:raises raised ZeroDivisionError: by zero"),
        ("quits", "exception", "raised SystemExit: done"),
        ("leaves", "crashed", "ended its process (exit code 3)"),
        ("memory", "memory", "needed more than"),
        ("nan", "not_a_number", "gave value nan; a score is a finite number"),
        ("infinite", "not_a_number", "gave component part inf"),
        ("awaited", "not_a_number", "write a plain function; asyncio.run(…) in it calls an async one"),
        ("text", "not_a_number", "gave value '1.0'"),
        ("unmarked", "unknown_scorer", "is not marked as a scorer; write @streamward.entry_point('unmarked/1')"),
        ("goodd", "unknown_scorer", " has no function 'goodd'; did you mean good? known: "),
    ],
)
def test_a_scorer_that_fails_gives_its_reason_and_the_next_score_works(
    hasty: Scorers, name: str, reason: str, message: str
) -> None:
    found = outcome(hasty, f"my_scorers:{name}", "x", {})
    assert (found.value, found.reason) == (None, reason)
    assert found.error is not None and message in found.error
    assert outcome(hasty, "my_scorers:pair", "x", {}).value == 0.5


@pytest.mark.parametrize("name", ["no_such_module:f", "broken_scorers:f"])
def test_an_entry_point_that_cannot_be_imported_says_so(hasty: Scorers, name: str) -> None:
    found = outcome(hasty, name, "x", {})
    assert found.reason == "unknown_scorer" and found.error is not None and "PYTHONPATH" in found.error


def test_a_mistake_in_the_file_is_named_with_its_own_line_alone(hasty: Scorers) -> None:
    found = outcome(hasty, "misspelt_scorers:f", "x", {})
    assert found.error is not None and found.error.endswith("SyntaxError: expected ':' (misspelt_scorers.py, line 1)")


@pytest.mark.parametrize("name", ["os.system", "os:system:x", "os:", ":system", "../x:y", "a b:c"])
def test_a_name_that_is_no_entry_point_is_an_unknown_scorer(name: str) -> None:
    with pytest.raises(ScoreError, match=r"no scorer is called|names no function of a Python module"):
        find(name)


def test_a_scorer_that_hangs_is_killed_with_all_it_started(hasty: Scorers, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = outcome(hasty, "my_scorers:hang", "x", {"pids": str(pids)})
    assert (found.value, found.reason) == (None, "timeout")
    for pid in map(int, pids.read_text().split()):
        wait_until_gone(pid)
    assert outcome(hasty, "my_scorers:pair", "x", {}).value == 0.5


# --- one worker, one scorer after the other: nothing of the first reaches the second ----------------------------------


def test_a_scorer_that_forks_answers_once(hasty: Scorers) -> None:
    found = [outcome(hasty, f"my_scorers:{name}", "x", {"most": 4}).value for name in ("forks", "good") * 3]
    assert found == [0.25, 0.25] * 3


@pytest.mark.parametrize("written", ["", "ff" * 4, "00000002" + b"[]".hex(), "00000004" + b"{}{}".hex(), "0000000130"])
def test_what_a_scorer_writes_into_descriptors_is_no_verdict(hasty: Scorers, written: str) -> None:
    assert outcome(hasty, "my_scorers:pair", "x", {}).value == 0.5
    found = outcome(hasty, "my_scorers:writes", "x", {"hex": written})
    assert (found.value, found.reason) == (None, "crashed")
    assert "sent something that is no answer" in str(found.error) or "bytes; at most" in str(found.error)
    assert outcome(hasty, "my_scorers:pair", "x", {}).value == 0.5


@pytest.mark.usefixtures("entry_points")
def test_what_an_earlier_scorer_writes_later_costs_the_next_one_nothing(tmp_path: Path) -> None:
    settings = {"go": str(tmp_path / "go")}
    with Scorers(Scoring(timeout_s=60.0, retries=0, modules=MODULES)) as scorers:
        assert outcome(scorers, "my_scorers:later", "x", settings).value == 0.25
        found = outcome(scorers, "my_scorers:goes", "x", settings)
    assert (found.value, found.version, found.tries) == (0.5, "goes/1", 1)


@pytest.mark.usefixtures("entry_points")
def test_a_scorer_sees_the_variables_that_the_settings_name_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMWARD_SCORING__JUDGE_KEY", "planted")
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    for variables, expected in (("", 0.0), ("OTHER, OPENAI_API_KEY", 1.0)):
        with Scorers(Scoring(timeout_s=60.0, modules=MODULES, variables=variables)) as scorers:
            assert outcome(scorers, "my_scorers:sees", "x", {"name": "OPENAI_API_KEY"}).value == expected
            assert outcome(scorers, "my_scorers:sees", "x", {"name": "STREAMWARD_SCORING__JUDGE_KEY"}).value == 0.0
            assert outcome(scorers, "my_scorers:sees", "x", {"name": "PATH"}).value == 1.0
            with nullcontext() if expected else pytest.raises(ScoreError, match="OPENAI_API_KEY"):
                scorers.load([RewardSource(name="needing_scorers:pair")])  # which reads it when it is imported


def test_a_scorer_that_closes_descriptors_ends_its_worker_alone(hasty: Scorers) -> None:
    assert outcome(hasty, "my_scorers:closes", "x", {}).reason == "crashed"
    assert outcome(hasty, "my_scorers:pair", "x", {}).value == 0.5


# --- what may be imported ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modules", "value", "message"),
    [
        ("", None, "scoring.modules lists no module, and a task can only name what is listed; add train to"),
        (".", None, "scoring.modules lists ., and"),
        ("tr, train.er", None, "add train to scoring.modules, and `.` if it is in the working folder"),
        ("train", None, "add `.` to scoring.modules if it is in the working folder"),
        ("train, .", 1.0, None),
    ],
)
def test_a_task_names_a_module_and_only_a_listed_one_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: str, value: float | None, message: str | None
) -> None:
    (tmp_path / "train.py").write_text(
        "from streamward import entry_point\nopen('ran', 'w').close()\n\n"
        "@entry_point('x/1')\ndef x(task, response, settings):\n    return 1.0\n"
    )
    (tmp_path / "json.py").write_text("open('ran', 'w').close()\n")  # a file of the working folder hides no other
    monkeypatch.chdir(tmp_path)
    with Scorers(Scoring(retries=0, modules=modules)) as running:
        found = outcome(running, "train:x", "x", {})
    assert found.value == value and (message is None or message in str(found.error))
    assert (tmp_path / "ran").exists() == (value is not None)


def test_a_listed_package_lists_what_is_below_it(entry_points: None) -> None:
    with Scorers(Scoring(retries=0, modules="my_scorers")) as running:
        assert "No module named 'my_scorers.sub'" in str(outcome(running, "my_scorers.sub:f", "x", {}).error)
        assert outcome(running, "my_scorers_too:f", "x", {}).reason == "module_not_listed"


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_task_whose_pattern_never_ends_holds_up_no_other_and_is_given_up(entry_points: None, tmp_path: Path) -> None:
    # One worker is held until everything is queued: ten answers to one task, then one to another, and one for a judge.
    go, done = tmp_path / "go", list[str]()
    text, endless = "a" * 60 + "b", RewardSource(name="regex", settings='{"pattern": "(a+)+"}')
    gate = RewardSource(name="my_scorers:gate", settings=json.dumps({"go": str(go)}))
    quick = RewardSource(name="my_scorers:pair")

    def start(task_id: str, source: RewardSource) -> Future[ScoreOutcome]:
        task = dataclasses.replace(a_task(), task_id=task_id)
        future = running.start(task, source, partial(running.score, task, a_response(text), source))
        future.add_done_callback(lambda _: done.append(task_id))
        return future

    with judging(says({"score": 5})) as judge:
        scoring = Scoring(timeout_s=0.5, modules=MODULES, judge_url=judge.url, judge_model="m")
        with Scorers(scoring) as running:
            first = start("gate", gate)
            bad = [start("bad", endless) for _ in range(10)]
            start("good", quick)
            assert start("judged", RewardSource(name="judge")).result(60).value == 0.5
            go.touch()
            assert first.result(60).reason in (None, "timeout")
            errors = [future.result(60).error or "" for future in bad]
    assert [task_id for task_id in done if task_id != "judged"][:3] == ["gate", "bad", "good"]
    assert [error.partition(":")[0] for error in errors] == ["timeout"] * 3 + ["too_slow"] * 7
    assert "regex was not tried: 3 responses to task bad ran into the time limit" in errors[-1]


def test_a_pattern_that_backtracks_for_ever_is_killed_and_not_tried_again() -> None:
    with Scorers(Scoring(timeout_s=0.5, retries=2)) as running:
        found = outcome(running, "regex", "a" * 60 + "b", {"pattern": "(a+)+"})
    assert (found.value, found.reason, found.tries) == (None, "timeout", 1), "a second try would take as long"
    assert found.error is not None and "raise scoring.timeout_s" in found.error


def test_a_failed_score_is_tried_again_a_bounded_number_of_times(entry_points: None, tmp_path: Path) -> None:
    with Scorers(Scoring(modules=MODULES, retries=2)) as patient:
        found = outcome(patient, "my_scorers:heals", "x", {"seen": str(tmp_path / "a")})
        assert (found.value, found.tries) == (1.0, 3)
    with Scorers(Scoring(modules=MODULES, retries=1)) as impatient:
        found = outcome(impatient, "my_scorers:heals", "x", {"seen": str(tmp_path / "b")})
        assert (found.value, found.reason, found.tries) == (None, "crashed", 2)
        assert found.error is not None and "signal SIGABRT" in found.error and "(after 2 tries)" in found.error


def test_a_stopping_agent_tries_no_more(entry_points: None, tmp_path: Path) -> None:
    with Scorers(Scoring(modules=MODULES, retries=5)) as running:
        running.stop()
        assert outcome(running, "my_scorers:raises", "x", {}).tries == 1


def test_closing_kills_a_score_that_still_runs(entry_points: None, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found: list[ScoreOutcome] = []
    running = Scorers(Scoring(timeout_s=500, modules=MODULES))
    thread = threading.Thread(
        target=lambda: found.append(outcome(running, "my_scorers:hang", "x", {"pids": str(pids)}))
    )
    thread.start()
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        time.sleep(0.02)
    running.close()
    thread.join(timeout=300)
    assert [one.reason for one in found] == ["crashed"]
    for pid in map(int, pids.read_text().split()):
        wait_until_gone(pid)


def test_a_worker_ends_itself_when_its_parent_is_gone(hasty: Scorers) -> None:
    outcome(hasty, "my_scorers:pair", "x", {})
    worker = hasty._sandbox._free.get()
    assert worker is not None
    hasty._sandbox._free.put(None)
    assert worker._process.stdin is not None
    worker._process.stdin.close()  # what the system does to the pipe when the parent is killed
    assert worker._process.wait(timeout=300) == 0
    worker.dispose()


def test_a_scorer_that_is_deaf_to_signals_does_not_outlive_a_killed_agent(entry_points: None, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = RewardSource(name="my_scorers:deaf", settings=json.dumps({"pids": str(pids)}))
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pickle, sys\n"
            "from streams.scorers import Scorers\n"
            "scoring, task, response, source = pickle.load(sys.stdin.buffer)\n"
            "Scorers(scoring).score(task, response, source)",
        ],
        stdin=subprocess.PIPE,
    )
    scoring = Scoring(timeout_s=300.0, modules=MODULES)
    assert agent.stdin is not None
    with agent, agent.stdin as stdin:
        stdin.write(pickle.dumps((scoring, a_task(), a_response("x"), source)))
        stdin.close()
        while not (pids.exists() and pids.read_text()):
            assert agent.poll() is None
            time.sleep(0.02)
        agent.kill()
    wait_until_gone(int(pids.read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return  # killed; only its table entry waits for init
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} still runs")


def test_a_module_that_changed_on_disk_is_loaded_again_and_the_agent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = tmp_path / "what_it_says.py"
    scorer = "import what_it_says\nfrom streams.scorers import entry_point\n\n\n"
    (tmp_path / "changing_scorers.py").write_text(
        f"{scorer}@entry_point('fixed/1')\ndef fixed(task, response, settings):\n    return what_it_says.VALUE\n"
    )
    said.write_text("VALUE = 'a word'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Scorers(Scoring(retries=0, modules="changing_scorers")) as running:
        assert outcome(running, "changing_scorers:fixed", "x", {}).reason == "not_a_number"
        assert outcome(running, "changing_scorers:fixed", "x", {}).reason == "not_a_number"
        assert caplog.messages == []
        said.write_text("VALUE = 0.25\n")
        assert outcome(running, "changing_scorers:fixed", "x", {}).value == 0.25
    assert caplog.messages == [f"{said} has changed on disk; scorers are loaded again from here on"]


@pytest.mark.parametrize("name", ["statistics", "schemas"])
def test_a_module_whose_name_is_taken_is_refused_with_the_file_that_would_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=rf"that name imports /.*{name}.*, not {tmp_path}/{name}.py; rename"):
        Scorers(Scoring(modules=f"{name}, ."))
    Scorers(Scoring(modules=name)).close()  # without `.`, the working folder says nothing


def test_a_module_of_the_working_folder_whose_name_is_free_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "free_scorers.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    Scorers(Scoring(modules="free_scorers, free_scorers.sub, .")).close()


def test_a_function_that_is_not_there_names_the_file_that_was_imported(entry_points: None) -> None:
    with Scorers(Scoring(retries=0, modules="statistics")) as running:
        missing = outcome(running, "statistics:short", "x", {}).error
        unmarked = outcome(running, "statistics:mean", "x", {}).error
    assert "statistics.py, has no function 'short'" in str(missing)
    assert "statistics.py, has 'mean', which is not marked as a scorer" in str(unmarked)


def test_a_module_that_python_cannot_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"'my-scorers' is no name of a Python module.*rename the file"):
        Scoring(modules="my-scorers, .")
