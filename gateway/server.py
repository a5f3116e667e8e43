"""Serve the policy, or every policy of a fleet, to agents until it is asked to stop.

settings ──► recorder, log ──► rooms and parts (rooms/routes.py) ──► Application ──► uvicorn
a part's Authentication ──► the door, with serve.auth=keys ──► an event of each request
stop ──► no new connection ──► calls in progress end and are recorded ──► the end
serve.peer_url ──► one of several: forwards until it has the place (http/several_servers.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
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
from gateway.http.several_servers import Forwarder, Gate
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
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
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

    Raises SettingsError if address or engine cannot be used, RefusedError if another server answers for this log and
    serve.peer_url is not set, LogError if the broker refuses or is unreachable too long, StoppedWaiting.
    """
    signing.check_verify_key(settings.adapters)
    check_authentication(settings)
    rule = settings.serve
    tls_files(settings)
    allow_open_files(rule.max_connections)
    with (
        metrics.serve_meter(settings, "serve", waits_for=("kafka", "engine")) as meter,
        contextlib.closing(bound("serve", rule.host, rule.port)) as listening,
        contextlib.ExitStack() as stack,
    ):
        place = SoleMember(settings, SERVER, stop, BrokerOutage(settings.kafka, stop, meter), rule.peer_url)
        if not rule.peer_url:
            stack.enter_context(place)
        meter.begin("building the engine", within_s=START_S)
        built = build_tokens(settings)
        stack.callback(built[0].close)
        meter.ready("engine")
        schema_registry.wait(settings, meter, stop)
        opened = _opened_server(settings, built, stop, meter, place, fleet=fleet)
        if rule.peer_url:
            serving = _serve_in_turn(settings, opened, place, listening, stop, meter)
        else:
            server = stack.enter_context(opened)
            serving = _serve(server, _answering(build_application(server), settings), listening, stop, meter)
        garbage.settle()
        sys.setswitchinterval(SWITCH_S)
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(serving)


@contextlib.contextmanager
def _opened_server(
    settings: Settings,
    built: tuple[TokenEngine, Rendering],
    stop: threading.Event,
    meter: Meter,
    place: SoleMember,
    *,
    fleet: bool,
) -> Iterator[Server]:
    """Yield what answers with. One of several servers waits here until it has the place."""
    with (
        open_recorder(settings, built, stop, meter, fleet=fleet, place=place) as recorder,
        OpenLog(settings, meter=meter) as log_view,
        contextlib.ExitStack() as stack,
    ):
        base = ServerBase(settings=settings, recorder=recorder, log=log_view, rendering=built[1], toolsets=own_tools())
        for part in PARTS:
            base.parts.append(stack.enter_context(part(base)))
        meter.ready("kafka")
        meter.begin("answering")
        yield Server(base=base, mcp=McpMount(), place=place)


def _answering(app: ASGIApp, settings: Settings) -> QuietServer:
    rule = settings.serve
    connections = OpenConnections(rule.max_connections, rule.address_connections)
    return quiet_server(
        app, grace_s=GRACE_S, tls=tls_files(settings), open_connections=connections, socket_paths=SOCKETS
    )


async def _serve(
    server: Server, answering: QuietServer, listening: socket.socket, stop: threading.Event, meter: Meter
) -> None:
    """Answer until `stop` is set, and everything is recorded."""
    _say_where(server.base.settings, server.base.recorder.is_fleet, answering, listening)
    serving = asyncio.create_task(answering.serve(sockets=[listening]))
    resuming = await _work(server, serving, stop, meter)
    answering.should_exit = True
    for part in server.base.parts:
        part.stop()
    await serving
    await _close(server, resuming)


async def _serve_in_turn(
    settings: Settings,
    opened: AbstractContextManager[Server],
    place: SoleMember,
    listening: socket.socket,
    stop: threading.Event,
    meter: Meter,
) -> None:
    """Answer as one of several servers: forward until the place is this one's, and once it has left it again."""
    rule = settings.serve
    forwarder = Forwarder(place, TABLE, int(rule.max_body_mb * 1_000_000), rule.tls_certificate)
    gate = Gate(place, TimeLimits(forwarder, TABLE, rule), make_application(settings, [Health()]), TABLE)
    answering = _answering(gate, settings)
    serving = asyncio.create_task(answering.serve(sockets=[listening]))

    def note() -> None:
        meter.ready("kafka")
        meter.heartbeat()

    following, stack = asyncio.create_task(forwarder.follow(note)), contextlib.ExitStack()
    try:
        server = await asyncio.to_thread(stack.enter_context, opened)
        try:
            gate.open(build_application(server))
            _say_where(settings, server.base.recorder.is_fleet, answering, listening)
            resuming = await _work(server, serving, stop, meter)
            await gate.close(GRACE_S)
            for part in server.base.parts:
                part.stop()
            await _close(server, resuming)
        finally:
            await asyncio.to_thread(stack.close)
    finally:
        await forwarder.close(GRACE_S)
        following.cancel()
        answering.should_exit = True
        await serving


async def _work(
    server: Server, serving: asyncio.Task[None], stop: threading.Event, meter: Meter
) -> list[asyncio.Task[None]]:
    """Finish, resume and end trajectories until `stop` is set; return the tasks that resume earlier work."""
    recorder, parts = server.base.recorder, server.base.parts
    recorder.runs.finish()
    resuming = [asyncio.create_task(part.resume()) for part in parts]
    rounds = 0
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
        rounds += 1
        if rounds % round(SWEEP_S / LOOK_S) == 0:
            if all(done.done() for done in resuming):  # before, nothing is known of what waits
                recorder.runs.end_idle(
                    lambda name: any(part.keeps_open(name) for part in parts),
                    lambda name: next(filter(None, (part.end_of(name) for part in parts)), None),
                )
            meter.heartbeat()
    return resuming


async def _close(server: Server, resuming: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*resuming)
    for part in server.base.parts:
        await part.close()
    await server.base.recorder.close()
    await server.mcp.close()


def _say_where(settings: Settings, is_fleet: bool, answering: QuietServer, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = "every policy" if is_fleet else settings.policy.name
    scheme = "https" if answering.config.is_ssl else "http"
    log.info("%s (%s) answers at %s://%s/v1", name, settings.policy.engine, scheme, address)


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
        limits = KeyLimits(rule, empty_at=server.place.others_at, spent=auth.spent)
        server.mcp.server = guarded = Door(app, TABLE, auth.principals, limits, auth.requests)
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
