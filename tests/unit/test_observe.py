"""Log lines: coordinates, quiet libraries, floods that are counted."""

from __future__ import annotations

import logging

import pytest

from schemas.events import Coordinates
from streams.observability import logging as program_log


def test_log_lines_carry_coordinates_and_leave_library_chatter_out(capsys: pytest.CaptureFixture[str]) -> None:
    program_log.set_up("info")
    logging.getLogger().setLevel(logging.DEBUG)  # as mode does
    logging.getLogger("streams.stages.scoring.agent").warning(
        "no %s", "scorer", extra={"at": Coordinates("r", 3, 1041)}
    )
    logging.getLogger("streams.stages.scoring.agent").debug("too fine")
    logging.getLogger("faust").info("chatter")
    logging.getLogger("faust").warning("trouble")
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["warning streams.stages.scoring.agent: r[3]@1041: no scorer", "warning faust: trouble"]


def test_a_flood_of_the_same_line_is_counted_instead_of_printed(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    handler = program_log.StderrLog(logging.INFO, clock=lambda: now[0])

    def say(message: str, *args: object, name: str = "streams.x") -> None:
        handler.handle(logging.LogRecord(name, logging.WARNING, "", 0, message, args, None))

    for number in range(program_log.BURST + 5):
        say("lost %d", number)
    say("something else")
    now[0] += program_log.WINDOW_S
    say("lost %d", 99)
    for number in range(program_log.LIBRARY_BURST + 2):
        say("down %d", number, name="aiokafka")
    handler.close()
    lines = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        *(f"lost {number}" for number in range(program_log.BURST)),
        "something else",
        "lost 99 (and 5 more like this)",
        "down 0",
        "down 1",
        "down 2",
        "down 4 (and 1 more like this)",
    ]


def test_what_librdkafka_mends_by_itself_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A node that has just started answers the first producer with "coordinator load in progress"."""
    program_log.set_up("info")
    said = logging.getLogger("librdkafka")
    said.warning("GETPID: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    said.warning("Disconnected")
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "warning librdkafka: Disconnected"
    ]
