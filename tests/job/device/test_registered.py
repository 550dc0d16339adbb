"""Buffers that are registered with a device: what is in them, when they are given back, and what is said of them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meshmend.base.mapped import PAGE
from meshmend.errors import DeviceError, JobError
from meshmend.job.device import choose, host_memory
from meshmend.job.device.choose import host_memory_of, memory_of
from meshmend.job.device.host_memory import CudaHostMemory, PlainMemory
from meshmend.job.device.messages import Messages
from meshmend.job.device.registered import RegisteredPart, Registration
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import create_as_agent, open_as_courier, open_as_worker
from meshmend.job.shm.buffers import make_buffers
from meshmend.job.shm.mailbox import CourierSide
from meshmend.job.shm.records import Outcome, Task
from tests.job.device.fake_driver import Driver
from tests.job.shm.conftest import home as home

WIRE = WireFormat(Float32, 100)


def test_buffers_are_registered_once_and_given_back_before_others_are(driver: Driver) -> None:
    one, two = np.zeros(50, np.float32), np.zeros(70, np.float32)
    held = Registration(CudaHostMemory(0))
    for whole in (one, one, two):
        held.hold(whole)
        assert driver.registered == {whole.ctypes.data: whole.nbytes}
    values = np.arange(60, dtype=np.float32)
    held.part(two[5:65]).fill(
        SimpleNamespace(__cuda_array_interface__={"data": (values.ctypes.data, False), "shape": (60,)})
    )
    assert two.tolist() == [0.0] * 5 + values.tolist() + [0.0] * 5
    held.close()
    held.close()
    assert not driver.registered and not driver.contexts and not driver.events


def test_a_part_is_copied_piece_by_piece(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "PIECE", 64)
    for memory in (CudaHostMemory(0), PlainMemory()):
        out, values = np.zeros(50, np.float32), np.arange(50, dtype=np.float32)
        held = Registration(memory)
        held.part(out).fill(_on_device(values) if isinstance(memory, CudaHostMemory) else values)
        assert held.copying
        assert [*held.copied()] == [16, 32, 48, 50] and not held.copying
        assert out.tolist() == values.tolist()
    assert not driver.events


def _on_device(values: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(__cuda_array_interface__={"data": (values.ctypes.data, False)}, kept=values)


def test_pieces_of_an_attempt_that_came_to_nothing_are_not_used(driver: Driver) -> None:
    for memory in (CudaHostMemory(0), PlainMemory()):
        held, right = Registration(memory), np.arange(50, dtype=np.float32)
        held.take(1, 1, 50, 30)  # nothing is registered yet
        held.hold(np.stack([right * 0, right * 0 + 7, right]), 4)
        held.take(1, 1, 50, 30, 4)
        held.take(2, 2, 50, 20, 4)
        held.take(2, 1, 50, 50, 3)  # of other buffers
        held.take(2, 2, 50, 70, 4)  # the footer counts too
        assert _values(held.total(2, right)) == right.tolist()
        held.take(2, 1, 50, 50, 4)  # the round is over
        held.take(3, 1, 50, 50, 4)
        assert _values(held.total(4, right)) == right.tolist(), "one that came from another member"
        assert _values(held.total(5, right[:20])) == right[:20].tolist(), "other messages"
        held.close()
    assert not driver.taken and not driver.contexts and not driver.registered


def _values(found: object) -> list[float]:
    if isinstance(found, np.ndarray):
        return list(found.tolist())
    about = found.__cuda_array_interface__  # type: ignore[attr-defined]
    return list((ctypes.c_float * about["shape"][0]).from_address(about["data"][0]))


def test_without_room_on_the_device_totals_stay_where_they_are(driver: Driver) -> None:
    driver.limit = 100
    held, total = Registration(CudaHostMemory(0)), np.zeros(50, np.float32)
    held.hold(total.reshape(1, 50))
    held.take(1, 0, 50, 20)
    assert held.total(1, total) is None
    held.close()


def messages_of(memory: str, monkeypatch: pytest.MonkeyPatch) -> Messages:
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", memory)
    create_as_agent("registered", 0)
    segment = open_as_worker("registered", 0)
    messages = Messages(segment, 7, lambda _: pytest.fail("it ended"))  # type: ignore[arg-type, return-value]
    messages.on_device = True
    messages.begin()
    messages.make(WIRE)
    make_buffers(segment.files, segment.worker, WIRE, 0)
    return messages


def test_parts_go_to_registered_memory_and_to_other_buffers_when_there_are_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home
    messages = messages_of("stand-in-registered", monkeypatch)
    seen: list[int] = []
    monkeypatch.setattr(PlainMemory, "register", lambda _, array: seen.append(array.nbytes))
    monkeypatch.setattr(PlainMemory, "unregister", lambda _, array: seen.append(-array.nbytes))
    part = messages.part(93, 0)
    assert isinstance(part, RegisteredPart) and len(part) == 93
    part.fill(np.arange(93, dtype=np.float32))
    assert messages._segment.buffers.part[:95].tolist() == [*range(93), 0, 0]
    messages.part(93, 0)
    make_buffers(messages._segment.files, messages._segment.worker, WireFormat(Float32, 200), 0)
    messages.part(193, 0)
    messages.close()
    whole = 3 * PAGE  # of three buffers of a page each
    assert seen == [whole, -whole, whole, -whole]


def test_memory_that_cannot_be_registered_is_used_as_it_is_and_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home

    def refused(*_: object) -> None:
        raise DeviceError("the limit of locked memory")

    monkeypatch.setattr(PlainMemory, "register", refused)
    messages = messages_of("stand-in-registered", monkeypatch)
    assert isinstance(messages.part(93, 0), np.ndarray)
    assert "the limit of locked memory" in messages.buffers._pageable
    for setting in ("pageable", "off"):
        assert isinstance(messages_of(setting, monkeypatch).part(93, 0), np.ndarray)


def test_a_device_takes_totals_from_its_own_buffer_registered_or_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still read them when the framework has returned: nobody would see that it was too late."""
    del home
    outcomes = []
    for setting, device in (("stand-in-registered", None), ("pageable", 0), ("pageable", None)):
        messages = messages_of(setting, monkeypatch)
        messages.device = lambda device=device: device  # type: ignore[misc]
        segment = messages._segment
        courier = CourierSide(open_as_courier("registered", 0))
        courier.ask_device(Task.OPEN, 0, (segment.rank, segment.birth))
        messages.serve()
        outcomes.append(courier.device_outcome())
    assert outcomes == [Outcome.CANNOT, Outcome.CANNOT, Outcome.DONE]


def test_which_memory_is_registered(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    found: dict[str, list[bool]] = {}
    for setting in ("", "off", "pageable", "stand-in", "stand-in-registered", "cuda:0"):
        monkeypatch.setattr(choose, "device_memory", lambda setting=setting: setting)
        found[setting] = [memory_of(0) is not None, host_memory_of(0) is not None, host_memory_of(None) is not None]
    assert found == {
        "": [True, True, False],
        "off": [False, True, False],
        "pageable": [False, False, False],
        "stand-in": [True, False, False],
        "stand-in-registered": [False, True, True],
        "cuda:0": [True, True, False],
    }
    monkeypatch.setattr(choose, "device_memory", lambda: "there")
    with pytest.raises(JobError):
        memory_of(0)
    del driver
