"""The server of agents for unit tests: the real one, with a log in memory in the place of the broker.

    with serving(rendering) as server:
        server.engine.says(tokens)                                   what the model is going to answer
        server.post("chat/completions", {"model": "sums", ...})      what a client gets
        server.turns                                                 what the log has

Events are encoded, sized and decoded as ever, and a turn is acknowledged once `log.reachable` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from gateway.agents.feedback import FeedbackBox
from gateway.agents.protocols import AgentProtocols
from gateway.http.application import Application
from schemas.conventions import RatedAnswer
from schemas.events import Coordinates, TrajectoryEvent, Turn
from streams.adapters import follower
from streams.engines.protocol import EngineCounts, check_generation
from streams.engines.rendering.rendering import Rendering
from streams.engines.rendering.token_table import TokenTable
from streams.engines.sampling_step import SamplingStep
from streams.engines.token_stream import Ending, Generation, TokenStream
from streams.kafka.followed import FollowedOnDemand
from streams.kafka.record import Record
from streams.kafka.retry import BrokerOutage
from streams.observability.metrics import OFF
from streams.settings.model import Policy, Serve, Settings, Topics
from streams.stages.agents.recording import turn_writer
from streams.stages.agents.recording.call_guard import CallGuard
from streams.stages.agents.recording.call_prompts import CallPrompts
from streams.stages.agents.recording.policy_recorder import RecordingIO
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.served_versions import ServedVersions
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.registered_agents import NoAgents
from tests.support.documented import as_documented

T = TypeVar("T")


class LogInMemory:
    """What was written, in its order."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.reachable = threading.Event()
        self.reachable.set()

    def events(self, *kinds: type[Any]) -> list[Any]:
        """Return the events of these kinds."""
        found = (record.decode(kind) for record in self.records for kind in kinds)
        return [event for event in found if isinstance(event, kinds)]


class ProducerInMemory:
    """Writes to a `LogInMemory` as `Producer` writes to a broker."""

    def __init__(self, log: LogInMemory) -> None:
        self._log = log
        self._waiting: list[tuple[Record, Callable[[Coordinates], None]]] = []

    def __enter__(self) -> ProducerInMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def send_bytes(
        self, topic: str, key: bytes | None, payload: bytes | None, *, on_ack: Callable[[Coordinates], None]
    ) -> None:
        """Queue a record."""
        self._waiting.append((Record(Coordinates(topic, 0, 0), 0, key, payload), on_ack))

    def flush(self) -> None:
        """Write what is queued, as soon as the log can be reached."""
        self._log.reachable.wait()
        waiting, self._waiting = self._waiting, []
        for record, on_ack in waiting:
            at = record.at._replace(offset=len(self._log.records))
            self._log.records.append(record._replace(at=at))
            on_ack(at)


class HandFedEngine:
    """A `TokenEngine` that says what a test gives it; a generation without an answer waits for the test to push it."""

    name = "hand-fed"
    base_digest = "b" * 64
    context_tokens = 1_000_000

    def __init__(self, ends: frozenset[int], tokenizer_digest: str) -> None:
        self.token_table, self.tokenizer_digest = TokenTable.of_ids(100_000, ends), tokenizer_digest
        self.streams: list[TokenStream] = []
        self._answers: deque[tuple[Sequence[int], Ending, str | None]] = deque()

    def says(self, tokens: Sequence[int], ending: Ending = "stop", stop: str | None = None) -> None:
        """Answer the next generation that has no answer yet with these tokens; `stop`: the stop text that ends them."""
        self._answers.append((tokens, ending, stop))

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer."""
        check_generation(generation, self, (0,))
        stream = TokenStream(generation)
        self.streams.append(stream)
        if self._answers:
            tokens, ending, stop = self._answers.popleft()
            for number, token in enumerate(tokens):
                stream.push(token, -0.25 * (number + 1))
            stream.finish(ending, error="it broke" if ending == "error" else None, stop=stop)
        return stream

    def load(self, version: int, adapter: Path | None) -> None:
        """There is the base alone."""

    def unload(self, version: int) -> None:
        """There is the base alone."""

    def counts(self) -> EngineCounts:
        """Nothing is counted."""
        return EngineCounts()

    def close(self) -> None:
        """Nothing is held."""


class EmptyReader:
    """Reads a topic that stays empty."""

    def __init__(self, settings: Settings, starts: Mapping[Any, int], **_: Any) -> None:
        self.position = dict(starts)

    def close(self) -> None:
        """Nothing is held."""


class ServerInMemory:
    """The application, and what is behind it."""

    def __init__(self, app: Any, recorder: Recorder, engine: HandFedEngine, log: LogInMemory) -> None:
        self.recorder, self.engine, self.log = recorder, engine, log
        self.app, self._runner = app, asyncio.Runner()

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Return what comes of a coroutine in the server's event loop."""
        return self._runner.run(what)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Return the answer to a request without a body."""
        return self.post(path, None, method="GET", **headers)

    def post(self, path: str, body: Any, agent: str = "calc", method: str = "POST", **headers: str) -> httpx.Response:
        """Return the whole answer to a request."""

        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://memory") as client:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, f"/agents/{agent}/v1/{path}", json=body, headers=named)

        found = self.run(answer())
        as_documented(found)
        return found

    @property
    def turns(self) -> list[Turn]:
        """Every turn in the log."""
        return self.log.events(Turn)

    def close(self) -> None:
        """End what is still going on."""
        self.log.reachable.set()
        self.run(self.recorder.close())
        self._runner.close()


@contextlib.contextmanager
def serving(
    rendering: Rendering,
    ends: frozenset[int],
    log: LogInMemory | None = None,
    steps: Sequence[SamplingStep] = (),
    guard: CallGuard | None = None,
    **changes: Any,
) -> Iterator[ServerInMemory]:
    """Yield a server; with the `log` of another one it continues from there. `changes`: of serve, and max_record_bytes.

    `ends` are the tokens that end a turn.
    """
    log = log or LogInMemory()
    topics = Topics(partitions=1, policy_partitions=1, max_record_bytes=changes.pop("max_record_bytes", 4_000_000))
    settings = Settings(topics=topics, policy=Policy(name="sums", engine="scripted"), serve=Serve(**changes))
    stop, engine = threading.Event(), HandFedEngine(ends, rendering.tokenizer_digest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_writer, "Producer", lambda *_, **__: ProducerInMemory(log))
        patch.setattr(follower, "offsets", lambda *_: defaultdict(lambda: (0, 0)))
        patch.setattr(follower, "PartitionReader", EmptyReader)
        with (
            ServedVersions(settings, engine, BrokerOutage(settings.kafka, stop, OFF)) as versions,
            TurnWriter(settings, stop, OFF, lambda _: None) as writer,
        ):
            conversations = ServedConversations(int(settings.serve.remembered_mb * 1_000_000), versions.serves)
            of_policy = conversations.of("sums")
            assert of_policy is not None
            for event in log.events(TrajectoryEvent, Turn):
                of_policy.take(event)
            io = RecordingIO(settings.serve, rendering, writer, CallPrompts(engine, rendering), steps, guard)
            for answer in conversations.logged_answers():
                for step in steps:
                    step.restore(answer)
            recorder = Recorder(settings, versions, conversations, io, FollowedOnDemand(NoAgents, settings))
            rooms = [AgentProtocols(recorder), FeedbackBox(recorder, refuses)]
            app = Application(rooms, version="1", max_body_bytes=int(settings.serve.max_body_mb * 1_000_000))
            server = ServerInMemory(app, recorder, engine, log)
            try:
                yield server
            finally:
                server.close()


def refuses(answer: RatedAnswer, value: float, *, source: str, reason: str | None) -> Coordinates:
    """Fail: rewards are written by another door than turns, which needs a broker."""
    raise AssertionError(f"a reward of {source} for {answer.answer_id}")
