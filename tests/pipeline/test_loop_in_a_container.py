"""The loop on the KafkaContainer of testcontainers: every driver, byte for byte, and `up`, as on the embedded node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.test_loop import (
    test_up_trains_on_a_table_of_questions_goes_on_where_it_stopped_and_ends_when_all_have_a_fate as test_up_on_a_table,
)
from tests.pipeline.test_parity import (
    cut,
    joined,
    recorded,
    test_live_and_batch_driver_cut_the_same_batches_byte_for_byte,
    test_live_and_batch_driver_make_the_same_groups_byte_for_byte,
    test_live_and_batch_driver_write_the_same_dead_letters_byte_for_byte,
)
from tests.support.log import container
from tests.support.log.shared_node import SharedNode

__all__ = [
    "cut",
    "joined",
    "recorded",
    "test_live_and_batch_driver_cut_the_same_batches_byte_for_byte",
    "test_live_and_batch_driver_make_the_same_groups_byte_for_byte",
    "test_live_and_batch_driver_write_the_same_dead_letters_byte_for_byte",
    "test_up_on_a_table",
]

pytestmark = [pytest.mark.docker, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def shared_node() -> Iterator[SharedNode]:
    """The node of the container, in the place of the embedded one."""
    with container.kafka_in_a_container() as bootstrap:
        yield SharedNode(bootstrap)
