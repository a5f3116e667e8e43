"""Tests for guardrails on request: routes, OpenAI's client, command, scorer and gate; and their records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from starlette.testclient import TestClient

from gateway.http.application import Application
from plugins.guardrails.guardrail_gate import HeldOutTexts
from plugins.guardrails.guardrail_routes import CATEGORIES, GuardrailRoutes
from plugins.guardrails.guardrail_scorer import NAME
from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.rules.outside import TextClassifier
from plugins.guardrails.scanner import Scanner
from plugins.guardrails.verdict_writer import VerdictWriter
from schemas.events import GuardrailVerdict
from streams.errors import RefusedError
from streams.kafka import admin
from streams.rows.row_texts import RowTexts
from streams.rows.training_gate import TrainingUse
from streams.settings.model import Scoring, Settings
from streams.stages.scoring.trial import source_of, try_scorer
from tests.plugins.guardrails.guarded import ATTACK, CARD
from tests.support.commands import invoke, rows_of
from tests.support.doubles.judge import a_task, judging, raw

TEXT = f"{ATTACK} Ask ann@example.org, card {CARD}."


@pytest.fixture
def made(settings: Settings) -> Settings:
    admin.apply_topics(settings)
    return settings


@pytest.fixture
def log(made: Settings) -> Iterator[VerdictWriter]:
    with VerdictWriter(made) as verdicts:
        yield verdicts


def application(settings: Settings, log: VerdictWriter, **rule: Any) -> Application:
    changed = settings.model_copy(update={"guardrails": Guardrails(**rule)})
    return Application([GuardrailRoutes(changed, log)], version="0", max_body_bytes=1_000_000)


def verdicts(settings: Settings) -> list[GuardrailVerdict]:
    records = admin.read_topic(settings, "guardrail-verdicts")
    return [event for record in records if isinstance(event := record.decode(GuardrailVerdict), GuardrailVerdict)]


@pytest.mark.kafka
def test_text_is_moderated_redacted_and_its_verdicts_recorded_without_it(made: Settings, log: VerdictWriter) -> None:
    client = TestClient(application(made, log))
    answer = client.post("/guardrails/content/moderate", json={"text": TEXT, "redact": True}).json()
    assert answer["verdict"] == "block"
    assert {finding["rule"] for finding in answer["findings"]} == {"override/1", "email/1", "card/1"}
    assert answer["redacted"] == f"{ATTACK} Ask [email], card [card]."
    [email] = [finding for finding in answer["findings"] if finding["rule"] == "email/1"]
    assert [TEXT[start:end] for start, end in email["spans"]] == ["ann@example.org"]
    assert {event.rule for event in verdicts(made)} == {"override/1", "email/1", "card/1"}
    payloads = b"".join(record.payload or b"" for record in admin.read_topic(made, "guardrail-verdicts"))
    assert b"4111" not in payloads and b"ann@" not in payloads and b"Ignore" not in payloads


@pytest.mark.kafka
def test_command_gives_the_verdict_of_the_route_in_the_same_words(made: Settings, log: VerdictWriter) -> None:
    route = TestClient(application(made, log)).post("/guardrails/content/moderate", json={"text": TEXT}).json()
    command = rows_of(invoke(made, "guardrails", "moderate", TEXT, "--output", "jsonl"))
    assert command == [route] or command == route["findings"]
    assert [row["withheld"] for row in rows_of(invoke(made, "query", "FROM guardrail_findings"))] == [False] * 6
    audit = invoke(made, "audit")
    assert audit.exit_code == 0 and "guardrail" in audit.output, audit.output
    refused = invoke(made, "guardrails", "validate", "no", "--pattern", "(?=x)")
    assert refused.exit_code == 2 and "look-around" in refused.output


@pytest.mark.kafka
def test_answer_is_validated_and_wrong_rules_are_refused_without_repeating_the_text(
    made: Settings, log: VerdictWriter
) -> None:
    client = TestClient(application(made, log))
    body = {"answer": "planted words", "max_characters": 3, "tool": "calc"}
    answer = client.post("/guardrails/validate", json=body).json()
    assert answer["valid"] is False
    assert [problem.partition(":")[0] for problem in answer["problems"]] == ["max_characters", "tool"]
    for wrong in ({"pattern": "(a)\\1"}, {"json_schema": {"type": "nothing"}}, {"min_characters": "many"}):
        refused = client.post("/guardrails/validate", json={"answer": "planted"} | wrong)
        assert refused.status_code == 400 and "planted" not in refused.text, refused.text


def moderation(**scores: float) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = {"id": "m", "model": "m", "results": [{"flagged": True, "categories": {}, "category_scores": scores}]}
        raw(json.dumps(body).encode())(handler)

    return answer


@pytest.mark.kafka
def test_openais_client_reads_moderations_and_the_unseen_categories(made: Settings, log: VerdictWriter) -> None:
    with judging(moderation(violence=0.9, hate=0.1)) as server:
        app = application(made, log, moderation_url=server.url)

        async def ask() -> Any:
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
                client = AsyncOpenAI(base_url="http://memory/v1", api_key="none", max_retries=0, http_client=http)
                return await client.moderations.create(input=["Mail ann@example.org.", "2 + 2 = 4"])

        answer = asyncio.run(ask())
    first, second = answer.results
    assert first.flagged and first.categories.violence and not first.categories.hate
    assert first.category_scores.violence == 0.9 and first.categories.model_extra["pii"] is True
    assert second.categories.model_extra["pii"] is False
    assert first.category_applied_input_types.violence == ["text"]
    assert answer.unseen_categories == [name for name in CATEGORIES if name not in ("violence", "hate")]
    assert [request[2]["input"] for request in server.requests] == ["Mail ann@example.org.", "2 + 2 = 4"]


def test_moderation_api_that_fails_is_a_finding_without_the_text() -> None:
    with judging(raw(b"planted", status=500), raw(b"planted")) as server:
        scanner = Scanner(Guardrails(moderation_url=server.url, on_failure="closed"))
        findings = [finding for _ in range(2) for finding in scanner.ask_models("planted")[0]]
    assert [(finding.kind, finding.verdict) for finding in findings] == [("failure", "block")] * 2
    assert not [finding for finding in findings if "planted" in finding.reason]
    assert findings[0].reason == "guardrails.moderation_url answered 500"


@pytest.mark.model
def test_any_text_classification_model_of_a_folder_is_a_signal(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "tides": 2, "attack": 3}
    tokens = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokens.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=64, id2label={0: "benign", 1: "INJECTION"}, label2id={"benign": 0, "INJECTION": 1},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    scores = TextClassifier(str(tmp_path)).scores("attack " * 200)
    assert set(scores) == {"benign", "injection"} and all(0 <= score <= 1 for score in scores.values())
    rule = Guardrails(classifier=str(tmp_path), classifier_labels="injection=0.0", blocks="classifier.injection")
    findings, by_label = Scanner(rule).ask_models("attack")
    assert [(finding.kind, finding.name, finding.verdict) for finding in findings] == [
        ("model", "classifier.injection", "block")
    ]
    assert findings[0].score == by_label["injection"]
    missing = Scanner(Guardrails(classifier=str(tmp_path / "none"), classifier_labels="x=0.5"))
    assert [finding.kind for finding in missing.ask_models("attack")[0]] == ["failure"]


@pytest.mark.parametrize(
    ("text", "settings", "value", "rule"),
    [
        ("The tides come twice a day.", {}, 1.0, None),
        ("Ask ann@example.org.", {}, 0.0, "email"),
        ("Ask ann@example.org.", {"rules": "injection"}, 1.0, None),
        ("long", {"validate": {"max_characters": 3}}, 0.0, "max_characters"),
    ],
)
def test_rules_are_a_scorer_with_a_version(text: str, settings: dict[str, Any], value: float, rule: str | None) -> None:
    source = source_of(f"{NAME}={json.dumps(settings)}", a_task())
    outcome = try_scorer(Scoring(modules="plugins"), a_task(), source, text)
    assert (outcome.error, outcome.value, outcome.version) == (None, value, "guardrail/1")
    assert rule is None or outcome.components[rule] == 1.0


def test_scorer_refuses_wrong_settings() -> None:
    source = source_of(f'{NAME}={{"patterns": "["}}', a_task())
    outcome = try_scorer(Scoring(modules="plugins"), a_task(), source, "x")
    assert outcome.value is None and "guardrails.patterns" in str(outcome.error)


def test_gate_holds_out_rows_by_the_rules_that_are_named() -> None:
    rows = [RowTexts("a:1", ("The tides.",)), RowTexts("a:2", ("Ask ann@example.org.",)), RowTexts("a:3", (ATTACK,))]
    settings = Settings().model_copy(update={"guardrails": Guardrails(holds_out="email")})
    held_out = HeldOutTexts(settings)
    with pytest.raises(RefusedError, match=r"a:2: guardrail email\. ") as refusal:
        held_out.check(rows, TrainingUse("a"))
    assert "ann@" not in str(refusal.value) and "a:3" not in str(refusal.value)
    assert held_out.check(rows, TrainingUse("a", allowed_by="ann")) == {}
    assert held_out.check(rows[:1], TrainingUse("a")) == {}
    find = held_out.finder("p")
    assert find is not None and [find(row) for row in rows] == [None, "guardrail email", None]
    assert HeldOutTexts(Settings()).check(rows, TrainingUse("a")) == {}
    assert HeldOutTexts(Settings()).finder("p") is None
