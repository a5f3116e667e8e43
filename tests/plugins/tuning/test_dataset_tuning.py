"""Versions tuned on a data set of a real log: on the sampled tokens, by command and by job, and made again."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugins.improve.datasets import dataset_log, dataset_rebuild as rebuild
from plugins.improve.datasets.dataset_build import DatasetOrder, build
from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.datasets.outside_tuning import OutsideOrder, check_tenant, submit
from plugins.improve.datasets.outside_version import AdoptionOrder, adopt
from plugins.improve.datasets.provider_api import ProviderApi
from plugins.jobs.log.job_log import JobLog
from plugins.jobs.orders.job_settings import Jobs
from plugins.tuning.api import tuning_request
from plugins.tuning.job_tuner import TuningWorker
from schemas.events import AdapterEvent, AnsweringAgent, DatasetEvent, OutsideModel, RunVerdict
from schemas.tokens import TokenIds
from streams.adapters.versions import empty
from streams.engines.base_model import Base
from streams.errors import JobRequestError, NotFoundError, ProviderError, RefusedError
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.settings.model import Model, Outside, Settings
from tests.plugins.improve.judged_log import PROMPT, judge, served
from tests.plugins.tuning.test_tuned_versions import again, verdicts
from tests.plugins.tuning.tuning_gateway import gateway
from tests.support.agent_server import settings_of
from tests.support.commands import invoke
from tests.support.models.chat_tiny import base
from tests.support.models.tiny_settings import settings
from tests.support.processes import read, until

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
QUESTIONS = ("4 + 7 =", "What is the capital of France?", "Who wrote Faust?", "How many sides has a square?")


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
            judge(settings, name, end, decision, agent_id="calc")
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
        result = invoke(settings, "tune", method, "--dataset", "coach", "--batch", "2")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["dataset"] == f"coach@{event.digest}"
    sft, dpo = (made.tuning for made in versions(settings))
    assert sft is not None and dpo is not None
    assert (sft.dataset, sft.dataset_digest, sft.examples, sft.loss_tokens) == ("coach", event.digest, 4, 8)
    assert {made.agents for made in versions(settings)} == {(AnsweringAgent(agent_id="calc"),)}
    assert (dpo.dataset, dpo.examples, dpo.groups) == ("coach", 4, ())
    pairs = rebuild.examples(settings, "coach", "dpo", LogHistory(settings)).rows
    earliest = [[list(answer.chains[0].tokens) for answer in pair.example] for pair in pairs]
    assert earliest == [[[24, 23], [27, 23]]] * 4, "the rejected answer is that of the earliest version"
    assert {answer.chains[0].context for pair in pairs for answer in pair.example} == {TokenIds.of(PROMPT)}
    judge(settings, "run-0-3", served(settings, "run-9", "Later?"), "reject")  # the set stays what it was
    assert verdicts(again(settings)) == [(1, True), (2, True)]
    result = invoke(settings, "reproduce")
    assert (result.exit_code, json.loads(result.stdout)["equal"]) == (0, True)


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
        worker = TuningWorker(settings, log, threading.Event())
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
    assert verdicts(again(settings)) == [(1, True)]


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
    result = invoke(settings, "tune", "sft", "--dataset", "coach", "--min-reward", "1")
    assert (result.exit_code, "--min-reward and --dataset both choose" in result.stderr) == (2, True)
    other = invoke(settings, "jobs", "start", "default", "--method", "sft", "--config", '{"dataset": "coch"}')
    assert other.exit_code == 3, other.output


# --- elsewhere --------------------------------------------------------------------------------------------------------


def numbers(settings: Settings, folder: Path) -> DatasetEvent:
    """Build a data set whose texts the tiny model's tokenizer has."""
    for number in range(3):
        name, answer = f"run-{number}", str(24 + number)
        judge(settings, name, served(settings, name, f"21 2{number}", answer))
    order = DatasetOrder(
        name="coach", rule=DatasetRule(policy="default", eval_share=0.0), actor="ann", reason="a test", root=folder
    )
    return build(settings, order, LogHistory(settings))[0]


def outside_events(settings: Settings) -> list[DatasetEvent]:
    return [event for _, event in read(settings, DatasetEvent) if event.outside is not None]


class Killed(BaseException):
    """A kill at the place where it is raised."""


def test_a_data_set_is_tuned_on_elsewhere_once_whenever_its_process_is_killed(
    kafka_bootstrap: str, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = settings_of(kafka_bootstrap, tmp_path, {"replies": [], "context_tokens": 512})
    settings = tiny.model_copy(
        update={
            "model": Model(base=base.model.config._name_or_path),
            "jobs": Jobs(tenant_month_usd=0.0),
        }
    )
    admin.apply_topics(settings)
    event = numbers(settings, tmp_path / "sets")
    history, stop = LogHistory(settings), threading.Event()
    ended: list[DatasetEvent] = []
    with gateway(settings) as provider, JobLog(settings) as log:
        order = OutsideOrder(
            event=event, url=f"{provider.url}/v1", model="sums", usd_per_million=2_000_000.0, actor="ann"
        )

        def send(api: ProviderApi) -> DatasetEvent:
            return submit(
                settings, order, lambda: rebuild.contents(settings, event, history), api, stop=stop, poll_s=0.1
            )

        with ProviderApi(order.url, "none") as api:
            for place in ("create_job", "announce"):  # before the job is there, and before its event is
                with monkeypatch.context() as patch:
                    owner: Any = api if place == "create_job" else dataset_log

                    def kill(*_: object) -> None:
                        raise Killed

                    patch.setattr(owner, place, kill)
                    with pytest.raises(Killed):
                        send(api)
            assert outside_events(settings) == []
            worker = TuningWorker(settings, log, threading.Event())
            waiting = threading.Thread(target=lambda: ended.append(send(api)))
            waiting.start()
            try:

                def is_over() -> bool:
                    worker.step()
                    return not waiting.is_alive()

                until(is_over, "the job to end")
            finally:
                worker.__exit__()
            assert send(api) == ended[0], "the same command again has nothing to do"
        asked = settings.model_copy(update={"outside": Outside(url=order.url)})
        adopted = adopt(asked, AdoptionOrder(policy="coach", dataset="coach", actor="ann")).event.outside
        jobs = list(provider.client.fine_tuning.jobs.list())
        files = list(provider.client.files.list())
    assert ([job.fine_tuned_model for job in jobs], len(files)) == (["sums@1"], 1)
    assert [made.kind for made in outside_events(settings)] == ["submitted", "succeeded"]
    outside = ended[0].outside
    assert outside is not None and (outside.job, outside.result) == (jobs[0].id, "sums@1")
    assert outside.trained_tokens == jobs[0].trained_tokens and outside.cost_usd == 2.0 * (outside.trained_tokens or 0)
    named = OutsideModel(url=order.url, model="sums@1", job=outside.job, dataset=f"coach@{event.digest[:12]}")
    assert adopted == named, "what came of it is the next version of a policy"


def test_what_a_provider_refuses_is_told_in_its_words_and_runs_of_a_tenant_need_a_word(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    admin.apply_topics(settings)
    event = numbers(settings, tmp_path / "sets")
    stop = threading.Event()
    with gateway(settings) as provider, ProviderApi(f"{provider.url}/v1", "none") as api:
        order = OutsideOrder(event=event, url=f"{provider.url}/v1", model="a/b", actor="ann")
        with pytest.raises(RefusedError, match="'a/b' cannot be trained"):
            submit(
                settings,
                order,
                lambda: rebuild.contents(settings, event, LogHistory(settings)),
                api,
                stop=stop,
                poll_s=0.1,
            )
        pairs = replace(order, model="sums", method="dpo")
        with pytest.raises(NotFoundError, match=r"has no train\.pairs\.jsonl"):
            submit(settings, pairs, lambda: {}, api, stop=stop, poll_s=0.1)
    with ProviderApi("http://127.0.0.1:9/v1", None) as api, pytest.raises(ProviderError, match="repeat the command"):
        submit(settings, order, lambda: {}, api, stop=stop, poll_s=0.1)
    assert outside_events(settings) == []
    check_tenant(event, None)
    with pytest.raises(RefusedError, match="--tenant acme"):
        check_tenant(replace(event, tenant="acme"), None)
