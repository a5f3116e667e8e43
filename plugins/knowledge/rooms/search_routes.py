"""Search over HTTP: chunks of an index for a query, and texts in a better order.

    POST /rag/query {query, index, filter} ──► words and vectors ──► chunks, best first
    POST /rag/rerank {query, documents, method} ──► fusion, maximal marginal relevance, or a judge model ──► scores

A chunk is data: it is returned as its author wrote it, and the server reads nothing into it.

Not covered: a model that was trained to rerank. `judge` asks the model of scoring.judge_url for scores.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, Whole
from gateway.http.principal import tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from plugins.knowledge.embedders import embedder
from plugins.knowledge.index.corpus import Hit, SearchMode, SearchQuery
from plugins.knowledge.index.generation import index_of
from plugins.knowledge.index.knowledge_index import KnowledgeIndex
from plugins.knowledge.index.text_ranking import fuse
from plugins.knowledge.log.knowledge_settings import Knowledge
from plugins.knowledge.rooms.document_routes import READ
from schemas.events import Message, RewardSource, Task
from schemas.faults import nearest
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import CallError, SettingsError
from streams.settings.model import Settings
from streams.stages.scoring.trial import try_answers

MOST_CHARACTERS = 100_000
MOST_HITS = 100
MOST_JUDGED = 20
JUDGE = RewardSource(
    name="judge", settings=json.dumps({"rubric": "A good answer is a text that says what the question asks for."})
)
LISTED = "GET /rag/documents lists documents, whose names begin with their index"
Text = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")]
RerankMethod = Literal["fusion", "mmr", "judge"]


class SearchBody(Body):
    """A search."""

    query: Text
    index: str | None = Field(None, description="where; default: the only one")
    limit: Whole = Field(5, ge=1, le=MOST_HITS, description="chunks at most")
    mode: SearchMode = Field("hybrid", description="what ranks: words (BM25), vectors, or both by reciprocal ranks")
    weight: float | None = Field(None, ge=0, le=1, description="share of vectors in hybrid; default: knowledge.weight")
    filter: dict[str, str | list[str]] = Field(
        default_factory=dict, description="metadata that a document has to have: a value, or one of several"
    )
    wait_s: float = Field(30, ge=0, le=300, description="how long to wait for an index that is being made, seconds")


class FoundChunk(Answer):
    """A chunk of a document."""

    document_id: str
    chunk: int = Field(description="its number in the document, from 0")
    start: int = Field(description="of its first character in the document")
    end: int
    text: str
    score: float = Field(description="of its ranks; 1: the first of every ranking")
    word_rank: int | None
    vector_rank: int | None
    source: str | None
    metadata: dict[str, str]


class SearchAnswer(Answer):
    """Chunks, best first."""

    object: Literal["list"]
    data: list[FoundChunk]
    index: str
    digest: str = Field(description="of the index: the same digest and query, the same chunks")
    embedder: str


class RerankBody(Body):
    """Texts to order by how well they answer a query."""

    query: Text
    documents: list[Text] = Field(min_length=2, max_length=MOST_HITS)
    method: RerankMethod = Field(
        "fusion",
        description="fusion: words and vectors; mmr: maximal marginal relevance, which avoids repetition; "
        "judge: the model of scoring.judge_url scores them. None of them is a trained reranker",
    )
    diversity: float = Field(0.3, ge=0, le=1, description="of mmr: share of what differs from the texts before")
    limit: Whole | None = Field(None, ge=1, le=MOST_HITS, description="texts at most; default: all")


class RerankedText(Answer):
    """A text in its new place."""

    index: int = Field(description="its place in the request, from 0")
    score: float
    text: str


class RerankAnswer(Answer):
    """Texts, best first."""

    object: Literal["list"]
    data: list[RerankedText]
    method: RerankMethod
    model: str = Field(description="the embedder, or the judge")


HIT = FoundChunk(
    document_id="sea/tides",
    chunk=0,
    start=0,
    end=25,
    text="The moon makes the tides.",
    score=1.0,
    word_rank=1,
    vector_rank=1,
    source="tides.txt",
    metadata={"topic": "moon"},
)
DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


class SearchRoutes:
    """Searches. Methods wait for the broker, for an index that is made, and for the judge."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log = settings, log

    @REST.post(
        "/rag/query",
        may=READ,
        ids=LISTED,
        refuses=(404,),
        at_once=AT_ONCE,
        sends={"query": "Why are there tides?", "index": "sea", "limit": 1},
        example=SearchAnswer(object="list", data=[HIT], index="sea", digest=DIGEST, embedder="static"),
        tools={"search_documents": ""},
    )
    def search_documents(self, request: Request, body: SearchBody) -> SearchAnswer:
        """Find the chunks of documents that say most about a query."""
        documents, tenant = self._log.registry(KnowledgeIndex), tenant_of(request)
        index = only_index(documents, tenant) if body.index is None else named(tenant, body.index)
        weight = self._settings.of_plugin(Knowledge).weight if body.weight is None else body.weight
        query = SearchQuery(body.query, None, body.limit, weight, body.filter, body.mode)
        answer = documents.search(index, query, body.wait_s)
        return SearchAnswer(
            object="list",
            data=[_chunk(hit) for hit in answer.hits],
            index=index,
            digest=answer.digest,
            embedder=answer.recipe.embedder,
        )

    @REST.post(
        "/rag/rerank",
        may=READ,
        refuses=(),
        at_once=AT_ONCE,
        sends={"query": "Why are there tides?", "documents": ["The wind makes waves.", "The moon makes the tides."]},
        example=RerankAnswer(
            object="list",
            data=[
                RerankedText(index=1, score=1.0, text="The moon makes the tides."),
                RerankedText(index=0, score=0.98, text="The wind makes waves."),
            ],
            method="fusion",
            model="static",
        ),
    )
    def rerank_texts(self, request: Request, body: RerankBody) -> RerankAnswer:
        """Order texts by how well they answer a query."""
        if body.method == "judge":
            model, scores = self._ask_judge(body)
        else:
            model = self._settings.of_plugin(Knowledge).embedder
            vectors = embedder(model).embed([body.query, *body.documents])
            weight = self._settings.of_plugin(Knowledge).weight
            is_fused = body.method == "fusion"
            scores = fuse(body.query, body.documents, vectors, weight) if is_fused else _diversify(body, vectors)
        order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[: body.limit]
        data = [RerankedText(index=place, score=scores[place], text=body.documents[place]) for place in order]
        return RerankAnswer(object="list", data=data, method=body.method, model=model)

    def _ask_judge(self, body: RerankBody) -> tuple[str, list[float]]:
        """Return the judge's name, and its score of each text. Raises CallError."""
        if len(body.documents) > MOST_JUDGED:
            problem = f"{len(body.documents)} texts are a request to the judge each; send at most {MOST_JUDGED}"
            raise CallError("invalid", problem, "documents")
        task = Task(task_id="rerank", created_at=0, policy="", messages=(Message(role="user", content=body.query),))
        scores = list[float]()
        try:
            for outcome in try_answers(self._settings.scoring, JUDGE, ((task, text) for text in body.documents)):
                if outcome.value is None:
                    raise CallError("busy", f"the judge did not score documents[{len(scores)}]: {outcome.error}")
                scores.append(outcome.value)
        except SettingsError as exc:
            raise CallError("unsupported", str(exc), "method") from exc
        return str(self._settings.scoring.judge_model), scores


def only_index(documents: KnowledgeIndex, tenant: str | None) -> str:
    """Return a tenant's index if it has only one. Raises CallError that names them."""
    names = {index_of(name) for name in own_of(tenant, documents.states)}
    if len(names) == 1:
        return names.pop()
    raise CallError("invalid", f"index is not given, and there are {len(names)}; {nearest('', names)}", "index")


def _chunk(hit: Hit) -> FoundChunk:
    document, chunk = hit.row.document, hit.row.chunk
    return FoundChunk(
        document_id=document.document_id,
        chunk=chunk.ordinal,
        start=chunk.start,
        end=chunk.end,
        text=hit.row.text,
        score=hit.score,
        word_rank=hit.word_rank,
        vector_rank=hit.vector_rank,
        source=document.source,
        metadata=dict(document.metadata),
    )


def _diversify(body: RerankBody, vectors: np.ndarray) -> list[float]:
    """Return scores by maximal marginal relevance (Carbonell and Goldstein 1998): the share of the places after it."""
    near, alike = vectors[1:] @ vectors[0], vectors[1:] @ vectors[1:].T
    places, order = {*range(len(near))}, list[int]()
    while places:
        repetition = alike[:, order].max(axis=1) if order else np.zeros(len(near))
        worth = (1 - body.diversity) * near - body.diversity * repetition
        order.append(min(places, key=lambda place: (-worth[place], place)))
        places.remove(order[-1])
    return [1 - order.index(place) / len(order) for place in range(len(order))]
