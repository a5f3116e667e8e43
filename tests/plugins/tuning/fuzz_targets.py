"""What is uploaded to train on, and ordered of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.target import Check, target


@target("training-files", "lines", light=300)
def training_files(folder: Path) -> Check:
    """A file to train on is a job with a question a line, or an error with its line. The first line is the grader."""
    from gateway.http.body import read
    from plugins.tuning.api.fine_tuning_body import CreateFineTuningBody, FineTuningOrder
    from streams.adapters.training_files import lines_of
    from streams.settings.model import Settings

    def check(data: bytes) -> str | None:
        grader, *lines = lines_of(data)
        method = {"type": "reinforcement", "reinforcement": {"grader": grader.value}}
        asked = {"model": "default", "training_file": "f", "method": method, "config": {"held_out_share": 0}}
        order = FineTuningOrder(read(CreateFineTuningBody, json.dumps(asked).encode()), lines).job(Settings())
        assert len(order.spec.questions) == len(lines)
        return None

    return check


@target("tuning-orders", light=300)
def tuning_orders(folder: Path) -> Check:
    """An order to tune is a job that can be recorded, or an error with its parameter."""
    from gateway.http.body import read
    from plugins.tuning.api.peft import PeftBody
    from plugins.tuning.api.tuning_orders import tuning
    from schemas.serde import encode
    from streams.adapters.versions import empty
    from streams.settings.model import Adapters, Settings
    from tests.support.factories import job_event

    settings = Settings(adapters=Adapters(store=str(folder / "adapters")))

    def check(data: bytes) -> str | None:
        body = read(PeftBody, data)
        given = {"policy": body.agent_id, "method": body.method, "config": body.config or {}, "tenant": body.tenant}
        order = tuning(given, None, settings, empty, names={"policy": "agent_id"})
        encode(job_event("created", spec=order.spec, policy=order.policy, tenant=order.tenant))
        return None

    return check


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content)."""
    check = {"type": "string_check", "name": "n", "operation": "eq", "input": "{{sample.output_text}}"}
    equal = {**check, "reference": "<{{item.a.b}} {{ item.n }}>"}
    contains = {**check, "operation": "ilike", "reference": "four"}
    formula = "0.5 * x - y / -2"
    multi = {"type": "multi", "name": "m", "graders": {"x": equal, "y": contains}, "calculate_output": formula}
    parts = [{"type": "text", "text": "1 + 1"}, {"type": "text", "text": "= ?"}]
    rows = [{"messages": [{"role": "user", "content": said}], "a": {"b": "2"}, "n": 3} for said in ("2 + 2 =", parts)]
    for name, grader in (("equal", equal), ("contains", contains), ("multi", multi)):
        yield "training-files", name, b"\n".join(json.dumps(one).encode() for one in (grader, *rows))
    chosen = {"min_reward": 0.5, "all": True, "since": "2d", "until": "2026-11-01T12:00", "groups_of": "default"}
    yield "tuning-orders", "sft", json.dumps({"agent_id": "coach", "config": {"epochs": 2, **chosen}}).encode()
    pairs = {"beta": 0.3, "margin": 0.1, "start": "default:7", "batch": 4, "purpose": "serve"}
    yield (
        "tuning-orders",
        "dpo",
        json.dumps({"agent_id": "a", "method": "dpo", "config": pairs, "tenant": "t"}).encode(),
    )
