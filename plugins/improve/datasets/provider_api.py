"""A fine-tuning provider with OpenAI's API: files and jobs.

    find_job, upload, create_job, read_job ──► fetch ──► /files, /fine_tuning/jobs ──► ProviderJob

A refusal is a RefusedError with the provider's message; no answer within a minute is a ProviderError.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Self

import httpx2

from schemas import json_text
from streams.egress.http_client import AnswerTooLarge, bearer, fetch, new_client
from streams.errors import ProviderError, RefusedError

ANSWER_S = 60.0
MOST_BYTES = 8 * 1024 * 1024
KEY = "streamward"
"""In the metadata of a job: the key of the submission."""
ENDED = ("succeeded", "failed", "cancelled")
PURPOSE = "fine-tune"


class ProviderJob(NamedTuple):
    """A job of a provider."""

    job: str
    status: str
    result: str | None
    """The model that came of it."""
    trained_tokens: int | None
    problem: str
    """Why it failed; empty: it has not."""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Self:
        """Return the job in an answer. Raises ProviderError if it has none."""
        job, status = answer.get("id"), answer.get("status")
        if not isinstance(job, str) or not isinstance(status, str):
            raise ProviderError(f"expected a job with id and status, got the keys {sorted(answer)[:9]}")
        model, tokens, error = (answer.get(name) for name in ("fine_tuned_model", "trained_tokens", "error"))
        return cls(
            job,
            status,
            model if isinstance(model, str) else None,
            tokens if isinstance(tokens, int) else None,
            str(error.get("message") or "") if isinstance(error, dict) else "",
        )


class ProviderApi:
    """One provider. Use as a context manager."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """`url`: up to /v1. Raises SettingsError for a key that no header can have."""
        self._url = url.rstrip("/")
        headers = bearer(api_key, "the provider's API key")
        self._client = new_client(headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def find_job(self, key: str) -> ProviderJob | None:
        """Return the job of a submission, or None."""
        parameters = {f"metadata[{KEY}]": key, "limit": "100"}
        jobs = self._request("GET", "/fine_tuning/jobs", params=parameters).get("data")
        for job in jobs if isinstance(jobs, list) else ():
            if isinstance(job, dict) and (job.get("metadata") or {}).get(KEY) == key:  # some ignore the parameter
                return ProviderJob.of(job)
        return None

    def upload(self, name: str, content: bytes) -> str:
        """Return the id of a file with this name and size; it is uploaded unless it is there."""
        files = self._request("GET", "/files", params={"purpose": PURPOSE}).get("data")
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and (file.get("filename"), file.get("bytes")) == (name, len(content)):
                return str(file.get("id"))
        body = {"data": {"purpose": PURPOSE}, "files": {"file": (name, content, "application/jsonl")}}
        return str(self._request("POST", "/files", **body).get("id"))

    def create_job(self, order: dict[str, Any], key: str) -> ProviderJob:
        """Order a job, and return it."""
        body = {**order, "metadata": {KEY: key}}
        return ProviderJob.of(self._request("POST", "/fine_tuning/jobs", json=body, headers={"Idempotency-Key": key}))

    def read_job(self, job: str) -> ProviderJob:
        """Return a job as it is now."""
        return ProviderJob.of(self._request("GET", f"/fine_tuning/jobs/{job}"))

    def _request(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        url = self._url + path
        try:
            status, body = fetch(self._client, method, url, limit_s=ANSWER_S, most_bytes=MOST_BYTES, **request)
        except (httpx2.HTTPError, httpx2.InvalidURL, AnswerTooLarge) as exc:
            raise ProviderError(f"{method} {url}: {exc or type(exc).__name__}; repeat the command to continue") from exc
        try:
            answer = json_text.parse(body)
        except ValueError as exc:
            raise ProviderError(f"{method} {url}: status {status}, and its answer is not JSON: {exc}") from exc
        if not isinstance(answer, dict):
            raise ProviderError(f"{method} {url}: status {status}, expected a JSON object, got {str(answer)[:80]}")
        if status in (408, 409, 429) or status >= 500:
            raise ProviderError(f"{method} {url}: status {status}: {_problem(answer)}; repeat the command to continue")
        if status >= 400:
            raise RefusedError(f"{method} {url}: status {status}: {_problem(answer)}")
        return answer


def _problem(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if isinstance(message, str) else json.dumps(answer))[:500]
