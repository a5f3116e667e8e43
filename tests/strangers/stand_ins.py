"""What openai-python's own tests name, put in the place of what a mock answers without.

    model "string"           ──► the served one            no prompt, no method  ──► one
    /files/FILE              ──► one that was uploaded      a file of no JSON lines, for assistants ──► one to train on
    /fine_tuning/jobs/JOB    ──► one that was just ordered; before `resume` it is paused
    after=…                  ──► nothing: a list begins at its beginning

Jobs that tests paused are cancelled before jobs are listed: the client's types have no status `paused`, although
OpenAI's reference has, and one such job would fail every list. What a test says beside these goes through as it is, and
is refused where it has no meaning here.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import httpx

from tests.strangers.proxy import Mend

FILE = re.compile(r"(/v1/files/)([^/?]+)")
AFTER = re.compile(r"after=[^&]*&?")
JOB = re.compile(r"(/v1/fine_tuning/jobs/)([^/?]+)")
ROW = {"messages": [{"role": "user", "content": "1 + 1 ="}], "answer": "2"}
GRADER = {
    "type": "string_check",
    "name": "right",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
METHOD = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
CONFIG = {"held_out_share": 0}


def mended(model: str, server: str) -> Mend:
    """Return what puts in the model, and files and jobs of this server."""
    numbers = itertools.count()
    paused: list[str] = []

    def post(path: str, **what: Any) -> str:
        answer = httpx.post(f"{server}/v1/{path}", timeout=60, **what).raise_for_status()
        return str(answer.json()["id"])

    def file() -> str:
        row = json.dumps({**ROW, "number": next(numbers)}).encode()
        return post("files", files={"file": ("one.jsonl", row)}, data={"purpose": "fine-tune"})

    def job() -> str:
        order = {"model": model, "training_file": file(), "method": METHOD, "config": CONFIG}
        return post("fine_tuning/jobs", json=order)

    def mend(method: str, path: str, raw: bytes) -> tuple[str, bytes]:
        path = AFTER.sub("", path)
        folder, _, _ = path.rpartition("/")
        if folder.endswith("/models"):
            return f"{folder}/{model}", raw
        if path == "/v1/files" and method == "POST":
            row = json.dumps({**ROW, "number": next(numbers)}).encode()
            return path, raw.replace(b"Example data", row).replace(b"assistants", b"fine-tune")
        if (found := FILE.match(path)) is not None:
            return path.replace(found[2], file(), 1), raw
        if (found := JOB.match(path)) is not None:
            name = job()
            if path.endswith("/resume"):
                post(f"fine_tuning/jobs/{name}/pause")
            if path.endswith("/pause"):
                paused.append(name)
            return path.replace(found[2], name, 1), raw
        if path.startswith("/v1/fine_tuning/jobs") and method == "GET":
            while paused:
                post(f"fine_tuning/jobs/{paused.pop()}/cancel")
        body = json.loads(raw) if raw else None
        if not isinstance(body, dict):
            return path, raw
        body["model"] = model
        if path.endswith("/responses"):
            body.setdefault("input", "This is a test.")
        if path == "/v1/fine_tuning/jobs":
            body |= {"training_file": file(), "config": CONFIG, "method": body.get("method", METHOD)}
        return path, json.dumps(body).encode()

    return mend
