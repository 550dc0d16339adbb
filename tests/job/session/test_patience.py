"""Pauses of one thread and of two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshmend.job.session.patience import NestedFlag


@pytest.mark.parametrize("first", [0, 1])
def test_a_flag_is_up_until_the_last_pause_ends_in_whatever_order_they_do(first: int) -> None:
    """The thread that writes checkpoints and the main thread both wait for room, and need not end in turn."""
    own = SimpleNamespace(paused=False)
    pause = NestedFlag(cast(Any, own), "paused")
    pauses = [pause(), pause()]
    for one in pauses:
        one.__enter__()
    pauses[first].__exit__(None, None, None)
    assert own.paused
    pauses[1 - first].__exit__(None, None, None)
    assert not own.paused
