"""A release as Kubernetes rolls it out, with processes of this machine: hooks, then Pod by Pod.

    chart, values, program ──► Release ──► Cluster.apply: its hooks end with 0 ──► each Deployment wants its new Pods
    RollingUpdate   a new Pod where there is room ──► ready, says its probe ──► SIGTERM to an old one, and so on
    Recreate        SIGTERM to the old one ──► it has ended ──► a new one

All Deployments roll at once, as they do after `helm upgrade`, and `look` is one look of their controller. A Pod that is
told to end has its grace period for it and must say 0; one that ends untold fails the test. ConfigMaps change under the
Pods that run, as a kubelet does it, and at once: the chart of an older release has its settings there. Pods whose
template stays the same stay.

Not covered: what tests/support/deploy/container.py does not do for a container; probes of liveness; Pods that are moved
meanwhile, and replicas that a scaler chose. Whether an API server takes the objects is asked by
tests/deploy/test_cluster.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from tests.support.deploy.container import Container, Host, Process, of_pod
from tests.support.deploy.rendered_chart import Object, helm, spec_of
from tests.support.processes import said, until

Verb = Literal["install", "upgrade", "rollback"]


@dataclass(frozen=True)
class Release:
    """What helm renders, and the program that its images hold."""

    objects: list[Object]
    program: Path

    def container(self, found: Object) -> Container:
        """Return the container of an object with a Pod."""
        configs = {one["metadata"]["name"]: one["data"] for one in self.objects if one["kind"] == "ConfigMap"}
        name = found["metadata"]["labels"]["app.kubernetes.io/component"]
        return of_pod(name, spec_of(found), configs, {}, self.program)

    def hooks(self, verb: Verb) -> list[Container]:
        """Return what runs to its end before a verb of helm changes anything."""
        jobs = [one for one in self.objects if one["kind"] == "Job"]
        return [self.container(job) for job in jobs if f"pre-{verb}" in job["metadata"]["annotations"]["helm.sh/hook"]]


def rendered(values: Object, program: Path) -> Release:
    """Return what the chart of a program makes of these values."""
    done = helm(values, chart=program / "helm")
    assert done.returncode == 0, done.stderr
    return Release([one for one in yaml.safe_load_all(done.stdout) if one is not None], program)


class Pod:
    """One Pod, from its start to its end."""

    def __init__(self, process: Process, template: Object) -> None:
        self.process, self.template = process, template
        self._grace_s: float = template["spec"]["terminationGracePeriodSeconds"]
        self._period_s: float = template["spec"]["containers"][0].get("readinessProbe", {}).get("periodSeconds", 10)
        self._believed_until = 0.0
        self._must_end_by = float("inf")
        process.start()

    def is_ready(self) -> bool:
        """Tell what its readiness probe says; a yes is believed until the probe's period is over."""
        if time.monotonic() >= self._believed_until:
            probes = [kind for kind in ("startup", "readiness") if kind in self.process.container.probes]
            if not all(self.process.passes(kind) for kind in probes):
                return False
            self._believed_until = time.monotonic() + self._period_s
        return True

    def end(self) -> None:
        """Tell it to end."""
        self.process.child.send_signal(signal.SIGTERM)
        self._must_end_by = time.monotonic() + self._grace_s

    def has_ended(self) -> bool:
        """Tell whether it is gone, as it was told. Fails if it says other than 0, or takes longer than it may."""
        code, name = self.process.child.poll(), self.process.root.name
        assert code in (None, 0), f"{name} was told to end and said {code}: {said(self.process.host.folder)}"
        assert time.monotonic() < self._must_end_by, f"{name} would have been killed: {said(self.process.host.folder)}"
        return code == 0


class Deployment:
    """The Pods of one component, and what they are to be."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._container: Container
        self._spec: Object
        self.pods: list[Pod] = []
        """Those that are not told to end."""
        self.leaving: list[Pod] = []

    def want(self, container: Container, spec: Object) -> None:
        """Change what its Pods are to be."""
        self._container, self._spec = container, spec
        for pod in self.pods:
            pod.process.lay_again(container.mounts)

    def scale(self, replicas: int) -> None:
        """Change how many Pods there are to be."""
        self._spec = {**self._spec, "replicas": replicas}

    def look(self) -> bool:
        """Start and end what may be started and ended now; return whether all was as wanted."""
        untold = [pod.process.root.name for pod in self.pods if pod.process.child.poll() is not None]
        assert not untold, f"ended untold: {untold}: {said(self._host.folder)}"
        self.leaving = [pod for pod in self.leaving if not pod.has_ended()]
        replicas = self._spec["replicas"]
        new = [pod for pod in self.pods if pod.template == self._spec["template"]]
        old = [pod for pod in self.pods if pod not in new]
        settled = len(new) == replicas and not old and not self.leaving and all(pod.is_ready() for pod in new)
        self._end(new[replicas:])
        if self._spec["strategy"].get("type") == "Recreate":
            self._end(old)
            if not self.leaving:
                self._start(replicas - len(new))
        else:
            rule = self._spec["strategy"]["rollingUpdate"]
            self._start(min(replicas + rule["maxSurge"] - len(self.pods), replicas - len(new)))
            self._make_room(old, at_least=replicas - rule["maxUnavailable"])
        return settled

    def _make_room(self, old: list[Pod], *, at_least: int) -> None:
        """End old Pods, those first that are not ready, and so that as many as `at_least` are ready."""
        if not old:
            return
        coming = sum(not pod.is_ready() for pod in self.pods if pod not in old)
        spare = len(self.pods) - at_least - coming
        self._end([pod for pod in old if not pod.is_ready()][: max(0, spare)])
        spare = sum(pod.is_ready() for pod in self.pods) - at_least
        self._end([pod for pod in old if pod in self.pods][: max(0, spare)])

    def _start(self, count: int) -> None:
        self.pods += [Pod(self._host.put(self._container), self._spec["template"]) for _ in range(count)]

    def _end(self, pods: list[Pod]) -> None:
        for pod in pods:
            pod.end()
            self.pods.remove(pod)
            self.leaving.append(pod)


class Cluster:
    """The Deployments of one release, whatever its revision."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.deployments: dict[str, Deployment] = {}

    @property
    def pods(self) -> list[Pod]:
        """Every Pod that is not told to end."""
        return [pod for deployment in self.deployments.values() for pod in deployment.pods]

    def apply(self, release: Release, verb: Verb) -> None:
        """Do what helm does, up to where the controllers take over."""
        for hook in release.hooks(verb):
            self.host.put(hook).ends()
        wanted = {}
        for found in release.objects:
            if found["kind"] == "Deployment":
                container = release.container(found)
                wanted[container.name] = self.deployments.setdefault(container.name, Deployment(self.host))
                wanted[container.name].want(container, found["spec"])
        for name in self.deployments.keys() - wanted.keys():  # another revision has it
            self.deployments[name].scale(0)

    def look(self) -> bool:
        """Let every controller look once; return whether all is as wanted."""
        return all([deployment.look() for deployment in self.deployments.values()])

    def until(self, met: Callable[[], bool], expected: str) -> None:
        """Return once `met`, with all Pods as they are wanted."""
        until(lambda: self.look() and met(), expected, folder=self.host.folder, timeout_s=300)

    def until_rolled_out(self) -> None:
        """Return once every Pod is as wanted, and ready."""
        self.until(lambda: True, "every Pod as it is wanted")

    @contextmanager
    def running(self) -> Iterator[None]:
        """End every Pod when the block ends. Each must say 0."""
        try:
            yield
            for deployment in self.deployments.values():
                deployment.scale(0)
            self.until_rolled_out()
        finally:
            left = [pod for one in self.deployments.values() for pod in [*one.pods, *one.leaving]]
            for pod in left:
                pod.process.child.kill()
                pod.process.child.wait()
