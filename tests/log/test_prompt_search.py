"""Searches for a better prompt on a real log: killed, doubled, over budget, and never paid for twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from schemas.events import Coordinates, Message, PromptEvent, Task
from streams.errors import JobRequestError
from streams.improve.prompts import prompt_worker, search_request
from streams.jobs.job_log import JobLog
from streams.jobs.state import JobState
from streams.kafka.producer import Producer
from streams.prompts import prompt_log
from streams.prompts.prompt_log import Activation, PromptLog, PromptText
from streams.settings.model import Jobs, Settings
from tests import skips
from tests.support.factories import group, member, response
from tests.support.processes import read

pytestmark = pytest.mark.kafka
QUESTIONS = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(60)]
Earns = Callable[[Task], float]


@contextmanager
def answering(settings: Settings, earns: Earns) -> Iterator[Counter[str]]:
    """Answer and score tasks as the loop does, and yield how often each was asked."""
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
    body = {"policy": "default", "prompt": "sums", "method": method, "questions": QUESTIONS, "config": config}
    order = search_request.order(search_request.read_request(body), settings, prompt_log.read(settings))
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
    state = prompt_log.read(made)["sums"]
    assert state.aliases["production"].version == 3
    assert state.reports[job.job_id].metrics.items() <= done.metrics.items()
    assert max(asked.values()) == 1
    held_out = {job.spec.questions[number].query for number in job.held_out}
    searched = done.metrics["answers"]
    assert sum(asked.values()) == searched + 2 * len(held_out) and searched <= 150


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


def test_a_search_ends_at_its_budget_by_at_most_what_was_in_flight(made: Settings) -> None:
    prices = Jobs(prompt_usd=0.0, completion_usd=1e6, trainer_hour_usd=0.0, max_budget_usd=1e9)
    settings = made.model_copy(update={"jobs": prices})
    versions(settings, "One.", "Two.")
    with JobLog(settings) as jobs, answering(settings, lambda _: 0.5):
        job = ordered(settings, jobs, max_answers=60, max_tokens=1, max_budget_usd=40.0)
        done = run(settings, job.job_id)
    assert (done.status, done.code) == ("failed", "BUDGET_EXCEEDED")


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
    state = prompt_log.read(made)["sums"]
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
