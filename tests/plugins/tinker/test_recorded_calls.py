"""Tinker's SDK and a recipe of its cookbook, recorded: the same requests to a server and a worker of today."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from plugins.tinker.worker import call_worker
from tests.plugins.tinker.strangers import recorded_calls
from tests.plugins.tinker.strangers.served import tinker_settings
from tests.strangers.exchanges import recorded
from tests.support.agent_server import serving

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


def test_what_the_sdk_and_a_recipe_sent_gets_answers_of_the_same_shape(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Recorded by `make test-strangers`: passes and results as protobuf, the rest and the results again as JSON."""
    settings, stop, calls = tinker_settings(kafka_bootstrap, tmp_path), threading.Event(), recorded(recorded_calls.FILE)
    with serving(settings) as url:
        worker = threading.Thread(target=call_worker.run, args=(settings,), kwargs={"stop": stop})
        worker.start()
        try:
            assert recorded_calls.replay(url, calls) == []
        finally:
            stop.set()
            worker.join()
    taken = {(call["headers"].get("content-type"), call["headers"].get("accept")) for call in calls}
    json_type, protobuf = "application/json", "application/x-protobuf"
    assert taken >= {(json_type, json_type), (json_type, protobuf), (protobuf, json_type)}
