"""Further signals: a text-classification model in this process, and a moderation endpoint elsewhere.

    text ──► model of a folder or hub id ──► {label: probability} ──┐
         ──► POST /v1/moderations of a URL ──► category_scores  ────┴──► scores by category

The model is loaded at the first text. A text longer than the model reads is cut in pieces, of which the highest score
counts. An endpoint gets the text: what must not leave the machine needs a model here.

Not covered: which labels are bad; `guardrails.classifier_labels` says it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import httpx2

from schemas import json_text
from streams.egress.address_guard import EgressRefused
from streams.egress.http_client import AnswerTooLarge, bearer, fetch, new_client
from streams.errors import BadAnswer, ModelServerError, ServerUnavailable

MOST_PIECES = 16
MOST_BYTES = 1_000_000


class TextClassifier:
    """A model of transformers' `text-classification`, on the processor."""

    def __init__(self, model: str) -> None:
        self.name, self._loading = model, threading.Lock()
        self._parts: tuple[Any, Any] | None = None

    def scores(self, text: str) -> Mapping[str, float]:
        """Return the probability of each label, the highest of any piece. Raises ServerUnavailable."""
        import torch

        tokenizer, model = self._load()
        longest = min(getattr(tokenizer, "model_max_length", 512), model.config.max_position_embeddings or 512, 512)
        pieces = tokenizer(
            text, truncation=True, max_length=longest, return_overflowing_tokens=True, stride=32, padding=True,
            return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            fields = {name: pieces[name][:MOST_PIECES] for name in ("input_ids", "attention_mask")}
            logits = model(**fields).logits
        is_multi_label = model.config.problem_type == "multi_label_classification"
        likely = (logits.sigmoid() if is_multi_label else logits.softmax(-1)).max(0).values
        return {str(model.config.id2label[place]).lower(): float(score) for place, score in enumerate(likely)}

    def _load(self) -> tuple[Any, Any]:
        with self._loading:
            if self._parts is None:
                from transformers import AutoModelForSequenceClassification, AutoTokenizer

                from streams.engines.base_model import check_hub_requests

                check_hub_requests()
                try:
                    tokenizer = AutoTokenizer.from_pretrained(self.name)
                    model = AutoModelForSequenceClassification.from_pretrained(self.name)
                except (EgressRefused, OSError, ValueError) as exc:
                    problem = f"guardrails.classifier={self.name} cannot be loaded ({type(exc).__name__})"
                    raise ServerUnavailable(problem, lost=False) from exc
                self._parts = tokenizer, model.eval()
            return self._parts


class ModerationEndpoint:
    """A server with OpenAI's `POST /v1/moderations`."""

    def __init__(self, url: str, model: str, key: str | None, timeout_s: float) -> None:
        """Raises SettingsError for a key that is no header's value."""
        self.name, self._url, self._model = f"{url}#{model}" if model else url, url.rstrip("/"), model
        self._headers, self._timeout_s = bearer(key, "guardrails.moderation_key"), timeout_s

    def scores(self, text: str) -> Mapping[str, float]:
        """Return the score of each category. Raises ServerUnavailable, BadAnswer; neither repeats the text."""
        body = {"input": text} | ({"model": self._model} if self._model else {})
        try:
            with new_client(headers=self._headers) as client:
                status, answer = fetch(
                    client,
                    "POST",
                    f"{self._url}/moderations",
                    json=body,
                    limit_s=self._timeout_s,
                    most_bytes=MOST_BYTES,
                )
            if status != 200:
                raise ServerUnavailable(f"guardrails.moderation_url answered {status}", lost=False)
            [result] = json_text.parse(answer.decode())["results"]
            return {str(name): float(score) for name, score in result["category_scores"].items()}
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ServerUnavailable(f"guardrails.moderation_url: {type(exc).__name__}", lost=False) from None
        except (AnswerTooLarge, ValueError, KeyError, TypeError, AttributeError):
            raise BadAnswer("guardrails.moderation_url: its answer is no moderation") from None


OutsideModel = TextClassifier | ModerationEndpoint
OUTSIDE_ERRORS = (ModelServerError, ImportError)
