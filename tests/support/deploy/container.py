"""A container as a deployment describes it, run as a process of this machine.

    a Pod of the chart, a service of compose ──► Container ──┐
    the Dockerfile: environment, packages without torch    ──┼──► the program in a root folder of its own, at an
    what has another address here, files of the image      ──┘    address of its own, with that environment and no other

Paths of the container lie under its root, 0.0.0.0 is the container's own address, and names of others are theirs:
wherever they stand, in arguments, variables and mounted files alike, and nothing else is changed. So each container may
listen at the port it names, and one that listens on its loopback address cannot be asked from outside, as in a cluster.
A volume has one path for all containers that mount it at the same path, since they tell each other where files are.

Not covered: users, capabilities, limits, a root that is read-only, the network. Systems other than Linux have no
further loopback addresses.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.small_image import hide
from tests.support.processes import said, until
from tests.support.scrape import get

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = {"streamward": [sys.executable, "-m", "streams.cli"], "python": [sys.executable]}
EVERYWHERE = "0.0.0.0"  # noqa: S104, to be replaced
LOOPBACK = ("127.0.0.1", "localhost")
KEPT = ("PATH", "LD_LIBRARY_PATH")
"""Variables of this machine without which nothing starts here."""

Described = Mapping[str, Any]
"""What YAML says."""


@dataclass(frozen=True)
class Mount:
    """One folder that is put into a container."""

    path: str
    files: Mapping[str, str] | None = None
    """Text by name, read-only; None: an empty folder to write to."""
    rewritten: bool = False
    """Whether the files name paths and addresses; a secret is what it is."""
    volume: str | None = None
    """The name by which others have the same folder; None: nobody else has it."""


@dataclass(frozen=True)
class Container:
    """What a deployment says about one container."""

    name: str
    image: str
    """The target of the Dockerfile."""
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    probes: Mapping[str, Any] = field(default_factory=dict)
    """By kind: (port, path) for HTTP, else a command."""
    ports: Mapping[str, int] = field(default_factory=dict)
    source: Path = REPOSITORY
    """Where the Dockerfile is, and the program that its image holds."""


# --- the chart -------------------------------------------------------------------------------------------------------


def of_pod(name: str, spec: Described, configs: Described, secrets: Described, source: Path = REPOSITORY) -> Container:
    """Return the container of a Pod. ConfigMaps are what the chart renders, Secrets what the values name."""
    (container,) = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    probes: dict[str, Any] = {}
    for kind in ("startup", "liveness", "readiness"):
        probe = container.get(f"{kind}Probe", {})
        if "httpGet" in probe:
            port = probe["httpGet"]["port"]
            probes[kind] = (ports.get(port, port), probe["httpGet"]["path"])
        elif "exec" in probe:
            probes[kind] = probe["exec"]["command"]
    return Container(
        name,
        target_of(container["image"]),
        [*container["command"], *container["args"]],
        variables({variable["name"]: _value(variable, configs, secrets) for variable in container["env"]}),
        [_mount(mount["mountPath"], volumes[mount["name"]], configs, secrets) for mount in container["volumeMounts"]],
        probes,
        ports,
        source,
    )


def _value(variable: Described, configs: Described, secrets: Described) -> str:
    match variable:
        case {"value": str(value)}:
            return value
        case {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}:
            return EVERYWHERE
        case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
            return str(secrets[name][key])
        case {"valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}:
            return str(configs[name][key])
    raise AssertionError(f"no value for {variable}")


def variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return what a container gets as its variables: $(NAME) is the value of an earlier one, and $$ is $."""
    given: dict[str, str] = {}
    for name, value in values.items():
        given[name] = re.sub(r"\$\$|\$\((\w+)\)", lambda found: given[found[1]] if found[1] else "$", value)
    return given


def _mount(path: str, volume: Described, configs: Described, secrets: Described) -> Mount:
    match volume:
        case {"configMap": {"name": name, **rest}}:
            return Mount(path, _items(configs[name], rest), rewritten=True)
        case {"secret": {"secretName": name, **rest}}:
            return Mount(path, _items(secrets[name], rest))
        case {"projected": {"sources": sources}}:
            files: dict[str, str] = {}
            for source in sources:
                files |= _items(secrets[source["secret"]["name"]], source["secret"])
            return Mount(path, files)
        case {"persistentVolumeClaim": {"claimName": name}}:
            return Mount(path, volume=name)
        case {"emptyDir": _}:
            return Mount(path)
    raise AssertionError(f"no such volume here: {volume}")


def _items(found: Mapping[str, str], rest: Described) -> dict[str, str]:
    """Return the files that a ConfigMap or a Secret becomes."""
    return {item["path"]: found[item["key"]] for item in rest["items"]} if "items" in rest else dict(found)


# --- compose ---------------------------------------------------------------------------------------------------------


def of_service(name: str, service: Described) -> Container:
    """Return the container of a service whose variables are filled in; its program is the image's."""
    mounts = [Mount(path) for path in service.get("tmpfs", [])]
    for mount in service.get("volumes", []):
        volume, path = mount.split(":")[:2]
        mounts.append(Mount(path, volume=volume))
    test = service.get("healthcheck", {}).get("test", [])
    assert test[:1] in ([], ["CMD"]), f"{name}: a health check without a shell is a list that begins with CMD"
    return Container(
        name,
        target_of(service["image"]),
        [*image(target_of(service["image"]), "ENTRYPOINT"), *service["command"]],
        service["environment"],
        mounts,
        {"readiness": test[1:]} if test else {},
    )


# --- the image -------------------------------------------------------------------------------------------------------


def target_of(name: str) -> str:
    """Return the target of the Dockerfile from which an image of this name is built."""
    found = re.search(r"streamward-(\w+)[:@]", name)
    assert found is not None, f"{name} is no image of the Dockerfile"
    return found[1]


def image(stage: str, instruction: str, source: Path = REPOSITORY) -> list[str]:
    """Return the words of an instruction in one stage of the Dockerfile; none if it is not there."""
    dockerfile = re.sub(r"\\\n\s*", "", (source / "Dockerfile").read_text(encoding="utf-8"))
    lines = re.search(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL)
    assert lines is not None, f"no stage {stage}"
    found = re.search(rf"^{instruction} (.*)$", lines[1], re.MULTILINE)
    return shlex.split(found[1].strip("[]").replace('", "', '" "')) if found else []


# --- a process -------------------------------------------------------------------------------------------------------


class Host:
    """The machine that runs them: which addresses they have, and the folders they share."""

    def __init__(self, folder: Path, names: Mapping[str, str], files: Mapping[str, Path] | None = None) -> None:
        """`names` are what stands for an address, e.g. `kafka:9092`; `files` are folders of the image, by path."""
        if sys.platform != "linux":
            pytest.skip("NOT RUN: only Linux gives every process an address of its own on the loopback device")
        self.folder, self.names, self.files = folder, dict(names), dict(files or {})
        self._network = f"127.{random.randint(64, 254)}.{random.randint(0, 254)}"
        self._count = 0

    def put(self, container: Container) -> Process:
        """Lay out a container's root: its mounts, its files."""
        self._count += 1
        root = self.folder / f"{self._count}-{container.name}"
        return Process(self, container, root, f"{self._network}.{self._count}")

    def volume(self, name: str, path: str) -> Path:
        """Return a volume's folder, as every container sees it that mounts the volume at this path."""
        seen = self.folder / "volumes" / name / "at" / path.removeprefix("/")
        if not seen.is_symlink():
            files = self.folder / "volumes" / name / "files"
            files.mkdir(parents=True, exist_ok=True)
            seen.parent.mkdir(parents=True, exist_ok=True)
            seen.symlink_to(files)
        return seen

    @contextmanager
    def running(self, *processes: Process) -> Iterator[None]:
        """Run them while the block runs. Each must end with 0 when it is told to."""
        try:
            for process in processes:
                process.start()
            yield
            for process in processes:
                process.child.send_signal(signal.SIGTERM)
            codes = {process.root.name: process.child.wait(300) for process in processes}
            assert set(codes.values()) == {0}, f"{codes}: {said(self.folder)}"
        finally:
            for process in processes:
                if process.started:
                    process.child.kill()
                    process.child.wait()

    def until_ready(self, *processes: Process) -> None:
        """Wait as a kubelet does: for the probe of the start, then of life, then of readiness."""
        for kind in ("startup", "liveness", "readiness"):
            for process in processes:
                if kind in process.container.probes:
                    until(lambda: process.passes(kind), f"{process.root.name}: {kind}", folder=self.folder)  # noqa: B023


class Process:
    """A container that is laid out on a host."""

    def __init__(self, host: Host, container: Container, root: Path, address: str) -> None:
        self.host, self.container, self.root, self.address = host, container, root, address
        self.started = False
        self.child: subprocess.Popen[bytes]
        home = self._inside(self._of_image("WORKDIR")[0])
        home.mkdir(parents=True)
        for mount in sorted(container.mounts, key=lambda mount: mount.path):
            self._lay(mount)
        for path, folder in host.files.items():
            self._inside(path).parent.mkdir(parents=True, exist_ok=True)
            self._inside(path).symlink_to(folder)
        self._home = home
        self._before = set(self._files())

    def _of_image(self, instruction: str) -> list[str]:
        return image("base", instruction, self.container.source)

    def _inside(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def _lay(self, mount: Mount) -> None:
        at = self._inside(mount.path)
        if mount.volume is not None:
            at.symlink_to(self.host.volume(mount.volume, mount.path))
            return
        at.mkdir(parents=True, exist_ok=True)
        for name, text in (mount.files or {}).items():
            (at / name).write_text(self.led(text) if mount.rewritten else text, encoding="utf-8")

    def lay_again(self, mounts: Sequence[Mount]) -> None:
        """Let mounted ConfigMaps say what they say in `mounts`, as a kubelet does while the container runs."""
        paths = {mount.path for mount in self.container.mounts if mount.rewritten}
        for mount in mounts:
            if mount.rewritten and mount.path in paths:
                self._lay(mount)

    @cached_property
    def _places(self) -> dict[str, str]:
        paths = [mount.path for mount in self.container.mounts] + list(self.host.files) + self._of_image("WORKDIR")
        volumes = {mount.path: mount.volume for mount in self.container.mounts if mount.volume is not None}
        return {
            **{path: str(self._inside(path)) for path in paths},
            **{path: str(self.host.volume(name, path)) for path, name in volumes.items()},
            EVERYWHERE: self.address,
            **self.host.names,
        }

    def led(self, text: str, *, inside: bool = False) -> str:
        """Return the text with paths and addresses as they are on this machine.

        `inside`: it asks from inside the container, whose loopback address then is the container's own.
        """
        places = {**dict.fromkeys(LOOPBACK, self.address), **self._places} if inside else self._places
        words = "|".join(re.escape(word) for word in sorted(places, key=len, reverse=True))
        return re.sub(rf"(?<![\w.-])(?:{words})(?![\w.-])", lambda found: places[found[0]], text)

    def _popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        program = PROGRAMS[command[0]]
        said_by_image = dict(pair.split("=", 1) for pair in self._of_image("ENV"))
        given = {**said_by_image, **self.container.environment, "TMPDIR": "/tmp"}  # noqa: S108, the container's own
        environment = {name: self.led(value) for name, value in given.items() if name not in KEPT}
        environment |= {name: os.environ[name] for name in KEPT if name in os.environ}
        source = self.container.source
        hiding = (
            [hide(self.host.folder / f"image-of-{source.name}", source)] if self.container.image == "streams" else []
        )
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [*hiding, source]))
        return subprocess.Popen([*program, *map(self.led, command[1:])], env=environment, cwd=self._home, **options)

    def start(self) -> None:
        """Start what the container runs; it prints into a file beside its root."""
        with (self.host.folder / f"{self.root.name}.log").open("ab") as log:
            self.child = self._popen(self.container.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started = True

    def execute(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` does, and return how it ended."""
        process = self._popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(stdin.encode(), timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())

    def ends(self) -> str:
        """Run what the container runs to its end, which has to be 0, and return what it prints."""
        done = self.execute(*self.container.command)
        assert done.returncode == 0, f"{self.root.name}: {done.stdout}{done.stderr}\n{said(self.host.folder)}"
        return done.stdout

    def passes(self, kind: str) -> bool:
        """Tell whether a probe succeeds now. Fails if the process has ended."""
        assert self.child.poll() is None, f"{self.root.name} ended: {said(self.host.folder)}"
        probe = self.container.probes[kind]
        if isinstance(probe, tuple):
            return self.get(*probe)[0] == 200
        return self.execute(*(self.led(word, inside=True) for word in probe)).returncode == 0

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Return status and body of a GET from outside; (0, "") if nobody answers."""
        return get(f"http://{self.address}:{port}{path}")

    def written_elsewhere(self) -> list[str]:
        """Return the files that were made where a read-only root would not have let them."""
        writable = [mount.path for mount in self.container.mounts if mount.files is None]
        made = sorted(set(self._files()) - self._before)
        return [path for path in made if not any(path.startswith(f"{place}/") for place in writable)]

    def _files(self) -> Iterator[str]:
        for folder, _, files in os.walk(self.root):
            for name in files:
                yield f"/{Path(folder, name).relative_to(self.root)}"
