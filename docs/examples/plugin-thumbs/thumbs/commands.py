"""The command `streamward thumbs`. What takes long to import is imported when it runs."""

import click

from streams.cli.runtime import AppContext, output_option, pass_call, user_name


@click.group()
def thumbs() -> None:
    """Rate answers with a thumb up or down."""


@thumbs.command("add")
@click.argument("task_id")
@click.argument("answer_id")
@click.argument("thumb", type=click.Choice(["up", "down"]))
@pass_call
def thumbs_add(call: AppContext, /, task_id: str, answer_id: str, thumb: str) -> None:
    """Rate an answer to a task."""
    from schemas.event_types import derive_id
    from streams.kafka.producer import Producer
    from streams.kafka.times import now_ms
    from thumbs.topics import Thumb

    actor, now, up = user_name(), now_ms(), thumb == "up"
    own_id = derive_id(answer_id, actor, now)
    with Producer(call.settings) as producer:
        producer.send(Thumb(thumb_id=own_id, task_id=task_id, answer_id=answer_id, created_at=now, actor=actor, up=up))


@thumbs.command("list")
@output_option
@pass_call
def thumbs_list(call: AppContext, /, output: str) -> None:
    """List rated answers, the worst first."""
    from streams import output as show
    from streamward import connect

    rows = connect(settings=call.settings).sql("FROM answer_thumbs ORDER BY up - down").to_arrow_table().to_pylist()
    show.rows(rows, [show.Column(name, name) for name in ("task_id", "answer_id", "up", "down")], output)
