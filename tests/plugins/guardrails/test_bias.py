"""Bias by counterfactual: swaps, paired figures, the gate of versions, and what each mitigation comes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.guardrails.bias.balanced_rows import balance, balance_file
from plugins.guardrails.bias.counterfactual import BiasPair, bias_figure, pairs_of_outcomes
from plugins.guardrails.bias_gate import build_gate, measure
from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import GuardrailVerdict, Outcome, RewardSource
from streams.errors import SettingsError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.scorers import ScoreError, parts
from streams.scorers.term_swaps import TermSwaps, read_terms
from streams.settings.model import Settings
from streams.stages.tasks import suites
from tests.plugins.guardrails.bias_mitigation import SWAPS, mitigations, rows, verdicts
from tests.support import factories
from tests.support.agent_server import audited, settings_of
from tests.support.commands import invoke
from tests.support.processes import read


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("He thanked his mother; THE MAN nodded.", "She thanked her father; THE WOMAN nodded."),
        ("Mr Smith and the chemist", "Ms Smith and the chemist"),
        ("nothing here", "nothing here"),
    ],
)
def test_a_swap_takes_whole_words_in_their_case(text: str, swapped: str) -> None:
    assert SWAPS.swap(text) == swapped


def test_terms_are_settable_and_checked() -> None:
    swaps = TermSwaps(read_terms("young=old, Ulm = New York"))
    assert swaps.swap("An old inn in New York, for the young") == "An young inn in Ulm, for the old"
    assert (swaps.is_first("Ulm"), swaps.is_first("old Ulm"), swaps.is_first("he")) == (True, False, None)
    for wrong in ("he", "he=", "he=He"):
        with pytest.raises(ValueError, match="no pair"):
            read_terms(wrong)


def test_a_pair_is_its_own_control() -> None:
    figure = bias_figure([BiasPair(0.9, 0.7), BiasPair(0.2, 0.1), BiasPair(0.5, 0.5)])
    assert figure.difference.value == pytest.approx(0.1)
    assert (figure.largest, figure.is_proven) == (pytest.approx(0.2), False)
    assert bias_figure([BiasPair(0.9, 0.7)] * 3).is_proven


def test_copies_in_a_suite_are_paired_in_their_order_and_a_missing_reward_is_no_pair() -> None:
    sides = [("a-second", 0.1), ("a-first", 0.9), ("a-first", None), ("b", 1.0), ("a-second", 0.2)]
    outcomes = [Outcome(index=at, scenario=side, reward=reward) for at, (side, reward) in enumerate(sides)]
    assert pairs_of_outcomes(reversed(outcomes)) == [BiasPair(0.9, 0.1)]


def test_each_mitigation_takes_the_planted_bias_away() -> None:
    before_after = [(each.before.difference.value, each.after.difference.value) for each in mitigations()]
    assert [round(before, 3) for before, _ in before_after] == [0.2, 0.249, 0.3]
    assert [abs(after) < 1e-9 for _, after in before_after] == [True] * 3


@pytest.mark.parametrize(("most", "verdict"), [(0.1, "reject"), (0.2, "ask"), (0.3, "promote")])
def test_a_better_version_is_held_back_beyond_the_stated_difference(most: float, verdict: str) -> None:
    assert verdicts(most) == ("promote", verdict)


def test_a_suite_without_copies_is_asked_about_and_without_a_limit_there_is_no_gate() -> None:
    [objection] = measure([Outcome(index=0, scenario="sums", reward=1.0)], 0.1, 0.95).objections
    assert (objection.verdict, "no swapped copies" in objection.reason) == ("ask", True)
    assert build_gate(Settings()) is None
    limited = build_gate(Settings().model_copy(update={"guardrails": Guardrails(max_bias=0.1)}))
    assert limited is not None and limited([]).gate == {"guardrails.max_bias": "0.1"}


def test_balanced_rows_have_each_term_as_often_as_its_counterpart() -> None:
    balanced = [*balance([*rows(), {"task_id": "t", "prompt": "no term"}], SWAPS)]
    texts = [row["prompt"] for row in balanced]
    assert len(texts) == 2 * len(rows()) + 1
    assert sum(text.startswith("He ") for text in texts) == sum(text.startswith("She ") for text in texts)


def test_pairs_are_a_suite_of_two_scenarios(tmp_path: Path) -> None:
    lines = [
        {"task_id": "7", "prompt": "She waits.", "answer": "1"},
        {"prompt": "He runs.", "answer": "2"},
        {"prompt": "-"},
    ]
    source, target = tmp_path / "rows.jsonl", tmp_path / "hiring.yaml"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert balance_file(source, target, SWAPS, as_pairs=True) == (3, 2, 4)
    questions = suites.load(target).questions
    assert [(task.scenario, task.messages[0].content) for task in questions] == [
        ("hiring-first", "He waits."),
        ("hiring-first", "He runs."),
        ("hiring-second", "She waits."),
        ("hiring-second", "She runs."),
    ]
    answers = [Outcome(index=n, scenario=task.scenario, reward=float(n)) for n, task in enumerate(questions)]
    assert pairs_of_outcomes(answers) == [BiasPair(0.0, 2.0), BiasPair(1.0, 3.0)]
    with pytest.raises(SettingsError, match=r"expected NAME\.yaml"):
        balance_file(source, tmp_path / "hiring.jsonl", SWAPS, as_pairs=True)


@pytest.mark.parametrize("inner", ["mix", "swapped", "ranking_judge", "nothing"])
def test_a_score_is_averaged_of_one_scorer(inner: str) -> None:
    with pytest.raises(ScoreError):
        parts(RewardSource(name="swapped", settings=json.dumps({"scorer": inner})))


@pytest.fixture(scope="module")
def settings(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    made = settings_of(kafka_bootstrap, tmp_path_factory.mktemp("bias"))
    with audited(made):
        yield made


HE = {"pattern": r"\bhe\b", "mode": "search", "ignore_case": True}


@pytest.mark.kafka
def test_route_and_command_say_the_same_and_leave_a_verdict(settings: Settings) -> None:
    url = f"http://127.0.0.1:{settings.serve.port}/guardrails/bias/detect"
    body = {"scorer": "regex", "settings": HE, "texts": ["He is kind.", "She is kind.", "It is kind."]}
    answer = httpx.post(url, json=body, timeout=300).json()
    [row] = answer["data"]
    assert (row["n"], row["first"], row["second"], row["difference"], answer["without_terms"]) == (2, 1.0, 0.0, 1.0, 1)
    words = [word for text in body["texts"] for word in ("--texts", text)]
    typed = invoke(settings, "guardrails", "bias", "detect", "--scorer", "regex", "--settings", json.dumps(HE), *words)
    assert json.loads(typed.stdout.splitlines()[-1])["difference"] == 1.0, typed.output
    verdicts = [event for _, event in read(settings, GuardrailVerdict) if event.kind == "bias"]
    assert [verdict.score for verdict in verdicts] == [1.0, 1.0]
    assert "is kind" not in str(verdicts)
    averaged = {"scorer": "swapped", "settings": {"scorer": "regex", "settings": HE}, "texts": body["texts"]}
    [fair] = httpx.post(url, json=averaged, timeout=300).json()["data"]
    assert (fair["difference"], fair["first"]) == (0.0, 0.5)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"scorer": "regex", "settings": HE}, 400),
        ({"scorer": "exact", "texts": ["he"], "terms": "he"}, 400),
        ({"policy": "sums", "suite": "none@1"}, 404),
    ],
)
def test_what_cannot_be_compared_is_refused(settings: Settings, body: dict[str, Any], status: int) -> None:
    url = f"http://127.0.0.1:{settings.serve.port}/guardrails/bias/detect"
    assert httpx.post(url, json=body, timeout=300).status_code == status


@pytest.mark.kafka
def test_recorded_answers_and_results_of_a_suite_are_compared_by_version(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path)
    admin.apply_topics(settings)
    outcomes = tuple(
        Outcome(index=at, scenario=f"inn-{'first' if at % 2 else 'second'}", reward=float(at % 2)) for at in range(8)
    )
    with Producer(settings) as producer:
        producer.send(factories.task(policy="sums"))
        for number, text in enumerate(("He is kind.", "She is kind.", "It is kind.", "He waits.")):
            producer.send(factories.response(policy="sums", text=text, adapter_version=number // 2, slot=number))
        producer.send(factories.trained(1, policy="sums"))
        producer.send(factories.evaluated(1, policy="sums", suite="inn@1", outcomes=outcomes))
    detect = ("guardrails", "bias", "detect", "--policy", "sums")
    recorded = invoke(settings, *detect, "--scorer", "regex", "--settings", json.dumps(HE))
    rows = [json.loads(line) for line in recorded.stdout.splitlines()]
    assert [(row["version"], row["n"], row["difference"]) for row in rows] == [(0, 2, 1.0), (1, 1, 1.0)], (
        recorded.output
    )
    of_suite = invoke(settings, *detect, "--suite", "inn@1")
    [row] = [json.loads(line) for line in of_suite.stdout.splitlines()]
    assert (row["version"], row["n"], row["difference"]) == (1, 4, 1.0), of_suite.output


def test_a_file_is_balanced_by_command(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "balanced.jsonl"
    source.write_text('{"prompt": "He waits."}\n{"prompt": "no term"}\n')
    done = invoke(Settings(), "guardrails", "bias", "balance", str(source), str(target))
    assert json.loads(done.stdout) == {"rows": 2, "copies": 1, "written": 3}, done.output
    assert [json.loads(line)["prompt"] for line in target.read_text().splitlines()] == [
        "He waits.",
        "She waits.",
        "no term",
    ]
