"""Tinker's SDK and recipes of its cookbook against a server of ours, left alone or killed.

walk.py ──► every public method of the SDK         recipe.py ──► six recipes, a few steps of each
losses.py ──► each loss by its name, and computed by the client             page.py ──► the program in docs/tinker.md
walk.py, a recipe ──► calls.jsonl.xz ──► sent again in `make test` (recorded_calls.py)
a recipe, and the same while server and worker are killed ──► the weights of both, byte for byte

python -m tests.strangers tinker-walk    one part alone
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from schemas.events import AdapterEvent, TrainingResult
from streams.engines.base_model import folder_of
from streams.kafka.admin import offsets
from tests.plugins.tinker.strangers import recipe_data, recorded_calls
from tests.plugins.tinker.strangers.served import PARTS, Served, tinker_settings
from tests.strangers.described import HOME
from tests.strangers.proxy import between
from tests.strangers.stage import Findings, Stage, Suite
from tests.support.processes import read

HERE = Path(__file__).parent
PYTHON = HOME / "tinker" / "bin" / "python"
KEY = "tml-any"
"""A server without keys takes any; the SDK sends none that begins otherwise."""
FRESH = "behavior_if_log_dir_exists=delete"
RECIPES: Mapping[str, tuple[str, ...]] = {
    "sl_loop": ("batch_size=4", "max_steps=6", "lora_rank=4", "max_length=64"),
    "rl_loop": ("batch_size=4", "group_size=4", "max_steps=2", "lora_rank=8", "max_tokens=8", "save_every=1"),
    "math_rl.train": ("env=arithmetic", "group_size=4", "groups_per_batch=2", "max_steps=2", "lora_rank=8",
                      "max_tokens=5", "eval_every=0", "save_every=1", FRESH),
    "preference.dpo.train": ("batch_size=4", "max_steps=2", "max_length=256", FRESH),
    "rl_numerics_check.train": ("lora_rank=8", "group_size=2", "groups_per_batch=2", "max_tokens=16",
                                "max_trajectory_tokens=2048", "max_steps=1", "task.num_pages_min=1",
                                "task.num_pages_max=2", "task.page_chars=400", FRESH),
    "multiplayer_rl.guess_number.train": ("renderer_name=qwen3_instruct", "group_size=2", "batch_size=2",
                                          "max_tokens=6", "max_steps=1", "eval_every=0", "save_every=0", FRESH),
}  # fmt: skip
"""Of each recipe what makes it short; the last plays several turns."""
RECORDED = KILLED = "sl_loop"
KILLS = 5
NEAR = 1e-5
"""How far apart numbers of the server and of the client may be."""
LOOK_S = 0.5
PATIENCE_S = 900
LAST = 15
"""Lines of a recipe's output that are shown if it fails."""


class Programs:
    """Runs programs of the strangers' environment against one server."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.settings = folder, tinker_settings(bootstrap, folder)
        recipe_data.write_sets(folder)
        recipe_data.write_hub(folder / "hf", folder_of(self.settings.model.base))

    def start(self, url: str, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of this folder."""
        environment = recipe_data.environment(self.folder / "hf", url, KEY) | {"PYTHONPATH": str(HERE.parents[3])}
        command = [str(PYTHON), "-W", "ignore", str(HERE / program), *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def recipe(self, url: str, name: str) -> subprocess.Popen[str]:
        """Start a recipe."""
        return self.start(url, "recipe.py", name, f"log_path={self.folder / 'runs' / name}", *RECIPES[name])

    def results(self) -> int:
        """Return how many results are in the log."""
        return sum(end for _, end in offsets(self.settings, ["training-results"]).values())

    def saved_weights(self) -> list[tuple[str, dict[str, str]]]:
        """Return of each version that was saved its path in its model, and the sha256 of its files."""
        return [
            (event.origin.path.split("/", 3)[3] if event.origin else "", {f.path: f.sha256 for f in event.files})
            for _, event in read(self.settings, AdapterEvent)
            if event.kind == "trained"
        ]

    def states(self) -> list[tuple[int | None, str | None]]:
        """Return the digest of the weights after each call that changed them, once for each call."""
        first: dict[str, TrainingResult] = {}
        for _, result in read(self.settings, TrainingResult):
            first.setdefault(result.call_id, result)
        ended = (result for result in first.values() if result.state_sha256 is not None)
        return sorted((result.seq_id, result.state_sha256) for result in ended)


def walk(bootstrap: str, folder: Path) -> list[Any]:
    """Return what the SDK's methods gave."""
    programs = Programs(bootstrap, folder)
    with Served(programs.settings, folder) as served:
        output, _ = programs.start(served.url, "walk.py").communicate(timeout=PATIENCE_S)
    return [json.loads(line) for line in output.splitlines() if line.startswith("[")]


def page(bootstrap: str, folder: Path) -> dict[str, Any]:
    """Return what the program in docs/tinker.md gave."""
    programs = Programs(bootstrap, folder)
    with Served(programs.settings, folder) as served:
        output, _ = programs.start(served.url, "page.py").communicate(timeout=PATIENCE_S)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return found[0] if found else {"failed": output.splitlines()[-LAST:]}


def recipes(bootstrap: str, folder: Path) -> dict[str, str]:
    """Return how each recipe ended."""
    programs, ends = Programs(bootstrap, folder), dict[str, str]()
    with Served(programs.settings, folder) as served:
        for name in RECIPES:
            process = programs.recipe(served.url, name)
            output, _ = process.communicate(timeout=PATIENCE_S)
            ends[name] = "completed" if process.returncode == 0 else f"exit {process.returncode}"
            if process.returncode:
                print(*output.splitlines()[-LAST:], sep="\n", flush=True)
    return ends


def losses(bootstrap: str, folder: Path) -> dict[str, str]:
    """Return whether loss, logprobs and a step of each loss are those that the client computes."""
    programs = Programs(bootstrap, folder)
    with Served(programs.settings, folder) as served:
        output, _ = programs.start(served.url, "losses.py").communicate(timeout=PATIENCE_S)
    apart = json.loads(output.splitlines()[-1])
    print(json.dumps(apart, indent=2), flush=True)
    return {
        name: "moves nothing" if not far.pop("moved") else f"within {NEAR:g}" if max(far.values()) <= NEAR else str(far)
        for name, far in apart.items()
    }


def exchanges(bootstrap: str, folder: Path) -> list[dict[str, Any]]:
    """Return what is kept of the requests of the SDK's walk and of a recipe."""
    programs = Programs(bootstrap, folder)
    with Served(programs.settings, folder) as served, between(served.url) as (url, spoken):
        programs.start(url, "walk.py").communicate(timeout=PATIENCE_S)
        programs.recipe(url, RECORDED).communicate(timeout=PATIENCE_S)
        return recorded_calls.compact([*spoken, *recorded_calls.in_json(served.url, list(spoken))])


def kills(bootstrap: str, folder: Path, seed: int = 1) -> dict[str, Any]:
    """Return whether a recipe whose server and worker are killed ends with the weights of one that is left alone."""
    drawn, saved, states, exits, kill_at = random.Random(seed), [], [], [], list[int]()
    for name in ("alone", "killed"):
        programs = Programs(bootstrap, folder / name)
        with Served(programs.settings, programs.folder) as served:
            process = programs.recipe(served.url, KILLED)
            over = threading.Event()
            reading = threading.Thread(target=_read_all, args=(process, over))
            reading.start()
            for count in kill_at:
                while programs.results() < count and not over.wait(LOOK_S):
                    pass
                served.kill(PARTS[drawn.randrange(2)])
            reading.join()
            exits.append(process.wait())
            saved.append(programs.saved_weights())
            states.append(programs.states())
            kill_at = sorted(drawn.sample(range(1, programs.results()), KILLS))
    return {
        "exits": exits,
        "versions": len(saved[0]),
        "the same files": saved[0] == saved[1],
        "the same weights after each step": states[0] == states[1],
    }


def _read_all(process: subprocess.Popen[str], over: threading.Event) -> None:
    """Read what a process writes until it ends, so that it never waits for a reader."""
    process.communicate()
    over.set()


PARTS_OF_SUITE: Mapping[str, Callable[[str, Path], Any]] = {
    "walk": walk,
    "page": page,
    "losses": losses,
    "exchanges": exchanges,
    "recipes": recipes,
    "kills": kills,
}


def _part(name: str) -> Suite:
    def run_part(stage: Stage) -> Findings:
        found = PARTS_OF_SUITE[name](stage.bootstrap, stage.folder)
        if name == "exchanges":
            stage.recordings[recorded_calls.FILE] = found
            found = recorded_calls.routes(found)
        return {name: found}

    return Suite(run_part, HERE / "findings.json")


SUITES = {f"tinker-{name}": _part(name) for name in PARTS_OF_SUITE}
