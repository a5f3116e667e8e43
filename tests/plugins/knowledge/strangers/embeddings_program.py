"""A program with openai-python, run by the strangers' Python: embeddings of every form, and what is refused.

python embeddings_program.py URL ──► a line of JSON: what it read
"""

from __future__ import annotations

import array
import asyncio
import base64
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types import CreateEmbeddingResponse

MODEL = "static"
TEXTS = ["A cat sleeps.", "The kitten naps."]
IDS = [[1037, 4937, 25126, 1012], [1996, 18401, 18996, 2015, 1012]]
"""Their tokens."""
REFUSED: dict[str, dict[str, Any]] = {
    "another model": {"model": "text-embedding-3-small"},
    "no text": {"input": ""},
    "no texts": {"input": []},
    "an empty text among others": {"input": ["a", ""]},
    "no tokens": {"input": [[]]},
    "no token of the vocabulary": {"input": [5, 30522]},
    "more tokens than the model reads": {"model": "minilm", "input": ["a", "tide " * 300]},
    "more texts than a request may have": {"input": ["a"] * 2049},
    "more numbers than there are": {"dimensions": 257},
    "no numbers": {"dimensions": 0},
    "another encoding": {"encoding_format": "int8"},
    "an unknown parameter": {"extra_body": {"truncate": True}},
}


def vectors(answer: CreateEmbeddingResponse) -> list[list[float]]:
    """Return the vectors of an answer, in its order."""
    return [row.embedding for row in answer.data]


def are_near(ours: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    """Return whether vectors are those of others, and of unit length."""
    units = all(abs(math.hypot(*vector) - 1) < 1e-5 for vector in ours)
    pairs = zip(ours, others, strict=True)
    return units and all(abs(a - b) < 1e-6 for left, right in pairs for a, b in zip(left, right, strict=True))


def facts(answer: CreateEmbeddingResponse) -> list[Any]:
    """Return what an answer says of itself."""
    rows = [[row.object, row.index, len(row.embedding)] for row in answer.data]
    return [type(answer).__name__, answer.object, answer.model, answer.usage.prompt_tokens, rows]


def refusal(call: Callable[[], Any]) -> list[Any]:
    """Return what the SDK makes of a refusal."""
    try:
        call()
    except openai.APIStatusError as exc:
        return [type(exc).__name__, exc.status_code, exc.code, exc.param]
    return []


def read_all(client: OpenAI) -> dict[str, Any]:
    """Return what was read of each form of request and answer."""
    create = client.embeddings.create
    both = create(model=MODEL, input=TEXTS)  # the SDK asks for base64, and decodes it
    expected = vectors(both)
    encoded = create(model=MODEL, input=TEXTS, encoding_format="base64")
    decoded = [array.array("f", base64.b64decode(row.embedding)).tolist() for row in encoded.data]  # type: ignore[arg-type]
    short = vectors(create(model=MODEL, input=TEXTS, dimensions=8))
    cut = [[number / math.hypot(*vector[:8]) for number in vector[:8]] for vector in expected]
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
    with client.embeddings.with_streaming_response.create(model=MODEL, input=TEXTS) as streamed:
        parsed = streamed.parse()
    asked: dict[str, Any] = {"model": MODEL, "input": TEXTS}
    return {
        "texts": facts(both),
        "a text": facts(create(model=MODEL, input=TEXTS[0])),
        "minilm": facts(create(model="minilm", input=TEXTS)),
        "numbers are those of base64": are_near(vectors(create(**asked, encoding_format="float")), expected),
        "base64 is of float32": are_near(decoded, expected),
        "a text is as among others": are_near(vectors(create(model=MODEL, input=TEXTS[0])), expected[:1]),
        "tokens are as their text": are_near(vectors(create(model=MODEL, input=IDS[0])), expected[:1]),
        "lists of tokens are, too": are_near(vectors(create(model=MODEL, input=IDS)), expected),
        "fewer numbers are the first": are_near(short, cut),
        "a user changes nothing": are_near(vectors(create(**asked, user="ann")), expected),
        "raw": [raw.status_code, raw.headers["content-type"], are_near(vectors(raw.parse()), expected)],
        "streamed": are_near(vectors(parsed), expected),
        "refused": {
            name: refusal(lambda changed=changed: create(**asked | changed)) for name, changed in REFUSED.items()
        },
    }


async def read_at_once(url: str) -> bool:
    """Return whether many calls of the asynchronous client get the vectors of their own texts."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        calls = [client.embeddings.create(model=MODEL, input=[text]) for text in TEXTS * 4]
        answers = await asyncio.gather(*calls)
        together = await client.embeddings.create(model=MODEL, input=TEXTS * 4)
    return are_near([vectors(answer)[0] for answer in answers], vectors(together))


def main(url: str) -> None:
    """Print what was read."""
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        read = read_all(client)
    print(json.dumps(read | {"asynchronous": asyncio.run(read_at_once(url))}))


if __name__ == "__main__":
    main(f"{sys.argv[1]}/v1")
