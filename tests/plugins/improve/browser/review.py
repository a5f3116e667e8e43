"""Decide two runs of the review queue with Chromium, by its keys. Runs in an environment that has Playwright alone.

    python review.py ADDRESS FOLDER AXE     CHROMIUM names the browser; AXE is axe-core's file

It says what is not as it should be, a line each; exit code 1 if there is anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browse import serious, walked

REASON = "prs: a reason with every key"
"""While it is written, none of the keys does anything."""


def walk(page: Any, address: str, folder: Path, axe: str) -> Iterator[str]:
    """Skip the first run, reject the second and promote the first; yield what is wrong."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/page/curation/queue")
    yield from serious(page, axe)
    first = shown(page)
    page.keyboard.press("s")
    page.wait_for_url(f"{address}/page/curation/queue?run=*")
    if (second := shown(page)) == first:
        yield f"s shows {second} again"
    yield from decide(page, "r", "reject", "promote")
    page.screenshot(path=folder / "page-review.png", full_page=True)
    if shown(page) != first:
        yield f"after the verdict {shown(page)} is shown, not {first}, the run that was skipped"
    page.keyboard.press("Control+p")
    if page.locator("input[value=promote]").is_checked():
        yield "p with Ctrl chooses a verdict"
    yield from decide(page, "p", "promote", "reject")
    page.get_by_text("No run waits for a person.").wait_for()
    yield from errors


def shown(page: Any) -> str:
    """Return the run that is shown."""
    return str(page.locator("form.decide input[name=run]").input_value())


def decide(page: Any, key: str, verdict: str, other: str) -> Iterator[str]:
    """Press a key, write a reason and send it; yield what is wrong."""
    page.keyboard.press(key)
    page.keyboard.type(REASON)
    if (written := page.locator("form.decide [name=reason]").input_value()) != REASON:
        yield f"{key} leads to the reason, where {written!r} is written"
    if not page.locator(f"input[value={verdict}]").is_checked() or page.locator(f"input[value={other}]").is_checked():
        yield f"{key} does not choose {verdict}, or what is written afterwards chooses {other}"
    page.keyboard.press("Enter")
    page.locator("p", has_text=f"you said {verdict}, {REASON}").wait_for()


def main(address: str, folder: Path, axe: Path) -> int:
    """Return the exit code."""
    done = "skipped, rejected and promoted by the keys s, r and p"
    return walked("review", done, lambda page: walk(page, address, folder, axe.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
