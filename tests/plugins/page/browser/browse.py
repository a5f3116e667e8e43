"""Open every page in Chromium: light, dark, wide, and as a phone. Runs in an environment that has Playwright alone.

    ADDRESS, folder for pictures ──► every page that a link leads to ──► what is wrong, a line each, and the pictures

    python browse.py ADDRESS FOLDER AXE     CHROMIUM names the browser; AXE is axe-core's file

It says of each page: a status that is not 200, of itself or of anything it asks for; errors on the console; anything
loaded from elsewhere; content wider than the screen; tokens that a link does not show in place; and serious findings of
axe-core. Exit code 1 if there are any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "wide": {"viewport": {"width": 1920, "height": 1080}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light", "is_mobile": True, "has_touch": True},
}
PICTURED = {
    "/": "overview",
    "/tasks/taught": "taught",
    "/tasks/flat": "flat",
    "/policies/learner": "policy",
    "/policies/learner?over=hours&with=default": "policies-overlaid",
    "/jobs": "jobs",
    "/jobs/job-1": "job",
    "/sql?q=FROM%20tasks%20LIMIT%2020": "sql",
    "/groups": "groups",
}
HEIGHTS = {"policy": 1240}
"""Of pictures that show the beginning of a page, pixels at most."""
PATIENCE_MS = 300_000
"""For a page, also on a busy machine."""
SERIOUS = ("serious", "critical")


def kind(path: str) -> str:
    """Return what a page is one of, since runs and records are many: its first part, with more or a query after it."""
    path, _, query = path.partition("?")
    first, _, more = path.removeprefix("/").partition("/")
    return f"/{first}{'/…' if more else ''}{'?…' if query else ''}"


def wrong(page: Any, address: str, path: str, axe: str) -> Iterator[str]:
    """Open a page, and yield what is wrong with it."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(f"asks {asked.url}") if not asked.url.startswith(address) else None)
    page.on("response", lambda got: said.append(f"{got.url}: status {got.status}") if got.status >= 400 else None)
    page.goto(address + path, wait_until="load")
    page.wait_for_selector("html[data-drawn]", state="attached")  # what scripts fetch is there
    curves = page.get_attribute("html", "data-drawn").split(" of ")
    if curves[0] != curves[1]:
        yield f"draws {curves[0]} of {curves[1]} curves"
    yield from said
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        yield f"is {wide} pixels wider than the screen"
    yield from serious(page, axe)


def opened(page: Any) -> Iterator[str]:
    """Open what a link shows in place, and yield what is wrong with it."""
    for link in page.locator(".answer a[hx-get]").all()[:1]:
        link.click()
        page.wait_for_selector(".answer .tokens tr")
        if page.locator("tr.differs").count() != 1:
            yield "does not say from which token on an answer differs"


def take_picture(page: Any, path: Path, height: int | None) -> None:
    """Write a picture of a page: all of it, or its beginning."""
    if height is None:
        page.screenshot(path=path, full_page=True)
        return
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
    page.screenshot(path=path, full_page=True, clip=clip)


def serious(page: Any, axe: str) -> Iterator[str]:
    """Yield serious findings of axe-core about what is shown."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    yield from (
        f"{page.url}: axe {one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}"
        for one in found
        if one["impact"] in SERIOUS
    )


def walked(name: str, done: str, steps: Callable[[Any], Iterator[str]]) -> int:
    """Take the steps in a new page, print what is wrong and what was done; return the exit code."""
    from playwright.sync_api import sync_playwright

    bad = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        context.set_default_timeout(PATIENCE_MS)
        for line in steps(context.new_page()):
            bad += 1
            print(f"{name}: {line}")
        print(f"{name}: {done}")
        browser.close()
    return min(bad, 1)


def main(address: str, folder: Path, axe: Path) -> int:
    """Look at everything; return the exit code."""
    from playwright.sync_api import sync_playwright

    script = axe.read_text()
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
                    take_picture(page, folder / f"page-{PICTURED[path]}-{name}.png", HEIGHTS.get(PICTURED[path]))
                links = page.eval_on_selector_all("a[href]", "all => all.map(one => one.getAttribute('href'))")
                new = [link for link in links if link.startswith("/") and link not in seen]
                ahead += dict.fromkeys(new)
                seen |= {*new}
                for line in opened(page):
                    bad += 1
                    print(f"{name} {path}: {line}")
                page.close()
            print(f"{name}: {len(kinds)} kinds of pages")
            context.close()
        browser.close()
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
