"""OpenAI's embeddings, of the embedders that run here.

    POST /v1/embeddings {model, input} ──► tokens ──► vectors ──► cut to `dimensions`, unit length ──► float or base64

`model` is `static` or `minilm`. Token ids are those of MiniLM's tokenizer, which both read.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.agents.completions import TokenId
from gateway.http.body import Answer, Body, Whole
from gateway.http.request_record import record_of
from gateway.http.route import CONVERSATION, OPENAI
from gateway.log.open_log import OpenLog
from plugins.knowledge.embedders import LOCAL, TokenEmbedder, local_embedder
from plugins.knowledge.embedders.minilm import unit_rows
from schemas.faults import Ignored
from streams.errors import CallError, SettingsError
from streams.settings.model import Settings

MOST_TEXTS = 2048
MOST_TOKENS = 300_000
"""Of all texts of a request."""
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]


class EmbeddingsBody(Body):
    """Texts to embed."""

    model: str = Field(description="`static`, or `minilm`, which is better and 100 times slower (docs/knowledge.md)")
    input: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
        | Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_TEXTS)]
    ) = Field(description=f"a text or its token ids, or up to {MOST_TEXTS} of either")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32; default: float"
    )
    dimensions: Whole | None = Field(None, ge=1, description="the first so many numbers, at unit length; default: all")
    user: Annotated[str | None, Ignored("nothing is recorded of it")] = None


class EmbeddingAnswer(Answer):
    """The vector of a text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(Answer):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(Answer):
    """The vectors of texts, in their order."""

    object: Literal["list"]
    data: list[EmbeddingAnswer]
    model: str
    usage: EmbeddingsUsage


class Embeddings:
    """The route. It computes in a thread."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        pass

    @OPENAI.post(
        "/embeddings",
        may="chat.call",
        refuses=(404,),
        **CONVERSATION,
        max_numbers=MOST_TOKENS,
        at_once=4,
        sends={"model": "static", "input": "Where do penguins live?", "dimensions": 2},
        example=EmbeddingsAnswer(
            object="list",
            data=[EmbeddingAnswer(object="embedding", index=0, embedding=[0.6, -0.8])],
            model="static",
            usage=EmbeddingsUsage(prompt_tokens=6, total_tokens=6),
        ),
    )
    def create_embeddings(self, request: Request, body: EmbeddingsBody) -> EmbeddingsAnswer:
        """Make vectors of texts."""
        model = _embedder(body.model)
        if body.dimensions is not None and body.dimensions > model.dimensions:
            raise CallError(
                "invalid", f"{body.model} has {model.dimensions} dimensions, not {body.dimensions}", "dimensions"
            )
        rows = _token_rows(body, model)
        count = sum(map(len, rows))
        vectors = model.embed_tokens(rows)
        if body.dimensions is not None:
            vectors = unit_rows(vectors[:, : body.dimensions])
        if (record := record_of(request)) is not None:
            record.prompt_tokens = count
        is_base64 = body.encoding_format == "base64"
        return EmbeddingsAnswer(
            object="list",
            data=[
                EmbeddingAnswer(
                    object="embedding",
                    index=index,
                    embedding=base64.b64encode(row.astype("<f4").tobytes()).decode() if is_base64 else row.tolist(),
                )
                for index, row in enumerate(vectors)
            ],
            model=body.model,
            usage=EmbeddingsUsage(prompt_tokens=count, total_tokens=count),
        )


def _embedder(name: str) -> TokenEmbedder:
    """Return an embedder. Raises CallError for an unknown one, or one that is not installed."""
    if name not in LOCAL:
        raise CallError("not_found", f"there is no embedding model {name[:100]}; there are {', '.join(LOCAL)}", "model")
    try:
        return local_embedder(name)
    except SettingsError as exc:
        raise CallError("unsupported", str(exc), "model") from exc


def _token_rows(body: EmbeddingsBody, model: TokenEmbedder) -> list[list[int]]:
    """Return the tokens of each text. Raises CallError for too many, and for ids that are no tokens."""
    texts = body.input if isinstance(body.input, list) else [body.input]
    if isinstance(texts[0], int):
        texts = [texts]
    rows = model.token_ids(texts) if isinstance(texts[0], str) else texts
    for number, row in enumerate(rows):
        place = f"input[{number}]"
        if len(row) > model.most_tokens:
            problem = f"{place} has {len(row)} tokens, and {body.model} reads {model.most_tokens}; send shorter parts"
            raise CallError("context_length_exceeded", problem, place)
        if (highest := max(row)) >= model.vocabulary:
            raise CallError(
                "invalid", f"{place}: {highest} is no token; ids of {body.model} are below {model.vocabulary}", place
            )
    if (count := sum(map(len, rows))) > MOST_TOKENS:
        raise CallError("too_large", f"input has {count} tokens, of at most {MOST_TOKENS}; send it in parts", "input")
    return rows
