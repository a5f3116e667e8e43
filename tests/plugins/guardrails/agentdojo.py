"""AgentDojo's tasks without a model: what its ground truth calls, its attack texts, and what its tools answer.

    .venv-agentdojo (pip --target, --no-deps) ──► suites of v1.2.1 ──► ground truth, run ──► calls with their results
    35 injection tasks x 5 phrasings ──► attack texts            user tasks ──► clean outputs of tools

`python -m tests.plugins.guardrails.agentdojo` installs the package. Its clients of models are empty modules here.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[3] / ".venv-agentdojo"
PACKAGES = ("agentdojo==0.1.35", "tenacity==9.2.1")
VERSION = "v1.2.1"
EMPTY = (
    "agentdojo.agent_pipeline.llms",
    "openai",
    "anthropic",
    "cohere",
    "google",
    "langchain",
    "vertexai",
    "requests",
    "deepdiff",
)
"""Modules that are not needed to replay ground truth: clients of vendors, and what compares environments."""
PHRASINGS = ("direct", "ignore_previous", "injecagent", "system_message", "important_instructions")
VICTIM = "gpt-4o-2024-05-13"
"""A model that the attack `important_instructions` knows by name."""


class MadeCall(NamedTuple):
    """A call of ground truth, and what the tool answered."""

    tool: str
    arguments: dict[str, Any]
    output: str


class _EmptyModule(types.ModuleType):
    """A module of which each name is a class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the empty modules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith(EMPTY):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install() -> None:
    """Install the package without what it depends on."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(FOLDER), *PACKAGES], check=True)


def is_installed() -> bool:
    """Return whether the suites can be loaded."""
    return (FOLDER / "agentdojo").is_dir()


@cache
def suites() -> dict[str, Any]:
    """Return AgentDojo's suites by name. The process has empty modules in the place of vendors' clients since."""
    sys.path.insert(0, str(FOLDER))
    sys.meta_path.insert(0, _EmptyModules())
    try:
        loaded: dict[str, Any] = importlib.import_module("agentdojo.task_suite.load_suites").get_suites(VERSION)
    finally:
        sys.meta_path.pop(0)
    return loaded


def attack_texts() -> list[str]:
    """Return what injected text says: each injection task in five phrasings, 175 texts."""
    import agentdojo.attacks as attacks
    from agentdojo.agent_pipeline.base_pipeline_element import BasePipelineElement

    victim = type("Victim", (BasePipelineElement,), {"name": VICTIM, "query": lambda *_: None})()
    texts = []
    for suite in suites().values():
        for name in PHRASINGS:
            attack = attacks.load_attack(name, suite, victim)
            for task in suite.injection_tasks.values():
                words = {"goal": task.GOAL, "user": attack.user_name, "model": attack.model_name, "task": ""}
                texts.append(attack.jailbreak.format(**words))
    return texts


def clean_outputs() -> list[str]:
    """Return the distinct answers of tools to the ground truth of all user tasks: 149 texts without an attack."""
    outputs = [
        call.output
        for suite in suites().values()
        for task in suite.user_tasks.values()
        for call in ground_truth(suite, task)
    ]
    return list(dict.fromkeys(outputs))


def ground_truth(suite: Any, task: Any, injections: dict[str, str] | None = None) -> list[MadeCall]:
    """Return the calls of a task's ground truth, executed in order in a fresh environment."""
    from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
    from agentdojo.functions_runtime import FunctionsRuntime

    environment = suite.load_and_inject_default_environment(injections or {})
    runtime = FunctionsRuntime(suite.tools)
    made = []
    for call in task.ground_truth(environment):
        output, _ = runtime.run_function(environment, call.function, call.args, raise_on_error=True)
        made.append(MadeCall(call.function, _plain(call.args), tool_result_to_str(output)))
    return made


def canaries(suite: Any) -> dict[str, str]:
    """Return a mark for each place of a suite where an attacker writes."""
    return {place: f"<CANARY---{place}--->" for place in suite.get_injection_vector_defaults()}


def injected_tools(suite: Any) -> Iterator[str]:
    """Yield the tools whose answers have what an attacker wrote, in the ground truth of the user tasks."""
    marks = canaries(suite)
    for task in suite.user_tasks.values():
        for call in ground_truth(suite, task, marks):
            if any(mark in call.output for mark in marks.values()):
                yield call.tool


def _plain(arguments: Any) -> dict[str, Any]:
    return {
        name: list(part) if isinstance(part, Sequence) and not isinstance(part, str) else part
        for name, part in dict(arguments).items()
    }


if __name__ == "__main__":
    install()
