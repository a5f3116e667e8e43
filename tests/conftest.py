"""What all tests share: one real Kafka node for the run, and settings that keep each test's topics its own.

The node starts with the run, or without workers with the first test that asks for it, and ends with the run; also if
the run is killed (`embedded` sees to that). Each test's prefix is its own. Its topics go with the test, and those of a
file with the file: a process that starts asks the node for the list of all topics, so what is left behind makes each
later test slower.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import inspect
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from streams.observability.logging import StderrLog
from streams.settings.model import Adapters, Archive, Broker, Kafka, Settings, Topics, Trainer
from tests.skips import pytest_terminal_summary as pytest_terminal_summary
from tests.support import fork_server
from tests.support.thoroughness import FULL, examples
from tests.times import (
    pytest_collection_modifyitems as pytest_collection_modifyitems,
    pytest_configure as pytest_configure,
)

if TYPE_CHECKING:
    from streams.kafka.node.process import BrokerProcess
    from tests.support.log.shared_node import SharedNode

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as our processes that load torch; read when it is loaded

hypothesis.settings.register_profile(  # without a deadline: a busy machine is no failure
    "streamward", deadline=None, max_examples=examples(100), derandomize=not FULL, database=None
)
hypothesis.settings.load_profile("streamward")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without a search for garbage, and leave what they imported out of every later search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # or DuckDB's client prints what is not collected at the end
        gc.enable()


ROOT = Path(__file__).parents[1]
NEEDED = re.compile(r"^from (?:tests\.)?plugins\.(\w+)", re.MULTILINE)
"""The plugin of each import of a test file."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a file whose imports need a plugin that this checkout lacks (`tests.house --without`)."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT / "tests"):
        return None
    needed = NEEDED.findall(collection_path.read_text(encoding="utf-8"))
    return any(not (ROOT / "plugins" / name).is_dir() for name in needed) or None


ASYNC_TEST_S = 20.0
"""For a test that is a coroutine: what it waits for is in this process."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def limited() -> None:
        async with asyncio.timeout(ASYNC_TEST_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True


@pytest.fixture(scope="session", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let HTTP clients, those of child processes too, trust nobody by default.

    Each new client of httpx would read the certificates of all public authorities: 20 ms of CPU for one request.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("authorities")))
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this run a temporary folder of its own: what processes leave there that a test kills goes with the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield


UNHURRIED = {
    "broker.heartbeat.interval.ms": "2000",
    "metadata.max.idle.interval.ms": "5000",
}
"""Idle, such a node takes half as much of a core."""


MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 * 1024**3  # noqa: S108 - its files are in a new folder there
ANSWER_S = 60.0
"""For the shared node to answer a request: a busy machine may stall for seconds."""


NODE, FORKS = pytest.StashKey[str](), pytest.StashKey["str | None"]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork all workers from one process that collects the tests, and meanwhile start the Kafka node that they share.

    Most of what a node costs is Java's compiler, and four take it four times.
    """
    ends, file = contextlib.ExitStack(), Path(__file__).parent / "support" / "forked_workers.py"
    config.add_cleanup(ends.close)
    address = ends.enter_context(tempfile.TemporaryDirectory(prefix="streamward-workers-")) + "/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        serve = [sys.executable, file, "serve", str(listener.fileno()), *config.invocation_params.args]
        collector = subprocess.Popen(
            serve, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()]
        )
    ends.enter_context(collector)
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-S", "-E", str(file), address])
    config.stash[FORKS] = ends.enter_context(fork_server.serving())
    config.stash[NODE] = ends.enter_context(_embedded()).bootstrap


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the shared node is, and the server of forks."""
    node.workerinput["kafka"], node.workerinput["forks"] = node.config.stash[NODE], node.config.stash[FORKS]


@pytest.fixture(scope="session", autouse=True)
def forks(request: pytest.FixtureRequest) -> None:
    """Let processes that tests start be forks, if there is a server of them."""
    fork_server.address = getattr(request.config, "workerinput", {}).get("forks")


@contextlib.contextmanager
def _embedded() -> Iterator[BrokerProcess]:
    from streams.kafka.node import process as broker

    with (
        tempfile.TemporaryDirectory(prefix="streamward-tests-", dir=_memory()) as folder,
        broker.embedded(Path(folder), properties=UNHURRIED) as running,
    ):
        yield running


def _memory() -> str | None:
    """Return a folder in memory, if there is one with room: a node waits for the disk at each new partition."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    return str(MEMORY) if has_room and os.access(MEMORY, os.W_OK) else None


@pytest.fixture(scope="session")
def shared_node(request: pytest.FixtureRequest) -> Iterator[SharedNode]:
    """An Apache Kafka node, one for all tests."""
    from tests.support.log.shared_node import SharedNode

    if (given := getattr(request.config, "workerinput", None)) is not None:
        yield SharedNode(given["kafka"])
    else:
        with _embedded() as running:
            yield SharedNode(running.bootstrap)


@pytest.fixture(scope="module")
def kafka_bootstrap(shared_node: SharedNode) -> Iterator[str]:
    """host:port of the node that all tests share. All topics that a file has made go with it."""
    from tests.support.log.shared_node import of_this_worker

    yield shared_node.bootstrap
    shared_node.delete_topics(of_this_worker())


@pytest.fixture
def settings(kafka_bootstrap: str, shared_node: SharedNode, tmp_path: Path) -> Iterator[Settings]:
    """Settings for the shared node: topics with a prefix of this test's own, everything else under its folder.

    They have fewer partitions than the defaults. Thousands of them cost the node a third of its time.
    """
    from tests.support.log.shared_node import own_prefix

    prefix = own_prefix()
    yield Settings(
        kafka=Kafka(bootstrap=kafka_bootstrap, request_timeout_s=ANSWER_S),
        topics=Topics(prefix=prefix, partitions=2, policy_partitions=1),
        trainer=Trainer(checkpoints=tmp_path / "checkpoints"),
        adapters=Adapters(store=str(tmp_path / "adapters")),
        archive=Archive(store=str(tmp_path / "archive")),
        broker=Broker(data_dir=tmp_path / "kafka"),
    )
    shared_node.delete_topics(prefix)


@pytest.fixture
def made(settings: Settings) -> Settings:
    """Settings whose topics exist."""
    from streams.kafka import admin

    admin.apply_topics(settings)
    return settings


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """Take back what a trainer sets for the whole process."""
    import torch

    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)  # as tests/support/models/tiny.py


@pytest.fixture
def nowhere() -> Settings:
    """Settings of a port where nothing listens."""
    return Settings(kafka=Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.5))


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Put the log set-up back that a command replaces, so that no line it held back comes out in a later test."""
    root = logging.getLogger()
    level, handlers = root.level, [handler for handler in root.handlers if not isinstance(handler, StderrLog)]
    root.handlers[:] = handlers
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
