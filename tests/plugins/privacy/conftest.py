"""The tiny model of tests/pipeline."""

from tests.pipeline.conftest import base as base
