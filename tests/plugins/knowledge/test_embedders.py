"""An embedder gives a text the same vector whatever is embedded with it, and so does /v1/embeddings."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.log.open_log import OpenLog
from plugins.knowledge.embedders import embedder, local_embedder
from plugins.knowledge.embedders.minilm import model_folder
from plugins.knowledge.embedders.static_vectors import DIMENSIONS, EVENNESS, SMOOTHING, ZIPF_OFFSET, component_table
from plugins.knowledge.rooms.embeddings import Embeddings
from streams.errors import ProviderError, SettingsError
from streams.settings.model import Settings
from tests.plugins.knowledge.strangers import suite
from tests.strangers import exchanges
from tests.strangers.replay import differences
from tests.support.doubles.loopback_http import serving

TEXTS = ["A cat sleeps.", "The kitten naps.", "Car engines need oil.", "Ünïcode, 12.5 % and 東京", "", "tide " * 10_000]


@pytest.mark.parametrize("name", ["static", "minilm"])
def test_a_vector_has_unit_length_and_does_not_depend_on_the_other_texts(name: str) -> None:
    model = embedder(name)
    together = model.embed(TEXTS)
    assert together.shape == (len(TEXTS), model.dimensions) and together.dtype == np.float32
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert np.array_equal(together, np.concatenate([model.embed([text]) for text in TEXTS]))
    cats, cars = together[0] @ together[1], together[0] @ together[2]
    assert cats > cars + 0.2
    assert model.embed([]).shape == (0, model.dimensions)


def test_minilm_is_the_mean_of_the_states_that_the_library_computes() -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = TEXTS[:4]
    batch = AutoTokenizer.from_pretrained(model_folder())(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(model_folder())(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None]
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
    assert np.allclose(embedder("minilm").embed(texts), means, atol=1e-5)


def test_distilled_components_are_uncorrelated_and_evened_out_by_their_variance() -> None:
    rng = np.random.default_rng(0)
    states = (rng.normal(size=(3000, 384)) * np.linspace(3, 0.1, 384)).astype(np.float32)
    ranks = np.arange(3000) + ZIPF_OFFSET
    table = component_table(states).astype(np.float64) * (1 + 1 / ranks / (1 / ranks).sum() / SMOOTHING)[:, None]
    covariance = np.cov(table.T)
    variances = np.linalg.svd(states - states.mean(0), compute_uv=False)[:DIMENSIONS] ** 2
    expected = variances ** (1 - 2 * EVENNESS)
    assert np.allclose(np.diag(covariance) / covariance[0, 0], expected / expected[0], rtol=0.01)
    spread = np.sqrt(np.diag(covariance))
    assert np.abs(covariance / np.outer(spread, spread) - np.eye(DIMENSIONS)).max() < 0.01


@pytest.mark.parametrize("name", ["bm25", "http://127.0.0.1:1/v1/embeddings", "ftp://127.0.0.1/#a"])
def test_an_unknown_embedder_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(SettingsError, match="expected static, minilm, or the URL"):
        embedder(name)


# --- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    room = Embeddings(Settings(), OpenLog(Settings()))
    with TestClient(Application([room], version="0", max_body_bytes=10_000_000)) as made:
        yield made


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/embeddings", json={"model": "static", **body})


def test_the_route_answers_with_the_vectors_of_texts_as_numbers_or_base64(client: TestClient) -> None:
    vectors = embedder("static").embed(TEXTS[:3])
    plain = post(client, input=TEXTS[:3]).json()
    assert [(row["index"], row["object"]) for row in plain["data"]] == [(n, "embedding") for n in range(3)]
    assert plain["object"] == "list"
    assert np.array_equal(np.float32([row["embedding"] for row in plain["data"]]), vectors)
    raw = post(client, input=TEXTS[1], encoding_format="base64").json()["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(raw), "<f4"), vectors[1])


def test_token_ids_are_embedded_as_their_text_and_counted(client: TestClient) -> None:
    [ids] = local_embedder("minilm").token_ids(TEXTS[:1])
    for model in ("static", "minilm"):
        text, tokens = (post(client, model=model, input=value).json() for value in (TEXTS[0], ids))
        assert text == tokens and text["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        both = post(client, model=model, input=[ids, ids]).json()
        assert [row["embedding"] for row in both["data"]] == [text["data"][0]["embedding"]] * 2


def test_fewer_dimensions_are_the_first_at_unit_length(client: TestClient) -> None:
    [vector] = embedder("static").embed(TEXTS[:1])
    short = np.float32(post(client, input=TEXTS[0], dimensions=16).json()["data"][0]["embedding"])
    assert np.allclose(short, vector[:16] / np.linalg.norm(vector[:16]), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"model": "text-embedding-3-small", "input": "a"}, 404, "there are static, minilm"),
        ({"input": "a", "dimensions": 257}, 400, "static has 256 dimensions, not 257"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [[5, 30522]]}, 400, r"input\[0\]: 30522 is no token; ids of static are below 30522"),
        ({"input": ["a", "tide " * 9000]}, 400, r"input\[1\] has 9000 tokens, and static reads 8192"),
        ({"model": "minilm", "input": "tide " * 300}, 400, r"input\[0\] has 300 tokens, and minilm reads 254"),
        ({"input": ["tide " * 8000] * 40}, 413, "320000 tokens, of at most 300000"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_place(
    client: TestClient, body: dict[str, Any], status: int, problem: str
) -> None:
    answer = post(client, **body)
    assert answer.status_code == status, answer.text
    assert re.search(problem, answer.json()["error"]["message"]), answer.text


def test_requests_of_openai_python_are_answered_as_when_they_were_recorded(client: TestClient) -> None:
    recorded = exchanges.recorded(suite.FILE)
    assert len(recorded) > 20
    assert differences(client, recorded) == []


# --- a server's -------------------------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, answer: Any) -> Iterator[str]:
    """Yield the URL of a server that answers every request alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as address:
        yield f"http://{address}/v1/embeddings#some-model"


def test_vectors_of_a_server_are_put_in_order_and_at_unit_length() -> None:
    rows = [
        {"index": 1, "embedding": [0.0, 2.0]},
        {"index": 0, "embedding": base64.b64encode(b"\0\0\x80\x3f" * 2).decode()},
    ]
    with answering(200, {"data": rows}) as url:
        vectors = embedder(url).embed(["a", "b"])
    assert np.allclose(vectors, [[0.5**0.5] * 2, [0, 1]])


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (500, {"error": "broken"}, "HTTP 500: .*broken"),
        (200, {"data": [{"index": 0, "embedding": "?"}]}, "no list of embeddings"),
        (200, {"data": [{"index": 0, "embedding": [1.0]}] * 2}, "2 vectors for 1 texts"),
    ],
)
def test_a_server_that_does_not_embed_is_named_with_what_it_said(status: int, answer: Any, problem: str) -> None:
    with answering(status, answer) as url, pytest.raises(ProviderError, match=problem):
        embedder(url).embed(["a"])
