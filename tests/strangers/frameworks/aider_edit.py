"""Aider: an edit of a file, which it commits with a message of its own; then a second question. In an empty folder."""

import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


Path("sum.txt").write_text("?\n")
git("init")
git("config", "user.name", "ann")
git("config", "user.email", "ann@example.org")
git("add", "sum.txt")
git("commit", "--message", "A question")

with redirect_stdout(sys.stderr):
    from aider.coders import Coder  # it looks for the repository when it is imported
    from aider.io import InputOutput
    from aider.models import Model

    model = Model(f"openai/{os.environ['OPENAI_DEFAULT_MODEL']}")
    coder = Coder.create(main_model=model, fnames=["sum.txt"], io=InputOutput(yes=True, pretty=False))
    replies = [coder.run(question) for question in ("Write 47 * 83 into sum.txt.", "Thank you.")]
print(Path("sum.txt").read_text().strip())
print(git("log", "-1", "--format=%s"))
print(replies[-1])
