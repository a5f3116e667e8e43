"""Log lines: coordinates, quiet libraries, floods that are counted."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.events import Coordinates
from streams.kafka.record import Record
from streams.observability import logging as program_log, trace_context
from streams.observability.trace_context import Context

AT = Coordinates("streamward.rewards", 3, 1041)
TRACE = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    program_log.set_up("info")


def test_log_lines_carry_coordinates_and_leave_library_chatter_out(capsys: pytest.CaptureFixture[str]) -> None:
    program_log.set_up("info")
    logging.getLogger().setLevel(logging.DEBUG)  # as mode does
    logging.getLogger("streams.stages.scoring.scoring_agent").warning(
        "no %s", "scorer", extra={"at": Coordinates("r", 3, 1041)}
    )
    logging.getLogger("streams.stages.scoring.scoring_agent").debug("too fine")
    logging.getLogger("faust").info("chatter")
    logging.getLogger("faust").warning("trouble")
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["warning streams.stages.scoring.scoring_agent: r[3]@1041: no scorer", "warning faust: trouble"]


def test_a_flood_of_the_same_line_is_counted_instead_of_printed(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    handler = program_log.StderrLog(logging.INFO, clock=lambda: now[0])

    def say(message: str, *args: object, name: str = "streams.x") -> None:
        handler.handle(logging.LogRecord(name, logging.WARNING, "", 0, message, args, None))

    for number in range(program_log.OUR_BURST.lines + 5):
        say("lost %d", number)
    say("something else")
    now[0] += program_log.OUR_BURST.window_s
    say("lost %d", 99)
    for number in range(program_log.LIBRARY_BURST.lines + 2):
        say("down %d", number, name="httpx")
    handler.close()
    lines = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        *(f"lost {number}" for number in range(program_log.OUR_BURST.lines)),
        "something else",
        "lost 99 (and 5 more like this)",
        "down 0",
        "down 1",
        "down 2",
        "down 4 (and 1 more like this)",
    ]


def test_what_every_reader_of_the_log_would_repeat_is_printed_once_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    handler = program_log.StderrLog(logging.INFO, clock=lambda: now[0])

    def say(number: int) -> None:
        record = logging.LogRecord("streamward.kafka", logging.WARNING, "", 0, "record %d is odd", (number,), None)
        record.once = True
        handler.handle(record)

    for number in range(10):
        say(number)
    now[0] += program_log.ONCE.window_s
    say(10)
    say(11)
    handler.close()
    lines = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["record 0 is odd", "record 10 is odd (and 9 more like this)"]


def test_what_librdkafka_mends_by_itself_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A node that has just started answers the first producer with "coordinator load in progress"."""
    program_log.set_up("info")
    said = logging.getLogger("librdkafka")
    said.warning("GETPID: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    said.warning("Disconnected")
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "warning librdkafka: Disconnected"
    ]


def test_a_json_line_has_time_level_logger_coordinates_and_trace_id(capsys: pytest.CaptureFixture[str]) -> None:
    program_log.set_up("info")
    program_log.use_format("json")
    record = Record(AT, 0, b"t1", None, tuple(trace_context.headers_of(TRACE).items()))
    log = logging.getLogger("streams.stages.scoring.scoring_agent")
    log.warning('no scorer "%s"\nhere', "é", extra=record.log_extra)
    log.info("ready")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "warning",
        "logger": "streams.stages.scoring.scoring_agent",
        "message": 'no scorer "é"\nhere',
        "topic": "streamward.rewards",
        "partition": 3,
        "offset": 1041,
        "trace_id": TRACE.trace_id,
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_a_json_line_has_the_traceback_and_the_number_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    program_log.set_up("info")
    program_log.use_format("json")
    log = logging.getLogger("streams.x")
    for number in range(program_log.OUR_BURST.lines + 3):
        try:
            raise ValueError(number)
        except ValueError:
            log.exception("failed")
    program_log.set_up("info")  # closes the first, which prints what it held back
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0]["exception"].startswith("Traceback") and lines[0]["exception"].endswith("ValueError: 0")
    assert [line.get("held_back") for line in lines[-2:]] == [None, 2]


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--log-format", "json"], {}),
        (["--set", "logging.format=json"], {}),
        ([], {"STREAMWARD_LOGGING__FORMAT": "json"}),
    ],
)
def test_every_line_of_a_process_is_json_where_the_setting_says_so(
    tmp_path: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    unreachable = ("--set", "kafka.bootstrap=127.0.0.1:1", "--set", "kafka.request_timeout_s=0.2")
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", *arguments, *unreachable, "admin", "topics", "list"],
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 5
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines and lines[-1]["level"] == "error" and "127.0.0.1:1" in lines[-1]["message"]


def test_a_process_that_is_stopped_reports_that_in_json(tmp_path: Path) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "streams.cli", "--log-format", "json", "admin", "schemas", "serve", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with serving:
        assert serving.stdout is not None and "http://127.0.0.1:" in serving.stdout.readline()
        serving.send_signal(signal.SIGTERM)
        _, err = serving.communicate(timeout=300)
    assert serving.returncode == 0
    assert [json.loads(line)["message"].partition(" ")[0] for line in err.splitlines()] == ["stopping"]
