"""The thread that hears the doorbell: it gives the state when that is final, and sleeps through steps otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshmend.base.processes import Identity
from meshmend.job.session.listener import Listener
from meshmend.job.shm import create_as_agent, open_as_courier, open_as_worker
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.segment import WorkerSegment
from tests.job.shm.conftest import home as home
from tests.processes import wait_for

RUN = "listener"


@pytest.fixture
def segment(home: Path) -> WorkerSegment:
    """The memory of one worker."""
    assert not home.exists()
    create_as_agent(RUN, 0).agent.worker = Identity.of(os.getpid())
    return open_as_worker(RUN, 0)


def listener(segment: WorkerSegment, looks: list[int]) -> Listener:
    """It notes in `looks` that it has been woken."""
    places: Any = SimpleNamespace(serve=lambda: None, spins=False, buffers=SimpleNamespace(take_pieces=looks.append))
    return Listener(segment, places, lambda why: pytest.fail(why))


def test_a_state_that_was_asked_for_before_it_was_final_is_given_then(segment: WorkerSegment) -> None:
    looks = list[int]()
    here, side = listener(segment, looks), CourierSide(open_as_courier(RUN, 0))
    here.start(lambda _: [np.arange(3, dtype=np.uint8)])
    here.round = 4
    side.ask_state(3)
    wait_for(lambda: bool(looks))
    with here.changing():  # it has seen the question
        assert side.state() is None
    here.finalize()
    wait_for(lambda: side.state() is not None)
    round, state = side.state() or (None, None)
    assert round == 3 and state is not None and state.tolist() == [0, 1, 2]
    here.close()


def test_nobody_is_woken_for_a_state_that_nobody_asked_for(segment: WorkerSegment) -> None:
    here, bell = listener(segment, []), segment.worker_bell
    here.finalize()
    assert not rung(bell._open())
    CourierSide(open_as_courier(RUN, 0)).ask_state(-1)
    assert rung(bell._open())
    here.finalize()
    assert rung(bell._open())


def rung(file: int) -> bool:
    """Whether it has rung since the last look."""
    try:
        return bool(os.read(file, 99))
    except BlockingIOError:
        return False
