"""Kubernetes: an MPIJob for the MPI operator of Kubeflow (github.com/kubeflow/mpi-operator), in which a pod is a host.

A pod that is evicted gets SIGTERM; meshmend writes a checkpoint and exits with HALTED, and the launcher's pod
restarts and resumes. What only the user can know (image, volume) is a word in capitals.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

from meshmend.base.clocks import JOB_GRACE
from meshmend.base.status import HALTED
from meshmend.errors import JobError
from meshmend.run.clusters.base import JobRequest
from meshmend.run.clusters.hosts import Host
from meshmend.run.clusters.ssh import Ssh

HOSTFILE = Path("/etc/mpi/hostfile")
"""Where the operator tells the launcher's pod which pods are its workers."""
VOLUME_MOUNTS = """\
volumeMounts:
    - {name: memory, mountPath: /dev/shm}
    - {name: work, mountPath: /job}
"""
VOLUMES = """\
volumes:
  - name: memory # a container's own /dev/shm has 64 MiB; this one counts as the pod's memory
    emptyDir: {medium: Memory}
  - name: work # the script and the runs, the same for all pods: a ReadWriteMany volume
    persistentVolumeClaim: {claimName: YOUR-SHARED-VOLUME}
"""


class Kubernetes(Ssh):
    """The worker pods of this MPIJob, reached by ssh."""

    name = "k8s"
    prints = True

    def is_present(self) -> bool:
        return HOSTFILE.exists()

    def hosts(self) -> list[Host]:
        try:
            lines = HOSTFILE.read_text().splitlines()
        except OSError as error:
            raise JobError(f"cannot read {HOSTFILE} ({error.strerror}): expected the MPI operator's hostfile") from None
        found = [re.fullmatch(r"(\S+)(?:\s+slots=(\d+))?\s*", line) for line in lines if line.strip()]
        if None in found:
            raise JobError(f"cannot read {HOSTFILE}: expected lines such as 'pod-0.job slots=4'")
        return [Host(match[1], int(match[2] or 1)) for match in found if match]

    def text(self, request: JobRequest) -> str:
        name = request.name or request.title
        started = f".{name}.started"
        command = f"""\
set -o pipefail
hosts=$({request.awk} {HOSTFILE} | paste -sd, -) || exit
which=(--name {name})
if [ -e {started} ]; then
    which=(--resume {name})
fi
touch {started}
exec meshmend run --hosts "$hosts" "${{which[@]}}" {shlex.join(request.words).replace("$", "$$")}
"""  # Kubernetes itself turns $$ into $ and leaves every other $ here as it is
        return f"""\
# Written by `meshmend run --print k8s`; needs the MPI operator, v2beta1. Replace the words in capitals.
# The image holds meshmend, an ssh client that accepts new hosts, and an sshd with its host keys.
# The run's name is its identity: while /job/{started} exists, this job resumes that run.
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {request.title}
spec:
  slotsPerWorker: {request.per_host}
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 10 # each start after an interruption counts, and so does each failure
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure # status {HALTED} means that there is a checkpoint to resume from
      template:
        spec:
          terminationGracePeriodSeconds: {JOB_GRACE}
          containers:
            - name: launcher
              image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
              workingDir: /job
              env:
                - {{name: PRTE_MCA_prte_keep_fqdn_hostnames, value: "1"}} # a pod's short name does not resolve
                - {{name: PRTE_MCA_plm_ssh_args, value: "-o ConnectionAttempts=10"}}
              command: [/bin/bash, -c]
              args:
                - |
{indent(command, 18)}{indent(VOLUME_MOUNTS, 14)}{indent(VOLUMES, 10)}\
    Worker:
      replicas: {request.hosts}
      restartPolicy: OnFailure # a pod that comes back can be used again
      template:
        spec:
          terminationGracePeriodSeconds: {JOB_GRACE}
          containers:
            - name: worker
              image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
              command: [/usr/sbin/sshd, -De]
              readinessProbe:
                tcpSocket: {{port: 22}}
              # resources: {{limits: {{nvidia.com/gpu: {request.per_host}}}}}
{indent(VOLUME_MOUNTS, 14)}{indent(VOLUMES, 10)}"""


def indent(text: str, by: int) -> str:
    """The same text, so many columns to the right."""
    return textwrap.indent(text, " " * by, lambda _: True)
