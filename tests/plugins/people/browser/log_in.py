"""Log in with Chromium by way of an issuer, decide, and log out. Runs in an environment that has Playwright alone.

    python log_in.py ADDRESS PERSON FOLDER AXE     CHROMIUM names the browser; AXE is axe-core's file

It says what is not as it should be, a line each; exit code 1 if there is anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browse import serious, walked


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


def main(address: str, person: str, folder: Path, axe: Path) -> int:
    """Return the exit code."""
    done = "by an issuer of others, a decision, and out again"
    return walked("log in", done, lambda page: walk(page, address, person, folder, axe.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
