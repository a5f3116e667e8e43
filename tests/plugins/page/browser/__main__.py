"""Serve the page over a made-up log, and look at it with Chromium: make test-page

    page_log ──► an archive ──► `streamward page` ──► browse.py, in .venv-page ──► pictures, and what is wrong
                                                       └──► questions.py: five questions, three clicks each
    tests/plugins/NAME/browser of each other plugin ──► what it does on its own pages

Says loudly, with exit code 1, if it cannot run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

from plugins.page.settings import Page
from streams.settings.load import to_env
from streams.settings.model import Archive, Policy, Settings
from tests.support.factories import T0
from tests.support.log import page_log
from tests.support.log.archive_of import archived
from tests.support.processes import until

ROOT = Path(__file__).parents[4]
PYTHON = Path(os.environ.get("PAGE_PYTHON", ROOT / ".venv-page/bin/python"))
AXE = Path(os.environ.get("AXE", ROOT / ".venv-page/node_modules/axe-core/axe.min.js"))
DOCUMENTED = ("page-overview-light.png", "page-taught-light.png", "page-flat-dark.png", "page-policy-light.png")
"""Pictures that docs/page.md shows."""
ADDRESS = re.compile(r"the page is at (http://\S+?)/$", re.MULTILINE)


def main() -> int:
    """Return the exit code of the browser's run."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None or not PYTHON.exists() or not AXE.exists():
        print(
            f"NOT RUN: this needs Chromium (found: {browser}), Playwright ({PYTHON}) and axe-core ({AXE}); "
            "`make test-page` installs the last two"
        )
        return 1
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(sys.argv[1] if len(sys.argv) > 1 else folder)
        pictures.mkdir(parents=True, exist_ok=True)
        settings = Settings(archive=Archive(store=f"{folder}/archive"), policy=Policy(engine="scripted")).model_copy(
            update={"page": Page(port=0)}
        )
        archived(settings, page_log.pictured_log(), count(T0, 1000))
        env = os.environ | to_env(settings)
        command = [sys.executable, "-m", "streams.cli", "page", "--source", "archive"]
        log = Path(folder) / "page.log"
        with log.open("wb") as output, subprocess.Popen(command, env=env, stderr=output, cwd=ROOT) as server:
            try:
                until(lambda: bool(_addresses(log)) or server.poll() is not None, "the page to answer")
                [address] = _addresses(log)
                look = [str(PYTHON), str(Path(__file__).parent / "browse.py"), address, str(pictures), str(AXE)]
                code = subprocess.run(look, env=os.environ | {"CHROMIUM": browser}).returncode
                questions = [str(PYTHON), str(Path(__file__).parent / "questions.py"), address]
                code = code or subprocess.run(questions, env=os.environ | {"CHROMIUM": browser}).returncode
                for name in DOCUMENTED if code == 0 else ():
                    shutil.copy(pictures / name, ROOT / "docs")
            finally:
                server.terminate()
        return code or _look_at_plugins(pictures, browser)


def _addresses(log: Path) -> list[str]:
    return ADDRESS.findall(log.read_text(encoding="utf-8"))


def _look_at_plugins(pictures: Path, browser: str) -> int:
    """Run what other plugins do on their pages; return the highest exit code."""
    own = Path(__file__).parent
    paths = {"PAGE_PYTHON": str(PYTHON), "AXE": str(AXE), "CHROMIUM": browser}
    env = os.environ | paths | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(own)))}
    folders = [file.parent for file in sorted(ROOT.glob("tests/plugins/*/browser/__main__.py")) if file.parent != own]
    modules = [".".join(folder.relative_to(ROOT).parts) for folder in folders]
    return max(
        (subprocess.run([sys.executable, "-m", name, str(pictures)], env=env).returncode for name in modules), default=0
    )


if __name__ == "__main__":
    sys.exit(main())
