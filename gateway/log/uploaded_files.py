"""Files of questions in OpenAI's words: uploaded, listed, read and deleted.

POST /v1/files (a form) ──► each line is a JSON object ──► the store of adapters, by sha256 ──► its id
GET, DELETE /v1/files/FILE_ID, GET …/content

Nothing is kept here: the store says which files there are, and whose.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.http import form_data
from gateway.http.body import Answer, PathQuery
from gateway.http.pagination import PageAnswer, page
from gateway.http.principal import tenant_of
from gateway.http.route import LARGE_BODY, OPENAI
from streams.adapters import training_files
from streams.adapters.training_files import TrainingFile
from streams.errors import CallError
from streams.kafka import times

PURPOSE = training_files.PURPOSE
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": [PURPOSE]}},
    "required": ["file", "purpose"],
    "additionalProperties": False,
}


BYTES = "application/octet-stream"
RAW = {BYTES: {"schema": {"type": "string", "format": "binary"}}}


class StoredFile(Answer):
    """A file that was uploaded."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: None
    status_details: None


class DeletedFile(Answer):
    """A file that is no more."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class FileList(PageAnswer):
    """A page of files."""

    data: list[StoredFile]


class FilesQuery(PathQuery):
    """Which files."""

    after: str | None = None
    limit: Annotated[int, Field(ge=0, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


EXAMPLE = StoredFile(
    id="file-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    object="file",
    bytes=1290,
    created_at=1767225600,
    filename="sums.jsonl",
    purpose="fine-tune",
    status="processed",
    expires_at=None,
    status_details=None,
)


class UploadedFiles:
    """The files of the store that a request may see. Methods wait for the store."""

    def __init__(self, store: str) -> None:
        self._store = store

    @OPENAI.post(
        "/files",
        may="files.write",
        takes={"multipart/form-data": {"schema": FORM}},
        **LARGE_BODY,
        refuses=(),
        example=EXAMPLE,
    )
    def upload_file(self, request: Request, raw: bytes) -> StoredFile:
        """Upload a file of questions or examples, in JSON lines."""
        form = form_data.parts(request.headers.get("content-type", ""), raw)
        return _answer(_put(self._store, form, tenant_of(request)))

    @OPENAI.get(
        "/files",
        may="files.read",
        example=FileList(object="list", data=[EXAMPLE], has_more=False, first_id=EXAMPLE.id, last_id=EXAMPLE.id),
    )
    def list_files(self, request: Request, query: FilesQuery) -> FileList:
        """List files, page by page."""
        files = training_files.list_files(self._store, tenant_of(request))
        answers = [_answer(file) for file in files if query.purpose in (None, file.purpose)]
        if query.order == "desc":
            answers.reverse()
        return FileList(**page(answers, query.after, query.limit))

    @OPENAI.get("/files/{file_id}", may="files.read", example=EXAMPLE)
    def get_file(self, request: Request, file_id: str) -> StoredFile:
        """Look at a file."""
        return _answer(training_files.find(self._store, file_id, tenant_of(request)))

    @OPENAI.get("/files/{file_id}/content", may="files.read", answers=RAW, refuses=(404,))
    def get_file_content(self, request: Request, file_id: str) -> Response:
        """Return a file as it was uploaded."""
        content = training_files.content(self._store, file_id, tenant_of(request))
        return Response(content, media_type=BYTES)

    @OPENAI.delete(
        "/files/{file_id}", may="files.write", example=DeletedFile(id=EXAMPLE.id, object="file", deleted=True)
    )
    def delete_file(self, request: Request, file_id: str) -> DeletedFile:
        """Delete a file. Jobs that were ordered with it have its questions."""
        training_files.delete(self._store, file_id, tenant_of(request))
        return DeletedFile(id=file_id, object="file", deleted=True)


def _put(store: str, form: list[form_data.FormPart], tenant: str | None) -> TrainingFile:
    """Keep the file of a form. Raises CallError that names the field which is wrong."""
    fields: dict[str, form_data.FormPart] = {}
    for part in form:
        if part.name.startswith("expires_after"):
            raise CallError(
                "unsupported", "expires_after is not supported: a file is kept until it is deleted", "expires_after"
            )
        if part.name not in ("file", "purpose"):
            raise CallError("unknown_parameter", f"{part.name[:80]}: there is no such field; leave it out", part.name)
        if part.name in fields:
            raise CallError("invalid", f"{part.name} is given twice; give it once", part.name)
        fields[part.name] = part
    for name in ("purpose", "file"):
        if name not in fields:
            raise CallError("invalid", f"{name} is required", name)
    purpose = fields["purpose"].content.decode(errors="replace")
    if purpose != PURPOSE:
        problem = f"purpose is {purpose[:40]!r}; only {PURPOSE!r} has a meaning here: files are trained on"
        raise CallError("unsupported", problem, "purpose")
    file = fields["file"]
    return training_files.put(
        store,
        file.content,
        filename=file.filename or "file.jsonl",
        purpose=purpose,
        now_ms=times.now_ms(),
        tenant=tenant,
    )


def _answer(file: TrainingFile) -> StoredFile:
    return StoredFile(
        id=file.file_id,
        object="file",
        bytes=file.size_bytes,
        created_at=file.created_at // 1000,
        filename=file.filename,
        purpose=file.purpose,
        status="processed",
        expires_at=None,
        status_details=None,
    )
