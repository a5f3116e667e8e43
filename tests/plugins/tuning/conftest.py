"""The tiny model, and the folder for commands, of tests/pipeline."""

from tests.pipeline.conftest import base as base, folder as folder
