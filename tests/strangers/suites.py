"""The suites that `make test-strangers` runs: each a function that returns what it found.

    Stage: a Kafka node and a folder of its own ──► a suite ──► findings by name
                                                         └────► stage.recordings, for `make test`

A suite does not share its server with another one, so what it finds does not depend on what ran before. What it finds
is in findings.json: for llmprobe its scores and each check that did not pass, for openai-python's own tests how many
passed and what the others were told, for schemathesis each check that failed, for each agent of a framework what it
said and what its calls are to each other (agents_of_others.py), and for the clients in clients/ what would change if
they are generated again, and what the example prints (described.py). Of MCP's conformance suite it has each check that
fails, with why, and how many pass on the SDK's own server in our mount (mcp_conformance.py), and of MCP's inspector
what it reads (mcp_inspector.py), and of lm-evaluation-harness what it finds likely, served and loaded by itself. While
schemathesis runs, another caller is answered within a second (latency.py).

The suites of a plugin's protocols are in tests/plugins/NAME/strangers, with their findings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.strangers import (
    agents_of_others,
    described,
    exchanges,
    latency,
    mcp_conformance,
    mcp_inspector,
    openai_python,
)
from tests.strangers.described import HOME, run
from tests.strangers.lm_evaluation import suite as harness
from tests.strangers.proxy import between
from tests.strangers.stage import Findings, Stage, Suite
from tests.strangers.stand_ins import mended
from tests.support.agent_server import serving, turns

FOLDER = Path(__file__).parent
MODEL = "sums"
OPENAI_TESTS = (
    *("chat/test_completions.py", "test_completions.py", "test_responses.py", "test_models.py", "test_files.py"),
    "fine_tuning",
)
"""Those of chat, completions, responses, models, files and fine-tuning."""


def frameworks(stage: Stage) -> Findings:
    """Run agents and clients of others: what they print, and what the log has of their calls."""
    found: Findings = {}
    settings = agents_of_others.settings(stage.bootstrap, stage.folder)
    with serving(settings) as server, between(server) as (url, exchanged):
        for name, command in agents_of_others.programs(HOME).items():
            print(name, flush=True)
            said = agents_of_others.said_by(command, url + agents_of_others.path_of(name), MODEL, stage.folder / name)
            found[name] = {"said": said, "turns": agents_of_others.tree(turns(settings, name))}
    stage.recordings[agents_of_others.FILE] = agents_of_others.in_order(exchanged, stage.folder)
    return {"frameworks": found}


def conformance(stage: Stage) -> Findings:
    """Run MCP's conformance suite against our server, and against the SDK's own in our mount."""
    with stage.server() as url:
        ours = mcp_conformance.conformance(url, stage.folder)
    return {"mcp": ours, "mcp, every feature in our mount": mcp_conformance.of_our_mount(stage.settings, stage.folder)}


def inspector(stage: Stage) -> Findings:
    """Read our MCP server with the inspector's command line."""
    with stage.server() as server, between(server) as (url, exchanged):
        found = mcp_inspector.inspected(url, stage.folder)
    stage.recordings[mcp_inspector.FILE] = mcp_inspector.in_order(exchanged)
    return {"mcp inspector": found}


def lm_evaluation(stage: Stage) -> Findings:
    """Have lm-evaluation-harness ask for likelihoods; it loads the same weights itself, too."""
    settings = harness.served_settings(stage.bootstrap, stage.folder)
    with serving(settings) as server, between(server) as (url, exchanged):
        found = harness.evaluated(url, settings)
    stage.recordings[harness.FILE] = exchanges.compact(exchanged)
    return {"lm-evaluation-harness": found}


def openai_suites(stage: Stage) -> Findings:
    """Run llmprobe and openai-python's own tests, whose requests are kept in one file."""
    with stage.server() as server:
        with between(server) as (url, of_probe):
            probe = _llmprobe(url, stage.folder)
        with between(server, mended(MODEL, server)) as (url, of_tests):
            tests = openai_python.outcomes(url, stage.folder, OPENAI_TESTS)
    stage.recordings[exchanges.FILE] = exchanges.compact([*of_probe, *of_tests])
    return {"llmprobe": probe, "openai-python": tests}


def _llmprobe(url: str, folder: Path) -> Findings:
    """Return coverage by tier, MUST assertions, and what did not pass."""
    report = folder / "llmprobe.json"
    program = HOME / "node" / "node_modules" / "llmprobe" / "bin" / "dist" / "llmprobe.mjs"
    plain = ["--no-bench", "--no-save", "--reasoning", "default"]
    options = ["--model", MODEL, "-k", "none", *plain, "--save", str(report)]
    run(["node", str(program), f"{url}/v1", *options], folder)
    found = json.loads(report.read_text())
    tiers, results = found["coverage"]["byTier"], found["conformance"]["results"]
    return {
        "coverage": {tier["tier"]: f"{tier['supported']} of {tier['total']}" for tier in tiers},
        "must": f"{found['conformance']['passed']} of {found['conformance']['total']}",
        "failed": {
            each["id"]: [failure["message"] for failure in each["failures"] if failure["severity"] == "MUST"]
            for each in results
            if each["outcome"] == "fail"
        },
        "not supported": sorted(each["id"] for each in results if each["outcome"] == "unsupported"),
    }


def schemathesis(stage: Stage) -> Findings:
    """Check a server without keys by its own description; its requests are odd, and need no repetition."""
    with stage.server() as url:
        found, verdict = _beside_another_caller(url, lambda: described.openly(url, stage.folder))
    return {"schemathesis": found, "another caller, beside schemathesis": verdict}


def roles(stage: Stage) -> Findings:
    """Check a server with keys by the committed description, with a key of each role."""
    with described.keyed(stage.bootstrap, stage.folder) as keyed:
        found, verdict = _beside_another_caller(keyed.url, lambda: described.by_role(keyed, stage.folder))
    return {"schemathesis by role": found, "another caller, beside schemathesis by role": verdict}


def _beside_another_caller(url: str, check: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a check finds, and how long another caller waited meanwhile.

    The same requests hold up others each time, and a busy machine does not, so a late answer has to come twice.
    """
    for _ in range(2):
        with latency.probed(url) as probe:
            found = check()
        if probe.verdict == latency.IN_TIME:
            break
    return found, probe.verdict


def clients(stage: Stage) -> Findings:
    """Make our clients anew, and run an example of theirs."""
    with described.keyed(stage.bootstrap, stage.folder) as keyed:
        return {"clients": described.clients(keyed, stage.folder)}


def _of_plugins() -> Iterator[tuple[str, Suite]]:
    """Yield the suites of plugins that are in this checkout, by name."""
    for file in sorted(FOLDER.parent.glob("plugins/*/strangers/suite.py")):
        yield from import_module(f"tests.plugins.{file.parts[-3]}.strangers.suite").SUITES.items()


SUITES: Mapping[str, Suite] = {
    **dict(_of_plugins()),
    "frameworks": Suite(frameworks),
    "openai": Suite(openai_suites),
    "conformance": Suite(conformance),
    "inspector": Suite(inspector),
    "lm-evaluation": Suite(lm_evaluation),
    "clients": Suite(clients),
    "schemathesis": Suite(schemathesis, alone=True),
    "roles": Suite(roles, alone=True),
}
"""In the order in which they begin: those of plugins, then those that take longest."""
