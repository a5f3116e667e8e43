"""A network that fails: a TCP proxy between the Kafka node and its clients, which can be told to be a bad one.

    client ──► Proxy.port ──► to_broker ──► read, wait `delay`, hold while cut, reset? ──► the node's PROXIED listener
           ◄──             ◄── to_client ◄──                     likewise              ◄──
    harness and audit ─────────────────────────────────────────────────────────────────► the node's CLIENT listener

The node advertises the proxy's address to whoever asks through the proxy, so that no client finds a way around it.
One thread, one event loop. One mode at a time; each replaces the one before, and what it held goes on.

A cut holds bytes, it does not swallow them: TCP sends again what was lost, so a link that heals gives both sides what
the other said meanwhile, and a request that its client has given up reaches the broker late.

Not covered: lost SYNs (behind a cut that hangs, a new connection opens and stays silent), bandwidth limits, and
damaged bytes, which TCP's checksum is there for. A node that is away looks like a reset, not like a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from streams.kafka.node import config as node, process as broker
from streams.kafka.node.process import BrokerProcess
from streams.settings.model import Broker

Direction = Literal["to_broker", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_broker", "to_client")
CHUNK_BYTES, CHUNKS_HELD = 64 * 1024, 64
"""What a direction of a connection reads at once, and how many of these it keeps; then its sender has to wait."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close() sends RST."""


@dataclass(slots=True)
class Counts:
    """What went through."""

    connections: int = 0
    resets: int = 0
    """Connections that the proxy ended with RST because it was told to."""
    to_broker_bytes: int = 0
    to_client_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Link:
    """How the network is."""

    held: frozenset[Direction] = frozenset()
    refused: bool = False
    delay_s: float = 0.0
    reset_nth: int = 0
    reset_bytes: int = 0


@dataclass(eq=False, slots=True)
class _Connection:
    number: int
    task: asyncio.Task[None] = field(init=False)
    passed_bytes: int = 0


class _Reset(OSError):
    """This connection ends now, with RST."""


class Proxy:
    """A proxy on 127.0.0.1 for what listens at `target_port`, while the block runs. `port` 0 takes a free one.

    The modes can be switched by any thread, at any time; a call returns when the mode holds.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.target_port = target_port
        self.port = port
        self.counts = Counts()
        self._link = _Link()
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flapping: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._listener = _listening(self.port)
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        self._gates = {direction: asyncio.Event() for direction in DIRECTIONS}
        for gate in self._gates.values():
            gate.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}")
        self._thread.start()
        self._do(lambda: self._loop.add_reader(self._listener, self._accept))
        return self

    def __exit__(self, *_: object) -> None:
        self._do(lambda: self._become(_Link(refused=True)))
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    # --- modes --------------------------------------------------------------------------------------------------------

    def pass_through(self) -> None:
        """Be a good network."""
        self._set(_Link())

    def cut(self, *, existing: Literal["reset", "hang"] = "hang", new: Literal["refuse", "hang"] = "refuse") -> None:
        """Cut the link: connections are reset, or stay and are silent; new ones are refused, or open and are silent."""
        self._set(_Link(held=frozenset(DIRECTIONS), refused=new == "refuse"), reset=existing == "reset")

    def cut_one_way(self, direction: Direction) -> None:
        """Hold what goes in this direction, of all connections; the other direction goes on."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction {direction!r}: expected one of {', '.join(DIRECTIONS)}")
        self._set(_Link(held=frozenset([direction])))

    def delay(self, seconds: float) -> None:
        """Let every byte arrive `seconds` later, in each direction, in order."""
        self._set(_Link(delay_s=seconds))

    def reset_every(self, nth: int, *, after_bytes: int = 256 * 1024) -> None:
        """Reset each `nth` new connection at the node's first answer, which is lost: the node may have done it.

        Connections that are open for long hardly come again, so each, an old one too, is also reset once `after_bytes`
        went through it from now on; 0 for never.
        """
        self._set(_Link(reset_nth=nth, reset_bytes=after_bytes))

    def reset_now(self) -> None:
        """Reset all connections, once; the mode stays."""
        self._do(self._reset_all)

    def flap(self, rng: random.Random, period_s: float) -> None:
        """Go up and down until the next mode: each lasts `period_s` by 0.5 to 1.5, each cut is of a kind by chance."""

        def begin() -> None:
            self._become(_Link())
            self._flapping = self._loop.create_task(self._flap(rng, period_s))

        self._do(begin)

    def _set(self, link: _Link, *, reset: bool = False) -> None:
        def become() -> None:
            self._become(link)
            if reset:
                self._reset_all()

        self._do(become)

    def _do(self, what: Callable[[], None]) -> None:
        """Do it on the proxy's thread."""

        async def done() -> None:
            what()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result()

    # --- on the proxy's thread ----------------------------------------------------------------------------------------

    def _become(self, link: _Link, *, by_flap: bool = False) -> None:
        if self._flapping and not by_flap:
            self._flapping.cancel()
            self._flapping = None
        if link.refused and not self._link.refused:
            self._loop.remove_reader(self._listener)
            self._listener.shutdown(socket.SHUT_RDWR)  # it keeps its port, and nobody listens there
        elif self._link.refused and not link.refused:
            self._listener.listen(128)
            self._loop.add_reader(self._listener, self._accept)
        self._link = link
        for direction, gate in self._gates.items():
            gate.clear() if direction in link.held else gate.set()
        for connection in self._connections:
            connection.passed_bytes = 0

    async def _flap(self, rng: random.Random, period_s: float) -> None:
        cuts = [
            _Link(held=frozenset(DIRECTIONS), refused=True),
            *(_Link(held=frozenset([direction])) for direction in DIRECTIONS),
        ]
        while True:
            await asyncio.sleep(period_s * rng.uniform(0.5, 1.5))
            self._become(rng.choice(cuts), by_flap=True)
            if rng.random() < 0.5:
                self._reset_all()
            await asyncio.sleep(period_s * rng.uniform(0.5, 1.5))
            self._become(_Link(), by_flap=True)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                self.counts.connections += 1
                connection = _Connection(self.counts.connections)
                connection.task = self._loop.create_task(self._serve(client, connection))
                self._serving.add(connection.task)
                connection.task.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket, connection: _Connection) -> None:
        upstream = socket.socket()
        reset = True
        try:
            for end in (client, upstream):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(connection)
            await self._loop.sock_connect(upstream, (node.HOST, self.target_port))
            async with asyncio.TaskGroup() as pumps:
                self._pump(pumps, connection, client, upstream, "to_broker")
                self._pump(pumps, connection, upstream, client, "to_client")
            reset = False  # both sides have said all
        except* OSError:  # the node is away, or one side is gone: tell the other
            pass
        finally:
            self._connections.discard(connection)
            for end in (client, upstream):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                end.close()

    def _pump(
        self,
        pumps: asyncio.TaskGroup,
        connection: _Connection,
        source: socket.socket,
        sink: socket.socket,
        direction: Direction,
    ) -> None:
        """Move bytes from source to sink: what is read waits in a queue until it is due and the link is up."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_HELD)

        async def read() -> None:
            data = b"?"
            while data:
                data = await self._loop.sock_recv(source, CHUNK_BYTES)
                await waiting.put((self._loop.time() + self._link.delay_s, data))

        async def write() -> None:
            while True:
                due, data = await waiting.get()
                if (left_s := due - self._loop.time()) > 0:
                    await asyncio.sleep(left_s)
                await self._gates[direction].wait()
                if not data:
                    return sink.shutdown(socket.SHUT_WR)
                self._count(connection, direction, len(data))
                await self._loop.sock_sendall(sink, data)

        pumps.create_task(read())
        pumps.create_task(write())

    def _count(self, connection: _Connection, direction: Direction, size: int) -> None:
        """Count bytes that are about to go on; raise _Reset if they shall not."""
        link = self._link
        connection.passed_bytes += size
        chosen = link.reset_nth and connection.number % link.reset_nth == 0 and direction == "to_client"
        if chosen or (link.reset_bytes and connection.passed_bytes >= link.reset_bytes):
            self.counts.resets += 1
            raise _Reset
        if direction == "to_broker":
            self.counts.to_broker_bytes += size
        else:
            self.counts.to_client_bytes += size

    def _reset_all(self) -> None:
        while self._connections:
            connection = self._connections.pop()
            self.counts.resets += 1
            connection.task.cancel()

    async def _end(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # lets the selector forget what was closed


def _listening(port: int) -> socket.socket:
    """Return a socket that listens; not among the ports that clients are given, see
    `streams.kafka.node.config.PORTS`."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    for candidate in [port] if port else random.SystemRandom().sample(node.PORTS, len(node.PORTS)):
        try:
            listener.bind((node.HOST, candidate))
            listener.listen(128)
            return listener
        except OSError:
            if port:
                listener.close()
                raise
    raise OSError(f"no free port on {node.HOST} from {node.PORTS.start} to {node.PORTS.stop - 1}")


# --- a node behind it -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ProxiedNode:
    """A node with two addresses."""

    direct: str
    """host:port past the proxy."""
    proxied: str
    """host:port of the proxy: for those whose network fails."""
    proxy: Proxy
    running: BrokerProcess
    settings: Broker
    properties: Mapping[str, str] = field(repr=False)

    def start(self) -> None:
        """Start the node again, at the same addresses, after it was killed."""
        self.running = broker.start(self.settings, properties=self.properties)


@contextlib.contextmanager
def proxied_node(
    folder: Path, heap_mb: int = 384, *, properties: Mapping[str, str] | None = None
) -> Iterator[ProxiedNode]:
    """Run a node and a proxy before it while the block runs; arguments and errors as
    `streams.kafka.node.process.embedded`."""
    port, controller_port, behind = free_ports(3)
    data_dir = node.folder(folder)
    node.remember(data_dir, node.Node(0, port, controller_port, "", {}))  # the ports that a start prefers
    with Proxy(behind) as proxy:
        config = {**through_proxy_properties(port, controller_port, behind, proxy.port), **(properties or {})}
        with broker.embedded(folder, heap_mb, properties=config) as running:
            settings = Broker(data_dir=folder, heap_mb=heap_mb)
            proxied = f"{node.HOST}:{proxy.port}"
            yield ProxiedNode(running.bootstrap, proxied, proxy, running, settings, config)


def through_proxy_properties(port: int, controller_port: int, behind_port: int, proxy_port: int) -> dict[str, str]:
    """Return what a node's configuration needs, besides, to listen for the proxy, too.

    Kafka answers with the advertised address of the listener that it was asked on: who comes through the proxy is told
    of the proxy alone, who comes to `port` of `port` alone.
    """
    return {
        "listeners": f"CLIENT://{node.HOST}:{port},PROXIED://{node.HOST}:{behind_port},"
        f"CONTROLLER://{node.HOST}:{controller_port}",
        "advertised.listeners": f"CLIENT://{node.HOST}:{port},PROXIED://{node.HOST}:{proxy_port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, none twice."""
    with contextlib.ExitStack() as taken:
        return [taken.enter_context(contextlib.closing(_listening(0))).getsockname()[1] for _ in range(count)]
