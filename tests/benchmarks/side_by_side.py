"""Time things against each other on a machine that is not quiet: by turns, and medians.

    {"ours": run, "peer": run} ──► ours peer ours peer ... ──► {"ours": [s, s, ...], "peer": [s, s, ...]}

What slows the machine for a while slows both, so the ratio stands where seconds do not.

Not covered: differences of a few percent.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import psutil

DEVICE = os.environ.get("BENCH_DEVICE", "cpu")
"""Where a benchmark of the model runs it, as in `model.device`."""
LEAST = 3
"""Rounds below which a median says nothing: two runs of one round each have given 3.1 and 1.9 for the same case."""
LEAST_S = 1e-4
"""What a difference of two medians counts as at least."""


def by_turns(
    runs: Mapping[str, Callable[[], Any]], *, rounds: int = 5, budget_s: float = 40, warm: bool = True
) -> dict[str, list[tuple[float, Any]]]:
    """Return seconds and result of each call, by name.

    Up to `rounds` of each, as many as begin within `budget_s` seconds, but LEAST however long they take.
    """
    if warm:
        for run in runs.values():
            run()
    measured: dict[str, list[tuple[float, Any]]] = {name: [] for name in runs}
    begun = time.monotonic()
    for turn in range(rounds):
        if turn >= LEAST and time.monotonic() - begun > budget_s:
            break
        for name, run in runs.items():
            mark = time.perf_counter()
            result = run()
            measured[name].append((time.perf_counter() - mark, result))
            say(f"  {name}, round {turn + 1}: {measured[name][-1][0]:.3g} s")
    return measured


def median_s(measured: list[tuple[float, Any]]) -> float:
    """Return the median of the seconds."""
    return statistics.median(seconds for seconds, _ in measured)


def line(
    bench: str,
    case: str,
    *,
    ours: float,
    peer: float,
    unit: str,
    ratio: float,
    peer_is: str,
    target: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return one result. `ratio` is how many times better ours is than the peer, unless `peer_is` says a limit."""
    met = {} if target is None else {"target": target, "met": ratio >= target}
    values = {"ours": _short(ours), "peer": _short(peer), "unit": unit, "ratio": _short(ratio), **met}
    return {"bench": bench, "case": case, **values, "peer_is": peer_is, **more, "machine": machine()}


def time_to_aim(
    bench: str, case: str, taken: float | None, *, limit: float, most: float, unit: str, **more: Any
) -> dict[str, Any]:
    """Return the result of a run that reached its aim after `taken`; None: it did not, within `most`.

    The aim is to take no more than `limit`.
    """
    return line(
        bench,
        case,
        ours=most if taken is None else taken,
        peer=limit,
        unit=unit,
        ratio=0.0 if taken is None else limit / taken,
        target=1.0,
        peer_is="the aim",
        **more,
        load_at_end=round(os.getloadavg()[0], 1),
    )


def cpu_s() -> float:
    """Return the CPU seconds of this process, its children so far, and theirs."""
    processes = (psutil.Process(), *psutil.Process().children(recursive=True))
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _short(value: float) -> float:
    """Return a number to four digits: more are noise."""
    return float(f"{value:.4g}")


@cache
def machine() -> dict[str, Any]:
    """Return what the numbers were taken on, and how busy it was when the run began."""
    return {
        "cpu": _cpu(),
        **_gpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 1),
    }


def _gpu() -> dict[str, str]:
    """Return the name of the GPU, if the model runs on one."""
    if DEVICE == "cpu":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name(DEVICE)}


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(text.split(":", 1)[1].strip() for text in file if text.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def say(text: str) -> None:
    """Say on stderr how it goes."""
    print(text, file=sys.stderr, flush=True)
