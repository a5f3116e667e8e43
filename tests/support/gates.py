"""A mark for tests of what a gate refuses; without a loaded gate nothing is refused."""

import pytest

from streams.rows.training_gate import gates

gated = pytest.mark.skipif(not gates(), reason="needs a gate: no loaded plugin has one")
