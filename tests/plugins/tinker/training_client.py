"""A training loop as others write them: it computes, steps, saves, samples, and asks again until it has each result.

    python training_client.py URL JOURNAL BASE SEED ──► /api/v1/… ──► a line in JOURNAL for each result

It knows the Tinker API and nothing else. What it does next depends on what was sampled. Killed and started again, it
reads the id of its session from the journal and sends every call once more: the server knows them by their numbers.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STEPS = 12
SAMPLES = 3
PAUSE_S = 0.1
LIMIT_S = 60.0
"""How long an answer may take to come; the server gives the client of a pending result one before that."""


class Refused(Exception):
    """The server will not take this call, however often it is sent."""


class TrainingClient:
    """One session with one model."""

    def __init__(self, url: str, journal: Path, base: str, seed: int) -> None:
        self._url, self._journal, self._base, self._draw = urlsplit(url), journal, base, random.Random(seed)
        self._seq = 0

    def run(self) -> None:
        """Train, sampling now and then from what was trained, and save twice."""
        session = self._session()
        model = self._result("create_model", session_id=session, model_seq_id=0, base_model=self._base,
                             lora_config={"rank": 4, "seed": 5})["model_id"]  # fmt: skip
        prompt = [self._draw.randrange(5, 40) for _ in range(6)]
        for step in range(STEPS):
            saved = self._call(model, "save_weights_for_sampler", sampling_session_seq_id=step)
            sampler, answers = saved["sampling_session_id"], []
            for number in range(2):
                drawn = self._result(
                    "asample", sampling_session_id=sampler, seq_id=number, num_samples=SAMPLES,
                    prompt=_chunk(prompt), sampling_params={"max_tokens": 5, "stop": []},
                )  # fmt: skip
                answers += [sequence["tokens"] for sequence in drawn["sequences"]]
            for answer in answers[:2]:
                self._call(model, "forward_backward", forward_backward_input=_batch(prompt, answer))
            self._call(model, "optim_step", adam_params={"learning_rate": 0.01})
            if step == STEPS // 2:
                self._call(model, "save_weights", path="middle")
        self._call(model, "save_weights", path="last")
        self._note({"done": model})

    def _session(self) -> str:
        """Return the id of the session, which the first run of this program begins."""
        if self._journal.exists() and (lines := self._journal.read_text().splitlines()):
            return str(json.loads(lines[0])["session"])
        session = self._post("create_session", {"tags": [], "user_metadata": None, "sdk_version": "chaos"})
        self._note({"session": session["session_id"]})
        return str(session["session_id"])

    def _call(self, model: str, kind: str, **fields: Any) -> dict[str, Any]:
        self._seq += 1
        return self._result(kind, model_id=model, seq_id=self._seq, **fields)

    def _result(self, kind: str, **body: Any) -> dict[str, Any]:
        """Send a call, and return its result."""
        request_id = self._post(kind, body)["request_id"]
        while True:
            answer = self._post("retrieve_future", {"request_id": request_id})
            if answer.get("type") == "try_again":
                continue
            if "error" in answer:
                raise Refused(f"{kind}: {answer}")
            self._note({"call": request_id})
            return answer

    def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                status, answer = self._once(route, json.dumps(body).encode())
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(PAUSE_S)
                continue
            if status == 200 or (status == 408 and answer.get("type") == "try_again"):
                return answer
            if status < 500 and status not in (408, 409, 429):
                raise Refused(f"{route}: {status} {answer}")
            time.sleep(PAUSE_S)

    def _once(self, route: str, body: bytes) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(self._url.netloc, timeout=LIMIT_S)
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            connection.request("POST", f"/api/v1/{route}", body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _note(self, line: dict[str, Any]) -> None:
        with self._journal.open("a") as journal:
            journal.write(json.dumps(line) + "\n")


def _chunk(tokens: list[int]) -> dict[str, Any]:
    return {"chunks": [{"type": "encoded_text", "tokens": tokens}]}


def _batch(prompt: list[int], answer: list[int]) -> dict[str, Any]:
    """Return an example that learns the answer to the prompt."""
    tokens = [*prompt, *answer]
    rows = len(tokens) - 1
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    inputs = {
        "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [rows]},
        "weights": {"data": weights, "dtype": "float32", "shape": [rows]},
    }
    return {"data": [{"model_input": _chunk(tokens[:-1]), "loss_fn_inputs": inputs}], "loss_fn": "cross_entropy"}


if __name__ == "__main__":
    TrainingClient(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])).run()
