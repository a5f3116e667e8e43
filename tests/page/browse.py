"""Open every page in Chromium: light, dark, and as wide as a phone. Runs in an environment that has Playwright alone.

    ADDRESS, folder for pictures ──► every page that a link leads to ──► what is wrong, a line each, and the pictures

    python browse.py ADDRESS FOLDER [AXE]     CHROMIUM names the browser; AXE is axe-core's file

It says of each page: errors on the console, anything loaded from elsewhere, content wider than the screen, and serious
findings of axe-core if it is given. Exit code 1 if there are any.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light", "is_mobile": True, "has_touch": True},
}
PICTURED = {
    "/": "overview",
    "/tasks/taught": "taught",
    "/tasks/flat": "flat",
    "/policies/learner": "policy",
    "/sql?q=FROM%20tasks%20LIMIT%2020": "sql",
    "/groups": "groups",
}
PATIENCE_MS = 300_000
"""For a page, also on a busy machine."""
SERIOUS = ("serious", "critical")


def kind(path: str) -> str:
    """Return what a page is one of: records and tasks are many."""
    return re.sub(r"(?<=^/records/)[^/]+/.*|(?<=^/tasks/).*|(?<=^/groups)\?.*|(?<=^/sql)\?.*", "", path)


def is_fault(message: Any) -> bool:
    """Return whether the console says that something is wrong; not that a record does not exist yet."""
    return message.type in ("error", "warning") and "404" not in message.text


def wrong(page: Any, address: str, path: str, axe: str | None) -> Iterator[str]:
    """Open a page, and yield what is wrong with it."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if is_fault(message) else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(f"asks {asked.url}") if not asked.url.startswith(address) else None)
    answer = page.goto(address + path, wait_until="load")
    if answer.status != 200 and not path.startswith("/records/"):  # the last record has a link to the next
        yield f"has status {answer.status}"
    page.wait_for_timeout(300)  # for what scripts fetch
    yield from said
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        yield f"is {wide} pixels wider than the screen"
    if axe is not None:
        page.evaluate(axe)
        found = page.evaluate("axe.run()")["violations"]
        yield from (
            f"axe {one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}"
            for one in found
            if one["impact"] in SERIOUS
        )


def main(address: str, folder: Path, axe: Path | None) -> int:
    """Look at everything; return the exit code."""
    from playwright.sync_api import sync_playwright

    script = None if axe is None else axe.read_text()
    bad = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        for name, screen in SCREENS.items():
            context = browser.new_context(**screen, bypass_csp=False, reduced_motion="reduce")
            context.set_default_timeout(PATIENCE_MS)
            ahead, seen, kinds = [*PICTURED], {*PICTURED}, set[str]()
            while ahead:
                path = ahead.pop(0)
                if kind(path) in kinds and path not in PICTURED:
                    continue
                kinds.add(kind(path))
                page = context.new_page()
                for line in wrong(page, address, path, script):
                    bad += 1
                    print(f"{name} {path}: {line}")
                if path in PICTURED:
                    page.screenshot(path=folder / f"page-{PICTURED[path]}-{name}.png", full_page=True)
                links = page.eval_on_selector_all("a[href]", "all => all.map(one => one.getAttribute('href'))")
                new = [link for link in links if link.startswith("/") and link not in seen]
                ahead += dict.fromkeys(new)
                seen |= {*new}
                page.close()
            print(f"{name}: {len(kinds)} kinds of pages")
            context.close()
        browser.close()
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
