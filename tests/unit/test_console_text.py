"""Text of the log is data in a terminal, too: no brackets, colons or control characters of it mean anything there."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from schemas.events import Coordinates
from schemas.serde import encode
from streams import output as show
from streams.cli.replay import progress as replay_progress
from streams.cli.runtime import _print_error
from streams.demo import loop_report as report
from streams.demo.demo_options import DemoOptions
from streams.demo.loop_report import Display
from streams.demo.progress import Progress
from streams.kafka.record import Record, dead_letter
from streams.settings.model import Broker, Settings

ROOT = Path(__file__).parents[2]
HOSTILE = ["no opening tag [/quote]", "[red]alarm[/]", "[link=http://a]b", "sc:boom", ":key:", "[day]", "\\[b]"]
CONTROL = "\x1b[2J\x1b]0;title\x07"


def failing(text: str, folder: Path) -> Progress:
    """A run of which one answer has no score, since its scorer says this."""
    progress = Progress(Settings(broker=Broker(data_dir=folder)))
    response = Record(Coordinates("streamward.responses", 0, 0), 1, b"k", b"")
    letter = encode(dead_letter(response, stage="scoring", reason="score_failed", error=f"{text}: {text}"))
    progress.fold(Record(Coordinates("streamward.dead-letters", 0, 0), 1, b"k", letter))
    return progress


@pytest.fixture(autouse=True)
def in_a_folder_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where `make demo` was typed: a report looks whether commands typed here find the log of its run."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("text", HOSTILE)
def test_every_display_of_a_run_prints_text_as_it_is(
    text: str, terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    console = show.console(out, width=200)
    assert console.is_terminal is terminal
    progress = failing(text, tmp_path)
    with Display(console, steps=None, scored=False, started_at=0.0) as display:
        display.say(f"said: {text}")
        display.update(progress, 0)
    result = report.summarize(progress, loop_s=1.0, data_dir=tmp_path, peak_bytes={}, ending=report.LoopEnding())
    report.show(result, progress, console, tmp_path / "streamward.toml", DemoOptions())
    assert f"said: {text}" in out.getvalue()
    shown = out.getvalue().count(text)
    assert shown >= 4, f"said, drawn and in the summary: {out.getvalue()}"


@pytest.mark.parametrize("text", HOSTILE)
def test_the_bars_of_a_replay_print_the_name_of_a_step_as_it_is(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with replay_progress() as step:
        step(text, 1, 2)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_records_and_lines_of_every_command_print_text_as_it_is(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [show.Column(text, "a"), show.Column("b", "b")]
    show.rows([{"a": text, "b": text}], columns, "table")
    show.record({text: text}, "table")
    show.Lines(columns).add({"a": text, "b": text})
    _print_error(text)
    captured = capsys.readouterr()
    assert captured.out.count(text) == 3 + 2 + 3
    assert captured.err == f"Error: {text}\n"


def test_control_characters_of_the_log_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, console = failing(CONTROL, tmp_path), show.console()
    with Display(console, steps=None, scored=False, started_at=0.0) as display:
        display.say(CONTROL)
        display.update(progress, 0)
    result = report.summarize(progress, loop_s=1.0, data_dir=tmp_path, peak_bytes={}, ending=report.LoopEnding())
    report.show(result, progress, console, tmp_path / "streamward.toml", DemoOptions())
    show.record({"text": CONTROL}, "table")
    _print_error(CONTROL)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "\x1b" not in printed and "\x07" not in printed
    assert printed.count("\\x1b[2J") >= 5


def test_nor_from_what_is_drawn_anew_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    with Display(show.console(out, width=200), steps=None, scored=False, started_at=0.0) as display:
        display.update(failing(CONTROL, tmp_path), 0)
    assert "\\x1b]0;title" in out.getvalue() and "\x1b]0;title" not in out.getvalue()
