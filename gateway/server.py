"""Serve the policy, or every policy of a fleet, to agents until it is asked to stop.

engine, log ──► recorder ──► app, and the page ──► uvicorn on serve.host, serve.port
access ──► AccessLog ──► the door, with serve.auth=keys ──► RequestLog ──► requests; Logins, with login.signing_key
jobs ──► JobLog ──► jobs, fine_tuning, rest ──┘   files ◄──► the store of adapters
tasks, rewards, groups, adapters ◄──► OpenLog ──► log_rest
stop ──► no new connection ──► calls in progress end and are recorded ──► the end
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter
from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory

from gateway.agents import runs
from gateway.agents.routes import BODIES, Application, create_app
from gateway.http.errors import REST_PREFIXES
from gateway.http.limits import KeyLimits
from gateway.http.openapi import describe
from gateway.http.time_limits import TimeLimits
from gateway.http.uvicorn_server import QuietServer, TlsFiles, bound, quiet_server
from gateway.jobs import files, fine_tuning, rest, rpc as jobs
from gateway.jobs.fine_tuning_body import CreateFineTuningBody
from gateway.log import rest as log_rest
from gateway.log.rest import OpenLog
from gateway.page.mount import PageMount, mount
from gateway.people import auth, oidc_login
from gateway.people.cookie import LoginCookie, PageEntrance
from gateway.people.door import OPEN, Door
from streams.access.access_log import AccessLog
from streams.access.oidc import Issuer
from streams.access.people import KeyFile, Logins
from streams.access.request_log import RequestLog
from streams.adapters import signing
from streams.engines.build import build_tokens
from streams.jobs.job_log import JobLog
from streams.kafka.registry import client as schema_registry
from streams.observability import metrics
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.service import open_recorder
from streams.tools.asking import give_feedback
from streams.worker import garbage

LOOK_S = 0.1
"""How soon a request to stop is noticed."""
SWEEP_S = 1.0
"""How often trajectories are looked at that may have ended."""
GRACE_S = 20
"""How long answers in progress may take once the server should stop, seconds; then their clients are cut off."""
SWITCH_S = 0.02
"""How long a thread may run on while others wait for Python's lock. Who decodes, writes or answers is done sooner, and
gives it up then; with Python's 5 ms, tokens and acknowledgements interrupted answers, a fifth of the time."""
START_S = 3600.0
"""How long an engine may take to start before it counts as stuck: it may have a model to download."""

log = logging.getLogger("streamward.agents")


def run(settings: Settings, *, stop: threading.Event, fleet: bool = False) -> None:
    """Answer agents until `stop` is set; answers in progress are finished and recorded. `fleet`: for every policy.

    Raises SettingsError if address or engine cannot be used, LogError if the broker refuses or is unreachable too long.
    """
    signing.check_verify_key(settings.adapters)
    tls = tls_files(settings)
    with (
        metrics.served(settings, "serve", waits_for=("kafka", "engine")) as meter,
        contextlib.closing(bound("serve", settings.serve.host, settings.serve.port)) as listening,
    ):
        meter.begin("building the engine", within_s=START_S)
        engine, rendering = build_tokens(settings)
        meter.ready("engine")
        try:
            schema_registry.wait(settings, meter, stop)
            with (
                open_recorder(settings, engine, rendering, stop, meter, fleet=fleet) as recorder,
                JobLog(settings) as orders,
                OpenLog(settings) as log_view,
                _keys(settings) as keys,
                _requests(settings) as requests,
                contextlib.closing(PageMount(settings, _logins(settings, keys), rendering)) as page,
            ):
                meter.ready("kafka")
                meter.begin("answering")
                garbage.settle()
                sys.setswitchinterval(SWITCH_S)
                with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                    app = _application(settings, recorder, orders, log_view, keys, requests, page)
                    answering = quiet_server(app, grace_s=GRACE_S, tls=tls)
                    runner.run(_serve(settings, recorder, answering, listening, stop, meter))
        finally:
            engine.close()


async def _serve(
    settings: Settings,
    recorder: Recorder,
    server: QuietServer,
    listening: socket.socket,
    stop: threading.Event,
    meter: Meter,
) -> None:
    host, port = listening.getsockname()[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    who = "every policy" if recorder.is_fleet else settings.policy.name
    scheme = "https" if server.config.is_ssl else "http"
    log.info("%s (%s) answers at %s://%s/v1", who, settings.policy.engine, scheme, where)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    recorder.runs.finish()
    rounds = 0
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
        rounds += 1
        if rounds % round(SWEEP_S / LOOK_S) == 0:
            recorder.runs.end_idle()
            meter.heartbeat()
    server.should_exit = True
    await serving
    await recorder.close()


def _application(
    settings: Settings,
    recorder: Recorder,
    orders: JobLog,
    log_view: OpenLog,
    keys: AccessLog | None,
    requests: RequestLog | None,
    page: PageMount,
) -> ASGIApp:
    """Return every route, behind the door if there are keys."""
    rule, people = settings.serve, None if keys is None else people_routes(settings, page.logins)
    app = every_route(settings, recorder, orders, log_view, people)
    mount(app, page)
    if keys is None:
        return TimeLimits(app, rule)
    door = Door(app, keys, KeyLimits(rule), requests)
    return TimeLimits(PageEntrance(door, keys, page.logins, LoginCookie.of(settings)), rule)


def tls_files(settings: Settings) -> TlsFiles | None:
    """Return certificate and key, if the server has its own. Raises SettingsError if it could not use them."""
    rule = settings.serve
    if rule.tls_certificate is None or rule.tls_key is None:
        return None
    files = TlsFiles(rule.tls_certificate, rule.tls_key)
    files.check()
    return files


def every_route(
    settings: Settings,
    recorder: Recorder,
    orders: JobLog,
    log_view: OpenLog,
    people: APIRouter | None,
) -> Application:
    """Return the application; `people`: the routes about them, where keys are asked for."""
    most = int(settings.serve.max_body_mb * 1_000_000)
    app = create_app(
        recorder,
        partial(give_feedback, settings),
        version=version("streamward"),
        max_body_bytes=most,
        shared=settings.policy.name,
    )
    app.include_router(runs.routes(recorder.runs, max_body_bytes=most))
    app.include_router(job_routes(settings, orders, fleet=recorder.is_fleet))
    app.include_router(log_routes(settings, log_view))
    if people is not None:
        app.include_router(people)
    bodies = (*BODIES, *runs.BODIES, *jobs.BODIES, CreateFineTuningBody, *rest.BODIES, *log_rest.BODIES, *auth.BODIES)
    describe(app, bodies, opened=OPEN, keys=people is not None)
    return app


def _requests(settings: Settings) -> contextlib.AbstractContextManager[RequestLog | None]:
    """Return what writes what is asked; None if nothing does."""
    written = settings.serve.auth == "keys" and settings.serve.requests != "off"
    return RequestLog(settings) if written else contextlib.nullcontext()


def _keys(settings: Settings) -> contextlib.AbstractContextManager[AccessLog | None]:
    """Return the keys that open the server; None if it asks for none."""
    return AccessLog(settings) if settings.serve.auth == "keys" else contextlib.nullcontext()


def _logins(settings: Settings, access: AccessLog | None) -> Logins | None:
    """Return how people log in; None if they cannot. Raises SettingsError for an unusable signing key, LogError."""
    rule = settings.login
    if access is None or rule.signing_key is None:
        return None
    return Logins(access, rule, KeyFile(rule.signing_key), issuer=rule.public_url or settings.serve.url)


def people_routes(settings: Settings, logins: Logins | None) -> APIRouter:
    """Return everything about people."""
    router = APIRouter()
    if logins is not None and settings.login.oidc_issuer:
        router.include_router(oidc_login.routes(Issuer(settings.login), logins, LoginCookie.of(settings)))
    router.include_router(auth.routes(logins))
    return router


def log_routes(settings: Settings, log_view: OpenLog) -> APIRouter:
    """Return everything about the log itself."""
    router = APIRouter()
    own = log_rest.routes(settings, log_view, max_body_bytes=int(settings.serve.max_body_mb * 1_000_000))
    for prefix in REST_PREFIXES:
        router.include_router(own, prefix=prefix, include_in_schema=prefix == REST_PREFIXES[0])
    return router


def job_routes(settings: Settings, orders: JobLog, *, fleet: bool = False) -> APIRouter:
    """Return everything about jobs: JSON-RPC, OpenAI's interface, and REST. `fleet`: of every policy that it serves."""
    most = int(settings.serve.max_body_mb * 1_000_000)
    router = APIRouter()
    rpc = jobs.routes(settings, orders, max_body_bytes=most)
    router.include_router(rpc)
    router.include_router(files.routes(settings.adapters.store, max_body_bytes=most))
    router.include_router(fine_tuning.routes(settings, orders, max_body_bytes=most, fleet=fleet))
    own = rest.routes(settings, orders, max_body_bytes=most)
    for prefix in REST_PREFIXES:
        router.include_router(own, prefix=prefix, include_in_schema=prefix == REST_PREFIXES[0])
    return router
