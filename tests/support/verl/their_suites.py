"""TransferQueue's own tests with our backend in the place of theirs: a plugin of pytest.

    python -m pytest -p their_suites …/site-packages/tests/e2e/test_kv_interface_e2e.py
                     PYTHONPATH=tests/support/verl, TQ_TEST_BACKEND=Streamward, QUEUE_CONFIGURATION

Their files choose a backend by name from `BACKEND_CONFIGS`; ours is added there, and nothing else of them is changed.
"""

from __future__ import annotations

import json
import os
from typing import Any

import trainer.bridges.transfer_queue  # noqa: F401 - registers the backend


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Add our backend to each file, with a queue of its own."""
    for module in {item.module for item in items if hasattr(item.module, "BACKEND_CONFIGS")}:
        configuration = json.loads(os.environ["QUEUE_CONFIGURATION"])
        configuration["backend"]["Streamward"]["queue"] = module.__name__.rpartition(".")[2]
        module.BACKEND_CONFIGS["Streamward"] = configuration
