"""A state that is lent in device memory: it arrives to the bit, whoever dies, and nothing of it stays mapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.base.processes import Identity
from meshmend.errors import DeviceError, FormatError
from meshmend.job.device.stand_in import NAME, StandIn
from meshmend.job.device.states import LentStates
from meshmend.job.device.trial import memory_called
from meshmend.job.frameworks.base import Framework
from meshmend.job.shm import create_as_agent, open_as_worker
from meshmend.job.shm.records import Outcome
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.state.codec import decode, encode, lent_in
from tests.job.device.lender import RUN, lend, state_of
from tests.job.shm.conftest import home as home


def mapped() -> int:
    """How many blocks of the stand-in this process has mapped."""
    return Path("/proc/self/maps").read_text().count(NAME)


class Newcomer:
    """A worker that is given the state of another one."""

    def __init__(self, framework: str, memory: str = "stand-in") -> None:
        create_as_agent(RUN, 1).agent.worker = Identity.of(os.getpid())
        self.segment: WorkerSegment = open_as_worker(RUN, 1)
        self.states = LentStates(self.segment, memory_called(memory))
        self.state: Framework = state_of(framework, 0, "cuda" if memory.startswith("cuda") else "cpu")

    def take(self, rank: int = 0) -> Outcome:
        self.segment.files.link_given(rank)
        return self.states.take()

    def adopt(self) -> int:
        leaves, about = decode(self.segment.files.take_given(), self.state.template(), self.states.borrowed)
        assert about == {"step": 7}
        self.state.adopt(leaves)
        digest = self.state.digest()
        self.states.settle(digest)
        return digest


def check_a_state_outlives_its_lender(folder: Path, memory: str, framework: str) -> None:
    """Shared by the stand-in's test and the driver's."""
    newcomer = Newcomer(framework, memory)
    command = [sys.executable, "-m", "tests.job.device.lender", str(folder), "0", memory, framework]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lender:
        try:
            assert lender.stdout is not None
            digest = int(lender.stdout.readline())
            assert newcomer.take() is Outcome.DONE
            lent = lent_in(newcomer.segment.files.read_given())
            assert lent is not None and sum(place >= 0 for place in lent.places) >= 3
        finally:
            lender.kill()
    assert newcomer.state.digest() != digest
    assert newcomer.adopt() == digest
    newcomer.states.close()


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_state_outlives_its_lender(home: Path, framework: str) -> None:
    before = mapped()
    check_a_state_outlives_its_lender(home.parent, "stand-in", framework)
    assert mapped() == before


def test_a_lender_that_died_or_lends_something_newer_is_gone(home: Path) -> None:
    del home
    newcomer = Newcomer("jax")
    lender, state = lend(0, "stand-in", "jax")
    newcomer.segment.files.link_given(0)
    lender.lend(state.leaves(), state.digest())
    assert newcomer.states.take() is Outcome.GONE
    lender.close()
    create_as_agent(RUN, 0)
    assert newcomer.states.take() is Outcome.GONE
    (newcomer.segment.files.path("given")).unlink()
    assert newcomer.states.take() is Outcome.GONE
    newcomer.states.close()


def test_what_cannot_be_mapped_comes_over_the_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del home
    newcomer = Newcomer("jax")
    lender, state = lend(0, "stand-in", "jax")

    def refused(*_: object) -> None:
        raise DeviceError("another card")

    monkeypatch.setattr(StandIn, "attach", refused)
    assert newcomer.take() is Outcome.CANNOT
    monkeypatch.setattr(StandIn, "allocate", refused)
    assert lender.lend(state.leaves(), 0) is None
    monkeypatch.setattr(StandIn, "spares", lambda *_: False)
    assert lender.lend(state.leaves(), 0) is None
    lender._segment.files.write_state(encode(state.leaves(), step=7))
    assert newcomer.take() is Outcome.DONE
    assert newcomer.adopt() == state.digest()
    lender.close()


def test_bits_that_change_on_the_way_are_found(home: Path) -> None:
    del home
    newcomer, before = Newcomer("jax"), mapped()
    lender, _ = lend(0, "stand-in", "jax")
    assert newcomer.take() is Outcome.DONE
    assert lender._lent is not None
    lender._lent.bytes[3] ^= 1  # type: ignore[attr-defined]
    with pytest.raises(DeviceError):
        newcomer.adopt()
    lender.close()
    assert mapped() == before, "it was dropped all the same"


def test_a_state_without_its_block_is_refused(home: Path) -> None:
    del home
    newcomer = Newcomer("torch")
    lender, state = lend(0, "stand-in", "torch")
    newcomer.segment.files.link_given(0)
    data = newcomer.segment.files.read_given()
    with pytest.raises(DeviceError):
        decode(data, state.template(), newcomer.states.borrowed)
    with pytest.raises(FormatError):
        decode(data, None)
    lender.close()
