"""Many jobs at once on a tiny model, while whatever works on them is killed; and what asking for one takes.

    JOBS orders ──► jobs ──► two controllers, a fleet of two trainers and a policy agent, streams, scoring ──► versions
                      ├────► two `agents run --fleet` ──► episodes of the jobs in environments
                      └────► streamward serve ◄── training.get_status, ten times a second: meanwhile, and alone
    kill -9 of a controller, an agent, a trainer and the broker, by the share of the iterations; each starts again

Each job has a policy of its own, and is to make three versions; up to ten train on episodes of `guess` instead of
questions. At the end the log is counted: each iteration, version and task once, and the audit balances. Then, alone,
the same question, and Locust with USERS users if it is there (`make load` installs it). Last a step of SmolLM2 on one
group of eight.

JOBS in the environment says how many; default: 100, which takes three minutes on two cores.
Not covered: programs of agents; those are in `agents`.
"""

from __future__ import annotations

import csv
import http.client
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from plugins.jobs.controller import job_episodes
from plugins.jobs.log.job_log import JobLog
from plugins.jobs.orders import request as requests
from schemas.events import AdapterEvent, Response, Task
from streams.kafka.node import process as broker
from streams.processes.child import free_port
from streams.settings.model import Advantages, Batches, Model, Serve, Settings, Trainer
from streams.stages.tasks.line_steps import LineSteps
from streams.tools.audit.reading import Audit
from tests.benchmarks.loop import REPO, node
from tests.benchmarks.side_by_side import line, median_s, say
from tests.benchmarks.trainer import SLOTS, random_group, real_trainer
from tests.support.processes import command, environment, read, said

JOBS = int(os.environ.get("JOBS", "100"))
IN_ENVIRONMENTS = min(10, JOBS // 3)
"""Jobs that train on episodes."""
ITERATIONS, QUESTIONS, GROUPS, SLOTS_EACH = 3, 8, 2, 2
PROCESSES = {
    "streams": ("streams",),
    "scoring": ("scoring",),
    "policy": ("policy", "--fleet"),
    "train": ("train", "--fleet"),
    "train-2": ("train", "--fleet"),
    "agents": ("agents", "run", "--environments", "--fleet", "--parallel", "8"),
    "agents-2": ("agents", "run", "--environments", "--fleet", "--parallel", "8"),
    "jobs": ("jobs", "run"),
    "jobs-2": ("jobs", "run"),
}
KILLED = (("jobs", 1 / 6), ("agents", 1 / 4), ("train", 1 / 3), ("broker", 1 / 2), ("agents", 2 / 3))
"""Who is killed, and at which share of the iterations."""
LIMIT_S = 900.0 + 40.0 * JOBS
MOST_RESTARTS = 20
FAULTS = ("status 500", "another answer")
"""Answers that are wrong whichever process is killed. A refused connection or a 503 is right."""
ASK_EVERY_S = 0.1
ALONE = 300
MEANWHILE_S, ALONE_S, UPDATE_S = 0.2, 0.02, 5.0
"""What is wanted: of 95 in 100 questions at most, and of an update of eight trajectories."""
USERS, LOAD_S = 20, 30
LOCUST = REPO / ".venv-strangers" / "bin" / "locust"
LOCUST_FILE = REPO / "tests" / "strangers" / "load" / "locustfile.py"


def run() -> Iterator[dict[str, Any]]:
    """Yield what became of the jobs, the time of a question meanwhile and alone, the load, and an update."""
    lines = [*_jobs(), _update()]
    width = max(len(one["case"]) for one in lines)
    for one in lines:
        met = "met" if one["met"] else "missed"
        say(f"  {one['case']:{width}}  {one['ours']:>9g} {one['unit']:9} {one['peer']:>8g} {one['peer_is']}: {met}")
    yield from lines


# --- the jobs ---------------------------------------------------------------------------------------------------------


def _jobs() -> Iterator[dict[str, Any]]:
    with node() as settings, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamward-bench-")))
        here = _settings(settings, folder)
        server = stack.enter_context(Programs({"serve": (here, ("serve", "--fleet"))}, folder))
        log = stack.enter_context(JobLog(here))
        say(f"jobs: {JOBS} jobs of {ITERATIONS} iterations, {IN_ENVIRONMENTS} of them in environments")
        names = _ordered(here, log)
        _until(lambda: _answers(here.serve.port, names[0]), "the server to answer", server)
        began = time.monotonic()
        with (
            Asking(here.serve.port, names) as asking,
            Programs({name: (here, words) for name, words in PROCESSES.items()}, folder) as loop,
        ):
            _work(here, log, names, loop)
        seconds = time.monotonic() - began
        counted = _counted(here, log, names)
        counted["wrong"] += [f"{count} questions had {what}" for what, count in asking.failed.items() if what in FAULTS]
        yield line(
            "jobs",
            f"{JOBS} jobs to version {ITERATIONS}, killed on the way",
            ours=counted["once"],
            peer=JOBS * ITERATIONS,
            unit="versions",
            ratio=counted["once"] / (JOBS * ITERATIONS) if counted["wrong"] == [] else 0.0,
            target=1.0,
            peer_is="ordered, each made once",
            seconds=round(seconds, 1),
            versions_per_s=round(counted["once"] / seconds, 3),
            answers_per_s=round(counted["answers"] / seconds, 2),
            wrong=counted["wrong"],
            failed_questions=dict(asking.failed),
            restarted=dict(loop.restarts),
        )
        yield _p95("meanwhile", asking.seconds, MEANWHILE_S)
        with Asking(here.serve.port, names, pause_s=0.01, most=ALONE) as alone:
            alone.wait()
        yield _p95("alone", alone.seconds, ALONE_S)
        if LOCUST.exists():
            yield _load(here.serve.port, names, folder)
        else:
            say(f"  {LOCUST} is not there, so Locust puts no load on the server: `make load` installs and runs it")


def _settings(settings: Settings, folder: Path) -> Settings:
    from tests.support.models.tiny import save_tiny

    return settings.model_copy(
        update={
            "model": Model(base=str(save_tiny(folder / "tiny"))),
            "batches": Batches(groups=GROUPS, max_policy_lag=0, zero_variance="keep"),
            "advantages": Advantages(formula="dr_grpo"),
            "trainer": Trainer(checkpoints=folder / "checkpoints"),
            "adapters": settings.adapters.model_copy(update={"store": str(folder / "adapters")}),
            "serve": Serve(port=free_port()),
        }
    )


def _ordered(settings: Settings, log: JobLog) -> list[str]:
    """Order the jobs, each of a policy of its own; return their ids."""
    policies = [f"line-{number:03}" for number in range(JOBS)]
    found = []
    for number, policy in enumerate(policies):
        about = _episodes() if number < IN_ENVIRONMENTS else _questions()
        about["config"] |= {"n_iterations": ITERATIONS, "n_trajectories_per_query": SLOTS_EACH, "max_tokens": 8}
        order = requests.order(
            requests.read_request({"agent_id": policy, **about}),
            settings,
            policies=policies,
            agents={},
            try_environment=lambda config: job_episodes.try_environment(config, settings, LineSteps()),
        )
        found.append(log.start(order, actor="bench", key=policy).job_id)
    return found


def _questions() -> dict[str, Any]:
    queries = [{"query": f"{number} 7", "expected_outcome": str(number)} for number in range(QUESTIONS)]
    rewards = [{"name": "length", "settings": {"unit": "characters", "limit": 60}}]
    return {"training_queries": queries, "config": {"held_out_share": 0.0, "reward_sources": rewards}}


def _episodes() -> dict[str, Any]:
    game = {"name": "guess", "settings": {"highest": 4}, "episodes": QUESTIONS, "held_out": 0, "max_turns": 2}
    return {"environment": game, "config": {}}


def _work(settings: Settings, log: JobLog, names: Sequence[str], loop: Programs) -> None:
    """Return once all jobs have ended; kill what KILLED says on the way."""
    due = list(KILLED)
    deadline, shown = time.monotonic() + LIMIT_S, 0.0
    while True:
        jobs = [log.get(name) for name in names]
        done = sum(job.iteration for job in jobs)
        if time.monotonic() > shown + 10:
            shown = time.monotonic()
            say(f"  {done} of {JOBS * ITERATIONS} iterations, {sum(job.has_ended for job in jobs)} jobs have ended")
        if all(job.has_ended for job in jobs):
            return
        if due and done >= due[0][1] * JOBS * ITERATIONS:
            who = due.pop(0)[0]
            say(f"  {who} is killed at {done} iterations")
            if who == "broker":
                _kill_broker(settings)
            else:
                loop.restart(who)
        loop.tend()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{done} iterations are done after {LIMIT_S:g} s; {loop.said()}")
        time.sleep(0.5)


def _kill_broker(settings: Settings) -> None:
    running = broker.status(settings.broker)
    if running is None:
        raise RuntimeError("the broker does not run")
    os.kill(running.pid, signal.SIGKILL)
    broker.ensure(settings.broker)


def _counted(settings: Settings, log: JobLog, names: Sequence[str]) -> dict[str, Any]:
    """Return how many versions are there once, how many answers, and what is wrong."""
    wrong: list[str] = []
    for name in names:
        job = log.get(name)
        iterations = [event.iteration for event in log.events(name) if event.kind == "iteration"]
        if job.status != "completed" or iterations != list(range(1, ITERATIONS + 1)):
            wrong.append(f"job {name} is {job.status} ({job.reason}) with iterations {iterations}")
    made = Counter(
        (event.policy, event.version) for _, event in read(settings, AdapterEvent) if event.kind == "trained"
    )
    wrong += [
        f"version {version} of {policy} is there {count} times"
        for (policy, version), count in made.items()
        if count > 1
    ]
    asked = Counter(task.task_id for _, task in read(settings, Task))
    wrong += [f"task {task_id} is there {count} times" for task_id, count in asked.items() if count > 1]
    report = Audit(settings, settled=True).look()
    wrong += [] if report.balanced else [f"the audit does not balance: {report.wrong}"]
    once = sum(count == 1 for count in made.values())
    for text in wrong[:20]:
        say(f"  WRONG: {text}")
    return {"once": once, "answers": len(read(settings, Response)), "wrong": wrong}


class Programs:
    """Programs that run while the block runs, by name, each with its settings."""

    def __init__(self, words: dict[str, tuple[Settings, tuple[str, ...]]], folder: Path) -> None:
        self._words, self._folder = words, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts: Counter[str] = Counter()
        """Of those that ended by themselves: while the broker is gone some processes do, and say so."""

    def __enter__(self) -> Self:
        for name in self._words:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, name: str) -> None:
        """Kill one without a word, and start it again."""
        self._running[name].kill()
        self._running[name].wait()
        self._start(name)

    def tend(self) -> None:
        """Start those again that have ended by themselves, as their supervisor does. Raises RuntimeError at last."""
        for name in self.ended():
            self.restarts[name] += 1
            say(f"  {name} has ended with code {self._running[name].returncode}, and is started again")
            if self.restarts[name] > MOST_RESTARTS:
                raise RuntimeError(f"{name} ends again and again: {self.said()}")
            self._start(name)

    def ended(self) -> list[str]:
        """Return which have ended by themselves."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def said(self) -> str:
        """Return their last words."""
        return said(self._folder)

    def _start(self, name: str) -> None:
        settings, words = self._words[name]
        with (self._folder / f"{name}.log").open("ab") as out:
            self._running[name] = subprocess.Popen(
                command("--log-level", "warning", *words),
                env=environment(settings),
                cwd=self._folder,
                stdout=out,
                stderr=out,
            )


# --- questions --------------------------------------------------------------------------------------------------------


class Asking:
    """A client on one connection that asks for the status of one job after the other, while the block runs."""

    def __init__(
        self, port: int, names: Sequence[str], *, pause_s: float = ASK_EVERY_S, most: int | None = None
    ) -> None:
        self._port, self._names, self._pause_s, self._most = port, names, pause_s, most
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="asks")
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()
        """Questions without an answer, by what came instead."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self) -> None:
        """Return once `most` were asked."""
        self._thread.join()

    def _ask(self) -> None:
        draw = random.Random(0)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        for number in itertools.count():
            if number == self._most or self._over.is_set():
                break
            began = time.perf_counter()
            try:
                problem = _status(connection, draw.choice(self._names))
            except (OSError, http.client.HTTPException) as exc:
                connection.close()
                problem = type(exc).__name__
            if problem is None:
                self.seconds.append(time.perf_counter() - began)
            else:
                self.failed[problem] += 1
            self._over.wait(self._pause_s)
        connection.close()


def _status(connection: http.client.HTTPConnection, name: str) -> str | None:
    """Ask for a job's status; return what came instead, or None."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "training.get_status", "params": {"job_id": name}}
    connection.request("POST", "/jsonrpc", json.dumps(asked), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        return f"status {answer.status}"
    told = json.loads(text)
    if "error" in told:
        return f"error {told['error']['code']}: {told['error']['message']}"
    return None if told["result"]["job_id"] == name else "another answer"


def _answers(port: int, name: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        return _status(connection, name) is None
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _until(met: Any, what: str, programs: Programs) -> None:
    deadline = time.monotonic() + 120
    while not met():
        if programs.ended() or time.monotonic() > deadline:
            raise RuntimeError(f"expected {what}: {programs.said()}")
        time.sleep(0.2)


def _p95(when: str, seconds: Sequence[float], limit_s: float) -> dict[str, Any]:
    p95 = statistics.quantiles(seconds, n=20)[-1]
    return line(
        "jobs",
        f"p95 of training.get_status, {when}, {JOBS} jobs",
        ours=p95,
        peer=limit_s,
        unit="s",
        ratio=limit_s / p95,
        target=1.0,
        peer_is="the limit",
        questions=len(seconds),
        p50=round(statistics.median(seconds), 5),
        most=round(max(seconds), 4),
    )


def _load(port: int, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return what Locust measured: USERS users who ask as fast as they are answered."""
    say(f"  Locust: {USERS} users for {LOAD_S} s")
    done = subprocess.run(
        [
            str(LOCUST), "--headless", "--locustfile", str(LOCUST_FILE), "--host", f"http://127.0.0.1:{port}",
            "--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", f"{LOAD_S}s",
            "--csv", str(folder / "load"), "--only-summary",
        ],
        env={**os.environ, "STREAMWARD_JOB_IDS": ",".join(names[:100])},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    say(done.stderr[-3000:])
    with (folder / "load_stats.csv").open(encoding="utf-8", newline="") as file:
        total = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    p95 = float(total["95%"]) / 1000
    return line(
        "jobs",
        f"p95 of {USERS} users of Locust, {JOBS} jobs",
        ours=p95,
        peer=MEANWHILE_S,
        unit="s",
        ratio=MEANWHILE_S / max(p95, 0.001),
        target=1.0,
        peer_is="the limit",
        requests_per_s=round(float(total["Requests/s"]), 1),
        failures=int(total["Failure Count"]),
    )


# --- an update --------------------------------------------------------------------------------------------------------


def _update() -> dict[str, Any]:
    """Return what a step of SmolLM2 on one group takes."""
    import torch

    prompt, completion = 64, 8
    with real_trainer() as trainer:
        group = random_group(trainer, prompt, completion)
        trainer.train_batch([group])
        measured = []
        for _ in range(3):
            began = time.perf_counter()
            trainer.train_batch([group])
            measured.append((time.perf_counter() - began, None))
        seconds = median_s(measured)
        return line(
            "jobs",
            f"update of SmolLM2-135M by {SLOTS} trajectories of {prompt} + {completion} tokens",
            ours=seconds,
            peer=UPDATE_S,
            unit="s",
            ratio=UPDATE_S / seconds,
            target=1.0,
            peer_is="the limit",
            threads=torch.get_num_threads(),
        )
