"""The tests of packing and of digests, by the kernels themselves: the fake driver of the others has them in numpy."""

from __future__ import annotations

import pytest

from meshmend.job.device.base import Memory
from tests.gpu.test_device import CARD
from tests.gpu.test_device import card as card
from tests.job.device.owner import memory_called
from tests.job.device.test_packing import test_a_grid_moves_on_the_device_as_on_the_host as test_a_grid_moves
from tests.job.device.test_packing import test_a_grid_of_another_worker_is_taken_over as test_a_grid_is_taken_over
from tests.job.device.test_packing import test_digests_are_those_of_the_definition as test_digests
from tests.job.device.test_packing import test_leaves_may_be_elsewhere_in_the_next_round as test_leaves_may_move
from tests.job.device.test_packing import test_leaves_that_the_host_reads_are_there_before_the_others as test_soon
from tests.job.device.test_packing import (
    test_leaves_with_nan_or_inf_are_named_only_if_that_is_wanted as test_nan_and_inf,
)
from tests.job.device.test_packing import (
    test_sums_have_the_bits_of_the_host_whether_parts_or_slices as test_sums_have_the_bits,
)

__all__ = [
    "card", "test_a_grid_is_taken_over", "test_a_grid_moves", "test_digests", "test_leaves_may_move",
    "test_nan_and_inf", "test_soon", "test_sums_have_the_bits",
]  # fmt: skip

pytestmark = pytest.mark.gpu


@pytest.fixture
def memory() -> Memory:
    """The card's."""
    return memory_called(CARD)
