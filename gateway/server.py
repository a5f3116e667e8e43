"""Serve the policy, or every policy of a fleet, to agents until it is asked to stop.

settings ──► recorder, log ──► rooms and parts (rooms/routes.py) ──► Application ──► uvicorn
a part's Authentication ──► the door, with serve.auth=keys ──► an event of each request
stop ──► no new connection ──► calls in progress end and are recorded ──► the end
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory

from gateway.agents.feedback import FeedbackBox
from gateway.agents.protocols import AgentProtocols
from gateway.http.application import Application
from gateway.http.connection import OpenConnections
from gateway.http.door import Door
from gateway.http.limits import HeldPlace, KeyLimits, TimeLimits
from gateway.http.own_machine import OwnMachine
from gateway.http.uvicorn_server import QuietServer, TlsFiles, allow_open_files, bound, quiet_server
from gateway.log.adapters import PublishedAdapters
from gateway.log.groups import TaskGroups
from gateway.log.loop_motion import LoopState
from gateway.log.open_log import OpenLog
from gateway.log.recorded_runs import RecordedRuns
from gateway.log.rewards import OutsideRewards
from gateway.log.scores import ScorerTrials
from gateway.log.server_part import ServerBase
from gateway.log.statements import Statements
from gateway.log.tasks import SentTasks
from gateway.log.uploaded_files import UploadedFiles
from gateway.mcp.mcp_mount import McpMount
from gateway.mcp.tools import own_tools
from gateway.rooms.routes import PARTS, PLUGIN_ROOMS, SOCKETS, TABLE, Health, OwnPermissions, check_authentication
from streams.adapters import signing
from streams.engines.build import build_tokens
from streams.files import program_version
from streams.kafka.group_names import SERVER
from streams.kafka.idle_member import SoleMember
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage
from streams.observability import metrics
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.service import open_recorder
from streams.stages.agents.tool_guard import ToolGuard
from streams.stages.tasks.line_steps import LineSteps
from streams.tools.asking import give_feedback
from streams.worker import garbage

LOOK_S = 0.1
"""How soon a request to stop is noticed."""
SWEEP_S = 1.0
"""How often trajectories are looked at that may have ended."""
GRACE_S = 20
"""How long answers in progress may take once the server should stop, seconds; then their clients are cut off."""
SWITCH_S = 0.02
"""How long a thread may run while others wait for Python's lock. Decoding, writing and answering release it sooner;
with Python's 5 ms, tokens and acknowledgements interrupted answers, a fifth of the time."""
START_S = 3600.0
"""How long an engine may take to start before it counts as stuck: it may have a model to download."""

log = logging.getLogger("streamward.agents")


def run(settings: Settings, *, stop: threading.Event, fleet: bool = False) -> None:
    """Answer agents until `stop` is set; answers in progress are finished and recorded. `fleet`: for every policy.

    Raises SettingsError if address or engine cannot be used, RefusedError if another server answers for this log,
    LogError if the broker refuses or is unreachable too long, StoppedWaiting.
    """
    signing.check_verify_key(settings.adapters)
    check_authentication(settings)
    tls, rule = tls_files(settings), settings.serve
    connections = OpenConnections(rule.max_connections, rule.address_connections)
    allow_open_files(rule.max_connections)
    with (
        metrics.serve_meter(settings, "serve", waits_for=("kafka", "engine")) as meter,
        contextlib.closing(bound("serve", rule.host, rule.port)) as listening,
        SoleMember(settings, SERVER, stop, BrokerOutage(settings.kafka, stop, meter)) as place,
    ):
        meter.begin("building the engine", within_s=START_S)
        engine, rendering = build_tokens(settings)
        meter.ready("engine")
        try:
            schema_registry.wait(settings, meter, stop)
            with (
                open_recorder(settings, engine, rendering, stop, meter, fleet=fleet) as recorder,
                OpenLog(settings, meter=meter) as log_view,
                contextlib.ExitStack() as stack,
            ):
                base = ServerBase(
                    settings=settings, recorder=recorder, log=log_view, rendering=rendering, toolsets=own_tools()
                )
                for part in PARTS:
                    base.parts.append(stack.enter_context(part(base)))
                server = Server(base=base, mcp=McpMount(), place=place)
                meter.ready("kafka")
                meter.begin("answering")
                garbage.settle()
                sys.setswitchinterval(SWITCH_S)
                with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                    app = build_application(server)
                    answering = quiet_server(
                        app, grace_s=GRACE_S, tls=tls, open_connections=connections, socket_paths=SOCKETS
                    )
                    runner.run(_serve(server, answering, listening, stop, meter))
                    runner.run(server.mcp.close())
        finally:
            engine.close()


async def _serve(
    server: Server, answering: QuietServer, listening: socket.socket, stop: threading.Event, meter: Meter
) -> None:
    settings, recorder = server.base.settings, server.base.recorder
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = "every policy" if recorder.is_fleet else settings.policy.name
    scheme = "https" if answering.config.is_ssl else "http"
    log.info("%s (%s) answers at %s://%s/v1", name, settings.policy.engine, scheme, address)
    serving = asyncio.create_task(answering.serve(sockets=[listening]))
    recorder.runs.finish()
    resuming = [asyncio.create_task(part.resume()) for part in server.base.parts]
    rounds = 0
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
        rounds += 1
        if rounds % round(SWEEP_S / LOOK_S) == 0:
            if all(done.done() for done in resuming):  # before, nothing is known of what waits
                recorder.runs.end_idle(
                    lambda name: any(part.keeps_open(name) for part in server.base.parts),
                    lambda name: next(filter(None, (part.end_of(name) for part in server.base.parts)), None),
                )
            meter.heartbeat()
    answering.should_exit = True
    for part in server.base.parts:
        part.stop()
    await serving
    await asyncio.gather(*resuming)
    for part in server.base.parts:
        await part.close()
    await recorder.close()


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a server answers with."""

    base: ServerBase
    mcp: McpMount
    place: SoleMember


def build_application(server: Server) -> ASGIApp:
    """Return every route, with the door in front if there are keys, and for this machine alone if there are none."""
    base, auth = server.base, server.base.authentication
    settings, rule = base.settings, base.settings.serve
    rooms = [
        *agent_rooms(settings, base.recorder, LineSteps(base.log.states), lambda: base.tool_guard),
        *log_rooms(settings, base.log),
        *(room for part in base.parts for room in part.rooms()),
        *(room(settings, base.log) for room in PLUGIN_ROOMS),
    ]
    if auth is not None:
        rooms.append(OwnPermissions())
    app = make_application(settings, rooms, keys=auth is not None)
    for part in base.parts:
        part.add_to(app)
    server.mcp.add_to(app)
    guarded: ASGIApp = OwnMachine(app, TABLE)
    server.mcp.server = app
    if auth is not None:
        server.mcp.server = guarded = Door(app, TABLE, auth.principals, KeyLimits(rule), auth.requests)
    for part in base.parts:
        guarded = part.in_front(guarded)
    held = HeldPlace(TimeLimits(guarded, TABLE, rule), TABLE, lambda: server.place.is_held)
    for part in base.parts:
        part.reach(held)
    return held


def make_application(settings: Settings, rooms: Sequence[object], *, keys: bool = False) -> Application:
    """Return the application that answers the routes of these rooms."""
    max_body_bytes = int(settings.serve.max_body_mb * 1_000_000)
    return Application(rooms, version=program_version(), max_body_bytes=max_body_bytes, keys=keys)


def agent_rooms(
    settings: Settings,
    recorder: Recorder,
    steps: LineSteps | None = None,
    guard: Callable[[], ToolGuard | None] = lambda: None,
) -> list[object]:
    """Return the rooms that agents call; `steps` find the prompts that calls name, `guard` decides about theirs."""
    calls = AgentProtocols(recorder, settings.policy.name, steps, guard)
    feedback = FeedbackBox(recorder, partial(give_feedback, settings))
    return [calls, feedback, Health()]


def log_rooms(settings: Settings, log: OpenLog) -> list[object]:
    """Return the rooms of the log itself."""
    return [
        SentTasks(settings, log),
        OutsideRewards(settings, log),
        ScorerTrials(settings),
        TaskGroups(log),
        RecordedRuns(log),
        Statements(log),
        PublishedAdapters(settings),
        UploadedFiles(settings.adapters.store),
        LoopState(settings),
    ]


def tls_files(settings: Settings) -> TlsFiles | None:
    """Return certificate and key, if the server has its own. Raises SettingsError if it could not use them."""
    rule = settings.serve
    if rule.tls_certificate is None or rule.tls_key is None:
        return None
    files = TlsFiles(rule.tls_certificate, rule.tls_key)
    files.check()
    return files
