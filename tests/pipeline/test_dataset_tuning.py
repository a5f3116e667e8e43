"""Versions tuned on a data set of a real log: on the sampled tokens, by command and by job, and made again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdapterEvent, DatasetEvent, RunVerdict
from schemas.tokens import TokenIds
from streams.adapters.versions import empty
from streams.engines.base_model import Base
from streams.errors import JobRequestError, RefusedError
from streams.improve.datasets import dataset_rebuild as rebuild
from streams.improve.datasets.dataset_build import DatasetOrder, build
from streams.improve.datasets.dataset_rule import DatasetRule
from streams.jobs.job_log import JobLog
from streams.jobs.tuning import tuning_request
from streams.jobs.tuning.job_tuner import TuningWorker
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.settings.model import Model, Settings
from tests.pipeline.test_tuning import again, command, verdicts
from tests.support.log.judged_log import PROMPT, judge, served
from tests.support.models.chat_tiny import base
from tests.support.processes import read, until

__all__ = ["base"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
QUESTIONS = ("4 + 7 =", "What is the capital of France?", "Who wrote Faust?", "How many sides has a square?")


@pytest.fixture
def settings(settings: Settings, base: Base) -> Settings:
    """Settings of this test's own topics, which exist, with the tiny model as base, and no limit for a month."""
    jobs = settings.jobs.model_copy(update={"tenant_month_usd": 0.0})
    tiny = settings.model_copy(update={"model": Model(base=base.model.config._name_or_path), "jobs": jobs})
    admin.apply_topics(tiny)
    return tiny


def coach(settings: Settings, base: Base, folder: Path) -> DatasetEvent:
    """Build a data set of four questions, each with a promoted answer of version 3 and rejected ones of 0 and 2."""
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    answers: tuple[tuple[RunVerdict, str, int], ...] = (
        ("promote", "11", 3), ("reject", "no idea", 2), ("reject", "what?", 0),
    )  # fmt: skip
    for number, question in enumerate(QUESTIONS):
        for decision, answer, version in answers:
            name = f"run-{number}-{version}"
            end = served(settings, name, question, answer, adapter_version=version, **digests)
            judge(settings, name, end, decision)
    rule = DatasetRule(policy="default", eval_share=0.0)
    order = DatasetOrder(name="coach", rule=rule, actor="ann", reason="a test", root=folder)
    return build(settings, order, LogHistory(settings))[0]


def versions(settings: Settings) -> list[AdapterEvent]:
    return [event for _, event in read(settings, AdapterEvent) if event.kind == "trained"]


def test_sft_and_dpo_learn_the_sampled_tokens_of_a_data_set_and_are_reproduced(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    event = coach(settings, base, tmp_path / "sets")
    for method in ("sft", "dpo"):
        result = command(settings, "tune", method, "--dataset", "coach", "--batch", "2")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["dataset"] == f"coach@{event.digest}"
    sft, dpo = (made.tuning for made in versions(settings))
    assert sft is not None and dpo is not None
    assert (sft.dataset, sft.dataset_digest, sft.examples, sft.loss_tokens) == ("coach", event.digest, 4, 8)
    assert (dpo.dataset, dpo.examples, dpo.groups) == ("coach", 4, ())
    reader = rebuild.reader(settings, LogHistory(settings))
    pairs = reader("coach", event.digest, "dpo").rows
    earliest = [[list(answer.chains[0].tokens) for answer in pair.example] for pair in pairs]
    assert earliest == [[[24, 23], [27, 23]]] * 4, "the rejected answer is that of the earliest version"
    assert {answer.chains[0].context for pair in pairs for answer in pair.example} == {TokenIds.of(PROMPT)}
    judge(settings, "run-0-3", served(settings, "run-9", "Later?"), "reject")  # the set stays what it was
    assert verdicts(again(settings, datasets=reader)) == [(1, True), (2, True)]
    result = command(settings, "reproduce")
    assert (result.exit_code, json.loads(result.stdout)["equal"]) == (0, True)
    with pytest.raises(RefusedError, match="nothing here reads data sets"):
        again(settings)


def test_a_job_is_tuned_on_the_build_that_was_there_when_it_was_ordered(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    event = coach(settings, base, tmp_path / "sets")
    config = {"dataset": "coach", "batch": 2}
    request = tuning_request.read_request({"policy": "default", "method": "dpo", "config": config})
    order = tuning_request.order(request, settings, empty("default"), event, times.now_ms())
    with JobLog(settings) as log:
        job = log.start(order, actor="ann")
        judge(settings, "more", served(settings, "more", "Another?"))
        coach_again = DatasetRule(policy="default", eval_share=0.0)
        newer = DatasetOrder(name="coach", rule=coach_again, actor="ann", reason="more", root=tmp_path / "sets")
        build(settings, newer, LogHistory(settings))
        reader = rebuild.reader(settings, LogHistory(settings))
        worker = TuningWorker(settings, log, threading.Event(), datasets=reader)
        try:

            def is_done() -> bool:
                worker.step()
                return log.get(job.job_id).has_ended

            until(is_done, "the job to end")
        finally:
            worker.__exit__()
        done = log.get(job.job_id)
    assert (done.status, done.version) == ("completed", 1)
    (made,) = versions(settings)
    assert made.tuning is not None and made.tuning.dataset_digest == event.digest
    assert verdicts(again(settings, datasets=reader)) == [(1, True)]


def ordered(settings: Settings, examples: Any, **config: Any) -> Any:
    request = tuning_request.read_request({"policy": "default", "method": "sft", "config": config})
    return tuning_request.order(request, settings, empty("default"), examples, times.now_ms())


def test_an_order_that_names_a_data_set_takes_no_other_examples(settings: Settings, base: Base, tmp_path: Path) -> None:
    event = coach(settings, base, tmp_path / "sets")
    spec = ordered(settings, event, dataset="coach").spec.tuning
    assert (spec.dataset, spec.dataset_digest, spec.groups_policy, spec.file_id) == ("coach", event.digest, None, None)
    with pytest.raises(JobRequestError, match=r"config\.min_reward chooses answers of the log, .* a data set"):
        ordered(settings, event, dataset="coach", min_reward=1.0)
    with pytest.raises(JobRequestError, match="there is no data set 'other' here"):
        ordered(settings, None, dataset="other")
    result = command(settings, "tune", "sft", "--dataset", "coach", "--min-reward", "1")
    assert (result.exit_code, "--min-reward and --dataset both choose" in result.stderr) == (2, True)
    other = command(settings, "jobs", "start", "default", "--method", "sft", "--config", '{"dataset": "coch"}')
    assert other.exit_code == 3, other.output
