"""Rows before they are trained on: checked, read in, cleaned.

    POST /data/check    {"file" or "rows"}            ──► findings, in the words of `streamward improve data check`
    POST /data/ingest   {"file" or "rows", "steps"}   ──► a new file of the store, and what became of each row
    POST /data/clean    the same, with steps by default
    POST /data/synthetic/generate   a generator ──► the same, each row with its origin

A file is one that was uploaded; the result is another, which a job can name. The suite is guard.suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import tenant_of
from gateway.http.route import LARGE_BODY, REST
from gateway.log.open_log import OpenLog
from plugins.data.cleaning import clean as cleaning
from plugins.data.cleaning.check import check
from plugins.data.cleaning.data_rows import UnreadableRow, read_rows
from plugins.data.cleaning.input_drift import Profile
from plugins.data.cleaning.steps import CONTAMINATION, DEFAULT, DataRow
from plugins.data.contamination.known_suites import expectations_of, index_of_files
from plugins.data.synthetic_rows import rows_of
from schemas.json_text import one_line
from streams.adapters import training_files
from streams.arrow.file_rows import Row, json_lines
from streams.errors import CallError, EventError, NotFoundError, SettingsError
from streams.kafka import times
from streams.settings.model import Settings
from streams.stages.tasks.generators import TaskSpec
from streams.stages.tasks.mapped_row import columns_by_field
from streams.tools.dataset_reader import dataset_reader

FATES_SHOWN = 100
MOST_GENERATED = 10_000
ROWS_EXAMPLE = [{"prompt": "4 + 7 =", "answer": "11"}, {"prompt": "4 + 7 = ", "answer": "11"}]


class RowsBody(Body):
    """Rows, in a file that was uploaded or here."""

    file: str | None = Field(None, description="id of an uploaded file")
    rows: list[dict[str, Any]] | None = Field(None, description="instead of a file")
    map: dict[str, str] = Field(default_factory=dict, description="FIELD: COLUMN that it is read from, as --map")


class CheckBody(RowsBody):
    """Rows to check."""

    against: str | None = Field(
        None, max_length=300, description="data set to compare the questions with: NAME[@DIGEST]"
    )


class StepsBody(RowsBody):
    """Rows, and steps to take."""

    steps: list[str | dict[str, Any]] | None = Field(
        None, description='NAME, or {"name": NAME} with options (docs/data.md); the order counts'
    )


class GeneratedRowsBody(Body):
    """Questions of a generator, with the answers that it verifies by."""

    generator: str = Field(description="as `streamward tasks generate --list` shows")
    count: int = Field(ge=1, le=MOST_GENERATED)
    seed: int = 0
    options: dict[str, Any] = Field(default_factory=dict, description="of the generator")


class FindingAnswer(Answer):
    """Rows with the same fault."""

    finding: str
    wrong: bool
    rows: int
    first: str


class CheckedRowsAnswer(Answer):
    """The findings of a check of rows."""

    object: Literal["data_check"]
    rows: int
    shape: str
    wrong: bool
    findings: list[FindingAnswer]
    contamination: dict[str, Any] | None
    drift: dict[str, float] | None = Field(description="COLUMN: distance from the data set; COLUMN.bound: by chance")


class CleanedRowsAnswer(Answer):
    """A new file, and what became of each row."""

    object: Literal["data_file"]
    file: str | None = Field(description="id of the new file; null: no row is left")
    counts: dict[str, int]
    changed_by: dict[str, int]
    dropped_by: dict[str, int]
    shapes: dict[str, int]
    fates: list[dict[str, Any]] = Field(description="of the first rows that were changed or dropped")


CLEANED = CleanedRowsAnswer(
    object="data_file",
    file="file-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    counts={"read": 2, "kept": 1, "changed": 0, "dropped": 1},
    changed_by={},
    dropped_by={"duplicates": 1},
    shapes={"question": 1},
    fates=[{"row": "rows:2", "fate": "dropped", "why": "duplicates: as rows:1"}],
)


class TrainingRows:
    """The routes of rows. They wait for the store."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._store = settings, settings.adapters.store

    @REST.post(
        "/data/check",
        may="files.read",
        **LARGE_BODY,
        ids="GET /v1/files lists files",
        sends={"rows": ROWS_EXAMPLE},
        example=CheckedRowsAnswer(
            object="data_check",
            rows=2,
            shape="question",
            wrong=False,
            findings=[FindingAnswer(finding="duplicates", wrong=False, rows=1, first="rows:2: as rows:1")],
            contamination=None,
            drift=None,
        ),
    )
    def check_rows(self, request: Request, body: CheckBody) -> CheckedRowsAnswer:
        """Say what is wrong with rows, and what is worth knowing."""
        reference, expectations = self._profile(request, body.against), expectations_of(self._settings)
        plain = check(
            sent_rows(self._store, request, body), index_of_files(self._settings), expectations, reference
        ).plain()
        parts = {name: plain.pop(name, None) for name in ("contamination", "drift")}
        return CheckedRowsAnswer(object="data_check", **parts, **plain)

    def _profile(self, request: Request, reference: str | None) -> Profile | None:
        """Return the profile of a data set of the caller. Raises NotFoundError, RefusedError."""
        if reference is None:
            return None
        tenant = tenant_of(request)
        return dataset_reader().find(self._settings, reference, None if tenant is None else (tenant,)).inputs

    @REST.post(
        "/data/ingest",
        may="files.write",
        **LARGE_BODY,
        ids="GET /v1/files lists files",
        status=201,
        sends={"rows": ROWS_EXAMPLE, "steps": ["duplicates"]},
        example=CLEANED,
    )
    def ingest_rows(self, request: Request, body: StepsBody) -> CleanedRowsAnswer:
        """Keep rows as a file, after the steps that are named."""
        return self._write(request, body, body.steps or [])

    @REST.post(
        "/data/clean",
        may="files.write",
        **LARGE_BODY,
        ids="GET /v1/files lists files",
        status=201,
        sends={"rows": ROWS_EXAMPLE},
        example=CLEANED,
    )
    def clean_rows(self, request: Request, body: StepsBody) -> CleanedRowsAnswer:
        """Keep the rows that are good enough as a file."""
        gate = [] if self._settings.guard.suite is None else [CONTAMINATION]
        return self._write(request, body, [*DEFAULT, *gate] if body.steps is None else body.steps)

    @REST.post(
        "/data/synthetic/generate",
        may="files.write",
        **LARGE_BODY,
        status=201,
        sends={"generator": "sums", "count": 2},
        example=CLEANED,
        refuses=(),
    )
    def generate_rows(self, request: Request, body: GeneratedRowsBody) -> CleanedRowsAnswer:
        """Make rows with a generator, which knows the answers; its held-out questions are never drawn."""
        spec = TaskSpec(
            family=body.generator, count=body.count, seed=body.seed, purpose="train", policy="-", options=body.options
        )
        try:
            cleaned = cleaning.clean(rows_of(spec), ())
        except (SettingsError, NotFoundError, EventError) as exc:
            raise CallError("invalid", str(exc), "generator") from exc
        return self._answer(request, cleaned, ())

    def _write(self, request: Request, body: StepsBody, ordered: Sequence[str | dict[str, Any]]) -> CleanedRowsAnswer:
        try:
            steps = cleaning.read_steps(ordered)
            cleaned = cleaning.clean(sent_rows(self._store, request, body), steps, index_of_files(self._settings))
        except SettingsError as exc:
            raise CallError("invalid", str(exc), "steps") from exc
        return self._answer(request, cleaned, steps)

    def _answer(
        self, request: Request, cleaned: cleaning.CleanedRows, steps: Sequence[cleaning.OrderedStep]
    ) -> CleanedRowsAnswer:
        manifest = cleaning.manifest_of(cleaned, (), steps, "")
        fates = [fate.plain() for fate in cleaned.fates if fate.fate != "kept"]
        return CleanedRowsAnswer(
            object="data_file",
            file=put_rows(self._store, request, cleaned.rows),
            **{name: manifest[name] for name in ("counts", "changed_by", "dropped_by", "shapes")},
            fates=fates[:FATES_SHOWN],
        )


def put_rows(store: str, request: Request, rows: Sequence[DataRow]) -> str | None:
    """Keep rows as a file of the caller, and return its id; None: there is no row."""
    if not rows:
        return None
    raw = "".join(f"{one_line(dict(row.fields))}\n" for row in rows).encode()
    names: dict[str, Any] = {"filename": cleaning.ROWS, "purpose": training_files.PURPOSE}
    return training_files.put(store, raw, **names, now_ms=times.now_ms(), tenant=tenant_of(request)).file_id


def sent_rows(store: str, request: Request, body: RowsBody) -> Iterable[DataRow | UnreadableRow]:
    """Return the rows of a request. Raises CallError, NotFoundError for a file that the caller may not see."""
    if (body.file is None) == (body.rows is None):
        raise CallError("invalid", "give either file or rows", "file")
    numbered: Iterable[tuple[int, Row]] = enumerate(body.rows or (), 1)
    name = "rows"
    if body.file is not None:
        tenant = tenant_of(request)
        name = training_files.find(store, body.file, tenant).filename
        numbered = json_lines([training_files.content(store, body.file, tenant)], name)
    try:
        columns = columns_by_field(f"{field}={column}" for field, column in body.map.items())
    except SettingsError as exc:
        raise CallError("invalid", str(exc), "map") from exc
    return read_rows(numbered, name, columns)


ROOMS = (TrainingRows,)
