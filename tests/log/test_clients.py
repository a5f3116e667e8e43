"""docs/clients.md: its programs in Python and Java write what is whole and in place, and read what we write."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.events import AdvantagedGroup, Message, Response, RewardSource, Sampling, Task, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.registry import server as schema_server
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.support.factories import response, reward, task
from tests.support.java import java_program
from tests.support.processes import write

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
USE_OF_TOKENS = """
class Use {
    public static void main(String[] args) throws Exception {
        ByteBuffer ids = Tokens.ofIds(1, 2, 256), mask = Tokens.ofMask(true, false);
        ByteBuffer logprobs = Tokens.ofLogprobs(-0.5f, -0.25f);
        for (ByteBuffer each : new ByteBuffer[] {ids, logprobs, mask})
            System.out.println(java.util.HexFormat.of().formatHex(each.array(), each.position(), each.limit()));
        System.out.println(java.util.Arrays.toString(Tokens.ids(ids)));
        System.out.println(java.util.Arrays.toString(Tokens.logprobs(logprobs)));
        System.out.println(java.util.Arrays.toString(Tokens.mask(mask)));
        System.out.println(Tokens.derivedId("s1", 3));
    }
}
"""


def program(name: str) -> str:
    """Return the block of the page that begins with a comment of this name."""
    page = PAGE.read_text()
    (found,) = re.findall(rf"^```\w+\n((?:#|//) {re.escape(name)}[ :].*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_python_program_sends_a_task_and_reads_its_rewards(settings: Settings, tmp_path: Path) -> None:
    check(settings, python_program("client.py", tmp_path), tmp_path)


def test_the_java_program_sends_a_task_and_reads_its_rewards(settings: Settings, tmp_path: Path) -> None:
    check(settings, java_program(program("Client.java"), "Client", tmp_path), tmp_path)


def test_the_python_agent_answers_a_task_and_the_reader_has_its_group_as_arrays(
    settings: Settings, tmp_path: Path
) -> None:
    admin.apply_topics(settings)
    with (
        schema_server.serve(settings) as url,
        running([*python_program("agent.py", tmp_path), *where(settings, url), "mine"], tmp_path) as agent,
        running([*python_program("groups.py", tmp_path), *where(settings, url)], tmp_path) as reader,
        Producer(settings) as producer,
    ):
        producer.send(task(task_id="another's"))
        asked = task(policy="mine", group_size=2, adapter_version=3)
        producer.send(asked)
        assert line(agent, tmp_path) == "answered t1"
        answers = [
            record.decode_placed(Response, settings.topics.partitions)
            for record in admin.read_topic(settings, "responses")
        ]
        for slot, answer in enumerate(answers):
            assert isinstance(answer, Response), answer
            assert answer == expected(asked, slot, answer)
            producer.send(reward(answer, value=float(slot)))
        assert len(answers) == 2
        producer.flush()
        (group,) = driver.join(settings)
        assert isinstance(group, AdvantagedGroup), group
        assert len(group.responses) == 2
        producer.send(group)
        for member in group.responses:
            arrays = (group.prompt_token_ids, member.completion_token_ids, member.logprobs)
            shown = " ".join(str(each.numpy()) for each in arrays)
            assert line(reader, tmp_path) == f"t1 {member.slot} {member.advantage} {shown}"


def expected(asked: Task, slot: int, answer: Response) -> Response:
    """Return what the agent should have written; digests and times are its own."""
    prompt, completion = asked.messages[-1].content.encode(), str(slot).encode()
    return Response(
        response_id=derive_id(answer.sampling_id, slot),
        sampling_id=answer.sampling_id,
        task_id=asked.task_id,
        created_at=answer.created_at,
        policy="mine",
        slot=slot,
        group_size=2,
        adapter_version=3,
        base_digest=answer.base_digest,
        tokenizer_digest=answer.tokenizer_digest,
        engine="mine",
        finish_reason="stop",
        prompt_tokens=len(prompt),
        completion_tokens=1,
        latency_ms=answer.latency_ms,
        text=str(slot),
        sampling=asked.sampling,
        prompt_token_ids=TokenIds.of(prompt),
        completion_token_ids=TokenIds.of(completion),
        logprobs=Logprobs.of([-0.5]),
        loss_mask=LossMask.of([True]),
    )


def test_the_java_class_makes_the_bytes_and_ids_that_ours_are(tmp_path: Path) -> None:
    *command, _ = java_program(program("Tokens.java") + USE_OF_TOKENS, "Tokens", tmp_path)
    done = subprocess.run([*command, "Use"], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        TokenIds.of([1, 2, 256]).data.hex(),
        Logprobs.of([-0.5, -0.25]).data.hex(),
        LossMask.of([True, False]).data.hex(),
        "[1, 2, 256]",
        "[-0.5, -0.25]",
        "[true, false]",
        derive_id("s1", 3),
    ], done.stderr


def check(settings: Settings, command: list[str], folder: Path) -> None:
    """Run a program against topics of its own, look at the task that it sent, and write two rewards for it."""
    admin.apply_topics(settings)
    with schema_server.serve(settings) as url, running([*command, *where(settings, url)], folder) as client:
        word, _, task_id = line(client, folder).partition(" ")
        assert word == "task"
        (record,) = admin.read_topic(settings, "tasks")
        asked = record.decode_placed(Task, settings.topics.partitions)
        assert isinstance(asked, Task), asked
        assert asked == Task(
            task_id=task_id,
            created_at=asked.created_at,
            policy="default",
            group_size=2,
            sampling=Sampling(max_tokens=16),
            verifier='{"answer": "5"}',
            reward_sources=(RewardSource(name="exact"),),
            messages=(Message(role="user", content="What is 2 + 3? Only the number."),),
        )
        assert abs(asked.created_at - record.timestamp_ms) < 60_000
        write(
            settings,
            reward(response(task_id="another")),
            *(
                reward(response(task_id=task_id, slot=slot, group_size=2), value=value)
                for slot, value in ((0, 1.0), (1, 0.25))
            ),
        )
        said, _ = client.communicate(timeout=300)
        assert (client.returncode, said) == (0, "reward 0 1.0\nreward 1 0.25\n"), errors(folder)


def python_program(name: str, folder: Path) -> list[str]:
    (folder / name).write_text(program(name))
    return [sys.executable, str(folder / name)]


def where(settings: Settings, url: str) -> list[str]:
    """Return the arguments that all programs take."""
    return [settings.kafka.bootstrap, url, settings.topics.prefix]


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and end it."""
    with (
        (folder / "stderr").open("a") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder) as client,
    ):
        try:
            yield client
        finally:
            client.kill()


def line(client: subprocess.Popen[str], folder: Path) -> str:
    """Return the next line that a program prints."""
    assert client.stdout is not None
    printed = client.stdout.readline()
    assert printed, errors(folder)
    return printed.strip()


def errors(folder: Path) -> str:
    return (folder / "stderr").read_text()
