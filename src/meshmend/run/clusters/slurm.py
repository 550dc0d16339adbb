"""Slurm: `meshmend run` inside an allocation, and the script for sbatch that starts it.

Slurm stops a job with SIGTERM and starts it again elsewhere. On SIGTERM meshmend writes a checkpoint and exits with
HALTED; the requeued job continues from there with `--resume`. When a node fails, Slurm would end the whole job: with
`--no-kill` it keeps the rest of the allocation, and meshmend continues there. If that was the node of the batch script,
`--requeue` makes Slurm restart the job. What only the user can know (partition, time limit) is a line to add.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from meshmend.base.clocks import JOB_GRACE, SCHEDULER_ANSWER
from meshmend.base.status import ABANDONED, HALTED
from meshmend.errors import JobError
from meshmend.run.clusters.base import JobRequest
from meshmend.run.clusters.hosts import Host
from meshmend.run.clusters.ssh import Ssh


class Slurm(Ssh):
    """The nodes of this job's allocation, reached by ssh: under srun, Open MPI does not survive deaths."""

    name = "slurm"
    prints = True

    def is_present(self) -> bool:
        return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ

    def hosts(self) -> list[Host]:
        nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        try:
            command = ["scontrol", "show", "hostnames", nodes]
            names = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=SCHEDULER_ANSWER
            ).stdout.split()
        except (OSError, subprocess.SubprocessError) as error:
            raise JobError(f"scontrol cannot name the hosts of this allocation ({nodes!r}): {error}") from None
        return [Host(name, slots) for name, slots in zip(names, self._slots(len(names)), strict=True)]

    def _slots(self, hosts: int) -> list[int]:
        """Tasks per node, which Slurm writes as "4(x2),3"."""
        text = os.environ.get("SLURM_TASKS_PER_NODE", f"1(x{hosts})")
        slots = [int(each) for each, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
        if len(slots) != hosts:
            raise JobError(f"SLURM_TASKS_PER_NODE is {text!r}, expected numbers for {hosts} hosts, such as 4(x{hosts})")
        return slots

    def text(self, request: JobRequest) -> str:
        run = request.name or '"slurm-$SLURM_JOB_ID"'
        return f"""\
#!/bin/bash
# Written by `meshmend run --print slurm`; submit it with sbatch, from the folder that the run is to be in.
# Add more #SBATCH lines here: --partition, --time, --cpus-per-task, --gpus-per-node …
#SBATCH --job-name={request.title}
#SBATCH --output={request.title}-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes={request.hosts}
#SBATCH --ntasks-per-node={request.per_host}
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:TERM@{JOB_GRACE}

set -u -o pipefail
name={run}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | {request.awk} | paste -sd, -) || exit
which=(--name "$name")
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
    which=(--resume "$name")
fi

# Pass the signal on to the run, or remember it until there is one.
run= early=
trap 'if [ -n "$run" ]; then kill -TERM "$run" 2> /dev/null; else early=1; fi' TERM

follow() {{
    "$@" &
    run=$!
    if [ -n "$early" ]; then
        early=
        kill -TERM "$run"
    fi
    while kill -0 "$run" 2> /dev/null; do # a signal ends the wait, not the run: that writes a checkpoint first
        wait "$run"
    done
    wait "$run" # bash remembers the status
    status=$?
    run=
}}

# Not under srun, with which Open MPI does not survive deaths: meshmend starts mpirun itself.
follow meshmend run --hosts "$hosts" "${{which[@]}}" {shlex.join(request.words)}
for _ in 1 2 3; do # the launcher failed or was killed (no memory, say), and its workers wait for another one
    if [ "$status" -ne {ABANDONED} ] && [ "$status" -le 128 ]; then break; fi
    follow meshmend run --attach "$name"
done
if [ "$status" -eq {HALTED} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
