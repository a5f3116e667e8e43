"""Files over OpenAI's client: kept once by their sha256, whole or not at all; what is no JSON lines is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from gateway.http.application import Application
from gateway.http.form_data import FormPart, parts
from gateway.log import uploaded_files as files
from streams.adapters import training_files
from streams.errors import CallError, JobRequestError, NotFoundError, SettingsError

T = TypeVar("T")
LINES = b'{"messages": [{"role": "user", "content": "1 + 1 ="}], "answer": "2"}\n\n{"messages": []}\n'
BYTES = 10_000


def served(store: str, ask: Callable[[AsyncOpenAI], Coroutine[Any, Any, T]]) -> T:
    """Return what the official client is told by a server in this process."""
    app = Application([files.UploadedFiles(store)], version="0", max_body_bytes=BYTES)

    async def run() -> T:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport) as http:
            client = AsyncOpenAI(base_url="http://memory/v1", api_key="none", max_retries=0, http_client=http)
            return await ask(client)

    return asyncio.run(run())


def uploaded(store: str, content: bytes = LINES, name: str = "sums.jsonl", purpose: Any = "fine-tune") -> Any:
    return served(store, lambda client: client.files.create(file=(name, content), purpose=purpose))


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store in a folder, and one of objects."""
    return str(tmp_path / "adapters") if request.param == "folder" else f"memory://{tmp_path.name}"


def test_a_file_is_kept_listed_read_and_deleted(store: str) -> None:
    made = uploaded(store)
    assert (made.object, made.bytes, made.filename, made.purpose, made.status) == (
        "file",
        len(LINES),
        "sums.jsonl",
        "fine-tune",
        "processed",
    )

    async def rest(client: AsyncOpenAI) -> None:
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINES
        assert [one async for one in client.files.list(purpose="fine-tune")] == [made]
        assert [one async for one in client.files.list(purpose="batch")] == []
        assert (await client.files.delete(made.id)).deleted
        assert [one async for one in client.files.list()] == []
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match="was never uploaded here, or was deleted"):
                await ask(made.id)

    served(store, rest)
    assert uploaded(store).id == made.id


def test_the_same_bytes_are_the_same_file_and_others_are_another(store: str) -> None:
    first, second, other = uploaded(store), uploaded(store, name="again.jsonl"), uploaded(store, LINES + b"{}\n")
    assert (second, other.id != first.id) == (first, True)


def test_pages_follow_each_other_in_either_order(store: str) -> None:
    made = [
        training_files.put(store, f'{{"n": {n}}}'.encode(), filename="n", purpose="fine-tune", now_ms=1000 * n).file_id
        for n in range(5)
    ]

    async def ask(client: AsyncOpenAI) -> None:
        assert [one.id async for one in client.files.list(limit=2)] == made[::-1]
        assert [one.id async for one in client.files.list(limit=2, order="asc")] == made
        page = await client.files.list(limit=2, after=made[3])
        assert ([one.id for one in page.data], page.has_more) == ([made[2], made[1]], True)
        with pytest.raises(openai.NotFoundError, match="there is no 'file-x' in this list"):
            await client.files.list(after="file-x")
        with pytest.raises(openai.BadRequestError, match="limit"):
            await client.files.list(limit=-1)
        with pytest.raises(openai.BadRequestError, match="there is no field"):
            await client.files.list(extra_query={"colour": "red"})

    served(store, ask)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file has no line"),
        (b"\n \n", "the file has no line"),
        (b"question,answer\n", "line 1: not JSON"),
        (b'{"a": 1}\n{"a": 1\n', "line 2: not JSON"),
        (b'{"a": 1}\n{"a": "\\ud800"}\n', "line 2: not JSON: .*half of a surrogate pair"),
        (b'{"a": 1}\n\n[1]\n', r"line 3: expected an object.*got \[1\]"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "line 2: not UTF-8"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 4000 + b"}", "line 1: not JSON"),
    ],
)
def test_a_file_that_is_no_json_lines_is_refused_with_the_line(store: str, content: bytes, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as raised:
        uploaded(store, content)
    assert raised.value.param == "file"
    assert training_files.list_files(store) == []


@pytest.mark.parametrize(
    ("how", "status", "param"),
    [
        ({"purpose": "batch"}, 400, "purpose"),
        ({"purpose": "assistants"}, 400, "purpose"),
        ({"content": b'{"n": "' + b"x" * BYTES + b'"}'}, 413, None),
        ({"name": "x" * 256}, 400, "file"),
    ],
)
def test_another_purpose_and_too_long_a_file_are_refused(
    store: str, how: dict[str, Any], status: int, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        uploaded(store, **how)
    assert (raised.value.status_code, raised.value.param) == (status, param)
    assert training_files.list_files(store) == []


def test_a_field_of_the_form_that_has_no_effect_is_named(store: str) -> None:
    after: Any = {"anchor": "created_at", "seconds": 3600}
    with pytest.raises(openai.BadRequestError, match="expires_after is not supported"):
        served(store, lambda client: client.files.create(file=LINES, purpose="fine-tune", expires_after=after))
    with pytest.raises(openai.BadRequestError, match="colour: there is no such field"):
        served(store, lambda c: c.files.create(file=LINES, purpose="fine-tune", extra_body={"colour": "red"}))


def test_a_file_that_was_changed_in_the_store_is_not_used(tmp_path: Path) -> None:
    made = training_files.put(str(tmp_path), LINES, filename="f", purpose="fine-tune", now_ms=0)
    (tmp_path / "_files" / made.file_id / "content").write_bytes(b"{}")
    with pytest.raises(SettingsError, match="the store has other bytes than were uploaded"):
        training_files.content(str(tmp_path), made.file_id)


def test_an_upload_that_was_killed_left_no_file_and_the_next_one_is_whole(tmp_path: Path) -> None:
    half = tmp_path / "_files" / training_files.put(str(tmp_path), LINES, filename="f", purpose="p", now_ms=0).file_id
    (half / "file.json").unlink()  # as a deletion leaves it, and an object store's upload
    assert training_files.list_files(str(tmp_path)) == []
    with pytest.raises(NotFoundError):
        training_files.content(str(tmp_path), half.name)
    again = training_files.put(str(tmp_path), LINES, filename="g", purpose="p", now_ms=1)
    assert (training_files.list_files(str(tmp_path)), again.filename) == ([again], "g")
    assert training_files.content(str(tmp_path), again.file_id) == LINES
    assert [path.name for path in half.parent.iterdir()] == [again.file_id]


@pytest.mark.parametrize("name", ["file-x", "../file-" + "0" * 64, "", "file-" + "0" * 65])
def test_a_name_that_is_no_files_leads_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFoundError):
        training_files.find(str(tmp_path), name)


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "_files").write_text("in the way")
    with pytest.raises(SettingsError, match="cannot be written"):
        training_files.put(str(tmp_path), LINES, filename="f", purpose="p", now_ms=0)
    with pytest.raises(openai.InternalServerError, match="cannot be"):
        uploaded(str(tmp_path))


def test_lines_are_numbered_as_an_editor_does() -> None:
    assert [line.number for line in training_files.lines_of(LINES)] == [1, 3]
    with pytest.raises(JobRequestError, match="line 4"):
        training_files.lines_of(LINES + b"?")


# --- forms ------------------------------------------------------------------------------------------------------------


def form(*fields: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + field + b"\r\n" for field in fields) + end


def test_a_form_is_read_as_clients_write_it() -> None:
    raw = form(
        b'Content-Disposition: form-data; name="purpose"\r\n\r\nfine-tune',
        b'content-disposition: form-data; name=file; filename="a%22b"\r\nContent-Type: x/y\r\n\r\n\r\n--x\r\n\r\n',
    )
    assert parts('multipart/form-data; boundary="b"', b"preamble\r\n" + raw) == [
        FormPart("purpose", None, b"fine-tune"),
        FormPart("file", 'a"b', b"\r\n--x\r\n\r\n"),
    ]


@pytest.mark.parametrize(
    ("kind", "raw", "says"),
    [
        ("application/json", b"{}", "expected multipart/form-data"),
        ("multipart/form-data", form(), "expected multipart/form-data with a boundary"),
        ("multipart/form-data; boundary=b", b"", "the form has no end"),
        (
            "multipart/form-data; boundary=b",
            form(b'Content-Disposition: form-data; name="a"\r\n\r\n', end=b""),
            "no end",
        ),
        ("multipart/form-data; boundary=b", form(b"\r\n\r\n") * 40, "the form has no end within 32 fields"),
        ("multipart/form-data; boundary=b", form(b"no header"), "has no header"),
        ("multipart/form-data; boundary=b", form(b"Content-Disposition: form-data\r\n\r\nx"), "has no header"),
        ("multipart/form-data; boundary=b", form(b"Content-Disposition: form-data; x=y\r\n\r\n"), "has no name"),
        ("multipart/form-data; boundary=b", form(b"Content-Disposition: \xff\r\n\r\n"), "not UTF-8"),
    ],
)
def test_what_is_no_form_is_refused(kind: str, raw: bytes, says: str) -> None:
    with pytest.raises(CallError, match=says):
        parts(kind, raw)


def test_a_file_is_json_that_says_what_is_kept(tmp_path: Path) -> None:
    made = training_files.put(str(tmp_path), LINES, filename="f", purpose="fine-tune", now_ms=7)
    about = json.loads((tmp_path / "_files" / made.file_id / "file.json").read_text())
    assert (about["created_at"], about["size_bytes"]) == (7, len(LINES))
