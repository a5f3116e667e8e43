"""Searches for a better prompt on a real log: killed, doubled, over budget, and never paid for twice."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobCommand, JobLog
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.request import JobConfig, prompt_of
from plugins.prompts.search import prompt_worker, search_request
from plugins.prompts.search.activation import activate
from plugins.prompts.search.live_search import LiveSearch
from plugins.prompts.versions import prompt_log, prompt_use
from plugins.prompts.versions.prompt_log import Activation, PromptLog, PromptText
from plugins.prompts.versions.prompt_use import PromptReference
from schemas.events import Coordinates, Message, PromptEvent, Task
from streams.errors import JobRequestError, RefusedError
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.settings.model import Prices, Settings
from streams.stages.tasks.prompted import after_prompt
from tests import skips
from tests.support.factories import group, job_event, job_spec, member, response, task
from tests.support.processes import read

pytestmark = pytest.mark.kafka
QUESTIONS = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(60)]
Earns = Callable[[Task], float | None]


@contextmanager
def answering(settings: Settings, earns: Earns) -> Iterator[Counter[str]]:
    """Answer and score tasks as the loop does, and yield how often each was asked. None: the task expires."""
    stop, asked = threading.Event(), Counter[str]()

    def answer() -> None:
        done: set[Any] = set()
        with Producer(settings, linger_ms=0) as producer:
            while not stop.wait(0.05):
                for record, task in read(settings, Task):
                    if record.at in done:
                        continue
                    done.add(record.at)
                    asked[task.task_id] += 1
                    value, places = earns(task), list[Coordinates]()
                    if value is None:
                        about = {"responses": (), "dropped_reason": "unanswered", "metadata": dict(task.metadata)}
                        producer.send(group(task_id=task.task_id, purpose="eval", **about))
                        continue
                    version = str(task.prompt_version)
                    about = {"task_id": task.task_id, "prompt_version": version}
                    said = response(slot=0, group_size=1, text="?", sampling_id=task.task_id, **about)
                    producer.send(said, on_ack=places.append)
                    producer.flush()
                    _, partition, offset = places[0]
                    scored = {"reward": value, "components": {"exact": value}, "response_id": said.response_id}
                    answer_of_slot = member(0, partition=partition, offset=offset, **scored)
                    of_task = {"metadata": dict(task.metadata), "purpose": "eval", "reward_mean": value}
                    producer.send(group(responses=(answer_of_slot,), **of_task, **about))
                producer.flush()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        stop.set()
        thread.join()


def versions(settings: Settings, *contents: str, alias: str | None = "production") -> None:
    with PromptLog(settings) as log:
        for text in contents:
            message = Message(role="system", content=text)
            log.create(PromptText(prompt="sums", messages=(message,), actor="ann", reason="try"))
        if alias is not None:
            log.activate(Activation(prompt="sums", alias=alias, version=1, actor="ann", reason="first"))


def ordered(settings: Settings, jobs: JobLog, method: str = "pairs", **config: Any) -> JobState:
    questions = QUESTIONS if method != "live" or config.get("share") is None else []
    body = {"policy": "default", "prompt": "sums", "method": method, "questions": questions, "config": config}
    order = search_request.order(search_request.read_request(body), settings, prompt_log.PROMPTS.read(settings))
    return jobs.start(order, actor="ann", key=None)


def run(settings: Settings, job_id: str) -> JobState:
    prompt_worker.run(settings, stop=threading.Event(), until_done=job_id)
    with JobLog(settings) as jobs:
        return jobs.get(job_id)


def better(task: Task) -> float:
    """The third version is right where the others are not, on two of three questions."""
    assert task.prompt_version is not None
    number = int(task.messages[-1].content.split()[0])
    return float(number % 3 == 0 or task.prompt_version.version == 3)


def test_the_better_of_given_prompts_is_found_reported_on_a_third_split_and_gets_the_alias(made: Settings) -> None:
    versions(made, "One.", "Two.", "Three.")
    with JobLog(made) as jobs, answering(made, better) as asked:
        job = ordered(made, jobs, alias="production", max_answers=150)
        done = run(made, job.job_id)
    assert (done.status, done.metrics["gain"] > 0.3, done.metrics["test_gain"] > 0.3) == ("completed", True, True)
    state = prompt_log.PROMPTS.read(made)["sums"]
    assert state.aliases["production"].version == 3
    assert state.reports[job.job_id].metrics.items() <= done.metrics.items()
    assert max(asked.values()) == 1
    held_out = {job.spec.questions[number].query for number in job.held_out}
    searched = done.metrics["answers"]
    assert sum(asked.values()) == searched + 2 * len(held_out) and searched <= 150


@pytest.mark.kills
def test_a_search_killed_after_every_few_answers_pays_for_each_once(made: Settings) -> None:
    versions(made, "One.", "Two.", "Three.")
    with JobLog(made) as jobs, answering(made, better) as asked:
        job = ordered(made, jobs, max_answers=90)
        for kill_after in (7, 19, 43):
            stop = threading.Event()

            def look(at: int = kill_after, stop: threading.Event = stop) -> None:
                while sum(asked.values()) < at and not stop.wait(0.02):
                    pass
                stop.set()

            watching = threading.Thread(target=look)
            watching.start()
            prompt_worker.run(made, stop=stop, until_done=job.job_id)
            stop.set()
            watching.join()
        done = run(made, job.job_id)
    assert (done.status, max(asked.values())) == ("completed", 1)
    assert sum(event.kind == "reported" for _, event in read(made, PromptEvent)) == 1


def test_a_second_search_takes_the_answers_of_the_first_from_the_log(made: Settings) -> None:
    versions(made, "One.", "Two.")
    with JobLog(made) as jobs, answering(made, lambda _: 0.5) as asked:
        first = run(made, ordered(made, jobs, max_answers=40).job_id)
        paid = sum(asked.values())
        second = run(made, ordered(made, jobs, max_answers=40, seed=0, alpha=0.04).job_id)
    assert (first.status, second.status, sum(asked.values())) == ("completed", "completed", paid)
    assert (first.usage.completion_tokens > 0, second.usage.completion_tokens) == (True, 0)


def test_a_search_whose_tasks_expire_without_an_answer_says_what_it_waits_for_and_ends(
    made: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A group without responses names no prompt: the search took it for that of another task, and waited for ever."""
    monkeypatch.setattr(prompt_worker, "SAY_EVERY_S", 0.0)
    versions(made, "One.", "Two.")
    caplog.set_level("INFO", "streamward.prompts")
    with JobLog(made) as jobs, answering(made, lambda task: None if "3 + 3" in task.messages[-1].content else 1.0):
        done = run(made, ordered(made, jobs, max_answers=150).job_id)
    assert (done.status, done.metrics["gain"]) == ("completed", 0.0), done.reason
    assert re.search(r"job \S+ waits for \d+ of \d+ answers of policy default, e\.g\. to task ", caplog.text)


def test_a_search_ends_at_its_budget_by_at_most_what_was_in_flight(made: Settings) -> None:
    prices, jobs = Prices(prompt_usd=0.0, completion_usd=1e6), Jobs(trainer_hour_usd=0.0, max_budget_usd=1e9)
    settings = made.model_copy(update={"prices": prices, "jobs": jobs})
    versions(settings, "One.", "Two.")
    with JobLog(settings) as jobs, answering(settings, lambda _: 0.5):
        job = ordered(settings, jobs, max_answers=60, max_tokens=1, max_budget_usd=40.0)
        done = run(settings, job.job_id)
    assert (done.status, done.code) == ("failed", "BUDGET_EXCEEDED")


# --- live -------------------------------------------------------------------------------------------------------------


@contextmanager
def users(settings: Settings) -> Iterator[None]:
    """Write a task of the alias for one thread after the other, and a second one of each, until the block ends."""
    stop, reference = threading.Event(), PromptReference.parse("sums@production")

    def write() -> None:
        with Producer(settings, linger_ms=0) as producer, PromptLog(settings) as log:
            for number in itertools.count():
                for again in range(2):
                    version = log.resolve(reference, f"thread {number}")
                    prompt = prompt_use.use(version, reference, {})
                    question = Message(role="user", content=f"{number} + {again} =")
                    about: dict[str, Any] = {"task_id": f"{number}/{again}", "thread": f"thread {number}"}
                    messages = after_prompt(prompt, (question,))
                    now = times.now_ms()
                    producer.send(task(**about, created_at=now, prompt_version=prompt, messages=messages))
                if stop.wait(0.002):
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.kills
def test_a_live_search_shares_an_alias_by_thread_stops_by_itself_and_is_continued_after_a_kill(made: Settings) -> None:
    versions(made, "One.", "Two.", "Three.")
    with JobLog(made) as jobs, answering(made, better), users(made):
        job = ordered(made, jobs, "live", alias="production", max_answers=400)
        stop = threading.Event()
        threading.Timer(2.0, stop.set).start()
        prompt_worker.run(made, stop=stop, until_done=job.job_id)
        refused = Activation(prompt="sums", alias="production", version=2, actor="ann", reason="now")
        with PromptLog(made) as log, pytest.raises(RefusedError, match=f"job {job.job_id} decides what production"):
            activate(made, log, refused)
        done = run(made, job.job_id)
    assert (done.status, done.metrics["test_gain"] > 0.3) == ("completed", True), done.reason
    state = prompt_log.PROMPTS.read(made)["sums"]
    assert state.aliases["production"].version == 3 and done.metrics["answers"] < 400
    events = [event for _, event in read(made, PromptEvent) if event.job_id == job.job_id]
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-2:], set(kinds[1:-2]) <= {"shared"}) == ("shared", ["reported", "activated"], True)
    assert [arm.version for arm in events[0].arms] == [1, 2, 3]
    by_thread: dict[str, list[int]] = {}
    for _, one in read(made, Task):
        if one.thread is not None and one.prompt_version is not None:
            by_thread.setdefault(one.thread, []).append(one.prompt_version.version)
    # threads are written one after the other: a change of the alias meets one between its two tasks at most
    changes, mixed = len(kinds) - kinds.count("reported"), [pair for pair in by_thread.values() if len(set(pair)) > 1]
    assert len(mixed) <= changes < len(by_thread) / 10


def test_the_worse_half_leaves_a_live_search_and_its_threads_alone_get_another_version(made: Settings) -> None:
    versions(made, "One.", "Two.", "Three.")
    reference, threads = PromptReference.parse("sums@production"), [f"thread {number}" for number in range(60)]
    with JobLog(made) as jobs, PromptLog(made) as log, Producer(made, linger_ms=0) as producer:
        job = ordered(made, jobs, "live", alias="production", max_answers=24)
        assert job.spec.search is not None
        live = LiveSearch(made, log, job, job.spec.search, "prompts")
        before = [log.resolve(reference, thread).number for thread in threads]
        for thread, number in zip(threads, before, strict=True):
            prompt = prompt_use.use(log.get("sums").versions[number - 1], reference, {})
            messages = after_prompt(prompt, (Message(role="user", content=f"{thread}?"),))
            about: dict[str, Any] = {"created_at": times.now_ms(), "prompt_version": prompt, "messages": messages}
            producer.send(task(task_id=thread, thread=thread, **about))
            answer = member(0, reward=float(number == 3), components={"exact": 0.0}, response_id=thread)
            reward = {"reward_mean": float(number == 3), "prompt_version": str(prompt)}
            if before[: threads.index(thread) + 1].count(number) <= 5:  # the first stage compares four of each
                producer.send(group(group_id=thread, task_id=thread, responses=(answer,), **reward))
        producer.flush()
        assert live.look() is None
        target = log.get("sums").aliases["production"]
        assert [(arm.version, round(arm.share, 3)) for arm in target.arms] == [(1, 0.5), (3, 0.5)]
        again = LiveSearch(made, log, job, job.spec.search, "prompts")
        assert again.look() is None and log.get("sums").aliases["production"] == target
        after = [log.resolve(reference, thread).number for thread in threads]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 2)


def test_a_cancelled_live_search_gives_its_alias_back_and_a_job_that_trains_waits_for_one(made: Settings) -> None:
    versions(made, "One.", "Two.")
    with JobLog(made) as jobs, PromptLog(made) as log:
        job = ordered(made, jobs, "live", alias="production", share=0.2)
        stop = threading.Event()
        looking = threading.Thread(target=lambda: prompt_worker.run(made, stop=stop))
        looking.start()
        while log.get("sums").aliases["production"].version is not None:
            stop.wait(0.05)
        target = log.get("sums").aliases["production"]
        assert [(arm.version, round(arm.share, 3)) for arm in target.arms] == [(1, 0.8), (2, 0.2)]
        with pytest.raises(JobRequestError, match=f"compared live by job {job.job_id}, and means no one version"):
            prompt_of(JobConfig(n_iterations=1, prompt="sums"), None, made)
        with pytest.raises(JobRequestError, match="production means several versions, by the comparison of job"):
            ordered(made, jobs, "live", alias="production")
        jobs.command(job.job_id, JobCommand(kind="cancelled", actor="ann", reason="enough"))
        while log.get("sums").aliases["production"].version is None:
            stop.wait(0.05)
        stop.set()
        looking.join()
    moved = prompt_log.PROMPTS.read(made)["sums"].aliases["production"]
    assert (moved.version, "enough" in moved.event.reason) == (1, True)


def test_a_live_search_that_a_policy_trains_against_fails_by_name(made: Settings) -> None:
    versions(made, "One.", "Two.")
    trained = prompt_use.use(prompt_log.PROMPTS.read(made)["sums"].versions[0], PromptReference.parse("sums"), {})
    with JobLog(made) as jobs, Producer(made) as producer:
        producer.send(job_event("created", spec=job_spec(prompt_version=trained), policy="other"))
        producer.flush()
        job = ordered(made, jobs, "live", alias="production")
        failed = run(made, job.job_id)
    assert (failed.status, "policy other is in training with sums@1 until job job-1 ends" in failed.reason) == (
        "failed",
        True,
    )
    assert prompt_log.PROMPTS.read(made)["sums"].aliases["production"].version == 1


def propose(request: str) -> str:
    """A reflector: it repeats itself, and then has a better idea."""
    return "```\nTry harder.\n```" if request.count("Try harder.") == 0 else "```\nThink: add the numbers.\n```"


def reflected(task: Task) -> float:
    text = task.messages[0].content
    return 1.0 if "add the numbers" in text else 0.6 if "harder" in text else 0.2


def test_reflection_is_resumed_without_paying_twice_and_accepts_no_text_twice(made: Settings) -> None:
    pytest.importorskip("gepa", reason=skips.GEPA)
    versions(made, "Answer.", alias=None)
    reference = f"{__name__}:propose"
    with JobLog(made) as jobs, answering(made, reflected) as asked:
        job = ordered(made, jobs, "reflection", max_answers=120, endpoint=reference)
        stop = threading.Event()

        def look() -> None:
            while sum(asked.values()) < 40 and not stop.wait(0.02):
                pass
            stop.set()

        watching = threading.Thread(target=look)
        watching.start()
        prompt_worker.run(made, stop=stop, until_done=job.job_id)
        watching.join()
        done = run(made, job.job_id)
    state = prompt_log.PROMPTS.read(made)["sums"]
    assert (done.status, max(asked.values())) == ("completed", 1)
    requests = [event.reflection.request_digest for _, event in read(made, PromptEvent) if event.reflection]
    assert len(requests) == len(set(requests)) > 0
    texts = [version.messages[0].content for version in state.versions]
    assert len(texts) == len(set(texts)) and texts[0] == "Answer."
    assert done.metrics["test_gain"] > 0.3 and "overfit" in done.metrics


def test_an_order_that_could_have_no_result_is_refused_before_a_sample(made: Settings) -> None:
    versions(made, "One.")
    with JobLog(made) as jobs:
        with pytest.raises(JobRequestError, match="create another version first"):
            ordered(made, jobs)
        with pytest.raises(JobRequestError, match="name a model's URL or module:function"):
            ordered(made, jobs, "reflection")
