"""Text for clusters: the same `meshmend run`, inside an allocation of Slurm's or as an MPIJob of Kubernetes.

Both stop a job with SIGTERM and start it again elsewhere. On SIGTERM meshmend writes a checkpoint and ends with status
75 (EX_TEMPFAIL, try again later); started again, the job goes on from there with `--resume`. What only the user can
know (image, volume, partition) is a word in capitals or a line to fill in.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from meshmend.errors import JobError

AGAIN = 75
"""The status of a run that wrote a checkpoint because it was told to end."""
GRACE = 120
"""Seconds between the signal and the end of the job: time to write a checkpoint."""
_OURS = {"--hosts", "--hosts-file", "--workers", "-n", "--resume", "--attach", "--print"}


def text_for(kind: str, script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    """What to hand to this kind of cluster, `slurm` or `k8s`."""
    if kind not in KINDS:
        raise JobError(f"cannot print a job for {kind!r}: expected {' or '.join(KINDS)}")
    return KINDS[kind](script, workers, hosts, options)


def slurm(script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    """A script for sbatch: so many workers in all, shared out over so many hosts."""
    name, words = _words(script, workers, hosts, options)
    title = _title(script, name)
    run = name or '"slurm-$SLURM_JOB_ID"'
    return f"""\
#!/bin/bash
# Written by `meshmend run --print slurm`; hand it in with sbatch, from the folder in which the run is to be.
# More lines of #SBATCH belong here: --partition, --time, --cpus-per-task, --gpus-per-node …
#SBATCH --job-name={title}
#SBATCH --output={title}-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node={-(-workers // hosts)}
#SBATCH --requeue
#SBATCH --signal=B:TERM@{GRACE}

set -u -o pipefail
name={run}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | {_awk(workers, hosts)} | paste -sd, -) || exit
which=(--name "$name")
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
    which=(--resume "$name")
fi

# Not under srun, with which Open MPI does not survive deaths: meshmend starts mpirun itself.
told=
meshmend run --hosts "$hosts" "${{which[@]}}" {shlex.join(words)} &
run=$!
trap 'told=1; kill -TERM "$run"' TERM
wait "$run"
status=$?
while [ -n "$told" ]; do # the signal ended the waiting, not the run: it writes a checkpoint first
    told=
    wait "$run"
    status=$?
done
if [ "$status" -eq {AGAIN} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def k8s(script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    """An MPIJob for the MPI operator of Kubeflow (github.com/kubeflow/mpi-operator): a pod is a host."""
    name, words = _words(script, workers, hosts, options)
    title = _title(script, name)
    name = name or title
    started = f".{name}.started"
    command = f"""\
set -o pipefail
hosts=$({_awk(workers, hosts)} /etc/mpi/hostfile | paste -sd, -) || exit
which=(--name {name})
if [ -e {started} ]; then
    which=(--resume {name})
fi
touch {started}
exec meshmend run --hosts "$hosts" "${{which[@]}}" {shlex.join(words).replace("$", "$$")}
"""  # Kubernetes itself takes $$ for $ and leaves every other $ here as it is
    volumes = """\
volumeMounts:
    - {name: memory, mountPath: /dev/shm}
    - {name: work, mountPath: /job}
"""
    shared = """\
volumes:
  - name: memory # a container's own /dev/shm has 64 MiB; this counts as memory of the pod
    emptyDir: {medium: Memory}
  - name: work # the script and the runs, the same for all pods: a volume that many can write
    persistentVolumeClaim: {claimName: YOUR-SHARED-VOLUME}
"""
    return f"""\
# Written by `meshmend run --print k8s`; needs the MPI operator, v2beta1. Put your own for the words in capitals.
# The image holds meshmend, an ssh client that accepts new hosts, and an sshd with its host keys.
# The run's name is its identity: while /job/{started} is there, this job resumes that run.
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {title}
spec:
  slotsPerWorker: {-(-workers // hosts)}
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 10 # each start after an interruption counts, and so does each failure
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure # status {AGAIN} says that there is a checkpoint to go on from
      template:
        spec:
          terminationGracePeriodSeconds: {GRACE}
          containers:
            - name: launcher
              image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
              workingDir: /job
              env:
                - {{name: PRTE_MCA_prte_keep_fqdn_hostnames, value: "1"}} # a pod's short name is not found
                - {{name: PRTE_MCA_plm_ssh_args, value: "-o ConnectionAttempts=10"}}
              command: [/bin/bash, -c]
              args:
                - |
{_indent(command, 18)}{_indent(volumes, 14)}{_indent(shared, 10)}\
    Worker:
      replicas: {hosts}
      restartPolicy: OnFailure # a pod that comes back can be used again
      template:
        spec:
          terminationGracePeriodSeconds: {GRACE}
          containers:
            - name: worker
              image: YOUR-IMAGE-WITH-MESHMEND-AND-SSHD
              command: [/usr/sbin/sshd, -De]
              readinessProbe:
                tcpSocket: {{port: 22}}
              # resources: {{limits: {{nvidia.com/gpu: {-(-workers // hosts)}}}}}
{_indent(volumes, 14)}{_indent(shared, 10)}"""


KINDS: dict[str, Callable[[Sequence[str], int, int, Sequence[str]], str]] = {"slurm": slurm, "k8s": k8s}


def _words(
    script: Sequence[str], workers: int, hosts: int, options: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """The run's name, if one was given, and the other words after `meshmend run`."""
    if not script:
        raise JobError("no script was given: meshmend run --print slurm … train.py")
    if hosts < 1 or workers < hosts:
        raise JobError(f"{workers} workers on {hosts} hosts: at least 1 host and 1 worker on each are needed")
    name, left, words = None, [], iter(options)
    for word in words:
        option, _, value = word.partition("=")
        if option in _OURS:
            raise JobError(
                f"{option} cannot be printed for a cluster: the text itself says which hosts and what to resume"
            )
        if option == "--name":
            name = value or next(words, None)
        else:
            left.append(word)
    if name is not None and not re.fullmatch(r"[\w.-]+", name):
        raise JobError(f"a run cannot be called {name!r}: expected letters, digits, dots, dashes and underscores")
    return name, (*left, *script)


def _title(script: Sequence[str], name: str | None) -> str:
    """A name for the job that both kinds of cluster accept: small letters, digits and dashes, a letter first."""
    stem = script[1] if script[0] == "-m" and len(script) > 1 else Path(script[0]).stem
    plain = re.sub(r"[^a-z0-9]+", "-", (name or stem).lower()).strip("-")[:40].rstrip("-")
    return f"meshmend-{plain}".rstrip("-")


def _awk(workers: int, hosts: int) -> str:
    """Makes HOST:WORKERS of lines that begin with a host; if they cannot all have the same, the first have more."""
    each, more = divmod(workers, hosts)
    count = f'(NR <= {more} ? ":{each + 1}" : ":{each}")' if more else f'":{each}"'
    return f"awk '{{ print $1 {count} }}'"


def _indent(text: str, by: int) -> str:
    return textwrap.indent(text, " " * by, lambda _: True)
