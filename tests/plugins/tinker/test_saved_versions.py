"""What a training loop of somebody else's saved is a version like any other: asked, tried, served, exported."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import Result
from peft import PeftModel
from safetensors.numpy import save

from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.worker import call_worker
from schemas.events import AdapterEvent, Message, Response, RewardSource, Sampling, TrainingResult
from schemas.tokens import Octets
from streams.adapters.versions import read_state
from streams.engines.base_model import Base
from streams.settings.model import Canary, Policy, Rollouts, Settings
from tests.chaos.proxy import free_ports
from tests.plugins.tinker.session_calls import MODEL, begin_session, create_model, numbered
from tests.support.commands import invoke, rows_of
from tests.support.factories import task
from tests.support.models.tiny import tiny_model
from tests.support.models.tiny_log import settings_in
from tests.support.processes import read, running, until, write

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

POLICY = policy_of(MODEL)
QUESTION, ANSWER = "4 7", "11"
STEPS = 12
SUITE = """\
name: sums
scenarios:
  one:
    file: questions.jsonl
    sampling: {max_tokens: 4, temperature: 0}
"""


def command(settings: Settings, *arguments: str) -> Result:
    return invoke(settings, *arguments, "--output", "jsonl")


def example(base: Base) -> Octets:
    """Return the question with its answer, of which the answer and its end count."""
    ids = base.tokenizer.convert_tokens_to_ids([*QUESTION.split(), ANSWER, "</s>"])
    arrays = {
        "0.tokens": np.array(ids[:-1], np.int32),
        "0.target_tokens": np.array(ids[1:], np.int64),
        "0.weights": np.array([0, 1, 1], np.float32),
    }
    return Octets(save(arrays))


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path, base: Base) -> Settings:
    """A log with two versions: saved before the loop learned the answer, and after."""
    made = settings_in(tmp_path, kafka_bootstrap, base)
    passes = [
        call
        for step in range(STEPS)
        for call in (
            numbered("forward_backward", 2 * step + 2, examples=1, tokens=3, data=example(base)),
            numbered("optim_step", 2 * step + 3),
        )
    ]
    saves = [numbered("save_weights", 1, path="first"), numbered("save_weights_for_sampler", 2 * STEPS + 2, path="end")]
    write(made, *(begin_session(), create_model(), saves[0], *passes, saves[1]))
    call_worker.run(made, stop=threading.Event(), calls=2 * STEPS + 3)
    assert {result.error for _, result in read(made, TrainingResult)} == {None}
    (tmp_path / "suite.yaml").write_text(SUITE)
    question = {"task_id": "q", "prompt": QUESTION, "answer": ANSWER}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    return made.model_copy(
        update={
            "policy": Policy(name=POLICY),
            "rollouts": Rollouts(mode="canary"),
            "canary": Canary(steps="0.5", step_groups=10, max_latency_ratio=1e6),
            "serve": made.serve.model_copy(update={"port": free_ports(1)[0]}),
        }
    )


def ask(settings: Settings, count: int) -> None:
    """Submit live tasks."""
    write(settings, *(task(
                    task_id=f"live {number}", policy=POLICY, purpose="serve", group_size=2,
                    verifier=json.dumps({"answer": ANSWER}), sampling=Sampling(max_tokens=4),
                    reward_sources=(RewardSource(name="exact"),), messages=(Message(role="user", content=QUESTION),),
                ) for number in range(count)))  # fmt: skip


def test_a_saved_version_is_evaluated_tried_promoted_served_and_exported(
    settings: Settings, tmp_path: Path, base: Base
) -> None:
    listed = rows_of(command(settings, "adapters", "list"))
    assert [(row["version"], row["parent_version"]) for row in listed] == [(0, None), (1, None), (2, 1)]
    with running(settings, tmp_path, "streams", "scoring", "policy"):
        (result,) = rows_of(
            command(settings, "evaluate", "--suite", str(tmp_path / "suite.yaml"), "--version", "2", "--against", "1")
        )
        assert {row["version"]: row["success"] for row in result["scores"]} == {2: 1.0, 1: 0.0, 0: 0.0}
        until(lambda: read_state(settings, POLICY).serving.candidate == 1, "the first canary to begin", folder=tmp_path)
        assert rows_of(command(settings, "adapters", "reject", "1", "--reason", "it has learned nothing"))
        until(lambda: read_state(settings, POLICY).serving.candidate == 2, "the canary to begin", folder=tmp_path)
        ask(settings, 80)
        until(lambda: read_state(settings, POLICY).primary == 2, "the promotion", folder=tmp_path)
    promotion = [event for _, event in read(settings, AdapterEvent) if event.kind == "promoted"][-1]
    assert promotion.metrics["candidate_reward"] > 0.5 > promotion.metrics["primary_reward"]
    assert any(response.adapter_version == 2 for _, response in read(settings, Response))
    with running(settings, tmp_path, "serve"):
        answer = served_answer(settings)
    assert (answer["choices"][0]["message"]["content"], answer["model"]) == (ANSWER, f"{POLICY}@2")
    for arguments in (("show", "2"), ("lineage", "2"), ("diff", "1", "2", "--weights")):
        assert rows_of(command(settings, "adapters", *arguments)), arguments
    held_out = ("--purpose", "serve", "--with-held-out")  # it is the suite's question
    assert rows_of(command(settings, "export", str(tmp_path / "data"), *held_out, "--format", "prompts"))
    assert rows_of(command(settings, "adapters", "export", "2", str(tmp_path / "out")))
    exported = PeftModel.from_pretrained(tiny_model(), tmp_path / "out").eval()
    prompt = base.tokenizer(QUESTION, return_tensors="pt").input_ids
    assert (
        base.tokenizer.decode(exported.generate(input_ids=prompt, max_new_tokens=1, do_sample=False)[0, -1]) == ANSWER
    )
    audited = invoke(settings, "audit")
    assert audited.exit_code == 0, audited.output


def served_answer(settings: Settings) -> dict[str, Any]:
    """Ask the server once it answers."""
    url = f"http://127.0.0.1:{settings.serve.port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=300).status_code == 200
        except httpx.TransportError:
            return False

    until(answers, "the server to answer")
    body = {"model": POLICY, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4, "temperature": 0}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return dict(response.json())
