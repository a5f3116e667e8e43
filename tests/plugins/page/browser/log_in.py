"""Log in with Chromium by way of an issuer, decide, and log out. Runs in an environment that has Playwright alone.

    python log_in.py ADDRESS PERSON FOLDER AXE     CHROMIUM names the browser; AXE is axe-core's file

It says what is not as it should be, a line each; exit code 1 if there is anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from browse import PATIENCE_MS, SERIOUS


def walk(page: Any, address: str, person: str, folder: Path, axe: str) -> Iterator[str]:
    """Do what a person does, and yield what is wrong."""
    said: list[str] = []

    def heard(where: str, what: str) -> None:
        if where.startswith(address):  # what the issuer's own page does is its own
            said.append(f"{where}: {what}")

    page.on("console", lambda one: heard(one.location["url"], one.text) if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: heard(page.url, str(error)))
    page.on("response", lambda got: heard(got.url, f"status {got.status}") if got.status >= 400 else None)

    page.goto(f"{address}/page/policies/coach")
    if page.url.partition("?")[0] != f"{address}/page/login":
        yield f"without a login {page.url} is shown"
    yield from serious(page, axe)
    page.screenshot(path=folder / "page-login.png")
    page.get_by_role("link", name="log in by way of").click()
    page.locator("input[name=sub]").fill(person)
    page.locator("form button, form input[type=submit]").first.click()
    page.wait_for_url(f"{address}/page/")
    page.get_by_role("button", name="Log out").wait_for()
    [cookie] = [one for one in page.context.cookies() if one["name"] == "streamward-login"]
    if not cookie["httpOnly"] or cookie["sameSite"] != "Strict" or page.evaluate("document.cookie") != "":
        yield f"scripts or other sites reach the login: {cookie['httpOnly']}, {cookie['sameSite']}"

    page.goto(f"{address}/page/policies/coach")
    yield from serious(page, axe)
    form = page.locator("form.decide").first
    form.locator("[name=kind]").select_option("promote")
    form.locator("[name=version]").select_option("1")
    form.locator("[name=reason]").fill("it is better")
    form.get_by_role("button", name="Decide").click()
    page.get_by_text("Version 1 answers").first.wait_for()
    page.screenshot(path=folder / "page-decided.png", full_page=True)

    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{address}/page/login")
    page.goto(f"{address}/page/policies/coach")
    if page.url.partition("?")[0] != f"{address}/page/login":
        yield f"after the logout {page.url} is shown"
    yield from said


def serious(page: Any, axe: str) -> Iterator[str]:
    """Yield serious findings of axe-core about what is shown."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    yield from (f"{page.url}: axe {one['id']}: {one['help']}" for one in found if one["impact"] in SERIOUS)


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


def main(address: str, person: str, folder: Path, axe: Path) -> int:
    """Return the exit code."""
    done = "by an issuer of others, a decision, and out again"
    return walked("log in", done, lambda page: walk(page, address, person, folder, axe.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
