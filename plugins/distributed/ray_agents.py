"""Agents on a Ray cluster: each is an actor that runs the normal agent as a child process, where there is room.

    streamward policy --on ray --replicas N ──► run ─┬─► RayAgent 0 ──► streamward policy ──► Kafka
                                                     ├─► RayAgent 1 ──► …
                    SIGTERM, Ctrl-C: all drain ──────┘        lost, or its node: Ray starts it again, there or elsewhere

They share the partitions as agents on any machines do, so one that is lost leaves its tasks to the others until it is
back. The actors end with the command. As a job of Ray (`ray job submit`) it is itself a process of the cluster.
"""

from __future__ import annotations

import logging
import signal
import threading
from threading import Event
from typing import Any

from plugins.distributed.ray_cluster import NodeCommand, Room, child_of, room_for
from plugins.distributed.settings import Distributed
from streams.errors import EXIT_RESTART, NotFoundError, RefusedError, SettingsError

FINAL = (0, SettingsError.exit_code, NotFoundError.exit_code, RefusedError.exit_code)
"""Exit codes of an agent that would end the same way again."""
AGAIN_S = 5.0
"""How long an agent that ended is left alone before it is started again."""
LOOK_EVERY_S = 1.0

log = logging.getLogger(__name__)


class AgentLost(Exception):
    """An agent ended so that it is to be started again."""


class RayAgent:
    """An actor that runs one agent."""

    def __init__(self, work: NodeCommand) -> None:
        self._work, self._should_end = work, threading.Event()

    def run(self) -> int:
        """Run the agent until it ends, and return its exit code. Raises AgentLost if it is to be started again."""
        if self._should_end.is_set():
            return 0
        with child_of(self._work, {}) as child:
            while child.poll() is None:
                if self._should_end.wait(LOOK_EVERY_S):
                    child.terminate()
                    child.wait()
        code = child.returncode
        if self._should_end.is_set() and code < 0:
            return 0 if code == -signal.SIGTERM else EXIT_RESTART  # SIGTERM came before it could hear it
        if self._should_end.is_set() or code in FINAL:
            return code
        if self._should_end.wait(AGAIN_S):
            return 0
        raise AgentLost(f"the agent ended with {code}")

    def ask_to_end(self) -> None:
        """Let the agent finish its in-flight work and end."""
        self._should_end.set()


def run(work: NodeCommand, room: Room, settings: Distributed, stop: Event) -> int:
    """Run `work`, an agent, as often as `room` is for, until `stop` is set and all have drained.

    Call it within `joined`. Returns 0, or the exit code of the first that ended for good in another way, with which all
    are ended; 75 if one was lost more often than settings.restarts. Raises ClusterError if the cluster has no room for
    them, SettingsError if a node is not as this one, both before any is started.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    with room_for(room, settings.wait_s, stop, (), spread=True) as group:
        if group is None:
            return 0
        actor = ray.remote(RayAgent)
        agents = [
            actor.options(
                name=f"streamward {work.command} {number}",
                num_cpus=room.cpus,
                num_gpus=room.gpus,
                max_concurrency=2,  # run, and ask_to_end
                max_restarts=settings.restarts,
                max_task_retries=settings.restarts,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            ).remote(work)
            for number in range(room.processes)
        ]
        again = {"max_task_retries": settings.restarts, "retry_exceptions": [AgentLost]}
        running = {agent.run.options(**again).remote(): number for number, agent in enumerate(agents)}
        code = 0
        while running:
            ended, _ = ray.wait(list(running), timeout=LOOK_EVERY_S)
            for run_ref in ended:
                number, exit_code = running.pop(run_ref), _code(run_ref)
                if exit_code:
                    log.error(
                        "agent %d of %d ended with exit code %d; all end with it", number, room.processes, exit_code
                    )
                code = code or exit_code
            if stop.is_set() or code:
                for number in running.values():
                    agents[number].ask_to_end.remote()
        return code


def _code(run: Any) -> int:
    """Return the exit code of an agent that has ended."""
    import ray

    try:
        return int(ray.get(run))
    except (AgentLost, ray.exceptions.RayError) as exc:
        log.error("%s", str(exc).strip().splitlines()[-1])
        return EXIT_RESTART
