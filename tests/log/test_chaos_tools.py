"""What the fault matrix breaks things with: each tool breaks what it says, mends it again, and leaves nothing behind.

What must hold of the product meanwhile is the matrix' own business (tests/chaos).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import psutil
import pytest
from confluent_kafka import admin

from tests.chaos.clocks import SETTLED_S, set_clock, wrong_clock
from tests.chaos.disks import NotShown, fill, free, read_only, small_disk, writable
from tests.chaos.nodes import NODES, Cluster
from tests.chaos.proxy import Proxy, proxied_node
from tests.skips import IN_FULL
from tests.support.thoroughness import FULL

pytestmark = [pytest.mark.kafka, pytest.mark.kills]
TOPIC = "chaos-tools"
HOUR_MS = 3_600_000


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it is told."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            while data := link.recv(65536):
                link.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def hear(link: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size and (data := link.recv(65536)):
        heard += data
    return heard


def silent(link: socket.socket) -> bool:
    """Tell whether nothing comes within a moment."""
    link.settimeout(0.2)
    try:
        return link.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        link.settimeout(10)


def client(bootstrap: str, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "log_level": 0, "error_cb": lambda error: None, **more}


def create(bootstrap: str, replicas: int = 1, config: dict[str, str] | None = None) -> None:
    asked = admin.AdminClient(client(bootstrap))
    asked.list_topics(timeout=300)
    asked.create_topics([admin.NewTopic(TOPIC, 1, replicas, config=config or {})])[TOPIC].result(timeout=300)


def read(bootstrap: str, count: int) -> list[ck.Message]:
    consumer = ck.Consumer(client(bootstrap, **{"group.id": "g", "enable.auto.commit": False}))
    consumer.assign([ck.TopicPartition(TOPIC, 0, 0)])
    messages: list[ck.Message] = []
    until = time.monotonic() + 300
    while len(messages) < count and time.monotonic() < until:
        messages += [message for message in consumer.consume(count, timeout=0.2) if message.error() is None]
    consumer.close()
    return messages


# --- the proxy --------------------------------------------------------------------------------------------------------


def test_what_a_cut_holds_arrives_in_order_when_it_heals(echo: int) -> None:
    with Proxy(echo) as proxy, dial(proxy) as link:
        proxy.cut()
        said = random.Random(1).randbytes(300_000)
        link.sendall(said)
        assert silent(link)
        proxy.pass_through()
        assert hear(link, len(said)) == said


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_a_link_cut_one_way_carries_the_other(echo: int, direction: str) -> None:
    with Proxy(echo) as proxy, dial(proxy) as link:
        proxy.cut_one_way(direction)  # type: ignore[arg-type]
        link.sendall(b"hello")
        assert silent(link)
        assert proxy.counts.to_broker_bytes == (0 if direction == "to_broker" else 5)
        proxy.pass_through()
        assert hear(link, 5) == b"hello"


def test_a_cut_link_refuses_new_connections_and_takes_them_again_at_the_same_port(echo: int) -> None:
    with Proxy(echo) as proxy:
        with dial(proxy) as link:
            link.sendall(b"a")
            assert hear(link, 1) == b"a"
            proxy.cut(existing="reset")
            with pytest.raises(ConnectionRefusedError):
                dial(proxy)
            with pytest.raises(ConnectionResetError):
                link.recv(1)
        proxy.pass_through()
        with dial(proxy) as link:
            link.sendall(b"b")
            assert hear(link, 1) == b"b"


def test_behind_a_cut_that_hangs_a_new_connection_opens_and_is_silent(echo: int) -> None:
    with Proxy(echo) as proxy:
        proxy.cut(new="hang")
        with dial(proxy) as link:
            link.sendall(b"a")
            assert silent(link)


def test_delayed_bytes_take_their_time_and_keep_their_order(echo: int) -> None:
    with Proxy(echo) as proxy, dial(proxy) as link:
        proxy.delay(0.1)
        begun = time.monotonic()
        said = bytes(range(200))
        for number in said:
            link.sendall(bytes([number]))
        assert hear(link, len(said)) == said
        assert time.monotonic() - begun >= 0.2  # both ways; how much longer is the machine's affair


def test_every_third_connection_is_reset_and_a_long_one_after_its_bytes(echo: int) -> None:
    with Proxy(echo) as proxy, dial(proxy) as old:
        proxy.reset_every(3, after_bytes=1000)
        with dial(proxy) as second, dial(proxy) as third:
            second.sendall(b"a")
            assert hear(second, 1) == b"a"
            third.sendall(b"a")
            with pytest.raises(ConnectionResetError):
                third.recv(1)
        old.sendall(bytes(1000))
        with pytest.raises(ConnectionResetError):
            old.recv(1)
        assert proxy.counts.resets == 2


def test_a_flapping_link_goes_down_and_up_and_stays_up_when_told(echo: int) -> None:
    with Proxy(echo) as proxy, dial(proxy):
        proxy.flap(random.Random(1), 0.02)
        until = time.monotonic() + 300
        while proxy.counts.resets == 0 and time.monotonic() < until:
            with contextlib.suppress(OSError):
                dial(proxy).close()
            time.sleep(0.01)
        proxy.pass_through()
        with dial(proxy) as link:
            link.sendall(b"a")
            assert hear(link, 1) == b"a"
            assert proxy.counts.resets > 0


def test_a_proxy_ends_with_its_connections_open_and_leaves_no_thread(echo: int) -> None:
    before = set(threading.enumerate())
    with contextlib.ExitStack() as links, Proxy(echo) as proxy:
        for _ in range(60):
            link = links.enter_context(dial(proxy))
            link.sendall(b"a")
            assert hear(link, 1) == b"a"
        proxy.cut()
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("proxy")] == []


def test_clients_that_come_through_the_proxy_find_no_way_around_it(tmp_path: Path) -> None:
    with proxied_node(tmp_path / "node") as node:
        for address in (node.proxied, node.direct):
            told = admin.AdminClient(client(address)).list_topics(timeout=300).brokers
            assert [f"{broker.host}:{broker.port}" for broker in told.values()] == [address]
        create(node.direct)
        producer = ck.Producer(client(node.proxied, **{"enable.idempotence": True, "socket.timeout.ms": 2000}))
        producer.produce(TOPIC, b"before")
        assert producer.flush(60) == 0
        node.proxy.cut(existing="reset")
        for number in range(100):
            producer.produce(TOPIC, b"%d" % number)
        assert producer.flush(0.5) > 0
        node.proxy.pass_through()
        assert producer.flush(60) == 0
        assert [message.value() for message in read(node.direct, 101)] == [b"before", *(b"%d" % n for n in range(100))]


# --- three nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not FULL, reason=IN_FULL)
def test_what_three_nodes_acknowledged_survives_the_kill_of_leader_and_controller(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create(cluster.bootstrap, replicas=3)
        cluster.wait_in_sync()
        producer = ck.Producer(client(cluster.bootstrap, **{"enable.idempotence": True, "socket.timeout.ms": 5000}))

        def write(value: bytes) -> None:
            producer.produce(TOPIC, value)
            assert producer.flush(60) == 0

        write(b"with three")
        leader = cluster.leader_of(TOPIC, 0)
        cluster.kill(leader)
        write(b"with another leader")
        assert cluster.leader_of(TOPIC, 0) != leader
        cluster.start(leader)
        cluster.wait_in_sync()
        controller = cluster.controller()
        cluster.kill(controller)
        assert cluster.controller() != controller
        write(b"with another controller")
        values = [message.value() for message in read(cluster.bootstrap, 3)]
        assert values == [b"with three", b"with another leader", b"with another controller"]
        pids = [cluster.pid(i) for i in NODES]
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of 16 MiB."""
    try:
        with small_disk(16, request.param) as made:
            yield made
        assert not made.exists()
    except NotShown as exc:
        pytest.skip(f"NOT SHOWN: {exc}")


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: Path) -> None:
    fill(disk)
    with pytest.raises(OSError, match="No space left"):
        (disk / "file").write_bytes(bytes(5000))
    free(disk)
    (disk / "file").write_bytes(bytes(5000))


def test_a_read_only_disk_is_read_until_it_is_mended(disk: Path) -> None:
    (disk / "file").write_bytes(b"kept")
    read_only(disk)
    assert (disk / "file").read_bytes() == b"kept"
    with pytest.raises(OSError, match="Read-only"):
        (disk / "other").write_bytes(b"x")
    writable(disk)
    (disk / "file").write_bytes(b"changed")


def test_an_ext4_turns_read_only_under_an_open_file() -> None:
    try:
        with small_disk(16, "ext4") as disk, (disk / "file").open("wb", buffering=0) as file:
            read_only(disk)
            with pytest.raises(OSError, match="Read-only"):
                file.write(b"x")
    except NotShown as exc:
        pytest.skip(f"NOT SHOWN: {exc}")


def test_only_small_disks_are_filled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing else is filled"):
        fill(tmp_path)


# --- clocks -----------------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
import confluent_kafka as ck
producer = ck.Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "log_level": 0})
consumer = ck.Consumer({"bootstrap.servers": sys.argv[1], "group.id": "clock", "log_level": 0})
consumer.subscribe([sys.argv[2]])
for line in sys.stdin:
    longest = 0.0
    for _ in range(5):
        begun = time.monotonic()
        consumer.poll(0.1)
        longest = max(longest, time.monotonic() - begun)
    producer.produce(sys.argv[2], b"x")
    left = producer.flush(20)
    print(time.time(), left, longest, time.process_time(), flush=True)
consumer.close()
"""


def test_a_child_whose_clock_jumps_stamps_its_records_so_and_neither_hangs_nor_spins(kafka_bootstrap: str) -> None:
    try:
        clock = wrong_clock()
    except NotShown as exc:
        pytest.skip(f"NOT SHOWN: {exc}")
    no_limit = {"message.timestamp.after.max.ms": str(2**63 - 1)}  # else Kafka refuses what is an hour ahead
    create(kafka_bootstrap, config=no_limit)
    jumps_h = [0, -2, 24, -2, 0]
    command = [sys.executable, "-c", WRITER, kafka_bootstrap, TOPIC]
    with subprocess.Popen(
        command, env={**os.environ, **clock}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdin and child.stdout
        try:
            for hours in jumps_h:
                set_clock(clock, hours * 3600)
                time.sleep(SETTLED_S)
                child.stdin.write("\n")
                told, left, longest, busy_s = map(float, child.stdout.readline().split())
                assert round((told - time.time()) / 3600) == hours
                assert left == 0
                assert longest < 60  # not hours; a poll of 0.1 s
            child.stdin.close()
            assert child.wait(300) == 0
            assert busy_s < 60
        finally:
            child.kill()
    now_ms = time.time() * 1000
    stamps = [message.timestamp()[1] for message in read(kafka_bootstrap, len(jumps_h))]
    assert [round((stamp - now_ms) / HOUR_MS) for stamp in stamps] == jumps_h


def test_without_a_compiler_a_wrong_clock_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.chaos import clocks

    monkeypatch.setattr(shutil, "which", lambda name: None)
    clocks._library.cache_clear()
    with pytest.raises(NotShown, match="compiler"):
        wrong_clock()
