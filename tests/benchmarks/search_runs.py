"""Search words in runs: `python -m tests.benchmarks.search_runs`, with the number of runs.

10,000 chats of four turns in an archive ──► runs list --text, and without ──► seconds of each, the log once read
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import closing
from itertools import count

from schemas.events import Event
from streams.settings.model import Archive, Settings
from streams.tools.views.log_view import LogView
from streams.tools.views.run_list import RunFilter, list_runs
from tests.support.agent_calls import ADD, Recorded, assistant, user
from tests.support.factories import T0, trajectory
from tests.support.log.archive_of import archived
from tests.unit.test_run_files import by_label

TURNS, WORDS = 4, 60
"""Of a run, and of a message: some 4 kB a run."""


def chat(number: int, drawn: random.Random) -> list[Event]:
    """Return a chat of random words; every hundredth says `needle` in its second turn."""
    name, run = f"chat-{number}", Recorded(f"chat-{number}")
    alone = {"task_id": name, "sampling_id": None, "slot": None}
    history = [user(f"hello {number}")]
    for turn in range(TURNS):
        said = " ".join(f"word{drawn.randrange(20_000)}" for _ in range(WORDS))
        if turn == 1 and number % 100 == 0:
            said += " Needle"
        made = run.call(history, [ADD], reply=assistant(said), **alone)
        history = [*run.history(made), user(" ".join(f"word{drawn.randrange(20_000)}" for _ in range(WORDS)))]
    common = {"trajectory_id": name, "group_size": None, "purpose": "serve", **alone}
    return [trajectory("started", **common), *run.turns, trajectory(turns=TURNS, **common)]


def main(runs: int) -> None:
    """Print the seconds of a list, of a search for one word, and of one for three."""
    drawn = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(archive=Archive(store=f"{folder}/archive"))
        archived(settings, by_label([event for number in range(runs) for event in chat(number, drawn)]), count(T0))
        with closing(LogView(settings, "archive")) as view:
            for text in ("", "needle", "NEEDLE hello word1", "nowhere"):
                times, found = [], 0
                for _ in range(3):
                    with view.snapshot() as log:
                        start = time.perf_counter()
                        found = len(list_runs(log, RunFilter(text=text), 0).runs.rows)
                        times.append(time.perf_counter() - start)
                print(
                    f"{text!r:24} {found:3} rows on the first page, {min(times):.2f} s, the first time {times[0]:.2f} s"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
