"""What HTTP clients upload: forms."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.target import Check, target

BOUNDARY = "b"


@target("forms", light=300)
def forms(folder: Path) -> Check:
    """A multipart form is its fields, which are in it byte for byte."""
    from gateway.http.form_data import parts

    def check(data: bytes) -> str | None:
        for part in parts(f"multipart/form-data; boundary={BOUNDARY}", data):
            assert part.content in data
            assert part.name.encode().decode() == part.name
        return None

    return check
