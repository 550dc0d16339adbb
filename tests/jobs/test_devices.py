"""Whole jobs that sum in device memory, with the host's memory in the place of a device's, killed for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from meshmend.job.device.messages import told
from meshmend.job.device.passing import LENT
from meshmend.job.shm.records import Way
from meshmend.testing import Fault
from tests.jobs.jobs import SCRIPT, Job, wait_for

SHRINK = ["--on-failure", "shrink"]
Undisturbed = Callable[..., str]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", "stand-in")


def kill(rank: int, step: int, point: str = "compute", kind: str = "kill") -> Fault:
    return Fault(rank=rank, step=step, point=point, kind=kind)


@pytest.mark.parametrize(
    ("words", "faults", "survivors"),
    [
        ([*SHRINK, "-n", "4"], [kill(0, 5, "add"), kill(1, 7, "take"), kill(3, 7, "add")], 1),
        pytest.param(
            [*SHRINK, "-n", "4"],
            [kill(0, 5, "take", "courier"), kill(3, 5, "take", "courier")],
            2,
            marks=pytest.mark.jobs,
        ),
        pytest.param([*SHRINK, "-n", "3"], [kill(2, 5), kill(1, 9, "allreduce")], 1, marks=pytest.mark.jobs),
        pytest.param(
            [*SHRINK, "-n", "4"],
            [kill(0, 5, "add", "courier"), kill(1, 5, "shrink"), kill(2, 9, "take")],
            1,
            marks=pytest.mark.jobs,
        ),
        pytest.param([*SHRINK, "-n", "3"], [kill(1, 6, "commit", "flip")], 2, marks=pytest.mark.jobs),
        pytest.param(
            ["--on-failure", "spare", "-n", "3", "--spares", "2"],
            [kill(1, 4, "add"), kill(0, 4, "state")],
            3,
            marks=pytest.mark.jobs,
        ),
    ],
)
def test_weights_are_bit_identical_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], survivors: int, undisturbed: Undisturbed
) -> None:
    job.faults = faults
    job.run(*words)
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output
    assert job.weights == [undisturbed()] * survivors, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_where_one_has_no_device_memory_all_sum_elsewhere_until_it_is_gone(job: Job, undisturbed: Undisturbed) -> None:
    """Parts that lie on a device are brought to the host for it, and back where the others sum without it."""
    job.faults = [kill(0, 5), kill(1, 9)]
    job.run(*SHRINK, "--log-every", "0", "-n", "4", script=[SCRIPT, "host=1"])
    assert job.status == 0, job.output
    assert job.output.index(f"{told(Way.SHARED)} (") < job.output.index(told(Way.DEVICE))
    assert job.weights == [undisturbed()] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_a_replacement_sums_on_the_device_too(job: Job) -> None:
    job.faults = [kill(1, 5, "add")]
    options = ["steps=1000000", "pause=0.02", "crowd=3"]
    job.run("--log-every", "0", "-n", "3", script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output and told(Way.SHARED) not in job.output
    assert len(job.weights) == 3 and len(set(job.weights)) == 1, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_float_sums_have_the_bits_of_the_host_s(job: Job, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("off", "stand-in"):
        monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", place)
        job.start("-n", "3", script=[SCRIPT, "reduction=float", f"wire={wire}", "width=333"], name=place == "off")
        job.finish()
    assert job.status == 0 and told(Way.DEVICE) in job.output, job.output
    assert len(job.weights) == 6 and len(set(job.weights)) == 1, job.output


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["classifier.py", "network.py"])
def test_frameworks_that_keep_their_sums_on_a_device(job: Job, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMEND_STATE", "device")
    script = SCRIPT.with_name(name)
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300)
    job.faults = [kill(1, 6, "add"), kill(0, 9, "take")]
    job.run(*SHRINK, "-n", "3", script=[script])
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]], job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["classifier.py", "network.py"])
def test_spares_get_the_state_from_device_memory(job: Job, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the worker that lends it dies in the middle of that."""
    monkeypatch.setenv("MESHMEND_STATE", "device")
    script = SCRIPT.with_name(name)
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300)
    job.faults = [kill(1, 4, "add"), kill(0, 4, "state")]
    job.start("--on-failure", "spare", "-n", "3", "--spares", "2", script=[script])
    wait_for(lambda: any(one.endswith(f".{LENT}") for one in job.memory()))
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]] * 3, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_pieces_that_go_through_registered_memory(job: Job, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts go down and totals go up in pieces, while couriers add them; workers die in the middle of it."""
    monkeypatch.setenv("MESHMEND_STATE", "device")
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", "stand-in-registered")
    script = [SCRIPT.with_name("large.py"), framework]
    alone = subprocess.run([sys.executable, *map(str, script)], capture_output=True, text=True, check=True, timeout=240)
    job.faults = [kill(1, 1, "add"), kill(2, 3, "take")]
    job.run(*SHRINK, "-n", "3", script=script)
    assert job.status == 0, job.output
    assert told(Way.SHARED) in job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]], job.output
    job.assert_clean()
