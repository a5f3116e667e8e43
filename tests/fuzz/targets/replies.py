"""What servers and child processes answer: the judge, a Schema Registry, vLLM, a scorer's process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from schemas import serde
from streams.settings.model import Settings
from tests.fuzz.target import Check, target

PIPE_BYTES = 60_000
"""What fits into a pipe that nobody reads yet."""


@target("judge", "json", light=300)
def judge(folder: Path) -> Check:
    """A chat completion is a score on the scale, or a ScoreError."""
    from streams.scorers.judge import JudgeOptions, parse
    from streams.scorers.verdict import Verdict, check_verdict

    options = JudgeOptions()

    def check(data: bytes) -> str | None:
        said, reason = parse(data, options, "http://judge", "the answer is 5")
        assert options.low <= said <= options.high
        verdict = check_verdict(Verdict(said, {"score": said}, reason, "judge/3"), "judge")
        str(verdict).encode()
        return None

    return check


@target("registry", "json", light=200)
def registry(folder: Path) -> Check:
    """What a Schema Registry holds is a schema of ours or none, and what its clients post gets an answer."""
    from schemas import ids
    from schemas.ids import RegistryIds, RegistryVersion
    from streams.kafka.registry.server import _subjects, answer, look_up

    subjects = _subjects(Settings())

    def check(data: bytes) -> str | None:
        text = data.decode(errors="replace")
        schema = ids.schema_from_text(text)
        held = RegistryIds([RegistryVersion("Task", 1, 7, text)], lambda _: text, url="http://registry")
        list(held.clashes())
        held.schema_of("Task", 99)
        status, _ = look_up("/subjects/tasks-value", data, subjects)
        answer(f"/subjects/{text}", subjects)
        answer(f"/schemas/ids/{text}", subjects)
        return None if schema is not None else f"{status}"

    return check


@target("sandbox", "lines", light=200)
def sandbox(folder: Path) -> Check:
    """What a scorer's process writes is a verdict, or a ScoreError. A line is a frame, unless the first is no JSON."""
    import os
    import struct

    from schemas.events import derive_id
    from streams.processes.child import ChildProcess
    from streams.scorers.sandbox import SCORER, ScorerProcess

    over = ChildProcess(["true"])
    over.wait()
    name = derive_id("a scorer")

    def check(data: bytes) -> str | None:
        frames = [struct.pack(">I", len(line)) + line for line in data.splitlines()]
        said = (b"".join(frames) if data[:1] in b"{[" else data)[:PIPE_BYTES]
        ours, theirs = os.pipe()
        inbox = os.open(os.devnull, os.O_WRONLY)
        try:
            os.write(theirs, said)
            os.close(theirs)
            process = object.__new__(ScorerProcess)  # one that said all this, and ended
            process.scores, process._kind, process._process = 0, SCORER, over
            process._in, process._out = inbox, ours
            verdict = process.score(name, "r", b"request", 1.0)
        finally:
            os.close(ours)
            os.close(inbox)
        str(verdict).encode()
        return None

    return check


@target("vllm", "json", light=200)
def vllm(folder: Path) -> Check:
    """What a model server answers is completions that can be written, logprobs, models; or an error of its branch."""
    import httpx2

    from streams.engines.base_model import Base
    from streams.engines.rendering.prompts import Prompts
    from streams.engines.vllm.completions_api import completions, prompt_logprobs, stream_chunk
    from streams.engines.vllm.server_proof import Proof
    from streams.engines.vllm.servers import VllmServer
    from streams.errors import ModelServerError
    from streams.stages.policy.response_writer import ServedVersion, response
    from tests.support.models.tiny import tiny_model, tiny_tokenizer
    from tests.support.vllm.contract import REQUESTS

    request = REQUESTS[0]
    prompts = Prompts(Base.of(tiny_model(), tiny_tokenizer(), "base", "tokenizer"))
    served = ServedVersion(
        adapter_version=1, engine="vllm", base_digest="b", tokenizer_digest="t", created_at=0, latency_ms=1.0
    )
    said = {"data": b""}

    def answer(asked: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=said["data"])

    client = httpx2.Client(transport=httpx2.MockTransport(answer))

    def written(given: object) -> None:
        for slot in completions(given, request, model="base", prompt=(9, 10, 11), room=6, prompts=prompts):
            try:
                serde.encode(response(request, slot, served))
            except ValueError as exc:
                serde.encode(response(request, replace(slot, error=str(exc)), served))

    def check(data: bytes) -> str | None:
        said["data"] = data
        server = VllmServer("http://vllm", client, 1, 20.0)
        given = server.ask("POST", "/v1/completions", {})
        outcomes = []
        for use in (
            lambda: written(given),
            lambda: prompt_logprobs(given, model="base", prompt=(9, 10, 11)),
            lambda: stream_chunk(given, model="base", prompt=(9, 10, 11), is_first=True),
            lambda: Proof(Settings().policy, None, prompts).ready(server, None),
        ):
            try:
                use()
            except ModelServerError as exc:
                outcomes.append(str(exc))
        return None if len(outcomes) < 4 else " ".join(outcomes)

    return check
