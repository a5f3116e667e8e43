"""What is skipped, said once for each kind, with the command that would run it.

    every skipped test, its reason ──► "412 skipped: needs helm; run `make setup-deploy && make test-deploy`"

pytest's own list has a line for each place, which was hundreds. A reason is made with `needs`, so that two places that
lack the same thing say the same.
"""

from __future__ import annotations

from collections import Counter

import pytest

AT_DEPLOY = "make setup-deploy && make test-deploy"


def needs(what: str, run: str = AT_DEPLOY) -> str:
    """Return the reason of a test that is skipped because something is missing; `run` is the command that has it."""
    return f"needs {what}; run `{run}`"


HELM = needs("helm")
CLUSTER = needs("a Kubernetes cluster, helm and kubectl")
ASKED_FOR = needs("minutes, so it is asked for", "make test-deploy")
IN_FULL = needs("more time than `make test` has", "make test-full")
ENVIRONMENTS = needs("gymnasium, textarena and mcp", "make setup-environments")
OPENENV = needs("openenv-core, which wants other versions than requirements.lock", "pip install openenv-core elsewhere")
CONTAINERS = needs("a container engine that answers", "make test")
GYM = needs("reasoning-gym", "make setup-gym")
MATH = needs("math-verify", "make setup-test")
RAY = needs("Ray and minutes", "make test-ray")
SIGNING = needs("model-signing", "make setup-test")
GEPA = needs("gepa", "make setup-test")
OIDC = needs("oidc-provider-mock", "make setup-test")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each reason, the most frequent first."""
    kinds = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])):
        terminalreporter.write_line(f"{count} skipped: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.removeprefix("Skipped: ").split())
