"""A Kafka node in a container, by testcontainers: what the core is tested on besides its own embedded node.

    DOCKER_HOST, or the engine's usual socket ──► answers? ──► KafkaContainer ──► its address

The container is set up as a node that is alone: by Kafka's defaults, its internal topics have three replicas.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import skips

USUAL = "unix:///var/run/docker.sock"
START_S = 180
ONE_NODE = {
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
}


def missing() -> str | None:
    """Return what is missing to run a container; None if an engine answers."""
    if find_spec("testcontainers") is None:
        return skips.needs("testcontainers", "make setup-test")
    kind, _, path = os.environ.get("DOCKER_HOST", USUAL).partition("://")
    if kind == "unix" and not Path(path).exists():
        return skips.CONTAINERS  # docker's client would leave a socket open, for the garbage collector to warn of
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10)
    except DockerException:
        return skips.CONTAINERS
    try:
        client.ping()
    except (DockerException, OSError):
        return skips.CONTAINERS
    finally:
        client.close()
    return None


@contextmanager
def kafka_in_a_container() -> Iterator[str]:
    """Yield the address of a node while the block runs; skip the test if there is no engine."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer().with_kraft()
    for name, value in ONE_NODE.items():
        container.with_env(name, value)
    try:
        yield container.start(timeout=START_S).get_bootstrap_server()
    finally:
        container.stop()
