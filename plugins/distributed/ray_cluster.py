"""Processes of ours on the nodes of a Ray cluster, which is joined and never started.

    RAY_ADDRESS, or the cluster of this machine ──► joined ──► room_for: a placement group, or an error after a while
                                                                  │ each place: our folder, packages as here?
    settings, whatever their source ──► variables ──► child_of: a child of a Ray worker, ends with it ◄──┘

What runs is the command that a user would type, in a process of its own: Ray's workers run functions in threads and
have loaded libraries of their own. Settings are those of the command, secrets included, and no file or variable of a
node adds to them. They travel as arguments of Ray's calls; who may talk to a Ray cluster may run any program on it.

Not covered: Ray Client (ray://). Submit the command as a job instead: docs/distributed.md.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from streams.errors import ClusterError, SettingsError
from streams.processes.child import ChildProcess
from streams.processes.signals import start_ending_with_parent
from streams.settings.load import ENV_PREFIX, to_env
from streams.settings.model import Settings

ADDRESS = "RAY_ADDRESS"
"""Ray's own variable; `ray job submit` sets it, too."""
ANSWER_S = 5.0
"""How long the cluster's address may take to accept a connection. Ray itself tries for minutes."""
LOOK_EVERY_S = 1
LOOK_S = 600.0
"""How long the processes that look at the nodes may take, which have to be started first."""
LOOK = """
import hashlib, pathlib, platform, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
ours = find_spec("streams")
print("python", platform.python_version())
for name in sys.argv[1:]:
    try:
        if name != "streamward" or ours:
            print(name, version(name))
    except PackageNotFoundError:
        pass
if ours:
    root, code = pathlib.Path(ours.origin).parents[1], hashlib.sha256()
    packages = ("plugins", "schemas", "streams", "trainer")
    for path in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        code.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    print("streamward's code", code.hexdigest()[:12])
"""
"""What a node has of the packages that are named, as a program of its own: it may have none of ours."""


class Room(NamedTuple):
    """What Ray is asked for."""

    processes: int
    cpus: int
    """Of each."""
    gpus: int
    """Of each."""

    def bundle(self) -> dict[str, int]:
        """Return the share of one process as Ray counts it."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


def room(processes: int, threads: int, device: str) -> Room:
    """Return what to ask for: a CPU for each thread, and for model.device=cuda a GPU.

    Raises SettingsError if the device is one of a machine.
    """
    if device.startswith("cuda:"):
        raise SettingsError(
            f"model.device={device} names one device, and on Ray each process gets its own; set model.device=cuda"
        )
    return Room(processes, max(1, threads), int(device == "cuda"))


class NodeCommand(NamedTuple):
    """A command of ours, as it is sent to other nodes."""

    command: str
    """After `streamward`, with its options."""
    log_level: str
    variables: dict[str, str]
    """The settings."""
    folder: str
    """Where it runs, on every node."""


def work(settings: Settings, words: Sequence[str], log_level: str) -> NodeCommand:
    """Return `streamward WORDS` with these settings, to be run in a folder of this one's name."""
    return NodeCommand(shlex.join(words), log_level, to_env(settings), str(Path.cwd()))


@contextmanager
def child_of(work: NodeCommand, variables: Mapping[str, str]) -> Iterator[ChildProcess]:
    """Run it as a child of this process, with more `variables`; it ends with the block, and with this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    with start_ending_with_parent(
        [sys.executable, "-m", "streams.cli", "--log-level", work.log_level, *shlex.split(work.command)],
        {**env, **work.variables, **variables},
        cwd=work.folder,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def joined(option: str) -> Iterator[None]:
    """Be a driver of the cluster in RAY_ADDRESS, or of that of this machine, while the block runs.

    Ray sets handlers of signals: set others in the block. Raises SettingsError if ray is not installed here, naming the
    `option` that needs it, and ClusterError if no cluster answers.
    """
    try:
        import ray
    except ImportError as exc:
        raise SettingsError(
            f"{option} needs ray, which is not installed here ({exc}); `pip install 'streamward[ray]'`, on every node"
        ) from exc
    address = os.environ.get(ADDRESS) or "auto"
    _refuse_silence(address)
    try:
        ray.init(address=address, logging_level="WARNING")
    except (ConnectionError, RuntimeError, ValueError) as exc:  # Ray has no errors of its own here
        raise ClusterError(f"{_no_cluster(address)}: {str(exc).splitlines()[0]} {WAY_OUT}") from exc
    try:
        yield
    finally:
        ray.shutdown()


WAY_OUT = (
    f"Start one with `ray start --head`, set {ADDRESS} to host:port of one that runs, or submit this command to it "
    "with `ray job submit`"
)


def _no_cluster(address: str) -> str:
    return "no Ray cluster on this machine" if address == "auto" else f"no Ray cluster at {address}"


def _refuse_silence(address: str) -> None:
    """Raise ClusterError if no process listens at `address`, SettingsError if it is none that a driver can use."""
    if "://" in address:
        raise SettingsError(
            f"{ADDRESS}={address}: Ray Client does not carry processes of many hours; submit this command as a job: "
            "`ray job submit --address http://HOST:8265 -- streamward …`"
        )
    host, _, port = address.rpartition(":")
    if address in ("auto", "local"):
        if address == "local":
            raise SettingsError(f"{ADDRESS}=local would start a cluster that ends with this command. {WAY_OUT}")
        return
    if not host or not port.isdecimal():
        raise SettingsError(f"{ADDRESS}={address}: expected host:port, or auto for the cluster of this machine")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as exc:
        raise ClusterError(f"{_no_cluster(address)}: {exc.strerror or exc}. {WAY_OUT}") from exc


@contextmanager
def room_for(room: Room, wait_s: float, stop: Event, packages: Sequence[str], *, spread: bool) -> Iterator[Any]:
    """Yield a placement group with a bundle for each process, on nodes that have our folder, and `packages` as here.

    Yields None if `stop` is set before there is room. `spread` prefers one node each, without it as few nodes as
    possible. Raises ClusterError if the cluster has no room within `wait_s` seconds, SettingsError if a node is another
    one than needed.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([room.bundle()] * room.processes, strategy="SPREAD" if spread else "PACK")
    try:
        until = time.monotonic() + wait_s
        while not group.wait(timeout_seconds=LOOK_EVERY_S):
            if stop.is_set():
                yield None
                return
            if time.monotonic() > until:
                raise ClusterError(no_room(room, wait_s))
        _refuse_other_nodes(room, group, ["streamward", *packages])
        yield group
    finally:
        remove_placement_group(group)


def no_room(room: Room, wait_s: float) -> str:
    """Return what the cluster lacks."""
    import ray

    kinds = list(room.bundle())
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    total, free = (
        ", ".join(f"{kind} {resources.get(kind, 0):g}" for kind in kinds)
        for resources in (ray.cluster_resources(), ray.available_resources())
    )
    bundle = ", ".join(f"{kind} {count:g}" for kind, count in room.bundle().items())
    return (
        f"Ray has no room for {room.processes} processes of {bundle} each, also not after {wait_s:g} s: its {nodes} "
        f"nodes have {total}, of which {free} is free, and no process is on two nodes. Add nodes, end other jobs, ask "
        "for fewer processes or threads, or wait longer (distributed.wait_s)"
    )


def _refuse_other_nodes(room: Room, group: Any, packages: Sequence[str]) -> None:
    """Raise SettingsError for the first node that lacks our folder, or has other packages than this one."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    folder = str(Path.cwd())
    looks = [
        ray.remote(_looker())
        .options(
            num_cpus=room.cpus,
            num_gpus=room.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        )
        .remote(LOOK, packages, folder)
        for number in range(room.processes)
    ]
    try:
        answers = ray.get(looks, timeout=LOOK_S)
    except (ray.exceptions.RayError, OSError) as exc:
        raise ClusterError(
            f"a node of Ray cannot start a process: {str(exc).strip().splitlines()[-1]}; see Ray's logs there"
        ) from exc
    own_versions = versions(look_here(LOOK, packages))
    for node, has_folder, printed in answers:
        refuse_other_node(node, has_folder, versions(printed), own_versions, folder)


def refuse_other_node(
    node: str, has_folder: bool, node_versions: Mapping[str, str], own_versions: Mapping[str, str], folder: str
) -> None:
    """Raise SettingsError if a node cannot run what this one can."""
    advice = "all nodes need the same: use one image or environment for them"
    for name in own_versions:
        if node_versions.get(name) != own_versions[name]:
            difference = f"has {name} {node_versions[name]}" if name in node_versions else f"has no {name}"
            raise SettingsError(f"Ray's node {node} {difference}, and this one {own_versions[name]}; {advice}")
    if not has_folder:
        raise SettingsError(
            f"Ray's node {node} has no folder {folder}, where this command runs, and paths in settings begin there; "
            "run it in a folder that all nodes have, such as a shared one"
        )


def look_here(program: str, packages: Sequence[str]) -> str:
    """Return what a python like that of this process prints."""
    command = [sys.executable, "-c", program, *packages]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def versions(printed: str) -> dict[str, str]:
    """Return the version of each package that LOOK has found."""
    return dict(line.rsplit(" ", 1) for line in printed.splitlines())


def _looker() -> Callable[[str, Sequence[str], str], tuple[str, bool, str]]:
    """Return what looks at a node. It is sent as code: a node that lacks this package could not import it by name."""

    def look(program: str, packages: Sequence[str], folder: str) -> tuple[str, bool, str]:
        import os
        import subprocess
        import sys

        import ray

        node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
        has_folder = os.path.isdir(folder)
        command = [sys.executable, "-c", program, *packages]
        done = subprocess.run(
            command, cwd=folder if has_folder else os.sep, capture_output=True, text=True, check=True
        )  # python also looks for packages where it runs
        return node, has_folder, done.stdout

    return look
