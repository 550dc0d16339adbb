"""Kubernetes with JobSet (jobset.sigs.k8s.io), without an operator for MPI: a launcher, and pods that are hosts.

A pod that is lost is replaced alone: the worker's job is indexed, so the new pod has the index and so the name of the
old one, and joins the run as a host that has come back; no other pod is restarted. The launcher's container restarts in
its pod and resumes. What only the user can know (image, volume, ssh key) is a word in capitals.
"""

from __future__ import annotations

import os
import re
import shlex

from meshmend.base.clocks import JOB_GRACE
from meshmend.base.status import HALTED
from meshmend.errors import JobError
from meshmend.run.clusters.base import JobRequest
from meshmend.run.clusters.hosts import Host
from meshmend.run.clusters.kubernetes import VOLUMES, indent
from meshmend.run.clusters.ssh import Ssh

NAME, PODS = "JOBSET_NAME", "JOBSET_PODS"
"""Variables that the printed job sets in the launcher's pod: the name of the set, and how many pods are hosts."""
ENDLESS = 2**31 - 1
"""Restarts of a worker's pod: the run decides what it can survive, not the count of lost pods."""
MOUNTS = """\
volumeMounts:
  - {name: memory, mountPath: /dev/shm}
  - {name: work, mountPath: /job}
  - {name: ssh, mountPath: /root/.ssh, readOnly: true}
"""
KEY = """\
  - name: ssh # id_ed25519, authorized_keys and a config with "StrictHostKeyChecking accept-new"
    secret: {secretName: YOUR-SSH-KEY, defaultMode: 0600}
"""


class JobSet(Ssh):
    """The worker pods of this JobSet, reached by ssh."""

    name = "jobset"
    prints = True

    def is_present(self) -> bool:
        return NAME in os.environ and PODS in os.environ

    def hosts(self) -> list[Host]:
        name, pods = os.environ.get(NAME, ""), os.environ.get(PODS, "")
        if not name or not re.fullmatch(r"[1-9]\d{0,4}", pods):
            raise JobError(
                f"{NAME}={name!r} and {PODS}={pods!r} do not say which pods there are: expected the name of the JobSet "
                "and a number, as `meshmend run --print jobset` writes them"
            )
        return [Host(pod(name, index), 1) for index in range(int(pods))]

    def text(self, request: JobRequest) -> str:
        run, title = request.name or request.title, request.title
        started = f".{run}.started"
        command = f"""\
set -o pipefail
hosts=$(seq 0 {request.hosts - 1} | sed "s/.*/{pod(title, "&")}/" | {request.awk} | paste -sd, -) || exit
which=(--name {run})
if [ -e {started} ]; then
    which=(--resume {run})
fi
touch {started}
exec meshmend run --hosts "$hosts" "${{which[@]}}" {shlex.join(request.words).replace("$", "$$")}
"""
        volumes = indent(VOLUMES + KEY, 14)
        return f"""\
# Written by `meshmend run --print jobset`; needs JobSet (jobset.x-k8s.io/v1alpha2). Replace the words in capitals.
# The image holds meshmend, an ssh client, and an sshd with its host keys.
# The run's name is its identity: while /job/{started} exists, this job resumes that run.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {title}
spec:
  successPolicy: {{operator: All, targetReplicatedJobs: [launcher]}}
  failurePolicy: {{maxRestarts: 0}} # pods are replaced one by one, never all of them
  network: {{enableDNSHostnames: true, publishNotReadyAddresses: true}}
  replicatedJobs:
    - name: worker
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          completions: {request.hosts}
          parallelism: {request.hosts}
          backoffLimit: {ENDLESS} # a lost pod is replaced by one of the same name
          template:
            spec:
              restartPolicy: OnFailure
              terminationGracePeriodSeconds: {JOB_GRACE}
              containers:
                - name: worker
                  image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
                  command: [/usr/sbin/sshd, -De]
                  readinessProbe:
                    tcpSocket: {{port: 22}}
                  # resources: {{limits: {{nvidia.com/gpu: {request.per_host}}}}}
{indent(MOUNTS, 18)}{volumes}\
    - name: launcher
      replicas: 1
      dependsOn:
        - {{name: worker, status: Ready}}
      template:
        spec:
          completions: 1
          parallelism: 1
          backoffLimit: 10 # each start after an interruption counts, and so does each failure
          template:
            spec:
              restartPolicy: OnFailure # status {HALTED} means that there is a checkpoint to resume from
              terminationGracePeriodSeconds: {JOB_GRACE}
              containers:
                - name: launcher
                  image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
                  workingDir: /job
                  env:
                    - {{name: {NAME}, value: {title}}}
                    - {{name: {PODS}, value: "{request.hosts}"}}
                    - {{name: PRTE_MCA_prte_keep_fqdn_hostnames, value: "1"}} # a pod's short name does not resolve
                    - {{name: PRTE_MCA_plm_ssh_args, value: "-o ConnectionAttempts=10"}}
                  command: [/bin/bash, -c]
                  args:
                    - |
{indent(command, 22)}{indent(MOUNTS, 18)}{volumes}"""


def pod(name: str, index: int | str) -> str:
    """The name under which the other pods of the set reach a worker's pod."""
    return f"{name}-worker-0-{index}.{name}"
