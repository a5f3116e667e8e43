"""The questions of people, each answered by the page in at most three clicks. Runs in an environment with Playwright.

    python questions.py ADDRESS     CHROMIUM names the browser; exit code 1 if an answer is not there

Whether anything is stuck is asked in test_served_page.py: only a log that is being written knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

CLICKS = 3
"""The most that an answer may take, from the overview on."""


class Reader:
    """A reader of the page, whose clicks are counted."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.clicks = page, 0
        page.goto(address + "/")

    def click(self, selector: str) -> None:
        """Click the first match, and wait for the page that it leads to."""
        self.clicks += 1
        self.page.locator(selector).first.click()
        self.page.wait_for_load_state("load")
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def reads(self, *texts: str) -> bool:
        """Return whether all of these are shown now."""
        shown = self.page.locator("main").inner_text()
        return all(text in shown for text in texts)


def is_it_learning(reader: Reader) -> bool:
    """The overview says since when; the curves are a click away."""
    says = reader.reads("held-out 0.08 → 1.00, beyond chance since v4, flat since v16")
    reader.click('a[href="/policies/learner"]')
    return says and reader.page.locator("figure").first.inner_text().startswith("Held-out score")


def what_did_a_version_unlearn(reader: Reader) -> bool:
    """The version in the table leads to what it unlearned against the one before it."""
    reader.click('a[href="/policies/learner"]')
    reader.click('[aria-label="Versions"] a[href$="&b=15"]')
    return reader.reads("Right in version 14, wrong in version 15", "5 + 10 =")


def why_did_reward_drop(reader: Reader) -> bool:
    """A click on a drop of a curve leads to both versions, with answers to the same questions."""
    reader.click('a[href="/policies/learner"]')
    reader.clicks += 1
    plot = reader.page.locator('[data-chart="reward"] .u-over')
    box = plot.bounding_box()
    with reader.page.expect_navigation():
        plot.click(position={"x": box["width"] * 8 / 20, "y": box["height"] * 0.66})
    return reader.reads(
        "Versions 7 and 8", "The same question, answered by both", "Rewards and lengths of their answers"
    )


def what_did_it_cost(reader: Reader) -> bool:
    """The list of jobs says who ordered it, and its cost; so does its head."""
    reader.click('nav a[href="/jobs"]')
    listed = reader.reads("ann", " of 2.00 USD")
    reader.click('a[href="/jobs/job-1"]')
    return listed and reader.reads("ordered by", "ann", " of 2.00 USD")


def the_longest_answer(reader: Reader) -> bool:
    """Runs are sorted by tokens; the longest one is shown word by word with probabilities."""
    reader.click('nav a[href="/runs"]')
    reader.click('th a[href*="sort=-tokens"]')
    reader.click("td a.beginning")
    reader.page.locator("[data-word]").nth(2).hover()
    return reader.reads("1.83 %") and "The sum is eleven" in reader.page.locator("[data-words]").first.inner_text()


QUESTIONS: tuple[Callable[[Reader], bool], ...] = (
    is_it_learning,
    what_did_a_version_unlearn,
    why_did_reward_drop,
    what_did_it_cost,
    the_longest_answer,
)


def main(address: str) -> int:
    """Ask each question in a new page; return the exit code."""
    from playwright.sync_api import sync_playwright

    bad = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        for ask in QUESTIONS:
            context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
            reader = Reader(context.new_page(), address)
            answered = ask(reader)
            if not answered or reader.clicks > CLICKS:
                bad += 1
                print(f"{ask.__name__}: {'answered' if answered else 'NOT answered'} in {reader.clicks} clicks")
            context.close()
        browser.close()
    print(f"{len(QUESTIONS) - bad} of {len(QUESTIONS)} questions answered in at most {CLICKS} clicks")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
