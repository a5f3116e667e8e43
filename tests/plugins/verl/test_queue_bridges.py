"""Batches to a queue of another trainer and back: what comes back is trained on as the batch was.

batch 0 ──► queues export ──► a queue ──► queues import, another policy ──► scoring ──► join ──► the same rows
                                                                       └──► export again ──► the same samples
"""

from __future__ import annotations

import json
import shlex
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_fields import plain
from plugins.verl.sample_fold import Sample
from plugins.verl.sample_queue import FieldValue, SamplePut, SampleQueue
from schemas.events import AdvantagedGroup, Response, Task
from schemas.serde import encode
from streams.cli.root import cli
from streams.engines.base_model import Base
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.scoring.scoring_agent import ScoringAgent
from streams.tools.audit.reading import Audit
from streams.tools.replay import driver
from tests.plugins.verl.test_queue_samples import fields, trained
from tests.support.gates import gated
from tests.support.log.held_out_tasks import check_export
from tests.support.models.tiny_log import batch_of, groups_of, settings_in, write
from tests.support.processes import environment
from trainer.export.batch_rows import TrainingBatch

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path, base: Base) -> Settings:
    return settings_in(tmp_path, kafka_bootstrap, base)


def command(settings: Settings, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, arguments, env=environment(settings) | {"STREAMWARD_OUTPUT": "jsonl"})
    assert done.exit_code == code, done.stderr
    return done


def events(settings: Settings, label: str) -> list[Any]:
    return [record.decode(topics(settings.topics)[label].event) for record in admin.read_topic(settings, label)]


def samples_of(settings: Settings, queue: str) -> dict[str, Sample]:
    with QueueLog(settings) as log:
        found = QueueOpener(settings, log, queue).samples().samples.values()
    return {str(sample.key): sample for sample in found}


def contents(settings: Settings, queue: str) -> list[dict[str, FieldValue]]:
    """Return the fields of all samples of a queue, but for names of groups, in the order of their tokens."""
    held = [sample for sample in samples_of(settings, queue).values() if sample.fields]
    with SampleQueue(settings, queue, 1) as reader:
        rows = [
            dict(zip(sample.fields, reader.get([(n, f.places) for n, f in sample.fields.items()]), strict=True))
            for sample in held
        ]
    for row in rows:
        about = json.loads(row["streamward"].data)
        row["streamward"] = plain({name: about[name] for name in about if name not in ("task_id", "response_id")})
        del row["uid"]
    return sorted(rows, key=lambda row: row["input_ids"].data)


def joined(settings: Settings) -> list[AdvantagedGroup]:
    """Score what is in the log, and return the groups that the join makes."""
    asked = sum(event.error is None for event in events(settings, "responses"))
    with ScoringAgent(settings, BrokerOutage(settings.kafka, threading.Event())) as agent:
        while len(events(settings, "rewards")) < asked:
            agent.step()
        agent.drain()
    return [event for event in driver.join(settings) if isinstance(event, AdvantagedGroup)]


def test_a_batch_that_was_samples_is_trained_on_as_it_was_and_becomes_the_same_samples(
    settings: Settings, base: Base
) -> None:
    write(settings, base, range(1))
    row = json.loads(command(settings, "queues", "export", "q", "--batch", "0").stdout)
    assert (row["groups"], row["samples"], row["epoch"], row["left_out"]) == (2, 8, 1, 0)
    again = json.loads(command(settings, "queues", "export", "q", "--batch", "0").stdout)
    assert (again["groups"], again["samples"], again["epoch"]) == (0, 0, 2)
    finished = [s.key for s in samples_of(settings, "q").values() if json.loads(s.tags or "{}").get("is_prompt")]
    originals = groups_of(base, 0)
    assert finished == [group.group_id for group in originals]

    row = json.loads(command(settings, "queues", "import", "q", "--policy", "again").stdout)
    assert (row["tasks"], row["responses"], row["written"], row["left_out"]) == (2, 8, 10, 0)
    assert json.loads(command(settings, "queues", "import", "q", "--policy", "again").stdout)["written"] == 0
    uids = {task.task_id: task.metadata["uid"] for task in events(settings, "tasks")}
    groups = {uids[group.task_id]: group for group in joined(settings)}
    assert list(map(groups.__contains__, finished)) == [True, True]
    for original in originals:
        same_as(original, groups[original.group_id])

    ends: list[Any] = []
    with Producer(settings) as producer:
        for group in groups.values():
            topic = topics(settings.topics)["groups"].name
            producer.send_bytes(topic, b"again", encode(group), on_ack=ends.append)
        producer.flush()
        producer.send(batch_of(0, ends, "again"))
    command(settings, "queues", "export", "q2", "--policy", "again", "--batch", "0")
    assert contents(settings, "q2") == contents(settings, "q")


@gated
def test_no_batch_with_a_held_out_question_is_put_into_a_queue(settings: Settings, base: Base) -> None:
    check_export(settings, base, "queues", "export", "q", nothing=lambda: events(settings, "queues") == [])


def same_as(original: AdvantagedGroup, group: AdvantagedGroup) -> None:
    """Assert that a step would take the same of both."""
    for name in ("adapter_version", "trained_batches", "base_digest", "tokenizer_digest", "scenario", "complete"):
        assert getattr(group, name) == getattr(original, name), name
    assert group.sampling.temperature == original.sampling.temperature
    assert [response.reward for response in group.responses] == [response.reward for response in original.responses]
    rows = [
        [trained(row.chain) for row in TrainingBatch(None, None, [each], (), {}).rows]  # type: ignore[arg-type]  # no batch
        for each in (original, group)
    ]
    assert rows[0] == rows[1]


def put(settings: Settings, *puts: SamplePut, name: str = "q") -> None:
    """Put samples into a queue, as a program of verl's does."""
    with QueueLog(settings) as log:
        epoch = QueueOpener(settings, log, name).open("a test").event.epoch
    puts = tuple(each._replace(sample_id=each.sample_id.replace("q/", f"{name}/")) for each in puts)
    with SampleQueue(settings, name, epoch) as queue:
        queue.put([each for each in puts if each.fields])
        queue.tag([each for each in puts if not each.fields])


def sample(number: int, key: str, content: dict[str, FieldValue], status: str = "success") -> SamplePut:
    return SamplePut(f"q/1.{number}", "train", content, key, json.dumps({"status": status}))


def of_verl(score: float, **more: FieldValue) -> dict[str, FieldValue]:
    """Return a sample of verl's: five tokens, of which a tool wrote the second and third."""
    messages = plain([{"role": "user", "content": "2 + 3?"}])
    whole = fields([11, 12, 13, 14, 15], [1, 0, 0, 1, 1], [0, 0, 0, 0, score])
    return {**{name: value for name, value in whole.items() if name != "streamward"}, "raw_prompt": messages, **more}


def test_samples_of_verl_become_tasks_of_its_agent_and_groups_with_their_scores(settings: Settings) -> None:
    unusable = {name: value for name, value in of_verl(1).items() if name != "rollout_log_probs"}
    put(
        settings,
        *(sample(slot, f"a_{slot}_0", of_verl(float(slot), data_source=plain("sums"))) for slot in range(2)),
        sample(2, "b_0_0", of_verl(1)),
        sample(3, "b_1_0", of_verl(1)),
        sample(4, "c_0_0", of_verl(1)),
        sample(5, "d_0_0", of_verl(1)),
        sample(6, "d_1_0", unusable),
        sample(7, "another", of_verl(1)),
        sample(8, "a", {"raw_prompt": plain([])}, "pending"),
        sample(9, "b", {"raw_prompt": plain([])}, "failure"),
    )
    done = command(settings, "queues", "import", "q", "--temperature", "0.7", code=1)
    assert json.loads(done.stdout)["left_out"] == 4
    for said in (
        "b: its prompt is tagged failure",
        "c: it has 1 sessions; expected 2",
        "d: d_1_0 has no rollout_log_probs; verl has them with actor_rollout_ref.rollout.calculate_log_probs=true",
        "another: its key is not that of an output: uid_session_output",
    ):
        assert said in done.stderr
    (task,) = events(settings, "tasks")
    assert isinstance(task, Task)
    assert (task.agent, task.scenario, task.group_size, task.sampling.temperature) == ("verl", "sums", 2, 0.7)
    assert [(message.role, message.content) for message in task.messages] == [("user", "2 + 3?")]
    responses = events(settings, "responses")
    assert all(isinstance(response, Response) and len(response.turns) == 2 for response in responses)
    (group,) = joined(settings)
    assert group.complete and [response.reward for response in group.responses] == [0.0, 1.0]
    assert np.sign([response.advantage for response in group.responses]).tolist() == [-1, 1]
    with Producer(settings) as producer:
        producer.send(group)
    assert [finding for finding in Audit(settings).look().wrong if "batch" not in finding.what] == []


def test_samples_of_another_base_an_unknown_queue_and_an_unknown_version_are_refused(
    settings: Settings, base: Base
) -> None:
    about = plain({"base_digest": "f" * 64})
    put(settings, *(sample(slot, f"a_{slot}_0", of_verl(1.0, streamward=about)) for slot in range(2)))
    done = command(settings, "queues", "import", "q", code=4)
    assert f"it was sampled with base_digest ffffffffffff, and model.base has {base.base_digest[:12]}" in done.stderr
    assert "there is no queue other" in command(settings, "queues", "import", "other", code=3).stderr
    assert "no adapter version 9" in command(settings, "queues", "import", "q", "--adapter-version", "9", code=3).stderr
    assert events(settings, "tasks") == []


def test_queues_are_listed_with_what_they_have(settings: Settings) -> None:
    put(settings, sample(0, "a_0_0", of_verl(1.0)))
    put(settings)
    (row,) = (json.loads(line) for line in command(settings, "queues", "list").stdout.splitlines())
    assert (row["queue"], row["epoch"], row["samples"], row["checkpoints"]) == ("q", 2, 1, 0)


PAGE = Path(__file__).parents[3] / "docs" / "verl.md"


def test_every_command_of_the_page_runs(settings: Settings, base: Base) -> None:
    blocks = PAGE.read_text(encoding="utf-8").split("```sh\n")[1:]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.split("```")[0].splitlines()]
    commands = [line[1:] for line in lines if line[:1] == ["streamward"]]
    write(settings, base, range(10))
    queue = next(line[2] for line in commands if line[:2] == ["queues", "import"])
    put(settings, *(sample(n, f"a_{n}_0", of_verl(n / 2)) for n in range(2)), name=queue)
    printed = {" ".join(line[:2]): command(settings, *line).stdout for line in commands}
    assert len(commands) == 7 and len([line for line in commands if line[0] == "query"]) == 3
    assert json.loads(printed["queues list"])["samples"] == 0, "as its restore found it"
    assert json.loads(printed["queues import"])["written"] == 3
    assert json.loads(printed["queues export"])["samples"] == 6 * 8


def test_the_queries_of_the_page_say_what_the_queue_has(settings: Settings) -> None:
    queries = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("streamward query")]
    put(settings, *(sample(n, f"a_{n}_0", of_verl(n / 2)) for n in range(2)), name="qwen-gsm8k")
    put(settings, name="qwen-gsm8k")
    events_of, kinds, keys = (
        [json.loads(row) for row in command(settings, *shlex.split(line)[1:]).stdout.splitlines()] for line in queries
    )
    assert [(row["epoch"], row["kind"], row["samples"]) for row in events_of] == [
        (1, "opened", 0), (1, "restored", 0), (2, "opened", 0), (2, "restored", 2)
    ]  # fmt: skip
    assert [list(row.values()) for row in kinds] == [["train", "put", 2]]
    assert {row["key"] for row in keys} == {"a_0_0", "a_1_0"} and "rm_scores" in str(keys[0])
