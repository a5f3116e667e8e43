"""What the real vLLM said, and a server that says it again.

    vllm/record.py ──► real vLLM ──► tests/contracts/vllm-0.32.0.json ──► Replay, over HTTP on loopback

The engine asks the same of both: a model of 100 thousand parameters, adapters made from a seed, and the requests below.
`Replay` keeps which adapters are loaded, as vLLM does; all that it says was said by vLLM, but for what a test makes it
get wrong. A request that was never recorded is answered with 418, so that a change of what is asked shows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from schemas.events import Message, RewardSource, Sampling, Task
from streams.engines.protocol import SamplingRequest
from streams.engines.token_stream import Generation
from streams.settings.model import Model, Policy, Settings
from tests.support.models.tiny import VOCABULARY, tiny_tokenizer

VERSION = "0.32.0"
FILE = Path(__file__).parents[2] / "contracts" / f"vllm-{VERSION}.json"
CONTEXT = 256
SCALES = {1: 0.2, 2: 0.2, 3: 0.0}
"""Adapter versions, and the spread of their B factors: 3 changes nothing."""


def save_model(folder: Path) -> Path:
    """Write the model: vLLM's attention wants heads of 32 numbers at least."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_adapter(folder: Path, version: int) -> Path:
    """Write the adapter of `version`, the same bytes each time."""
    folder.mkdir(parents=True)
    made = torch.Generator().manual_seed(version)
    tensors = {}
    for layer in range(2):
        for name, size in (("self_attn.q_proj", 64), ("self_attn.v_proj", 32), ("mlp.up_proj", 64)):
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, 64, generator=made) * 0.2
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(size, 4, generator=made) * SCALES[version]
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def save_all(folder: Path) -> Path:
    """Write the model and every adapter of it: `model`, `1`, `2`, …"""
    save_model(folder / "model")
    for version in SCALES:
        save_adapter(folder / str(version), version)
    return folder


def request(name: str, content: str = "5 6 7", *, slots: int = 4, **sampling: Any) -> SamplingRequest:
    task = Task(
        task_id=f"task-{name}",
        created_at=0,
        policy="default",
        group_size=slots,
        sampling=Sampling(**{"max_tokens": 6, **sampling}),
        reward_sources=(RewardSource(name="exact"),),
        messages=(Message(role="user", content=content),),
    )
    return SamplingRequest(sampling_id=f"sampling-{name}", task=task)


REQUESTS = [
    request("plain"),
    request("seeded", seed=7, slots=2),
    request("greedy", temperature=0.0, slots=2, max_tokens=12),
    request("warm", temperature=0.7, top_p=0.9),
    request("stops", stop=("3", "4"), max_tokens=24),
    request("long", max_tokens=48),
]


def generation(key: str = "draws", slot: int = 0, version: int = 0, **sampling: Any) -> Generation:
    """One streamed answer to the same question."""
    return Generation(
        prompt_token_ids=PROMPT,
        sampling=Sampling(**{"max_tokens": 12, **sampling}),
        draw_key=key,
        slot=slot,
        version=version,
    )


PROMPT = (9, 10, 11)
GENERATIONS = [generation("sampling-greedy", temperature=0.0, version=version) for version in (0, 1)]
"""Streamed, what the task `greedy` is answered whole."""


def settings_for(url: str, model: Path, folder: Path, **changes: Any) -> Settings:
    return Settings(
        model=Model(base=str(model)),
        policy=Policy(
            engine="vllm",
            servers=url,
            server_folder=folder / "served",
            **{"server_timeout_s": 20.0, "server_retries": 1, **changes},
        ),
    )


def key_of(path: str, body: dict[str, Any] | None) -> str:
    """Return what a recorded answer is found by: the request, without where this machine keeps adapters."""
    return f"{path} {json.dumps(body, sort_keys=True)}"


Said = tuple[int, str, bytes]
"""Status, content type and body of an answer."""
Turn = Callable[[dict[str, Any], Said], Said | None]
"""A test's own say in an answer: gets the request and vLLM's answer; None hangs up."""


def streamed(said: Said) -> Said:
    """Return a whole answer as vLLM streams it: an event a token, the prompt's ids with the first."""
    if said[0] != 200:
        return said
    whole = json.loads(said[2])
    [choice] = whole.pop("choices")
    events = []
    for place, token in enumerate(choice["token_ids"]):
        is_last = place + 1 == len(choice["token_ids"])
        logprobs = {name: values[place : place + 1] for name, values in choice["logprobs"].items()}
        ids = {"prompt_token_ids": None if place else choice["prompt_token_ids"], "token_ids": [token]}
        reason = choice["finish_reason"] if is_last else None
        one = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": reason, **ids}
        events.append({**whole, "choices": [one]})
    return stream_of(*events)


def stream_of(*events: Any) -> Said:
    """Return events as a server sends them."""
    parts = [*(json.dumps(event, ensure_ascii=False) for event in events), "[DONE]"]
    return 200, "text/event-stream", "".join(f"data: {part}\n\n" for part in parts).encode()


@dataclass
class Replay:
    """A server that answers as vLLM did, with adapters loaded and unloaded. Use `replay`."""

    exchanges: dict[str, dict[str, Any]]
    mode: str
    url: str = ""
    is_dead: bool = False  # hangs up on everybody, and has forgotten its adapters
    takes_adapters: bool = True  # false: started without VLLM_ALLOW_RUNTIME_LORA_UPDATING
    loaded: dict[str, str] = field(default_factory=dict)  # path by name
    as_model: dict[str, str] = field(default_factory=dict)  # answers for a model with another's numbers
    without_effect: tuple[str, ...] = ()  # parts of a request that change nothing of what was recorded
    turns: list[Turn] = field(default_factory=list)  # of the next tasks, one each
    forever: Turn | None = None  # of every task after these
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    traces: list[str | None] = field(default_factory=list)  # the header `traceparent` of each

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks that it was asked, probes left out."""
        return [body for path, body in self.asked if "n" in body]

    def traced(self) -> list[tuple[int, str]]:
        """The seed and the trace of each task that was asked in one. Fails if anything else was."""
        found = [(body, trace) for (_, body), trace in zip(self.asked, self.traces, strict=True) if trace is not None]
        assert all("n" in body for body, _ in found), "a probe is no task's"
        return [(body["seed"], trace) for body, trace in found]

    def restart(self) -> None:
        """Forget every adapter, as vLLM does when it is started again."""
        self.loaded.clear()
        self.is_dead = False

    def say(self, path: str, body: dict[str, Any]) -> Said | None:
        said = self._as_vllm(path, body)
        if path != "/v1/completions" or "n" not in body:
            return said
        turn = self.turns.pop(0) if self.turns else self.forever
        return turn(body, said) if turn else said

    def _as_vllm(self, path: str, body: dict[str, Any]) -> Said:
        name = body.get("lora_name", "")
        if path == "/health":
            return 200, "", b""
        if path == "/v1/models":
            listed = json.loads(self._found(path, None)[2])
            card = json.loads(self._found("a card", None)[2]) if self.loaded else {}
            cards = [{**card, "id": name, "root": path} for name, path in self.loaded.items()]
            return 200, "application/json", json.dumps({**listed, "data": listed["data"] + cards}).encode()
        if path.endswith("_lora_adapter") and not self.takes_adapters:
            return self._found("no such route", None)
        if path == "/v1/load_lora_adapter":
            if name in self.loaded:
                return self._found("loaded twice", None)
            if not Path(body["lora_path"]).exists():
                return self._found("no such path", None)
            self.loaded[name] = body["lora_path"]
            return self._found(path, {"lora_name": name})
        if path == "/v1/unload_lora_adapter":
            return self._found(path, body) if self.loaded.pop(name, None) else self._found("unloaded twice", None)
        model = body["model"]
        if model != "base" and model not in self.loaded:
            return self._found("no such model", None)
        recorded = {name: value for name, value in body.items() if name not in self.without_effect}
        said = self._found(path, {**recorded, "model": self.as_model.get(model, model)})
        if model in self.as_model and said[0] == 200:
            return 200, said[1], json.dumps({**json.loads(said[2]), "model": model}).encode()
        return said

    def _found(self, path: str, body: dict[str, Any] | None) -> Said:
        if body is not None and body.get("stream"):
            whole = {name: value for name, value in body.items() if name != "stream"} | {"stop": []}
            return streamed(self._found(path, whole))
        found = self.exchanges.get(key_of(path, body))
        if found is None:
            return 418, "text/plain", f"never recorded: {key_of(path, body)[:2000]}".encode()
        content = found["body"] if isinstance(found["body"], str) else json.dumps(found["body"])
        return found["status"], found["type"], content.encode()


@contextmanager
def replay(mode: str = "processed_logprobs") -> Iterator[Replay]:
    """Run a server that answers as vLLM did when it was started with this --logprobs-mode."""
    state = Replay(json.loads(FILE.read_text())["modes"][mode], mode)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each body waits for its headers to be acknowledged, 40 ms

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            state.asked.append((self.path, body))
            state.traces.append(self.headers.get("traceparent"))
            said = None if state.is_dead else state.say(self.path, body)
            if said is None:
                self.close_connection = True
                return
            status, kind, content = said
            kind, _, extra = kind.partition(";retry-after=")
            self.send_response(status)
            if extra:
                self.send_header("Retry-After", extra)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # who has what it wanted of a stream hangs up
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
