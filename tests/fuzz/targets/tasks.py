"""What users write: lines and tables of tasks, suites, settings, recipes."""

from __future__ import annotations

from pathlib import Path

from schemas import serde
from schemas.events import TuningMethod
from streams.errors import NotFoundError
from streams.settings.model import Settings, Topics
from tests.fuzz.target import Check, target


def _lines(folder: Path, name: str) -> Check:
    from streams.arrow.file_rows import rows
    from streams.stages.tasks.line_task import Reading
    from streams.stages.tasks.lines import by_kind, check_rows

    path = folder / name
    reading = Reading(now_ms=0, topic_settings=Topics(), defaults={"policy": "p"})

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        try:
            found = check_rows(rows(path), name, reading)
        except NotFoundError as exc:  # a file that is there
            raise AssertionError(str(exc)) from exc
        for task in found.tasks:
            assert serde.decode(serde.encode(task), type(task)) == task
        return "; ".join(by_kind(found.problems)) or None

    return check


@target("task-lines", "lines", light=300)
def task_lines(folder: Path) -> Check:
    """A file of JSON lines is tasks, and bad lines with their reasons."""
    return _lines(folder, "tasks.jsonl")


@target("task-csv", light=300)
def task_csv(folder: Path) -> Check:
    """A CSV file is tasks, and bad lines with their reasons."""
    return _lines(folder, "tasks.csv")


@target("task-parquet", light=100)
def task_parquet(folder: Path) -> Check:
    """A Parquet file is tasks, and bad rows with their reasons."""
    return _lines(folder, "tasks.parquet")


@target("tuning-sft", "lines", light=150)
def tuning_sft(folder: Path) -> Check:
    """A file of conversations is examples with loss, or lines that are none."""
    return _examples(folder, "sft")


@target("tuning-dpo", "lines", light=150)
def tuning_dpo(folder: Path) -> Check:
    """A file of preferences is pairs with loss, or lines that are none."""
    return _examples(folder, "dpo")


def _examples(folder: Path, method: TuningMethod) -> Check:
    from streams.engines.rendering.chat_template import ChatTemplate
    from tests.support.models.chat_tiny import chat_tokenizer
    from trainer.examples import from_file

    path, template = folder / "examples.jsonl", ChatTemplate(chat_tokenizer())

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        try:
            found = from_file.read(path, method, template, context_tokens=256)
        except NotFoundError as exc:  # it is there, so it has no example
            return str(exc)
        for example in found.examples:
            assert len(example) == {"sft": 1, "dpo": 2}[method]
            assert all(answer.loss_tokens and answer.longest <= 256 for answer in example)
            assert all(chain.context for answer in example for chain in answer.chains)
        return None

    return check


@target("suites", "yaml", light=40)
def suites(folder: Path) -> Check:
    """A suite is questions, or an error with its line."""
    from streams.stages.tasks.suites import load

    path = folder / "suite.yaml"
    (folder / "tasks.jsonl").write_text('{"prompt": "1 + 1?", "answer": 2}\n{"prompt": "2 + 2?", "answer": 4}\n')

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        suite = load(path, Topics())
        assert suite == load(path, Topics())
        return None

    return check


@target("settings", "toml", light=200)
def settings(folder: Path) -> Check:
    """A settings file is settings that are saved and loaded again as the same, or an error with the key."""
    from streams.settings.load import load, save

    path = folder / "given.toml"

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        found = load(file=path, env={})
        again = load(file=save(found, folder, by="fuzz"), env={})
        assert _without_secrets(again) == _without_secrets(found)
        return None

    return check


def _without_secrets(found: Settings) -> dict[str, object]:
    from pydantic import SecretStr

    from streams.settings.load import flatten

    return {
        key: str(value)
        for key, value in flatten(found)
        if not isinstance(value, SecretStr | dict) and value is not None
    }


@target("recipes", "toml", light=100)
def recipes(folder: Path) -> Check:
    """The recipe of a replay is settings of the trainer, or an error."""
    from streams.cli.replay import _recipe
    from streams.settings.load import override

    path = folder / "recipe.toml"

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        override(Settings(), _recipe(path), str(path))
        return None

    return check


@target("node", "json", light=200)
def node(folder: Path) -> Check:
    """What an embedded node remembers of itself is read, or taken as nothing."""
    from streams.kafka.node.config import NODE_FILE, read_node, remember
    from streams.settings.load import load

    path = folder / NODE_FILE

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        load(env={}, overrides=[f"broker.data_dir={folder}"])
        found = read_node(folder)
        if found is None:
            return "nothing"
        remember(folder, found)
        assert read_node(folder) == found
        return None

    return check
