"""Jobs that tune: what is ordered, in every interface's words, and the events that follow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.http.body import read
from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.state import JobState, JobUsage, fold
from plugins.jobs.orders.job_types import estimate
from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api import tuning_orders, tuning_request
from plugins.tuning.api.fine_tuning_body import ORDERED, CreateFineTuningBody
from schemas.events import AdapterEvent, JobSpec, JobTuning, Tuning, problems
from streams.adapters import training_files
from streams.adapters.training_files import FileLine, TrainingFile
from streams.adapters.versions import AdapterState, empty, fold as fold_adapter
from streams.errors import CallError, JobRequestError, RefusedError, SettingsError
from streams.settings.model import Adapters, Model, Policy, Settings, Trainer
from tests.support.factories import T0, job_event, job_spec, trained
from tests.support.models.chat_tiny import chat_tokenizer
from tests.support.models.tiny import save_tiny
from trainer.examples.curation import Curation

SETTINGS = Settings(
    policy=Policy(name="sums", engine="scripted"),
    trainer=Trainer(seed=7, learning_rate=1e-4),
    model=Model(base="somebody/a-model-elsewhere"),
)
FILE = TrainingFile(file_id="file-1", filename="a.jsonl", size_bytes=400, created_at=0, purpose="fine-tune")
PRICES = {"prompt": 1.0, "completion": 1e6, "trainer_hour": 3.0}


def ordered(method: str = "sft", file: TrainingFile | None = None, **config: Any) -> JobOrder:
    request = tuning_request.read_request({"policy": "coach", "method": method, "config": config, "tenant": "shop"})
    return tuning_request.order(request, SETTINGS, empty("coach"), file, now_ms=10_000)


def tuning_of(order: JobOrder) -> JobTuning:
    assert order.spec.tuning is not None
    return order.spec.tuning


# --- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_without_a_file_says_which_answers_of_the_log_and_keeps_ages_as_times() -> None:
    order = ordered("sft", epochs=3, batch=4, min_reward=0.5, all=True, since="4s", groups_of="default")
    found = tuning_of(order)
    assert (found.method, found.epochs, found.batch, found.beta, found.groups_policy) == ("sft", 3, 4, None, "default")
    assert found.selection == {"purpose": "train", "min_reward": "0.5", "all": "True", "since_ms": "6000"}
    rule = Curation.of_plain("sft", found.selection)
    assert rule == Curation(method="sft", min_reward=0.5, every=True, since_ms=6000)
    event = job_event("created", spec=order.spec, policy=order.policy, tenant=order.tenant)
    assert list(problems(event)) == [] and (order.policy, order.tenant) == ("coach", "shop")


def test_an_order_with_a_file_names_it_and_its_estimate_is_of_its_size() -> None:
    order = ordered("dpo", FILE, epochs=2, start="default:7", prices=PRICES, max_budget_usd=200.0)
    found = tuning_of(order)
    assert (found.file_id, found.file, found.groups_policy, found.selection) == ("file-1", "a.jsonl", None, {})
    assert (found.beta, found.start_policy, found.start_version) == (0.1, "default", 7)
    assert estimate(order.spec) == JobUsage(0, 200)
    with pytest.raises(RefusedError, match=r"estimated to cost 200\.00 USD, and its budget is 199\.00 .* Lower epochs"):
        ordered("dpo", FILE, epochs=2, prices=PRICES, max_budget_usd=199.0)


def shaped(state: AdapterState, settings: Settings = SETTINGS, **config: Any) -> JobTuning:
    """The order of a job of coach, of which `state` is known."""
    request = tuning_request.read_request({"policy": "coach", "method": "sft", "config": config})
    return tuning_of(tuning_request.order(request, settings, state, None, now_ms=0))


def of_shape(rank: int, version: int = 1, **changes: Any) -> AdapterEvent:
    """A version of coach that was tuned, of this rank."""
    recipe = {"trainer.lora_rank": str(rank), "trainer.lora_alpha": "4", "trainer.lora_targets": "v_proj, q_proj"}
    tuning = Tuning(method="sft", start_version=0, examples=1, loss_tokens=1, digest="d", groups_policy="coach")
    return trained(version, policy="coach", recipe=recipe, **{"tuning": tuning} | changes)


def test_an_order_may_choose_the_shape_of_its_adapter_where_it_starts_from_the_base_model() -> None:
    whole = {"lora_rank": 2, "lora_alpha": 4, "lora_targets": "v_proj, q_proj"}
    found = shaped(empty("coach"), **whole)
    assert (found.lora_rank, found.lora_alpha, found.lora_targets) == (2, 4, "q_proj,v_proj")
    assert shaped(empty("coach")).lora_rank is None
    tuned = fold_adapter(empty("coach"), of_shape(16))
    assert shaped(tuned, **whole, start="0").lora_rank == 2


def test_an_order_may_repeat_the_shape_of_the_version_that_it_starts_from_and_not_change_it() -> None:
    tuned = fold_adapter(empty("coach"), of_shape(16))
    assert shaped(tuned, lora_rank=16, lora_targets="q_proj,v_proj").lora_rank == 16
    for config in ({"lora_rank": 8}, {"lora_alpha": 32}, {"lora_targets": "all-linear"}):
        with pytest.raises(JobRequestError, match=r"version 1 of coach has an adapter of rank 16, .*\(start 0\)"):
            shaped(tuned, **config)


def test_an_order_of_a_policy_that_batches_train_has_the_shape_of_the_settings() -> None:
    by_batches = fold_adapter(empty("coach"), of_shape(8, tuning=None))
    with pytest.raises(JobRequestError, match="coach-tuned"):
        shaped(by_batches, lora_rank=16, start="0")


def test_a_rank_that_vllm_is_not_started_for_is_refused_with_the_setting() -> None:
    vllm = SETTINGS.model_copy(update={"policy": Policy(name="sums", engine="vllm", servers="http://a:1")})
    assert shaped(empty("coach"), vllm, lora_rank=8).lora_rank == 8
    with pytest.raises(JobRequestError, match=r"larger --max-lora-rank, and set trainer\.lora_rank"):
        shaped(empty("coach"), vllm, lora_rank=9)


def test_the_same_order_has_the_same_digest_and_another_file_has_another() -> None:
    other = dataclasses.replace(FILE, file_id="file-2")
    digests = {ordered("sft", file, epochs=epochs).digest for file in (None, FILE, other, FILE) for epochs in (1, 2)}
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("method", "file", "config", "parameter", "says"),
    [
        ("sft", None, {"colour": 1}, "config.colour", "there is no field"),
        ("ppo", None, {}, "method", "'sft' or 'dpo'"),
        ("sft", None, {"epochs": 0}, "config.epochs", "greater than or equal to 1"),
        ("sft", None, {"beta": 0.1}, "config.beta", "the KL strength of dpo"),
        ("dpo", None, {"min_reward": 1.0}, "config.min_reward", "config.min_reward and config.all choose answers"),
        ("sft", None, {"margin": 0.5}, "config.margin", "it needs dpo"),
        ("sft", None, {"since": "yesterday"}, "config.since", "expected a time"),
        ("sft", None, {"start": "seven"}, "config.start", "expected a version"),
        ("sft", FILE, {"groups_of": "other"}, "config.groups_of", "leave one of them out"),
        ("sft", None, {"learning_rate": 1.0}, "config.learning_rate", "trainer.learning_rate is 0.0001 here"),
        ("sft", None, {"max_budget_usd": 1.0}, "config.prices", "a price is missing"),
        ("sft", None, {"lora_rank": 0}, "config.lora_rank", "greater than or equal to 1"),
        ("sft", None, {"lora_rank": 513}, "config.lora_rank", "less than or equal to 512"),
        ("sft", None, {"lora_targets": " , "}, "config.lora_targets", "expected names of linear modules"),
        ("sft", None, {"lora_targets": "q_proj,lm_head"}, "config.lora_targets", "lm_head, is not trained"),
    ],
)
def test_what_is_wrong_with_an_order_names_its_parameter(
    method: str, file: TrainingFile | None, config: dict[str, Any], parameter: str, says: str
) -> None:
    with pytest.raises(JobRequestError, match=says) as raised:
        ordered(method, file, **config)
    assert raised.value.parameter == parameter


def test_a_line_that_can_be_no_example_is_named_before_anything_is_written() -> None:
    tuning_request.check_lines(SETTINGS, "sft", [FileLine(1, {"messages": [1]})])
    openai = {"input": {"messages": []}, "preferred_output": [1], "non_preferred_output": [1]}
    trl = {"prompt": [1], "chosen": [1], "rejected": [1]}
    tuning_request.check_lines(SETTINGS, "dpo", [FileLine(1, openai), FileLine(2, trl)])
    interaction: dict[str, Any] = {"input": "1 + 1 =", "response": "2", "metadata": {"purpose": "train"}}
    tuning_request.check_lines(SETTINGS, "sft", [FileLine(1, interaction), FileLine(2, interaction | {"response": ""})])
    with pytest.raises(JobRequestError, match="line 1: expected"):
        tuning_request.check_lines(SETTINGS, "dpo", [FileLine(1, interaction)])
    with pytest.raises(
        JobRequestError, match=r"line 3: expected prompt, chosen, rejected or input, .* it has messages"
    ):
        tuning_request.check_lines(SETTINGS, "dpo", [FileLine(1, openai), FileLine(3, {"messages": [1]})])


@given(
    st.sampled_from(("train", "serve", "eval")),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none() | st.integers(0, 2**60),
)
def test_a_rule_that_was_recorded_is_read_back(
    purpose: Any, least: float | None, every: bool, since: int | None
) -> None:
    rule = Curation(method="sft", purpose=purpose, min_reward=least, every=every, since_ms=since)
    assert Curation.of_plain("sft", rule.plain()) == rule


@pytest.mark.parametrize("wrong", [{"purpose": "x"}, {"min_reward": "x"}, {"since_ms": "1.5"}])
def test_a_rule_that_nobody_can_have_recorded_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="none that can be used"):
        Curation.of_plain("sft", wrong)


# --- in OpenAI's words ------------------------------------------------------------------------------------------------


def openai(
    tmp_path: Path, lines: list[Any], adapters: Any = empty, settings: Settings = SETTINGS, **body: Any
) -> JobOrder:
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    store = str(tmp_path / "adapters")
    settings = settings.model_copy(update={"adapters": Adapters(store=store)})
    file = training_files.put(store, raw, filename="a.jsonl", purpose="fine-tune", now_ms=0)
    given = {"model": "sums", "training_file": file.file_id, **body}
    return tuning_orders.fine_tuning(read(CreateFineTuningBody, json.dumps(given).encode()), settings, adapters)


CHAT = {"messages": [{"role": "user", "content": "11"}, {"role": "assistant", "content": "2"}]}


def test_supervised_training_and_dpo_of_openai_are_jobs_that_tune(tmp_path: Path) -> None:
    sft = openai(tmp_path, [CHAT], method={"type": "supervised"}, metadata={"run": "a"})
    assert openai(tmp_path, [CHAT], metadata={"run": "a"}).spec == sft.spec
    found = tuning_of(sft)
    assert (found.method, found.epochs, found.batch, found.start_version) == ("sft", 1, 8, None)
    assert found.file_id is not None and found.file_id.startswith("file-")
    shown = json.loads(sft.metadata[ORDERED])
    assert (shown["metadata"], shown["seed"], shown["training_file"]) == ({"run": "a"}, 7, found.file_id)
    pair = {"input": {"messages": [1]}, "preferred_output": [1], "non_preferred_output": [1]}
    wanted = {"n_epochs": 3, "batch_size": 2, "beta": 1, "learning_rate_multiplier": "auto"}
    dpo = openai(tmp_path, [pair], method={"type": "dpo", "dpo": {"hyperparameters": wanted}}, config={"start": "2"})
    found = tuning_of(dpo)
    assert (found.epochs, found.batch, found.beta, found.start_version) == (3, 2, 1.0, 2)
    hyperparameters = json.loads(dpo.metadata[ORDERED])["method"]["dpo"]["hyperparameters"]
    assert hyperparameters == {"n_epochs": 3, "batch_size": 2, "beta": 1.0}


@pytest.mark.parametrize(
    ("body", "kind", "parameter", "says"),
    [
        ({"method": {"type": "supervised", "dpo": {}}}, "invalid", "method.dpo", "leave it out"),
        ({"method": {"type": "rl"}}, "invalid", "method.type", "'dpo'"),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 2}}}, "config": {"epochs": 1}},
            "invalid", "config.epochs", "says it, too",
        ),
        (
            {"method": {"type": "dpo", "dpo": {"hyperparameters": {"learning_rate_multiplier": 2}}}},
            "unsupported", "method.dpo.hyperparameters.learning_rate_multiplier", "trainer.learning_rate",
        ),
        ({"method": {"type": "supervised"}, "config": {"purpose": "eval"}}, "invalid", "config.purpose", "of a file"),
        ({"method": {"type": "supervised"}, "model": "gpt"}, "not_found", "model", "this server has sums"),
        ({"method": {"type": "dpo"}}, "invalid", "training_file", "line 1: expected prompt"),
        ({"method": {"type": "supervised"}, "training_file": "file-9"}, "not_found", "training_file", "no file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_openais_words(
    tmp_path: Path, body: dict[str, Any], kind: str, parameter: str, says: str
) -> None:
    with pytest.raises(CallError, match=says) as raised:
        openai(tmp_path, [CHAT], **body)
    assert (raised.value.kind, raised.value.parameter) == (kind, parameter)


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"content": "", "tool_calls": [CALL]}, "the model's chat template leaves out the tool call add; leave out"),
        ({"content": ""}, r"messages\[1\]: the answer is empty, and the model would learn to say nothing"),
        ({"content": "22 " * 300}, r"it has \d+ tokens, and the model's context 256; shorten it"),
    ],
)
def test_a_line_that_the_model_here_cannot_be_tuned_on_is_refused_when_the_job_is_ordered(
    tmp_path: Path, answer: dict[str, Any], says: str
) -> None:
    """As `streamward tune` refuses it."""
    line = {"messages": [{"role": "user", "content": "21"}, {"role": "assistant", **answer}]}
    chat_tokenizer().save_pretrained(save_tiny(tmp_path / "tiny"))
    here = SETTINGS.model_copy(update={"model": Model(base=str(tmp_path / "tiny"))})
    assert openai(tmp_path, [CHAT], settings=here).spec.tuning is not None
    with pytest.raises(CallError, match=f"training_file: line 2: {says}") as raised:
        openai(tmp_path, [CHAT, line], settings=here)
    assert (raised.value.kind, raised.value.parameter) == ("invalid", "training_file")
    with pytest.raises(JobRequestError, match=f"line 2: {says}"):
        tuning_request.check_lines(here, "sft", [FileLine(1, CHAT), FileLine(2, line)])


# --- the events of a job ----------------------------------------------------------------------------------------------


def job(**spec: Any) -> JobState:
    tuning = JobTuning(method="sft", epochs=2, batch=8, groups_policy="default")
    whole = job_spec(questions=(), reward_sources=(), iterations=1, tuning=tuning, held_out_share=0.0, **spec)
    state = fold(None, job_event("created", spec=whole))
    assert state is not None
    return state


def test_a_policy_has_one_job_at_a_time_whatever_it_does() -> None:
    known = AllJobs(2)
    for number, (name, spec) in enumerate((("a", job_spec()), ("b", job().spec))):
        event = job_event("created", job_id=name, event_id=name, created_at=T0 + number, spec=spec)
        state = fold(None, event)
        assert state is not None
        known.states[name] = state
    assert [one.job_id for one in known.next_of_each_policy()] == ["a"]
    known.states["a"] = dataclasses.replace(known.states["a"], status="completed")
    assert [one.job_id for one in known.next_of_each_policy()] == ["b"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epochs": 0}, "0 epochs"),
        ({"method": "dpo"}, "dpo has one above 0"),
        ({"beta": 0.1}, "sft none"),
        ({"lora_rank": 0}, "expected 1 or more"),
        ({"lora_targets": ""}, "names of modules"),
        ({"file_id": "file-1"}, "expected one of them"),
        ({"groups_policy": None}, "expected one of them"),
        ({"start_policy": "other"}, "no version is named"),
    ],
)
def test_an_order_of_tuning_that_contradicts_itself_is_no_event(changes: dict[str, Any], says: str) -> None:
    spec: JobSpec = job().spec
    assert spec.tuning is not None
    wrong = dataclasses.replace(spec, tuning=dataclasses.replace(spec.tuning, **changes))
    assert says in " ".join(problems(job_event("created", spec=wrong)))
