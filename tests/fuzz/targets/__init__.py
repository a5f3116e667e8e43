"""The readers that are fuzzed, by what they read."""

from tests.fuzz.targets import (
    archive as archive,
    data_rows as data_rows,
    models as models,
    records as records,
    replies as replies,
    tasks as tasks,
    uploads as uploads,
)
