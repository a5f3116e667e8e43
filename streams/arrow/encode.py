"""Encode columns as payloads: the bytes of records in the encoding that Avro's own writers choose.

    columns of events, schema ──► as_encodable ──► pyruhvro ──► frame + body, one for each row

Avro leaves a writer little choice: an integer may be padded, a list cut into blocks. A record without either equals the
encoding of its columns byte for byte, and `streams.arrow.decode.judge` says whether a chunk has only such records. Then
the archive need not keep their payloads in addition to the columns.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyruhvro

from schemas.ids import FRAME, MAGIC
from schemas.versions import Schema
from streams.arrow import types


def payloads(schema: Schema, schema_ids: pa.Array, events: pa.StructArray) -> list[bytes]:
    """Return the payload of each row: its event under `schema`, framed with the schema id of its row.

    `events` has the columns of this version of the event, or of a newer one. None of them, and no id, may be null.
    """
    if not len(events):
        return []
    node = _inline(schema)
    rows = pa.RecordBatch.from_struct_array(types.as_encodable(events, node))
    (bodies,) = pyruhvro.serialize_record_batch(rows, _as_decoded(schema), 1)
    ids = np.asarray(schema_ids)
    frames = {schema_id: FRAME.pack(MAGIC, schema_id) for schema_id in np.unique(ids).tolist()}
    return [frames[schema_id] + body for schema_id, body in zip(ids.tolist(), bodies.to_pylist(), strict=True)]


@cache
def _inline(schema: Schema) -> dict[str, object]:
    return types.inline(schema.definition)


@cache
def _as_decoded(schema: Schema) -> str:
    return json.dumps(types.widen(schema.definition))
