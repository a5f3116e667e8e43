"""One log has one `streamward serve`: a second is refused, the next of one that was killed waits for its session."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from schemas.events import Turn
from streams.errors import EXIT_RESTART, LogError, RefusedError
from streams.kafka import admin
from streams.kafka.idle_member import MARGIN_S, SoleMember
from streams.kafka.node import process as broker
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.settings.model import Broker, Settings
from tests.support.agent_server import ServeProcess, settings_of, settings_with_topics
from tests.support.processes import command, environment, read, said, spawn_and_wait, until

pytestmark = pytest.mark.kafka
SCRIPT = {"replies": [{"when": "?", "reply": "fine"}]}
SESSION_S = 6.0


def on_another_port(settings: Settings, folder: Path) -> Settings:
    serve = settings.serve.model_copy(update={"port": settings_of("", folder).serve.port})
    return settings.model_copy(update={"serve": serve})


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    return settings_with_topics(kafka_bootstrap, tmp_path, SCRIPT, session_s=SESSION_S)


@pytest.fixture
def first(settings: Settings, tmp_path: Path) -> Iterator[ServeProcess]:
    folder = tmp_path / "first"
    folder.mkdir()
    server = ServeProcess(settings, folder)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.kill()


def ask(server: ServeProcess) -> int:
    chat = {"model": "sums", "messages": [{"role": "user", "content": "?"}]}
    return httpx.post(f"{server.url}/agents/calc/v1/chat/completions", json=chat, timeout=300).status_code


def test_a_second_server_of_a_log_is_refused_and_the_first_answers_on(first: ServeProcess, tmp_path: Path) -> None:
    second = on_another_port(first.settings, tmp_path)
    refused = spawn_and_wait(command("serve"), env=environment(second), capture_output=True, text=True, timeout=300)
    words = " ".join(refused.stderr.split())
    assert refused.returncode == RefusedError.exit_code, words
    assert "another `serve` works on this log: " in words and f"process {first.process.pid}, since 20" in words
    assert "Stop it first, or give this one a log of its own (topics.prefix)" in words
    assert ask(first) == 200 and first.process.poll() is None
    assert httpx.get(f"{first.url}/runs", timeout=300).status_code == 200
    first.process.terminate()
    assert first.process.wait(300) == 0
    assert "leaked" not in said(first.folder)  # DuckDB's client says so of what is not collected at the end
    with_place = ServeProcess(second, tmp_path)  # at once
    assert ask(with_place) == 200
    with_place.stop()


@pytest.mark.kills
def test_after_kill_9_the_next_server_waits_for_the_session_and_answers(first: ServeProcess, tmp_path: Path) -> None:
    def kill() -> None:
        until(lambda: f"Waiting {SESSION_S + MARGIN_S:g} s for it to end" in said(tmp_path), "the next one waits")
        first.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    following = ServeProcess(on_another_port(first.settings, tmp_path), tmp_path)
    killing.join()
    assert ask(following) == 200
    following.stop()


@pytest.mark.kills
def test_a_server_that_was_frozen_until_another_took_its_place_ends_and_writes_nothing(
    first: ServeProcess, tmp_path: Path
) -> None:
    assert ask(first) == 200
    first.process.send_signal(signal.SIGSTOP)
    following = ServeProcess(on_another_port(first.settings, tmp_path), tmp_path)
    assert ask(following) == 200
    turns = len(read(first.settings, Turn))
    statuses: list[int] = []

    def send() -> None:
        try:
            statuses.append(ask(first))
        except httpx.TransportError:
            statuses.append(503)

    asking = threading.Thread(target=send)  # it waits at the door of the one that is frozen
    asking.start()
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(300) == EXIT_RESTART, said(first.folder)
    asking.join()
    assert statuses == [503] and len(read(first.settings, Turn)) == turns
    assert "has taken this one's place on this log" in said(first.folder)
    following.stop()


@pytest.mark.kills
def test_a_server_that_was_frozen_and_whose_place_nobody_took_answers_again(first: ServeProcess) -> None:
    first.process.send_signal(signal.SIGSTOP)
    time.sleep(2 * SESSION_S)  # the broker gives it up; nothing tells when, to a process of no group
    first.process.send_signal(signal.SIGCONT)
    until(lambda: ask(first) == 200, "the server answers again", folder=first.folder)
    assert first.process.poll() is None


@pytest.mark.kills
def test_a_broker_that_restarts_while_the_next_server_waits_costs_it_no_place(tmp_path: Path) -> None:
    """The broker counts the session of a member that was killed anew, and the next one's patience begins anew, too."""
    with broker.embedded(tmp_path / "kafka") as node:
        plain = settings_of(node.bootstrap, tmp_path, SCRIPT)
        short = plain.kafka.model_copy(update={"session_timeout_s": SESSION_S})
        here = plain.model_copy(update={"kafka": short, "broker": Broker(data_dir=node.data_dir)})
        admin.apply_topics(here)
        folder = tmp_path / "first"
        folder.mkdir()
        killed = ServeProcess(here, folder)

        def restart() -> None:
            until(lambda: "Waiting" in said(tmp_path), "the next one waits", folder=tmp_path)
            killed.kill()
            running = broker.status(here.broker)
            assert running is not None
            os.kill(running.pid, signal.SIGKILL)
            broker.start(here.broker)

        restarting = threading.Thread(target=restart)
        restarting.start()
        following = ServeProcess(on_another_port(here, tmp_path), tmp_path)
        restarting.join()
        assert ask(following) == 200
        following.kill()


@pytest.mark.kills
def test_a_server_that_starts_while_the_broker_restarts_answers_in_the_end(tmp_path: Path) -> None:
    """At whatever point of its start. One that ends, since a request was not answered, says so and is started again."""
    with broker.embedded(tmp_path / "kafka") as node:
        plain = settings_of(node.bootstrap, tmp_path, SCRIPT)
        here = plain.model_copy(update={"broker": Broker(data_dir=node.data_dir)})
        admin.apply_topics(here)
        for after_s in (0.7, 1.4, 2.1, 2.8, 3.5):
            with ExitStack() as stack:
                log = stack.enter_context((tmp_path / "serve.log").open("a"))
                first = subprocess.Popen(command("serve"), env=environment(here), stderr=log)
                stack.callback(first.kill)
                time.sleep(after_s)
                running = broker.status(here.broker)
                assert running is not None
                os.kill(running.pid, signal.SIGKILL)
                broker.start(here.broker)
                url = f"http://127.0.0.1:{here.serve.port}/healthz"
                until(partial(has_ended_or_listens, first, url), "it listens, or has ended", folder=tmp_path)
                if first.poll() is None:
                    first.terminate()
                    assert first.wait(300) == 0, said(tmp_path)
                    continue
                assert first.returncode == LogError.exit_code, said(tmp_path)
                again = ServeProcess(here, tmp_path)
                assert ask(again) == 200
                again.stop()


def has_ended_or_listens(process: subprocess.Popen[bytes], url: str) -> bool:
    with suppress(httpx.TransportError):
        return process.poll() is not None or httpx.get(url, timeout=300).status_code == 200
    return False


def test_of_several_that_start_at_once_one_has_the_place_and_it_goes_to_one_when_that_leaves(
    settings: Settings,
) -> None:
    stop, held, most = threading.Event(), [], []
    lock = threading.Lock()
    patient = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"session_timeout_s": 60.0})})

    def serve(number: int) -> None:
        with SoleMember(patient, "serve", stop, BrokerOutage(patient.kafka, stop)) as place:
            with lock:
                held.append(number)
                most.append(len(held))
            assert place.is_held
            until(lambda: not stop.wait(0.3), "a while")
            with lock:
                held.remove(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_one_that_waits_for_a_place_ends_when_it_is_asked_to_stop(settings: Settings) -> None:
    stop = threading.Event()
    outage = BrokerOutage(settings.kafka, stop)
    with ExitStack() as stack:
        stack.enter_context(SoleMember(settings, "serve", threading.Event(), outage))
        stop.set()
        with pytest.raises(StoppedWaiting, match="another `serve` works on this log"):
            stack.enter_context(SoleMember(settings, "serve", stop, outage))


def test_other_logs_and_other_kinds_have_places_of_their_own(settings: Settings, tmp_path: Path) -> None:
    stop = threading.Event()
    other = settings.model_copy(update={"topics": settings_of(settings.kafka.bootstrap, tmp_path).topics})
    admin.apply_topics(other)
    with ExitStack() as stack:
        for each, kind in ((settings, "serve"), (other, "serve"), (settings, "other")):
            stack.enter_context(SoleMember(each, kind, stop, BrokerOutage(each.kafka, stop)))
