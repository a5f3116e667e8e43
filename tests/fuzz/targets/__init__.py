"""The readers that are fuzzed, by what they read."""

from tests.fuzz.targets import (
    archive as archive,
    models as models,
    records as records,
    replies as replies,
    tasks as tasks,
    uploads as uploads,
)
