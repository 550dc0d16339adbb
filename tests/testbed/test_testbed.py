"""The testbed itself: bytes really cross it at the speed of its links, and nothing is left of it however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend import Mesh, MeshmendError, testbed
from meshmend.base.units import read_rate
from meshmend.testbed import namespaces
from meshmend.testbed.wiring import address
from tests.processes import DEADLINE, wait_for
from tests.testbed.beds import flow, left, need_testbed, said, wait_until_gone, way

RATE = "40mbit"
HOLD = """
import sys, time
from meshmend import Mesh
from meshmend.testbed import Testbed
with Testbed(Mesh.parse("1x2"), "10mbit") as bed:
    print("open", flush=True)
    time.sleep(600)
"""
ROOT = Path(testbed.__file__).parents[2]


@pytest.fixture(autouse=True)
def _needed(request: pytest.FixtureRequest) -> None:
    if "anywhere" not in request.keywords:
        need_testbed()


@pytest.fixture
def bed() -> Iterator[testbed.Testbed]:
    need_testbed()
    with testbed.Testbed(Mesh.parse("3x3"), RATE) as made:
        yield made


def test_far_corners_reach_each_other_in_dimension_order(bed: testbed.Testbed) -> None:
    assert way(bed, (0, 0), (2, 2)) == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    assert way(bed, (2, 2), (0, 0)) == [(2, 2), (2, 1), (2, 0), (1, 0), (0, 0)]
    assert said(bed, (1, 2), "sh", "-c", "hostname; echo $MESHMEND_CHIP").split() == ["chip-1-2", "1,2"]
    speed, _ = flow(bed, ((0, 0), (2, 2)), seconds=0.5, over=0.5 * bed.rate)
    assert speed > 0.5 * bed.rate


def test_a_flow_has_the_speed_of_the_link_and_two_share_it(bed: testbed.Testbed) -> None:
    alone, _ = flow(bed, ((0, 0), (0, 1)), seconds=1, over=0.9 * bed.rate)
    assert 0.9 * bed.rate < alone < 1.05 * bed.rate
    *_, together = flow(bed, ((0, 0), (0, 1)), ((0, 0), (0, 1)), seconds=0.5, over=0.85 * bed.rate)
    assert 0.85 * bed.rate < together < 1.05 * bed.rate  # the same link for both
    pairs = ((0, 0), (0, 1)), ((0, 1), (0, 0)), ((1, 0), (1, 1))
    *_, apart = flow(bed, *pairs, seconds=1, over=1.5 * together)
    assert apart > 1.5 * together  # links have two directions, and do not know of each other


def test_routes_of_others_contend_for_a_link(bed: testbed.Testbed) -> None:
    """0,0 to 0,2 and 0,1 to 2,2 share the link from 0,1 to 0,2 only; the way back of neither does."""
    *_, together = flow(bed, ((0, 0), (0, 2)), ((0, 1), (2, 2)), seconds=0.5)
    assert together < 1.1 * bed.rate


def test_a_chip_has_memory_of_its_own(bed: testbed.Testbed) -> None:
    said(bed, (0, 0), "touch", "/dev/shm/mine")
    assert "mine" in said(bed, (0, 0), "ls", "/dev/shm")
    assert "mine" not in said(bed, (0, 1), "ls", "/dev/shm")
    assert not Path("/dev/shm/mine").exists()


def test_cut_links_and_chips_and_mend_them() -> None:
    with testbed.Testbed(Mesh.parse("2x3"), RATE) as made:
        sleeper = subprocess.Popen(made.line((0, 1), "sleep", "600"))
        doomed = subprocess.Popen(made.line((0, 2), "sleep", "600"))
        wait_for(lambda: bool(made.processes((0, 1)) and made.processes((0, 2))))
        made.cut("link@0,0:0,1")
        assert sleeper.poll() is None
        assert way(made, (0, 0), (0, 1)) == [(0, 0), (1, 0), (1, 1), (0, 1)]
        made.cut("chip@0,2 chip@1,1")
        assert doomed.wait(DEADLINE) == -signal.SIGKILL and sleeper.poll() is None
        assert namespaces.space_of("chip-0-2") not in namespaces.existing()
        assert made.hosts == ["chip-0-0", "chip-0-1", "chip-1-0", "chip-1-2"]
        assert way(made, (0, 0), (1, 0)) == [(0, 0), (1, 0)]
        for there in ((0, 2), (1, 2)):  # one is dead, the other cut off
            assert "unreachable" in said(made, (0, 0), "ip", "route", "show", address(there))
        with pytest.raises(MeshmendError, match="chip 0,2 is dead"):
            made.line((0, 2), "true")
        made.mend("2x2@0,1")
        made.mend("link@0,0:0,1")
        assert made.mesh == Mesh.parse("2x3") and sleeper.poll() is None
        assert way(made, (0, 0), (1, 2)) == [(0, 0), (0, 1), (0, 2), (1, 2)]
        assert flow(made, ((0, 0), (1, 2)), seconds=0.2, over=0.5 * made.rate)[0] > 0.5 * made.rate
        assert made.processes((0, 2)) == []
    assert sleeper.wait(DEADLINE) == -signal.SIGKILL
    assert left(os.getpid()) == []


def test_one_at_a_time(bed: testbed.Testbed) -> None:
    with pytest.raises(MeshmendError, match="has a testbed open already"), testbed.Testbed(bed.mesh, RATE):
        pass
    assert said(bed, (0, 0), "hostname") == "chip-0-0\n"
    with pytest.raises(MeshmendError, match="is not open"):
        testbed.Testbed(bed.mesh, RATE).line((0, 0), "true")


def hold() -> subprocess.Popen[str]:
    """A testbed of another process, which is open."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    assert len(left(process.pid)) == 4
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_nothing(number: int) -> None:
    process = hold()
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode != 0
    assert left(process.pid) == []


def test_an_error_leaves_nothing_and_a_killed_ones_leavings_are_removed_by_the_next() -> None:
    process, other = hold(), hold()
    process.kill()
    process.communicate()
    assert len(left(process.pid)) == 4
    removed = testbed.remove_stale()
    assert {namespaces.owner_of(name) for name in removed} == {process.pid}
    assert left(process.pid) == [] and len(left(other.pid)) == 4
    other.terminate()
    other.communicate(timeout=DEADLINE)
    wait_until_gone(other.pid)
    code = HOLD.replace("time.sleep(600)", "raise RuntimeError(bed.hosts)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    failed = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert b"chip-0-1" in failed.communicate(timeout=DEADLINE)[1] and left(failed.pid) == []


@pytest.mark.anywhere
@pytest.mark.parametrize("text", ["50", "fast", "0mbit", "-1mbit", "50mb"])
def test_bad_rates_are_refused(text: str) -> None:
    with pytest.raises(MeshmendError, match="expected bits per second, such as 50mbit"):
        testbed.Testbed(Mesh.parse("2x2"), text)


@pytest.mark.anywhere
def test_rates_are_read() -> None:
    assert [read_rate(text) for text in ("50mbit", "1.5 Gbit", "8bit", "100kbit/s")] == [50e6, 1.5e9, 8, 1e5]


@pytest.mark.anywhere
def test_meshes_that_fall_apart_or_are_too_big_are_refused() -> None:
    with pytest.raises(MeshmendError, match="disconnected"):
        testbed.Testbed(Mesh.parse("1x3 -chip@0,1"), RATE)
    with pytest.raises(MeshmendError, match="at most 256"):
        testbed.Testbed(Mesh.parse("32x32"), RATE)
