"""Hosts reached by ssh, or by any command with the same arguments: a host and a command line."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshmend.base.clocks import KEEPALIVE_AFTER, KEEPALIVE_EVERY, KEEPALIVE_PROBES
from meshmend.errors import JobError
from meshmend.run.clusters.base import Cluster
from meshmend.run.clusters.hosts import Host

KEEPALIVE = [
    "--prtemca", "prte_oob_tcp_keepalive_time", str(KEEPALIVE_AFTER),
    "--prtemca", "prte_oob_tcp_keepalive_intvl", str(KEEPALIVE_EVERY),
    "--prtemca", "prte_oob_tcp_keepalive_probes", str(KEEPALIVE_PROBES),
]  # fmt: skip
"""With these, mpirun ends when a host is cut off."""
NO_SLURM = ["--prtemca", "plm", "ssh", "--prtemca", "ras", "^slurm"]
"""Inside a Slurm job, mpirun would start its daemons with srun: a failed node ends all of them, and never returns."""


@dataclass(frozen=True)
class Ssh(Cluster):
    """The hosts that the user names; `launch_agent` starts a command on one of them."""

    launch_agent: str = "ssh"
    name = "ssh"

    def is_present(self) -> bool:
        return shutil.which(shlex.split(self.launch_agent)[0]) is not None

    def hosts(self) -> list[Host]:
        raise JobError("ssh cannot tell which hosts there are: name them with --hosts, such as a:4,b:4")

    def run_on(self, host: str, *commands: Sequence[str]) -> list[str]:
        return [*shlex.split(self.launch_agent), host, " && ".join(shlex.join(command) for command in commands)]

    def mpirun_options(self, folder: Path) -> list[str]:
        start = ["--prtemca", "plm_ssh_agent", self.launch_agent, "--prefix", sys.prefix, *NO_SLURM]
        return [
            *KEEPALIVE,
            *start,
            "--prtemca",
            "prte_remote_tmpdir_base",
            str(folder),
        ]  # daemons do not get our TMPDIR
