"""The doctor on this machine, and on machines that lack things."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest

from meshmend.base.processes import is_alive
from meshmend.errors import JobError
from meshmend.run.doctor import checks as doctor
from meshmend.run.doctor import devices
from meshmend.run.doctor import kill_test as selftest
from meshmend.run.doctor import programs as ask
from meshmend.run.doctor.checks import Finding, line, verdict
from tests.leaks import Watch
from tests.processes import DEADLINE, wait_for


def finding(name: str, deep: bool = False) -> Finding:
    return next(one for one in doctor.findings(deep) if one.name == name)


def program(path: Path, code: str) -> str:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose mpirun is the one that is found."""
    path = program(tmp_path / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    for module in (doctor, ask, selftest):
        monkeypatch.setattr(module, "mpirun", lambda: path)
    return tmp_path


def test_a_killed_process_is_survived_and_nothing_is_left() -> None:
    watch = Watch()
    with watch.marking():
        assert selftest.kill_test(DEADLINE) > 0
    assert watch.remains() == []


def test_this_machine_can_run_meshmend() -> None:
    findings = {one.name: one for one in doctor.findings(deep=False)}
    assert list(findings) == list(doctor.CHECKS)
    for name in ("Python", "machine", "/proc", "mpirun", "fault tolerance", "mpi4py"):
        assert findings[name].good is True, findings[name]
    assert findings["kill test"] == Finding("kill test", None, "skipped")


def test_jax_is_asked_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    good, what, *_ = doctor._jax(True)
    assert good is True and what.endswith("(cpu)")


def test_without_mpirun_there_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise JobError("no mpirun was found")

    for module in (doctor, ask, selftest):
        monkeypatch.setattr(module, "mpirun", nowhere)
    monkeypatch.setenv("PATH", "/nowhere")
    findings = {one.name: one for one in doctor.findings(deep=False)}
    assert findings["mpirun"].good is False and "pip install" in findings["mpirun"].advice
    assert findings["fault tolerance"].good is None
    assert findings["kill test"] == Finding("kill test", None, "skipped: no mpirun")
    assert findings["ssh"].good is None
    assert doctor._kill_test(True)[0] is None
    assert line(findings["mpirun"]).startswith("BAD  mpirun")


@pytest.mark.parametrize(
    ("info", "good"),
    [
        ("echo options:ft_mpi_support:yes", True),
        ("echo '          FT MPI support: yes'", True),
        ("echo options:ft_mpi_support:no", False),
        ("echo '          FT MPI support: no'", False),
        ("echo nothing of interest", False),
        ("exit 3", False),
    ],
)
def test_fault_tolerance_is_what_ompi_info_says(found: Path, info: str, good: bool) -> None:
    program(found / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    program(found / "ompi_info", info)
    with nullcontext() if good else pytest.raises(JobError, match="an Open MPI built --with-ft=mpi is needed"):
        doctor.require_tolerance()
    assert finding("fault tolerance").good is good
    assert ("--with-ft" in finding("fault tolerance").advice) is not good


@pytest.mark.parametrize(
    ("says", "what"),
    [("mpirun (Open MPI) 4.1.6", "Open MPI 4.1.6, expected 5"), ("HYDRA build details:", "not Open MPI's")],
)
def test_another_mpirun_is_not_good_enough(found: Path, says: str, what: str) -> None:
    program(found / "mpirun", f"echo '{says}'")
    assert finding("mpirun").good is False and what in finding("mpirun").what
    with pytest.raises(JobError, match=re.escape(what)):
        doctor.require_tolerance()


def test_mpirun_and_mpi4py_of_two_versions(found: Path) -> None:
    program(found / "mpirun", "echo 'mpirun (Open MPI) 5.0.1'")
    assert finding("mpi4py").good is False and "but mpirun is 5.0.1" in finding("mpi4py").what


def test_an_mpi_whose_survivors_do_not_go_on(found: Path) -> None:
    program(found / "mpirun", "echo; echo -----; echo the job was ended; exit 9")
    good, what, *_ = doctor._kill_test(True)
    assert good is False and "status 9: the job was ended" in what


def test_a_kill_test_that_hangs_is_ended_with_its_children(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over as soon as its child is there."""
    program(found / "mpirun", f"sleep 1000 & echo $! > {found}/new; mv {found}/new {found}/child; wait")
    monkeypatch.setattr(selftest, "_wait", lambda *_: bool(wait_for((found / "child").exists)))
    with pytest.raises(JobError, match=r"within 500 ms"):
        selftest.kill_test(0.5)
    child = int((found / "child").read_text())
    wait_for(lambda: not is_alive(child))


def test_a_wrong_sum_is_seen(tmp_path: Path) -> None:
    (tmp_path / "killed").write_text("1000000")
    right = '{"at": 3000000, "saw": 5, "agreed": 1, "size": 2, "sums": 9}'
    for rank in (0, 2):
        (tmp_path / f"{rank}.json").write_text(right)
    assert selftest._judge(tmp_path) == 2.0
    (tmp_path / "2.json").write_text(right.replace("5", "7"))
    with pytest.raises(JobError, match="process 2 has saw = 7, expected 5"):
        selftest._judge(tmp_path)


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "DOCTOR_CHILD", 0.3)
    assert ask.child(["sh", "-c", "sleep 1000 & wait"])[::2] == (1, "no answer within 300 ms")


def test_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1 << 26, 0, 1 << 26))
    few = finding("shared memory")
    assert (few.good, few.what) == (None, "/dev/shm has only 64 MiB free") and "--shm-size" in few.advice
    monkeypatch.setattr(doctor, "MEMORY", tmp_path / "nowhere")
    assert finding("shared memory").good is False


def test_leftovers_are_named_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "stale_runs", lambda: ["a", "b"])
    found = finding("leftovers")
    assert (found.good, found.what) == (None, "shared memory of dead runs: a, b") and "removes it" in found.advice


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: bool) -> doctor.Result:
        raise OSError("disk on fire")

    monkeypatch.setitem(doctor.CHECKS, "machine", broken)
    findings = list(doctor.findings(deep=False))
    assert Finding("machine", False, "the check itself failed: OSError: disk on fire") in findings
    assert len(findings) == len(doctor.CHECKS)
    assert verdict(findings).endswith("marked BAD")


def test_text() -> None:
    findings = [Finding("mpirun", True, "here"), Finding("ssh", None, "not found", "install it")]
    assert [*map(line, findings), verdict(findings)] == [
        "ok   mpirun           here",
        "-    ssh              not found; install it",
        "no problems found",
    ]


def test_the_doctor_imports_nothing_heavy() -> None:
    code = "import sys, meshmend.run.doctor.checks; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert not {"jax", "torch", "mpi4py"} & set(loaded.stdout.split())


@pytest.mark.parametrize(
    ("trial", "good"), [("NVIDIA H200|1000|2000|", True), ("NVIDIA H200|0|0|cuMemCreate failed", None)]
)
def test_devices_are_tried_in_a_child(
    trial: str, good: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "CONTROL", tmp_path)
    monkeypatch.setattr(devices, "installed", lambda _: None)
    assert "meshmend[gpu]" in finding("devices").advice
    monkeypatch.setattr(devices, "installed", lambda _: "13.3.0")
    monkeypatch.setattr(devices, "child", lambda command: (0, "2" if "-c" in command else trial, ""))
    said = Finding("devices", *devices.devices(True))
    assert said.good is good and said.what.count("NVIDIA H200") == 2 and bool(said.advice) is (good is None)
    monkeypatch.setattr(devices, "CONTROL", tmp_path / "none")
    assert Finding("devices", *devices.devices(True)).good is None


def test_the_trial_of_a_device_kills_the_owner_of_its_memory() -> None:
    status, said, wrong = ask.child([sys.executable, "-P", "-m", "meshmend.job.device.trial", "stand-in"])
    assert (status, said.split("|")) == (0, ["stand-in", "0", "0", "\n"]), wrong
