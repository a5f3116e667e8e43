"""Call a function of a user's package with the task on stdin.

    python -m streams.processes.entry_point pkg:fn

`fn(prompt)` or `fn(prompt, task)`, sync or async. Its result is printed, for people; only its calls to the server
count. An exception ends the process with exit code 1, and its traceback goes to stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys


def main(name: str) -> None:
    """Call the function with that name. Raises its errors."""
    task = json.loads(sys.stdin.buffer.readline())
    module, _, path = name.partition(":")
    function = importlib.import_module(module)
    for part in path.split("."):
        function = getattr(function, part)
    result = function(*(task["prompt"], task)[: _positional_arguments(function)])  # type: ignore[operator]
    if inspect.isawaitable(result):
        result = asyncio.run(_await(result))
    if result is not None:
        print(result)


async def _await(result: object) -> object:
    return await result  # type: ignore[misc]


def _positional_arguments(function: object) -> int:
    """Return how many positional arguments it takes, 1 or 2."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]  # type: ignore[arg-type]
    by_position = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return 2 if by_position > 1 or inspect.Parameter.VAR_POSITIONAL in kinds else 1


if __name__ == "__main__":
    main(sys.argv[1])
