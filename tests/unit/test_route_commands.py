"""Commands that are made from routes: words are fields, rows are answers, and errors are those of the route."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import click
import pytest
from click.testing import CliRunner, Result
from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, PathQuery, Whole
from gateway.http.principal import actor_of
from gateway.http.route import REST
from gateway.log.own_call import route_of
from streams.cli.root import cli
from streams.cli.route_commands import RouteCommand, RoutedCommand
from streams.errors import CallError, NotFoundError
from streams.settings.model import Settings

MOMENT, ID = "2026-11-29T10:30:00.000Z", "7b0c1f6e-0d55-5b6e-8d77-1a0f7b1d0c55"


class TeaBody(Body):
    """A cup of tea."""

    sort: Literal["green", "black"] = Field(description="sort of its leaves")
    sugar: Whole | None = Field(None, ge=0, description="lumps; default: none")
    milk: bool = False
    hot: bool = True
    guests: list[str] = Field(default_factory=list)
    plan: dict[str, int] | None = None
    reason: str = "thirst"


class Cup(Answer):
    """A cup."""

    cup_id: str
    created_at: str
    policy: str
    actor: str
    body: dict[str, Any]


class Cups(Answer):
    """Cups."""

    object: Literal["list"]
    data: list[Cup]
    more: bool


class CupsQuery(PathQuery):
    """Which cups."""

    limit: int = Field(1, ge=1, le=3, description="cups at most")


class Tea:
    """A room."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @REST.post("/tea/{policy}", may="tasks.submit")
    def make_tea(self, request: Request, policy: str, body: TeaBody) -> Cup:
        """Make tea."""
        if body.sort == "green":
            raise CallError("conflict", "the leaves are black")
        actor, fields = actor_of(request), body.model_dump(exclude_unset=True)
        return Cup(cup_id=ID, created_at=MOMENT, policy=policy, actor=actor, body=fields)

    @REST.get("/cups", may="log.read")
    def list_cups(self, query: CupsQuery) -> Cups:
        """List cups."""
        cup = Cup(cup_id=ID, created_at=MOMENT, policy="sums", actor="ann\nbob", body={})
        return Cups(object="list", data=[cup] * query.limit, more=True)

    @REST.get("/cups/{name}", may="log.read")
    def get_cup(self, name: str) -> Cup:
        """Look at a cup."""
        raise NotFoundError(f"there is no cup {name}")


def run(method: str, *words: str, arguments: str = "", columns: str = "") -> Result:
    command = RoutedCommand("try", f"{__name__}:Tea", RouteCommand(method, "Try it.", arguments, columns))
    group = click.Group(commands={"try": command})
    from streams.cli.runtime import Guarded

    runner = CliRunner()
    with runner.isolated_filesystem():  # a demo leaves its settings in the checkout
        return runner.invoke(Guarded(commands=group.commands), ["try", *words])


def test_words_are_the_fields_of_path_and_body_and_what_is_left_out_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"minutes": 3}')
    words = ["black", "--sugar", "0", "--milk", "--no-hot", "--guests", "ann", "--guests", "bob", "--plan"]
    words.append(f"@{tmp_path}/plan.json")
    made = run("make_tea", *words, "--actor", "eve", "--output", "jsonl", arguments="sort")
    row = json.loads(made.stdout)
    assert (row["policy"], row["actor"]) == (Settings().policy.name, "eve")
    assert row["body"] == {
        "sort": "black",
        "sugar": 0,
        "milk": True,
        "hot": False,
        "guests": ["ann", "bob"],
        "plan": {"minutes": 3},
    }
    assert json.loads(run("make_tea", "--sort", "black", "--policy", "sums", "--output", "jsonl").stdout) == {
        "cup_id": ID, "created_at": MOMENT, "policy": "sums", "actor": row_actor(), "body": {"sort": "black"},
    }  # fmt: skip


def row_actor() -> str:
    from streams.cli.runtime import user_name

    return user_name()


def test_options_say_what_the_model_says_of_its_fields() -> None:
    text = " ".join(run("make_tea", "--help").stdout.split())
    for words in (
        "--sort [green|black] Sort of its leaves. [required]",
        "--sugar INTEGER Lumps. [default: none]",
        "--milk --hot / --no-hot [default: True] --guests TEXT --plan JSON --reason TEXT [default: thirst]",
        "--policy NAME Policy. [default: policy.name]",
    ):
        assert words in text, text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("make_tea", "--sort", "green"), 4, "the leaves are black"),
        (("get_cup", "mine"), 3, "there is no cup mine"),
        (("list_cups", "--limit", "9"), 2, "9 is not in the range 1<=x<=3"),
        (("make_tea", "--sort", "black", "--plan", '{"minutes": "x"}'), 2, "plan.minutes: "),
        (("make_tea", "--sort", "black", "--plan", "{minutes"), 2, "'{minutes' is not JSON, nor @FILE that has it"),
        (("make_tea", "--sort", "black", "--plan", "@none"), 2, "No such file"),
    ],
)
def test_errors_have_the_words_of_the_route_and_the_codes_of_commands(
    words: tuple[str, ...], code: int, says: str
) -> None:
    done = run(*words)
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr


def test_a_list_is_a_table_of_its_rows_in_which_ids_moments_and_texts_are_short() -> None:
    shown = run("list_cups", "--output", "table", columns="cup_id created_at actor")
    assert shown.stdout.splitlines() == ["cup       created            by", "7b0c1f6e  2026-11-29T10:30Z  ann"]
    assert shown.stderr == "There are more (--limit).\n"
    rows = [json.loads(line) for line in run("list_cups", "--limit", "2", "--output", "jsonl").stdout.splitlines()]
    assert [row["actor"] for row in rows] == ["ann\nbob"] * 2


# --- those of the program ---------------------------------------------------------------------------------------------


def routed(group: click.Group, words: str = "") -> Iterator[tuple[str, RoutedCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, RoutedCommand):
            yield f"{words} {name}".strip(), command
        elif isinstance(command, click.Group):
            yield from routed(command, f"{words} {name}".strip())


@pytest.mark.parametrize(("name", "command"), [*routed(cli)], ids=lambda each: each if isinstance(each, str) else "")
def test_every_command_of_a_route_names_fields_that_there_are(name: str, command: RoutedCommand) -> None:
    declared, options = command.declared, {parameter.name for parameter in command.params}
    assert set(declared.arguments.split()) <= options, name
    route = route_of(command.room, declared.method)
    data = route.answers.model_fields.get("data")
    if data is not None and declared.columns:
        assert set(declared.columns.split()) <= set(get_args(data.annotation)[0].model_fields), name


def test_the_commands_of_a_group_are_listed_without_their_routes() -> None:
    code = "import sys; from streams.cli.root import cli; cli(['adapters', '--help'], standalone_mode=False)"
    code += "; print([name for name in sys.modules if name.split('.')[0] in ('gateway', 'pydantic', 'starlette')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "Make a version primary" in done.stdout
