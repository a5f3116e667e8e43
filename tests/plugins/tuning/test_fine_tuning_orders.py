"""What OpenAI's clients order, as a job: the same meaning, or an error that names the field and what is possible."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.http.body import read
from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api.fine_tuning_body import ORDERED, CreateFineTuningBody, FineTuningOrder, _query
from plugins.tuning.api.graders import Grading, read_grader
from schemas.events import RewardSource
from streams.adapters.training_files import FileLine
from streams.errors import CallError, JobRequestError
from streams.scorers.registry import SCORERS, blend, parts
from streams.settings.model import Batches, Policy, Settings, Trainer
from tests.support.factories import response, task
from tests.unit.test_conversation import REFUSED

SETTINGS = Settings(batches=Batches(groups=4), policy=Policy(name="sums", engine="scripted"), trainer=Trainer(seed=7))
EQ = {
    "type": "string_check",
    "name": "right",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
PRICES = {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0}


def line(n: int, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{n} + {n} ="}], "answer": str(2 * n), **changes}


LINES = [line(n) for n in range(20)]


def body(grader: Any = None, hyperparameters: Any = None, **changes: Any) -> dict[str, Any]:
    reinforcement = {"grader": EQ if grader is None else grader, "hyperparameters": hyperparameters}
    method = {"type": "reinforcement", "reinforcement": reinforcement}
    return {"model": "sums", "training_file": "file-1", "method": method, **changes}


def ordered(lines: Any = None, **changes: Any) -> JobOrder:
    asked = read(CreateFineTuningBody, json.dumps(body(**changes)).encode())
    numbered = [FileLine(2 * number + 1, value) for number, value in enumerate(LINES if lines is None else lines)]
    return FineTuningOrder(asked, numbered).job(SETTINGS)


def test_an_order_asks_the_files_questions_and_compares_with_their_answers() -> None:
    order = ordered(hyperparameters={"eval_interval": 3, "batch_size": 4}, config={"held_out_share": 0})
    spec = order.spec
    assert (order.policy, spec.iterations, spec.evaluate_every, spec.batch_size) == ("sums", 5, 3, 4)
    assert (spec.questions[3].query, spec.questions[3].verifier) == ("3 + 3 =", '{"answer": "6"}')
    assert spec.reward_sources == (RewardSource(name="exact", settings='{"strip": false}'),)
    noted = json.loads(order.metadata[ORDERED])
    assert (noted["training_file"], noted["model"], noted["seed"]) == ("file-1", "sums", 7)
    assert noted["method"]["reinforcement"]["hyperparameters"] == {
        "n_epochs": "auto",
        "batch_size": 4,
        "eval_interval": 3,
    }


def test_epochs_are_rounded_up_to_iterations() -> None:
    config = {"held_out_share": 0}
    assert ordered(hyperparameters={"n_epochs": 3}, config=config).spec.iterations == 15
    assert ordered(lines=LINES[:10], hyperparameters={"n_epochs": 2}, config=config).spec.iterations == 5
    assert ordered(lines=LINES[:10], config=config).spec.iterations == 3  # one epoch of ten, four at once
    assert ordered(config={"n_iterations": 9}).spec.iterations == 9
    assert ordered(lines=LINES[:10], hyperparameters={"n_epochs": 3}, config=config).spec.iterations == 8


def test_what_asks_for_nothing_is_accepted() -> None:
    neutral = {
        "n_epochs": "auto",
        "batch_size": "auto",
        "eval_interval": "auto",
        "learning_rate_multiplier": 1.0,
        "compute_multiplier": "auto",
        "eval_samples": 1,
        "reasoning_effort": "default",
    }
    nulls = {"validation_file": None, "suffix": None, "integrations": [], "seed": 7, "metadata": None, "config": {}}
    assert ordered(hyperparameters=neutral, **nulls).spec == ordered().spec


def test_the_same_body_has_the_same_digest_whatever_the_settings_and_another_has_another() -> None:
    asked = read(CreateFineTuningBody, json.dumps(body()).encode())
    numbered = [FileLine(number, value) for number, value in enumerate(LINES)]
    other = SETTINGS.model_copy(update={"trainer": Trainer(seed=8), "batches": Batches(groups=8)})
    digests = {FineTuningOrder(asked, numbered).job(settings).digest for settings in (SETTINGS, other)}
    assert digests == {ordered().digest}
    assert ordered(metadata={"a": "b"}).digest not in digests


@pytest.mark.parametrize(
    ("changes", "kind", "parameter", "says"),
    [
        ({"model": "gpt-4o-mini"}, "not_found", "model", "'gpt-4o-mini' cannot be trained; this server has sums"),
        ({"model": "sums@3"}, "not_found", "model", "begins with the newest version"),
        ({"colour": "red"}, "unknown_parameter", "colour", "there is no field"),
        ({"validation_file": "file-2"}, "unsupported", "validation_file", "config.held_out_share"),
        ({"suffix": "mine"}, "unsupported", "suffix", "POLICY@VERSION"),
        ({"integrations": [{"type": "wandb"}]}, "unsupported", "integrations", "nothing is sent elsewhere"),
        ({"seed": 1}, "invalid", "seed", "trainer.seed is 7 here"),
        ({"metadata": {"k": "v" * 513}}, "invalid", "metadata.k", "at most 512"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid", "metadata", "at most 16"),
        ({"method": {"type": "grpo"}}, "invalid", "method.type", "'reinforcement', 'supervised' or 'dpo'"),
        ({"method": {"type": "reinforcement"}}, "invalid", "method.reinforcement", "is required"),
        ({"method": None}, "invalid", "method", "expected an object"),
        ({"hyperparameters": {"batch_size": 16}}, "invalid", "method.reinforcement.hyperparameters.batch_size", "is 4"),
        (
            {"hyperparameters": {"n_epochs": 0}},
            "invalid",
            "method.reinforcement.hyperparameters.n_epochs",
            "equal to 1",
        ),
        (
            {"hyperparameters": {"learning_rate_multiplier": 2}},
            "unsupported",
            "method.reinforcement.hyperparameters.learning_rate_multiplier",
            "trainer.learning_rate",
        ),
        (
            {"hyperparameters": {"compute_multiplier": 4}},
            "unsupported",
            "method.reinforcement.hyperparameters.compute_multiplier",
            "n_trajectories_per_query",
        ),
        (
            {"hyperparameters": {"reasoning_effort": "high"}},
            "unsupported",
            "method.reinforcement.hyperparameters.reasoning_effort",
            "no levels",
        ),
        (
            {"grader": {**EQ, "operation": "like", "reference": "x" * 10_001}},
            "invalid",
            "method.reinforcement.grader",
            "at most 10000 characters",
        ),
        ({"config": {"max_budget_usd": -1.0}}, "invalid", "config.max_budget_usd", "greater than 0"),
        ({"config": {"max_budget_usd": 1.0}}, "invalid", "config.prices", "a price is missing"),
        ({"config": {"max_budget_usd": 0.001, "prices": PRICES}}, "invalid", "config.max_budget_usd", "estimated"),
        ({"config": {"colour": "red"}}, "invalid", "config.colour", "there is no field"),
        ({"config": {"reward_sources": ["exact"]}}, "invalid", "config.reward_sources", "grader says it, too"),
        (
            {"config": {"checkpoint_interval": 3}, "hyperparameters": {"eval_interval": 3}},
            "invalid",
            "config.checkpoint_interval",
            "eval_interval says it, too",
        ),
        (
            {"config": {"n_iterations": 3}, "hyperparameters": {"n_epochs": 3}},
            "invalid",
            "config.n_iterations",
            "n_epochs says it, too",
        ),
        ({"lines": [*LINES, line(3)]}, "invalid", "training_file", "line 41 has the same question as line 7"),
        ({"lines": [line(1)]}, "invalid", "training_file", "of these 1 none is trained on"),
        ({"lines": [{"prompt": "x"}]}, "invalid", "training_file", "line 1: messages is required"),
        ({"lines": [line(1, messages=[])]}, "invalid", "training_file", "line 1: messages: it is empty"),
        (
            {"lines": [line(1, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])]},
            "invalid",
            "training_file",
            "the roles",
        ),
        (
            {"lines": [line(1, messages=[{"role": "user", "content": ""}])]},
            "invalid",
            "training_file",
            "content is empty",
        ),
        (
            {"lines": [line(1, messages=[{"role": "user", "content": [{"type": "image_url"}]}])]},
            "invalid",
            "training_file",
            "it is of type image_url",
        ),
        (
            {"lines": [line(1, messages=[{"role": "user", "content": "?", "weight": 1}])]},
            "invalid",
            "training_file",
            r"there is no field messages\[0\].weight",
        ),
        ({"lines": [*LINES, line(77, answer=None)]}, "invalid", "training_file", "line 41: answer: expected a text"),
        ({"lines": [*LINES, line(77, answer=0.5)]}, "invalid", "training_file", "a whole number to compare with"),
        ({"lines": [line(n, answer="\ud800") for n in range(20)]}, "invalid", None, "UTF-8|Invalid JSON"),
    ],
)
def test_what_has_no_meaning_here_is_named(
    changes: dict[str, Any], kind: str, parameter: str | None, says: str
) -> None:
    with pytest.raises(CallError, match=says) as raised:
        ordered(**changes)
    assert (raised.value.kind, raised.value.parameter) == (kind, parameter)


def test_a_question_in_parts_is_their_text() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = ordered(lines=[*LINES, line(1, messages=[{"role": "user", "content": content}])])
    assert found.spec.questions[-1].query == "a\nb"


# --- graders ----------------------------------------------------------------------------------------------------------


def check(operation: str, reference: str, given: str = "{{ sample.output_text }}") -> dict[str, Any]:
    return {"type": "string_check", "name": "n", "operation": operation, "input": given, "reference": reference}


def score(found: Grading, said: str, item: dict[str, Any]) -> float:
    """Return what our scorers make of an answer."""
    expected = found.answer(item)
    asked = task(verifier=json.dumps({} if expected is None else {"answer": expected}))
    mixed = parts(RewardSource(name=found.scorer, settings=json.dumps(found.settings)))
    verdicts = [SCORERS[part.name](asked, response(text=said), part.settings) for part in mixed]
    return verdicts[0].value if found.scorer != "mix" else blend(mixed, verdicts).value


AS_OPENAI: dict[str, Callable[[str, str], bool]] = {
    "eq": lambda said, reference: said == reference,
    "ne": lambda said, reference: said != reference,
    "like": lambda said, reference: reference in said,
    "ilike": lambda said, reference: reference.lower() in said.lower(),
}
"""What the operations mean, by OpenAI's guide to graders."""
TEXTS = st.text(st.sampled_from("aAb .*\n(\\\t7"), max_size=6)


@pytest.mark.parametrize("operation", AS_OPENAI)
@given(said=TEXTS, reference=TEXTS.filter(str.strip))
def test_a_string_check_scores_as_openais_does(operation: str, said: str, reference: str) -> None:
    found = read_grader(check(operation, reference), "grader")
    assert score(found, said, {}) == float(AS_OPENAI[operation](said, reference))


@given(said=TEXTS, answer=TEXTS)
def test_a_reference_may_hold_fields_of_the_line(said: str, answer: str) -> None:
    found = read_grader(check("eq", "<{{item.a.b}}{{ item.n }}>"), "grader")
    assert score(found, said, {"a": {"b": answer}, "n": 7}) == float(said == f"<{answer}7>")
    assert score(found, f"<{answer}7>", {"a": {"b": answer}, "n": 7}) == 1.0


def test_a_check_may_be_written_the_other_way_round() -> None:
    turned = check("eq", "{{sample.output_text}}", "{{item.answer}}")
    assert read_grader(turned, "g") == read_grader(EQ, "g")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("0.75 * right + 0.25 * says_so", 1.0),
        ("right - says_so / 2", 0.5),
        ("-(says_so - 3 * right) / 2", 1.0),
        ("(right + says_so) * 0.5", 1.0),
    ],
)
def test_a_weighted_sum_of_checks_is_a_mix(formula: str, expected: float) -> None:
    graders = {"right": EQ, "says_so": check("ilike", "FOUR")}
    found = read_grader({"type": "multi", "name": "m", "graders": graders, "calculate_output": formula}, "g")
    assert score(found, "four", {"answer": "four"}) == expected


def multi(formula: str, **graders: Any) -> dict[str, Any]:
    return {"type": "multi", "name": "m", "graders": graders or {"a": EQ}, "calculate_output": formula}


@pytest.mark.parametrize(
    ("given_", "parameter", "says"),
    [
        ({"type": "text_similarity"}, "g.type", "no scorer measures similarity; possible are string_check"),
        ({"type": "python", "source": "x"}, "g.type", "nothing that a request brings is run"),
        ({"type": "score_model"}, "g.type", "the judge"),
        ({"type": "colour"}, "g.type", "there is no such grader"),
        ({}, "g.type", "there is no such grader"),
        ({**EQ, "colour": "red"}, "g.colour", "there is no field"),
        ({**EQ, "operation": "lt"}, "g.operation", "'eq', 'ne', 'like' or 'ilike'"),
        (check("eq", "{{item.a}}", "{{sample.output_json.x}}"), "g.input", "the answer alone"),
        (check("eq", "{{item.a}}", "<{{sample.output_text}}>"), "g.input", "the answer alone"),
        (check("eq", "{{sample.output_tools}}"), "g.reference", "nothing to compare with"),
        (check("eq", "{{item.a"), "g.reference", "is alone in it"),
        (check("like", "{{item.a}}"), "g.operation", "only 'eq' is possible"),
        (check("ne", "{{item.a}}"), "g.operation", "only 'eq' is possible"),
        (check("like", ""), "g.reference", "every answer would get the same"),
        (multi("a * a"), "g.calculate_output", "multiplies or divides by a grader"),
        (multi("max(a, 1)"), "g.calculate_output", "weighted sum"),
        (multi("a +"), "g.calculate_output", "weighted sum"),
        (multi("a / 0"), "g.calculate_output", "weighted sum"),
        (multi("a + 1"), "g.calculate_output", "adds 1 to every answer"),
        (multi("a + b"), "g.calculate_output", "'b', which is none of the graders"),
        (multi("a", a=EQ, b=EQ), "g.calculate_output", "'b' has no effect"),
        (multi("(" * 900), "g.calculate_output", "weighted sum"),
        (multi("a", a=multi("a")), "g.graders.a.type", "a multi inside a multi"),
        (multi("a", a={"type": "python"}), "g.graders.a.type", "nothing that a request brings is run"),
        (multi("a + b", a=EQ, b=check("eq", "{{item.other}}")), "g.graders", "several answers"),
    ],
)
def test_a_grader_that_no_scorer_serves_is_refused(given_: dict[str, Any], parameter: str, says: str) -> None:
    with pytest.raises(CallError, match=says) as raised:
        read_grader(given_, "g")
    assert raised.value.parameter == parameter


def test_a_field_that_a_line_lacks_is_named() -> None:
    with pytest.raises(JobRequestError, match=r"a\.b: expected a text or a whole number to compare with, got None"):
        read_grader(check("eq", "{{item.a.b}}"), "g").answer({"a": {"c": "x"}})


def test_a_question_of_a_job_is_read_as_every_other_message() -> None:
    assert _query({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}) == "a"
    for messages, words in REFUSED:
        if words.startswith("messages[0]") or "no field messages[0]" in words:
            with pytest.raises(JobRequestError) as refusal:
                _query({"messages": messages})
            assert words in str(refusal.value)
