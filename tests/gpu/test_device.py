"""On a card: what another process has there outlives it, sums have numpy's bits, and whole jobs survive kills on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend.errors import DeviceError, MissingLibrary
from meshmend.job.device.messages import told
from meshmend.job.device.passing import LENT
from meshmend.job.shm.records import Way
from meshmend.testing import Fault
from tests.job.device.owner import memory_called
from tests.job.device.test_memory import check_memory_outlives_its_owner, check_sums_have_the_bits_of_numpy
from tests.job.device.test_states import check_a_state_outlives_its_lender
from tests.job.shm.conftest import home as home
from tests.jobs.conftest import job as job
from tests.jobs.jobs import SCRIPT, Job, wait_for
from tests.jobs.test_devices import SHRINK, kill
from tests.jobs.test_jax import SCRIPT as JAX_SCRIPT

TORCH_SCRIPT = JAX_SCRIPT.with_name("network.py")

pytestmark = pytest.mark.gpu
CARD = "cuda:0"
SLACK = 64 << 20
"""Bytes by which the free memory of a card may differ for reasons of its own."""


@pytest.fixture(scope="module", autouse=True)
def card() -> Iterator[None]:
    """Skips without a card; afterwards, its memory is as it was."""
    from meshmend.base.cuda import Device, count

    try:
        found = count()
    except MissingLibrary as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip("there is no card here")
    device = Device(0)
    memory_called(CARD)
    before = device.memory()[0]
    yield
    assert device.memory()[0] > before - SLACK


def test_memory_outlives_its_owner(tmp_path: Path) -> None:
    check_memory_outlives_its_owner(tmp_path, CARD)


def test_sums_have_the_bits_of_numpy() -> None:
    check_sums_have_the_bits_of_numpy(memory_called(CARD))


def test_too_much_memory_is_refused_with_what_there_is() -> None:
    with pytest.raises(DeviceError):
        memory_called(CARD).allocate(1 << 50)


def test_memory_of_dead_owners_is_given_back(tmp_path: Path) -> None:
    from meshmend.base.cuda import Device
    from tests.job.device.test_memory import Owner, mapped

    memory, device = memory_called(CARD), Device(0)
    before = device.memory()[0]
    for rank in range(5):
        owner = Owner(tmp_path, rank, CARD)
        block = mapped(memory, tmp_path, rank)
        owner.kill()
        block.close()
    assert device.memory()[0] > before - SLACK


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_state_outlives_its_lender(home: Path, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    check_a_state_outlives_its_lender(home.parent, CARD, framework)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_spares_get_the_state_from_device_memory(job: Job, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
    script = [JAX_SCRIPT] if framework == "jax" else [TORCH_SCRIPT, "device=cuda"]
    alone = subprocess.run([sys.executable, *map(str, script)], capture_output=True, text=True, timeout=240)
    assert alone.returncode == 0, alone.stderr
    job.faults = [kill(1, 4, "add"), kill(0, 4, "state")]
    job.start("--on-failure", "spare", "-n", "3", "--spares", "2", script=script)
    wait_for(lambda: any(one.endswith(f".{LENT}") for one in job.memory()), 120)
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]] * 3, job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("words", "faults", "survivors"),
    [
        (["-n", "2"], [], 2),
        ([*SHRINK, "-n", "2"], [kill(1, 5)], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "add"), kill(3, 7, "take")], 2),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "take", "courier"), kill(3, 9, "add", "courier")], 2),
    ],
)  # fmt: skip
def test_weights_are_bit_identical_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], survivors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")  # exact sums on the host
    alone = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=240)
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", CARD)
    job.faults = faults
    job.run(*words)
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]] * survivors, job.output
    job.assert_clean()


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_float_sums_have_the_bits_of_the_host_s(job: Job, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wire == "bf16":
        pytest.importorskip("numba")
    script = [SCRIPT, "reduction=float", f"wire={wire}", "width=333"]
    for place in ("off", CARD):
        monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", place)
        job.start("-n", "3", script=script, name=place == "off").finish()
    assert job.status == 0 and told(Way.DEVICE) in job.output, job.output
    assert len(job.weights) == 6 and len(set(job.weights)) == 1, job.output


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_state_on_the_card_is_summed_there(job: Job, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
    script = [JAX_SCRIPT] if framework == "jax" else [TORCH_SCRIPT, "device=cuda"]
    alone = subprocess.run([sys.executable, *map(str, script)], capture_output=True, text=True, timeout=240)
    assert alone.returncode == 0, alone.stderr
    job.faults = [kill(1, 6), kill(0, 9, "take")]
    job.run(*SHRINK, "-n", "3", script=script)
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output, job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]], job.output
    job.assert_clean()
