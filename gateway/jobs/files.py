"""Files of questions in OpenAI's words: uploaded, listed, read and deleted.

POST /v1/files (a form) ──► each line is a JSON object ──► the store of adapters, by sha256 ──► its id
GET, DELETE /v1/files/FILE_ID, GET …/content

Nothing is kept here: the store says which files there are, and whose.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.http.body import PathQuery, read_query, sent
from gateway.http.errors import apart
from gateway.http.openapi import described
from gateway.http.pagination import page
from gateway.http.principal import tenant_of
from gateway.jobs import form_data
from gateway.jobs.answers import DeletedFile, FileList, StoredFile
from streams.errors import CallError
from streams.jobs import training_files
from streams.jobs.training_files import TrainingFile
from streams.kafka import times

PURPOSE = training_files.PURPOSE
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": [PURPOSE]}},
    "required": ["file", "purpose"],
    "additionalProperties": False,
}


class RawResponse(Response):
    """Bytes as they are stored."""

    media_type = "application/octet-stream"


RAW = {RawResponse.media_type: {"schema": {"type": "string", "format": "binary"}}}


class FilesQuery(PathQuery):
    """Which files."""

    after: str | None = None
    limit: Annotated[int, Field(ge=0, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def routes(store: str, *, max_body_bytes: int) -> APIRouter:
    """Return the routes; a request with a longer body is refused."""
    router = APIRouter(prefix="/v1/files")

    @router.post(
        "",
        **described({"multipart/form-data": {"schema": FORM}}, name="upload_file", answer=StoredFile, refuses=()),
    )
    async def create(request: Request) -> Response:
        """Upload a file of questions or examples, in JSON lines."""
        form = form_data.parts(request.headers.get("content-type", ""), await sent(request, max_body_bytes))
        return JSONResponse(_file(await apart(_put, store, form, tenant_of(request))))

    @router.get("", **described(query=FilesQuery, name="list_files", answer=FileList, refuses=(404,)))
    async def list_(request: Request) -> Response:
        """List files, page by page."""
        asked = read_query(FilesQuery, request.query_params.multi_items())
        every = await apart(training_files.listed, store, tenant_of(request))
        found = [one for one in every if asked.purpose in (None, one.purpose)]
        in_order = found if asked.order == "asc" else found[::-1]
        return JSONResponse(page([_file(one) for one in in_order], asked.after, asked.limit))

    @router.get("/{file_id}", **described(name="get_file", answer=StoredFile, refuses=(404,)))
    async def retrieve(request: Request, file_id: str) -> Response:
        """Look at a file."""
        return JSONResponse(_file(await apart(training_files.find, store, file_id, tenant_of(request))))

    @router.get(
        "/{file_id}/content",
        response_class=RawResponse,
        **described(name="get_file_content", answer=RAW, refuses=(404,)),
    )
    async def content(request: Request, file_id: str) -> Response:
        """Return a file as it was uploaded."""
        raw = await apart(training_files.content, store, file_id, tenant_of(request))
        return RawResponse(raw)

    @router.delete("/{file_id}", **described(name="delete_file", answer=DeletedFile, refuses=(404,)))
    async def delete(request: Request, file_id: str) -> Response:
        """Delete a file. Jobs that were ordered with it have its questions."""
        await apart(training_files.delete, store, file_id, tenant_of(request))
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    return router


def _put(store: str, form: list[form_data.FormPart], tenant: str | None) -> TrainingFile:
    """Keep the file of a form. Raises CallError that names the field which is wrong."""
    given: dict[str, form_data.FormPart] = {}
    for part in form:
        if part.name.startswith("expires_after"):
            raise CallError(
                "unsupported", "expires_after is not supported: a file is kept until it is deleted", "expires_after"
            )
        if part.name not in ("file", "purpose"):
            raise CallError("unknown_parameter", f"{part.name[:80]}: there is no such field; leave it out", part.name)
        if part.name in given:
            raise CallError("invalid", f"{part.name} is given twice; give it once", part.name)
        given[part.name] = part
    for name in ("purpose", "file"):
        if name not in given:
            raise CallError("invalid", f"{name} is required", name)
    purpose = given["purpose"].content.decode(errors="replace")
    if purpose != PURPOSE:
        what = f"purpose is {purpose[:40]!r}; only {PURPOSE!r} has a meaning here: files are trained on"
        raise CallError("unsupported", what, "purpose")
    file = given["file"]
    return training_files.put(
        store,
        file.content,
        filename=file.filename or "file.jsonl",
        purpose=purpose,
        now_ms=times.now_ms(),
        tenant=tenant,
    )


def _file(one: TrainingFile) -> dict[str, Any]:
    return {
        "id": one.file_id,
        "object": "file",
        "bytes": one.size_bytes,
        "created_at": one.created_at // 1000,
        "filename": one.filename,
        "purpose": one.purpose,
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }
