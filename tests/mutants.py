"""Mutants of the reducers and of the events' bytes: how many do the tests notice? mutmut makes them and runs the tests.

    python -m tests.mutants                      a sample, of the tracked files as they are
    python -m tests.mutants --against HEAD~9     the same sample of a revision, by its own tests, and both compared

`make mutants` calls it in an environment that has mutmut. A mutant runs in a fork, against the tests of its group that
call the function which it changes. What changes only words, or a check of lengths (`strict`), is no mutant here. Seed
and name decide whether one is in the sample, so two revisions have the same ones apart from functions that changed.
`mutmut show NAME`, in the folder of .streamward/mutants that has it, shows what a mutant changes.

Not covered: decorated functions, which mutmut leaves alone; tests that are not of the group.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".streamward" / "mutants"
JOIN, RUNS, ROLLOUTS = (f"streams/stages/{name}" for name in ("advantages", "agents/trajectories", "rollouts"))
SCHEMAS = ("serde", "convert", "event_sizes", "ids", "versions", "avro_schema", "tokens")
GROUPS = {
    "schemas": (
        [f"schemas/{name}" for name in SCHEMAS],
        "serde events ids schema_versions tokens token_table dead_letters protocol_events archive_columns",
    ),
    "join": (
        [f"{JOIN}/[acdgiqrt]*", f"{JOIN}/state", f"{JOIN}/leaving"],
        "join join_order join_quota join_time advantages credit live_advantages reducers_under_faults replay "
        "algorithms outside_models tracing metrics group_rows",
    ),
    "trajectories": (
        [f"{RUNS}/*"],
        "agent_fold chains run_answer audit_trajectories conversations known_failures run_rows captured_calls",
    ),
    "rollouts": (
        [f"{ROLLOUTS}/[!s]*", f"{ROLLOUTS}/state", "streams/stages/batches", "streams/stages/scoring/breaker"],
        "rollouts rollout_modes rollout_status canary guard fold_parity policies_under_faults batches failed_scores "
        "outside_models canaries_under_faults guarded_under_faults",
    ),
}
"""The modules that are changed, and the unit tests that may notice."""
NOTICED = ("killed", "timeout", "segfault")
CONFTEST = '''
hypothesis.settings.register_profile(  # a counterexample is enough: no search for a smaller one
    "mutants", parent=hypothesis.settings.get_profile("streamward"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("mutants")


def pytest_runtest_setup() -> None:
    """Forget what was compiled from the events' types: the function that compiles may be the mutant."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("schemas."):
            for value in [*vars(module).values()]:
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
'''


def prepare(revision: str, group: str) -> Path:
    """Return a folder with the files of a revision, set up for mutmut."""
    folder = WORK / f"{revision}-{group}"
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    with (folder / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write("\n\nimport sys\n" + CONFTEST)
    modules, names = GROUPS[group]
    tests = [f"tests/unit/test_{name}.py" for name in names.split()]
    code = ["gateway", "schemas", "streams", "streamward", "trainer"]
    lists = {
        "source_paths": code,
        "only_mutate": [f"{module}.py" for module in modules],
        "also_copy": [path.name for path in sorted(folder.iterdir()) if path.name not in (*code, "mutants")],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0"],
        "pytest_add_cli_args_test_selection": [test for test in tests if (folder / test).exists()],
    }
    lines = ["[mutmut]", "track_dependencies=false", "use_git_change_detection=false", "timeout_constant=8.0"]
    lines += [f"{key}=" + "".join(f"\n    {each}" for each in values) for key, values in lists.items()]
    (folder / "setup.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def mutants(folder: Path, is_chosen: Callable[[str], bool]) -> Iterator[tuple[str, str, str]]:
    """Yield name, function and mutant of those that are chosen, unless only words or `strict` differ."""
    for path in sorted((folder / "mutants").rglob("*.py.meta")):
        module = path.relative_to(folder / "mutants").as_posix().removesuffix(".py.meta").replace("/", ".")
        tree = ast.parse(path.with_suffix("").read_text(encoding="utf-8"))
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for name, node in functions.items():
            stem, mark, number = name.rpartition("__mutmut_")
            if not number.isdigit() or "register" in stem:  # no unit test runs the wiring of a stage
                continue
            if mark and is_chosen(f"{module}.{name}"):
                original = functions[f"{stem}__mutmut_orig"]
                node.name = original.name
                before, after = ast.unparse(original), ast.unparse(node)
                if _gist(before) != _gist(after):
                    yield f"{module}.{name}", before, after


def _gist(text: str) -> str:
    tree = ast.parse(text)
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = ""
        elif isinstance(part, ast.Call):
            part.keywords = [keyword for keyword in part.keywords if keyword.arg != "strict"]
    return ast.dump(tree)


def run(revision: str, group: str, share: float, seed: str) -> dict[str, list[str]]:
    """Return of each mutant in the sample how it ended, its original and its change. What was run before is read."""
    folder = prepare(revision, group)
    if (results := folder / f"{share}-{seed}.json").exists():
        return json.loads(results.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    if not (folder / "mutants" / "mutmut-stats.json").exists():  # makes all, and ends as there is none of this name
        shutil.rmtree(folder / "mutants", ignore_errors=True)
        _mutmut(folder, "run", "none", check=False)

    def is_chosen(name: str) -> bool:
        return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]) < share * 2**64

    sample = {name: [before, after] for name, before, after in mutants(folder, is_chosen)}
    _mutmut(folder, "run", "--max-children", "1", *sample)
    shown = _mutmut(folder, "results", "--all", "true").splitlines()
    ends = dict(line.strip().split(": ") for line in shown if ": " in line)
    ended = {name: [ends[name], *texts] for name, texts in sample.items()}
    results.write_text(json.dumps(ended), encoding="utf-8")
    return ended


def _mutmut(folder: Path, *arguments: str, check: bool = True) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder / "mutants")}  # for the processes that a test starts
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"mutmut {arguments[0]} in {folder}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def report(results: dict[str, list[str]], before: dict[str, list[str]]) -> Iterator[str]:
    """Yield how many of each module were noticed, those of `before` which are the same, and what was not noticed."""
    counts: dict[str, Counter[bool]] = {}
    for name, (end, *_) in results.items():
        counts.setdefault(name.rpartition(".")[0], Counter())[end in NOTICED] += 1
    yield f"{'module':52} {'mutants':>7} {'noticed':>7}"
    for module, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter[bool]()))]:
        yield f"{module:52} {count.total():7} {count[True]:7}"
    yield ", ".join(f"{count} {end}" for end, count in Counter(end for end, *_ in results.values()).most_common())
    both = [name for name, (_, *texts) in results.items() if before.get(name, [""])[1:] == texts]
    if both:
        then, now = (sum(ends[name][0] in NOTICED for name in both) for ends in (before, results))
        yield f"{len(both)} are in both revisions: {then} noticed then, {now} now"
    for name, (end, *_) in sorted(results.items()):
        if end not in NOTICED:
            yield f"{end}{' (noticed then)' if name in both and before[name][0] in NOTICED else ''}: {name}"


def main() -> None:
    """Run the sample, and print what was not noticed."""
    parser = argparse.ArgumentParser(description="Mutants of the reducers and of the events' bytes.")
    parser.add_argument("--modules", nargs="+", choices=[*GROUPS], default=[*GROUPS], help="groups; default: all")
    parser.add_argument("--against", metavar="REVISION", help="a revision to compare with")
    parser.add_argument("--share", type=float, default=0.06, help="of all mutants; default: 0.06")
    parser.add_argument("--seed", default="0", help="chooses them; default: 0")
    options = parser.parse_args()
    tracked = _git("stash", "create") or _git("rev-parse", "HEAD")
    revisions = [tracked] if options.against is None else [_git("rev-parse", options.against), tracked]
    results: list[dict[str, list[str]]] = [{} for _ in revisions]
    for group in options.modules:
        for revision, ended in zip(revisions, results, strict=True):
            ended |= run(revision, group, options.share, options.seed)
    print(*report(results[-1], results[0] if len(results) > 1 else {}), sep="\n")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
