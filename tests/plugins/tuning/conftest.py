"""The tiny model, and the folder for commands, of tests/pipeline."""

from importlib.util import find_spec

from tests.pipeline.conftest import base as base, folder as folder

collect_ignore = [] if find_spec("plugins.improve") else ["test_dataset_tuning.py"]
