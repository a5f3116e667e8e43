"""Run the program in docs/tinker.md that uses the SDK, as it stands there: in the strangers' environment.

docs/tinker.md: the block in `py` ──► run ──► a line of JSON: whether its loss fell, and where it saved
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "tinker.md"


def main() -> None:
    """Run the block."""
    [program] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102 - it is our own page
    *passes, path = output.getvalue().splitlines()
    losses = [float(re.findall(r"'loss:sum': ([\d.]+)", line)[0]) for line in passes]
    saved = path.split(":train:0/")[-1]
    print(json.dumps({"passes": len(losses), "the loss falls": losses[-1] < losses[0], "saved": saved}))


if __name__ == "__main__":
    main()
