"""How a newcomer gets the state on one host: in device memory where all have that, and otherwise as a file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshmend.job.protocol import Cast, Failure, Payload
from meshmend.job.shm.records import Outcome, Task
from meshmend.job.transport.base import Hello


class Comm:
    """A world in which the others answer alike: here is one member, and the others' outcomes are known."""

    def __init__(self, rank: int, others: list[Outcome], midway: bool = False) -> None:
        self.rank, self.others, self.midway = rank, others, midway

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return 1 + len(self.others)

    def Ibcast(self, midway: np.ndarray, source: int) -> Any:
        if self.rank != source:
            midway[:] = self.midway
        return SimpleNamespace(Test=lambda: True)

    def Iallgather(self, own: np.ndarray, every: np.ndarray) -> Any:
        every[:] = [*own, *self.others]
        return SimpleNamespace(Test=lambda: True)


class Port:
    """What is asked of a worker, in order."""

    def __init__(self, outcome: Outcome = Outcome.DONE, *, midway: bool = False) -> None:
        self.outcome, self.midway, self.asked = outcome, midway, list[Any]()

    def state(self, round: int, *, on_device: bool = False) -> np.ndarray | None:
        self.asked.append(("state", round, on_device))
        return None if self.midway else np.zeros(1, np.uint8)

    def fetch(self, rank: int) -> None:
        self.asked.append(("fetch", rank))

    def use_worker(self, task: Task, round: int, look: Any) -> Outcome:
        del round, look
        self.asked.append(task)
        return self.outcome


def asked(port: Port, kinds: list[int], others: list[Outcome], *, take: bool) -> list[Any]:
    import mpi4py

    mpi4py.rc.initialize = False  # no world is needed for this
    from meshmend.job.courier.mpi import Mpi

    rank = 1 if take else 0
    member = SimpleNamespace(world=Comm(rank, others, port.midway), worker=port, latest=5, look=lambda: None)
    hellos = [Hello(10 + number, 1, state_device=kind) for number, kind in enumerate(kinds)]
    assert Mpi.hand_over(member, Cast(0, Payload.STATE, take=take), hellos) is port.midway  # type: ignore[arg-type]
    return port.asked


DONE, CANNOT, GONE = Outcome.DONE, Outcome.CANNOT, Outcome.GONE


def test_the_state_is_mapped_and_then_lent_no_longer() -> None:
    assert asked(Port(), [2, 2], [DONE], take=True) == [("fetch", 10), Task.TAKE]
    assert asked(Port(), [2, 2], [DONE], take=False) == [("state", 5, True), Task.RELEASE]


def test_of_a_worker_within_a_step_nothing_is_taken() -> None:
    for kinds in ([2, 2], [0, 0]):
        assert asked(Port(midway=True), kinds, [DONE], take=True) == []
        assert asked(Port(midway=True), kinds, [DONE], take=False) == [("state", 5, kinds == [2, 2])]


@pytest.mark.parametrize("kinds", [[0, 0], [2, 0], [2, 1]])
def test_without_device_memory_of_one_kind_it_is_a_file(kinds: list[int]) -> None:
    assert asked(Port(), kinds, [DONE], take=True) == [("fetch", 10)]
    assert asked(Port(), kinds, [DONE], take=False) == [("state", 5, False)]


def test_where_one_cannot_map_it_all_get_a_file() -> None:
    assert asked(Port(CANNOT), [2, 2], [DONE], take=True) == [("fetch", 10), Task.TAKE, ("fetch", 10)]
    assert asked(Port(), [2, 2], [CANNOT], take=True) == [("fetch", 10), Task.TAKE, ("fetch", 10)]
    wanted = [("state", 5, True), Task.RELEASE, ("state", 5, False)]
    assert asked(Port(), [2, 2], [CANNOT], take=False) == wanted


def test_a_lender_that_is_dead_is_a_failure() -> None:
    for port, others in ((Port(GONE), [DONE]), (Port(), [GONE])):
        with pytest.raises(Failure):
            asked(port, [2, 2], others, take=True)
