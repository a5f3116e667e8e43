"""openai-python's own tests against a server: how many of them say what.

files of its tests ──► the pytest of the strangers' Python, with the server's address ──► what each was told, counted
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.strangers.described import HOME, run
from tests.strangers.stage import Findings

UNIQUE = re.compile(r"\b(?:file-[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
"""An id that is another one in each run."""


def outcomes(url: str, folder: Path, names: Sequence[str]) -> Findings:
    """Return how many of its tests pass, and what the others were told. `names`: below its tests/api_resources."""
    source = HOME / f"openai-{version('openai')}"
    files = [f"tests/api_resources/{name}" for name in names]
    loops = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"]
    report = folder / "openai.xml"
    plain = ["-c", os.devnull, "--rootdir", str(source), "-p", "no:cacheprovider", "-q", "--junitxml", str(report)]
    environment = {"TEST_API_BASE_URL": f"{url}/v1", "PYTHONPATH": str(source)}
    run([str(HOME / "bin" / "python"), "-m", "pytest", *plain, *loops, *files], source, environment)
    told: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - of our own run
        failure = case.find("failure")
        if failure is None and case.find("error") is not None:
            failure = case.find("error")
        said = "passed" if failure is None else (failure.get("message") or "").partition("\n")[0]
        told[UNIQUE.sub("…", said)] += 1
    return dict(sorted(told.items()))
