"""Documents of the log are searched: over HTTP, on the command line, by tenants, and while an index is made."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.principal import PRINCIPAL
from gateway.log.open_log import OpenLog
from plugins.knowledge.index.corpus import SearchQuery
from plugins.knowledge.index.knowledge_index import POINTER, KnowledgeIndex
from plugins.knowledge.log.document_log import DocumentAuthor, DocumentDraft
from plugins.knowledge.log.knowledge_settings import Knowledge
from plugins.knowledge.rooms.document_routes import DocumentRoutes
from plugins.knowledge.rooms.search_routes import SearchRoutes
from streams.errors import CallError, NotFoundError
from streams.kafka import admin
from streams.settings.model import Kafka, Scoring, Settings, Topics
from tests.plugins.knowledge.vector_server import VectorServer, vector_server
from tests.support.commands import invoke, rows_of
from tests.support.doubles.judge import judging, raw, says
from tests.support.log.shared_node import own_prefix

ANN = DocumentAuthor("ann", "asked for")
SEA = {
    "tides.txt": "The moon makes the tides.",
    "waves.md": "# Waves\n\nThe wind makes the waves.",
    "rope.html": "<head><title>no</title></head><body><h1>Rope</h1><p>Rope is made of <b>hemp</b>.</p></body>",
}


@pytest.fixture(scope="module")
def served() -> Iterator[VectorServer]:
    with vector_server() as server:
        yield server


@pytest.fixture
def made(kafka_bootstrap: str, served: VectorServer, tmp_path: Path) -> Settings:
    topics = Topics(prefix=own_prefix(), partitions=2, policy_partitions=2)
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics)
    admin.apply_topics(settings)
    return with_model(settings, served.model("a"), tmp_path)


def with_model(settings: Settings, embedder: str, folder: Path) -> Settings:
    return settings.model_copy(update={"knowledge": Knowledge(embedder=embedder, folder=folder / "index")})


def drafts(count: int, index: str = "sea") -> list[DocumentDraft]:
    return [DocumentDraft(f"{index}/{number}", f"Buoy {number} floats.", "text/plain") for number in range(count)]


def found(documents: KnowledgeIndex, text: str, index: str = "sea") -> list[str]:
    hits = documents.search(index, SearchQuery(text, None, 5), 60).hits
    return [hit.row.document.document_id for hit in hits]


def wait_for(documents: KnowledgeIndex, text: str, first: str) -> None:
    """Return once a search finds a document first; the test's own limit ends it otherwise."""
    while found(documents, text)[:1] != [first]:
        pass


def test_a_document_is_found_replaced_and_no_longer_found_without_a_restart(made: Settings) -> None:
    with KnowledgeIndex(made) as documents:
        documents.put(drafts(20), ANN)
        assert found(documents, "buoy 7")[0] == "sea/7"
        documents.put([DocumentDraft("sea/new", "A lantern burns.", "text/plain")], ANN)
        wait_for(documents, "lantern burns", "sea/new")
        documents.remove("sea/new", ANN)
        assert "sea/new" not in found(documents, "lantern burns")
        with pytest.raises(NotFoundError, match="there is no index 'lake'"):
            found(documents, "lantern", "lake")


def test_an_index_of_another_embedder_is_made_apart_while_the_old_one_answers(
    made: Settings, served: VectorServer, tmp_path: Path
) -> None:
    with KnowledgeIndex(made) as documents:
        documents.put(drafts(100), ANN)
        before = documents.search("sea", SearchQuery("buoy 9", None, 5), 60)
    served.gates["other"] = threading.Event()
    changed = with_model(made, served.model("other"), tmp_path)
    embedded = served.texts.count(("a", "Buoy 9 floats."))
    with KnowledgeIndex(changed) as documents:
        meanwhile = documents.search("sea", SearchQuery("buoy 9", None, 5), 60)
        assert (meanwhile.recipe, meanwhile.digest) == (before.recipe, before.digest)
        assert served.texts.count(("a", "Buoy 9 floats.")) == embedded, "kept vectors are used again"
        documents.put([DocumentDraft("sea/new", "A lantern burns.", "text/plain")], ANN)
        served.gates["other"].set()
        while (after := documents.search("sea", SearchQuery("lantern burns", None, 1), 60)).recipe == before.recipe:
            pass
        assert [hit.row.document.document_id for hit in after.hits] == ["sea/new"]
    names = {path.name for path in (tmp_path / "index").iterdir()} - {"lock"}
    assert names == {POINTER, f"{after.recipe.digest}.vectors"}


def test_the_first_index_is_waited_for_and_says_how_far_it_is(
    made: Settings, served: VectorServer, tmp_path: Path
) -> None:
    served.gates["slow"] = threading.Event()
    settings = with_model(made, served.model("slow"), tmp_path)
    with KnowledgeIndex(settings) as documents:
        documents.put(drafts(3), ANN)
        with pytest.raises(CallError, match="the index is being made: 3 documents are still to be indexed"):
            while True:
                documents.search("sea", SearchQuery("buoy", None, 5), 0.5)
        served.gates["slow"].set()
        assert len(found(documents, "buoy")) == 3


class AsPrincipal:
    """The rooms behind a door that lets in one principal."""

    def __init__(self, app: Any, principal: object) -> None:
        self.app, self.principal = app, principal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.principal is not None and scope["type"] == "http":
            scope[PRINCIPAL] = self.principal
        await self.app(scope, receive, send)


def client(settings: Settings, log: OpenLog, tenant: str | None = None) -> TestClient:
    rooms = [DocumentRoutes(settings, log), SearchRoutes(settings, log)]
    key = SimpleNamespace(who=f"key of {tenant}", roles=("trainer",), tenant=tenant, agent_id=None)
    principal: Any = None if tenant is None else key
    return TestClient(AsPrincipal(Application(rooms, version="0", max_body_bytes=10_000_000), principal))


def test_a_tenant_searches_its_own_documents_alone(made: Settings) -> None:
    with OpenLog(made) as log:
        red, blue, all_ = client(made, log, "red"), client(made, log, "blue"), client(made, log)
        for tenant, text in ((red, "Red buoys float."), (blue, "Blue buoys sink.")):
            sent = {"documents": [{"document_id": "sea/buoys", "text": text}]}
            assert tenant.post("/rag/index", json=sent).json()["data"][0]["outcome"] == "added"
        hits = red.post("/rag/query", json={"query": "buoys"}).json()
        assert [hit["text"] for hit in hits["data"]] == ["Red buoys float."] and hits["index"] == "red.sea"
        assert red.post("/rag/query", json={"query": "buoys", "index": "blue.sea"}).status_code == 404
        assert [row["document_id"] for row in red.get("/rag/documents").json()["data"]] == ["red.sea/buoys"]
        assert red.get("/rag/document", params={"document_id": "blue.sea/buoys"}).status_code == 404
        assert red.post("/rag/documents/remove", json={"document_id": "blue.sea/buoys"}).status_code == 404
        refused = all_.post("/rag/query", json={"query": "buoys"})
        assert refused.status_code == 400
        assert "index is not given, and there are 2; known: blue.sea, red.sea" in refused.json()["error"]["message"]


def test_what_is_no_query_or_document_is_refused(made: Settings) -> None:
    with OpenLog(made) as log:
        http = client(made, log)
        assert http.post("/rag/query", json={"query": " \n", "index": "sea"}).status_code == 400
        sent: dict[str, Any] = {"document_id": "sea/a", "text": "x", "media_type": "image/png"}
        for change, problem in (
            ({}, "media_type is 'image/png'; expected application/jsonl, application/pdf"),
            ({"media_type": "text/plain", "text": " "}, "text is blank"),
            ({"media_type": "application/pdf"}, "cannot be read as PDF|pypdf, which is not installed"),
            ({"media_type": "application/jsonl", "text": '{"text": "a"}\n{"txt": "b"}'}, "sea/a:2: expected an object"),
            ({"text": None, "data": "é"}, "is no base64"),
        ):
            answer = http.post("/rag/index", json={"documents": [sent | change]})
            assert answer.status_code == 400
            assert re.search(problem, answer.json()["error"]["message"]), answer.text
        assert http.get("/rag/documents").json()["data"] == []


def test_texts_are_reranked_by_fusion_and_by_what_they_add(made: Settings) -> None:
    texts = ["Rope is made of hemp.", "The moon makes the tides.", "The moon makes the tides!", "Tides follow a moon."]
    with OpenLog(made) as log:
        http = client(made, log)

        def order(**body: Any) -> list[int]:
            answer = http.post("/rag/rerank", json={"query": "the moon makes tides", "documents": texts, **body})
            return [row["index"] for row in answer.json()["data"]]

        assert order() == [1, 2, 3, 0]
        assert order(method="mmr", diversity=0.0)[:2] == [1, 2]
        assert order(method="mmr", diversity=0.7, limit=2) in ([1, 0], [1, 3]), "its copy adds nothing"


def rerank_by(judge_url: str | None, texts: list[str], **body: Any) -> Any:
    """Return the answer of a server whose judge is there; it reads no log."""
    model = None if judge_url is None else "small"
    settings = Settings(scoring=Scoring(judge_url=judge_url, judge_model=model, timeout_s=5.0))
    with client(settings, OpenLog(settings)) as http:
        sent = {"query": "Why are there tides?", "documents": texts, "method": "judge", **body}
        return http.post("/rag/rerank", json=sent)


def test_texts_are_reranked_by_the_scores_of_a_judge() -> None:
    with judging(*(says({"score": score}) for score in (1, 10, 4, 4))) as judge:
        answer = rerank_by(judge.url, ["Rope.", "The moon.", "Ebb.", "Flow."], limit=3).json()
    assert [(row["index"], row["score"], row["text"]) for row in answer["data"]] == [
        (1, 1.0, "The moon."),
        (2, 0.4, "Ebb."),
        (3, 0.4, "Flow."),
    ]
    assert (answer["method"], answer["model"]) == ("judge", "small")
    asked = [body["messages"][0]["content"] for _, _, body in judge.requests]
    assert len(asked) == 4 and all("Why are there tides?" in text for text in asked)
    assert ["Ebb." in text for text in asked] == [False, False, True, False]


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (says("The moon is a good answer."), "gave 0 JSON objects with a score of its own"),
        (says({"score": "high"}), "gave score 'high'; expected a number from 0 to 10"),
        (says('{"score": NaN}'), "gave score nan; expected a number from 0 to 10"),
        (raw(b"overloaded", 503), "answered HTTP 503: 'overloaded'"),
    ],
)
def test_a_text_that_the_judge_does_not_score_is_named_and_none_is_ordered(second: Any, problem: str) -> None:
    with judging(says({"score": 1}), second) as judge:
        answer = rerank_by(judge.url, ["Rope.", "The moon.", "Ebb."])
    assert answer.status_code == 503 and answer.json().keys() == {"error"}, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith("the judge did not score documents[1]: judge_") and problem in message
    assert len(judge.requests) == 2, "the judge is not asked about the others"


@pytest.mark.parametrize(
    ("url", "texts", "status", "problem"),
    [
        (
            "http://127.0.0.1:9/v1",
            2,
            503,
            r"documents\[0\]: judge_unreachable: judge at http://127.0.0.1:9/v1/\S+ cannot be reached",
        ),
        ("http://127.0.0.1:9/v1", 21, 400, "21 texts are a request to the judge each; send at most 20"),
        (None, 2, 400, "set scoring.judge_url"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_an_error_that_says_why(
    url: str | None, texts: int, status: int, problem: str
) -> None:
    answer = rerank_by(url, ["a text"] * texts)
    assert answer.status_code == status and answer.json().keys() == {"error"}, answer.text
    assert re.search(problem, answer.json()["error"]["message"]), answer.text


def test_an_embedder_that_is_unreachable_is_an_error_that_says_so(tmp_path: Path) -> None:
    settings = with_model(Settings(), "http://127.0.0.1:9/v1/embeddings#m", tmp_path)
    with client(settings, OpenLog(settings)) as http:
        answer = http.post("/rag/rerank", json={"query": "Why are there tides?", "documents": ["Rope.", "The moon."]})
    assert answer.status_code == 503 and answer.json().keys() == {"error"}, answer.text
    assert "embeddings of http://127.0.0.1:9/v1/embeddings: " in answer.json()["error"]["message"]


def test_files_are_added_listed_searched_and_removed_on_the_command_line(made: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "sea"
    folder.mkdir()
    for name, text in SEA.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "crew.jsonl").write_text('{"name": "ann", "text": "Ann steers.", "rank": "captain"}\n', encoding="utf-8")
    add = ("documents", "add", "sea", str(folder), "--metadata", "kind=note", "--output", "jsonl")
    assert {row["document_id"] for row in rows_of(invoke(made, *add))} == {
        *(f"sea/{name}" for name in SEA),
        "sea/crew.jsonl/ann",
    }
    assert {row["outcome"] for row in rows_of(invoke(made, *add))} == {"unchanged"}
    hits = rows_of(invoke(made, "search", "hemp rope", "--limit", "1", "--output", "jsonl"))
    assert (hits[0]["document_id"], hits[0]["text"]) == ("sea/rope.html", "Rope\nRope is made of hemp.")
    ranked = rows_of(invoke(made, "search", "Ann steers", "--filter", '{"rank": "captain"}', "--output", "jsonl"))
    assert [(hit["document_id"], hit["metadata"]) for hit in ranked] == [
        ("sea/crew.jsonl/ann", {"kind": "note", "rank": "captain"})
    ]
    assert invoke(made, "documents", "remove", "sea/tides.txt").exit_code == 0
    assert len(rows_of(invoke(made, "documents", "list", "--index", "sea", "--output", "jsonl"))) == 3
    gone = invoke(made, "documents", "show", "sea/tides.txt")
    assert gone.exit_code == 3 and "there is no document 'sea/tides.txt'" in gone.output
    sql = "SELECT document_id, characters FROM current_documents ORDER BY document_id"
    assert [row["document_id"] for row in rows_of(invoke(made, "query", sql, "--output", "jsonl"))] == [
        "sea/crew.jsonl/ann",
        "sea/rope.html",
        "sea/waves.md",
    ]


def test_the_weight_of_vectors_is_chosen_on_one_half_of_questions_and_measured_on_the_other(
    made: Settings, tmp_path: Path
) -> None:
    with KnowledgeIndex(made) as documents:
        documents.put([DocumentDraft(f"sea/{n}", f"Buoy w{n} floats.", "text/plain") for n in range(40)], ANN)
    questions = tmp_path / "questions.jsonl"
    lines = [json.dumps({"query": f"w{number}", "document_id": f"sea/{number}"}) for number in range(40)]
    questions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = rows_of(invoke(made, "documents", "weigh", "sea", str(questions), "--output", "jsonl"))
    (chosen,) = [row for row in rows if row["chosen"]]
    assert rows[0]["weight"] == 0.0 and rows[0]["held_out"] == 1.0, "a word that only one document has is found by it"
    assert chosen["development"] == max(row["development"] for row in rows) == 1.0
    questions.write_text("\n".join([*lines[:5], "[]"]), encoding="utf-8")
    refused = invoke(made, "documents", "weigh", "sea", str(questions))
    assert refused.exit_code == 2 and "questions.jsonl:6: expected {'query'" in refused.output
